"""Ownership of sessions: message authentication codes (MACs) that prove who wrote a turn.

    the user's key, in the state directory        32 random bytes, created at first use
    a session's mark                              a random name, and a key derived from that name
                                                  and the user's key
    turn_N/events.jsonl                           contains the mark's name in the first line; each
                                                  line ends with a MAC of all bytes before it
    turn_N/mark.json                              a MAC for each mark under which a user trusted the
                                                  turn although it was not theirs: another user's,
                                                  an old one, MassGen's
    snapshots/held/N.json                         has a separate MAC, because it determines which
                                                  user files a rewind restores

A journal determines what a resume runs (the team, the recipe, repeated calls), so the MACs cover
all of it. A prefix that remains after a kill or a fork is still valid. The MACs do not cover the
session's name and location, so that its owner can move it, and not the files in workspaces.

Another process that works for this user (a detached process, a worker of a cluster) receives the
mark of its session, never the user's key.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from base64 import urlsafe_b64encode
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import Any

from platformdirs import user_state_path

from nb_agents.context import within
from nb_agents.disk.directory import read_file
from nb_agents.disk.private import make_folder, open_private
from nb_agents.errors import as_storage_error
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.session.views import write_atomic
from nb_agents.unicode import json_text

logger = logging.getLogger("nb_agents")

MAX_MARK_BYTES = 1_000
"""Maximum size of ``mark.json`` in bytes.

Others may have written it, and each mark in it costs a hash of the whole journal.
"""

MAX_CONTENT_BYTES = 1 << 29
"""Maximum size of an authenticated file in bytes. The same as in `nb_agents.session.journal`."""

_KEY_BYTES = 32
_MAC_BYTES = 12
_NAME_BYTES = 12
_FIRST = b',"mark":"'
_MAC = b',"mac":"'
_END = b'"}'
_MAC_END = len(_MAC) + _MAC_BYTES * 4 // 3 + len(_END)


@dataclass(frozen=True)
class OwnerMark:
    """A session's mark.

    Attributes:
        name: Random letters, which the session's journals contain.
        key: The secret key for the MACs of its journals.
    """

    name: str
    key: bytes = field(repr=False)

    def mac(self, *parts: bytes) -> str:
        """Return the MAC of the concatenated parts."""
        mac = self.hash()
        for part in parts:
            mac.update(part)
        return _text(mac)

    def hash(self) -> blake2b:
        """Return a new keyed hash, to be updated with the bytes to authenticate."""
        return blake2b(key=self.key, digest_size=_MAC_BYTES)


def _text(mac: blake2b) -> str:
    return urlsafe_b64encode(mac.digest()).decode()


def add_mac(mark: OwnerMark, purpose: str, document: Mapping[str, object]) -> str:
    """Return a document as JSON with a MAC, for `check_mac`.

    Args:
        mark: The session's mark.
        purpose: The kind of document. It is included in the MAC, so that the document is not
            accepted as another kind.
        document: The content.
    """
    return json.dumps({**document, "mark": mark.name, "mac": _seal(mark, purpose, document)})


def check_mac(data: bytes, purpose: str) -> dict[str, Any]:
    """Return the content of a document that `add_mac` returned.

    Raises:
        ValueError: The data is not such a document, it has another purpose or owner, or it was
            changed.
    """
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    name, mac = str(document.pop("mark", "")), str(document.pop("mac", ""))
    if not compare_digest(_bytes(mac), _seal(user_mark(name), purpose, document).encode()):
        raise ValueError("it was not written by this user's nb_agents")
    return document


def _seal(mark: OwnerMark, purpose: str, document: Mapping[str, object]) -> str:
    text = json.dumps(document, sort_keys=True)
    return mark.mac(f"{purpose}\0{text}".encode())


class LineMarker:
    """Adds MACs to the lines of one journal."""

    def __init__(self, mark: OwnerMark) -> None:
        self._mac = mark.hash()
        self._first = _FIRST + mark.name.encode() + b'"'

    def marked(self, line: bytes) -> bytes:
        """Return the journal's next line, a JSON object, with its MAC."""
        body = line.removesuffix(b"\n").removesuffix(b"}") + self._first
        self._first = b""
        self._mac.update(body)
        end = _MAC + _text(self._mac.copy()).encode() + _END + b"\n"
        self._mac.update(end)
        return body + end


@dataclass(frozen=True)
class Evidence:
    """The marks in a turn's files, and the content that they authenticate.

    Attributes:
        paths: The turn's paths.
        journal: The journal up to the last whole line.
        others: The files from which a turn without a journal is loaded, concatenated.
        confirmed: The MACs in ``mark.json``, by the name of the mark.
    """

    paths: TurnPaths
    journal: bytes = b""
    others: bytes = b""
    confirmed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the marks that the turn claims to have."""
        return tuple(filter(None, (self._name, *self.confirmed)))

    @cached_property
    def _name(self) -> str:
        """The name of the owner mark in the journal's first line, or ""."""
        first, _, _ = self.journal.partition(b"\n")
        _, name, rest = first.rpartition(_FIRST)
        return rest.partition(b'"')[0].decode("ascii", "replace") if name else ""

    def bears(self, mark: OwnerMark) -> bool:
        """Return whether the mark's owner wrote or trusted this turn and it is unchanged."""
        if mark.name == self._name:
            body, end = self.journal[:-1][:-_MAC_END], self.journal[:-1][-_MAC_END:]
            written = end.removeprefix(_MAC).removesuffix(_END)
            if compare_digest(written, mark.mac(body).encode()):
                return True
        confirmed_mark = self.confirmed.get(mark.name)
        return confirmed_mark is not None and compare_digest(
            _bytes(confirmed_mark), self.mac(mark).encode()
        )

    def mac(self, mark: OwnerMark) -> str:
        """Return the MAC of all files from which the turn is loaded."""
        return mark.mac(len(self.journal).to_bytes(8), self.journal, self.others)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # another user's JSON may have lone surrogates


def find_owner_mark(
    turns: Sequence[Evidence], mark_named: Callable[[str], OwnerMark]
) -> OwnerMark | None:
    """Return a mark of the user that all turns of a session have.

    Args:
        turns: The evidence of the session's turns.
        mark_named: Returns the user's mark with a given name.

    Returns:
        The mark, or None if the user did not create or trust all of the turns.
    """
    names = dict.fromkeys(name for turn in reversed(turns) for name in turn.names)
    marks = (mark_named(name) for name in names)
    return next((mark for mark in marks if all(turn.bears(mark) for turn in turns)), None)


def evidence_of(session: Path) -> tuple[Evidence, ...]:
    """Return the evidence of a session's turns, except those without files."""
    return tuple(turn for turn in map(_read, turns_of(session)) if turn.journal or turn.others)


def _read(paths: TurnPaths) -> Evidence:
    data = _content(paths.journal).removeprefix(BOM_UTF8)  # some editors add it
    journal = data[: data.rfind(b"\n") + 1]  # a line without an end was torn by a kill
    is_loaded_from_it = b'"kind":"turn_started"' in journal
    others = () if is_loaded_from_it else (paths.metadata, paths.answer, paths.partial_answers)
    read = [_content(path) for path in others]
    framed = b"".join(len(each).to_bytes(8) + each for each in read) if any(read) else b""
    return Evidence(paths, journal, framed, _confirmed(paths))


def _content(path: Path) -> bytes:
    with suppress(OSError):
        return read_file(path, MAX_CONTENT_BYTES)
    return b""


def _confirmed(paths: TurnPaths) -> dict[str, str]:
    with suppress(OSError, ValueError):
        data = json.loads(read_file(paths.mark, MAX_MARK_BYTES))
        if isinstance(data, dict) and all(isinstance(each, str) for each in data.values()):
            return data
    return {}


def confirm_turns(turns: Sequence[Evidence]) -> OwnerMark:
    """Record that this user trusts a session's turns as they are. Returns the session's mark.

    Raises:
        StorageError: ``mark.json`` can't be written.
    """
    names = dict.fromkeys(name for turn in turns for name in turn.names)
    own = (mark for mark in map(user_mark, names) if any(turn.bears(mark) for turn in turns))
    mark = next(own, None) or new_mark()
    for turn in turns:
        if turn.bears(mark):
            continue
        # The newest comes first. A file with too many marks of other users is replaced.
        text = json_text({mark.name: turn.mac(mark), **turn.confirmed})
        if len(text) > MAX_MARK_BYTES:
            text = json_text({mark.name: turn.mac(mark)})
        with as_storage_error(turn.paths.path):
            write_atomic(turn.paths.mark, text)
    return mark


_received_mark: ContextVar[OwnerMark | None] = ContextVar("mark", default=None)


def using_mark(mark: OwnerMark) -> AbstractContextManager[None]:
    """Use a mark received from another process within the block, without the user's key."""
    return within(_received_mark, mark)


def new_mark() -> OwnerMark:
    """Return the mark of a new session."""
    return _received_mark.get() or user_mark(secrets.token_urlsafe(_NAME_BYTES))


def nobodys_mark() -> OwnerMark:
    """Return a mark whose sessions count as another user's, as soon as this process forgets it."""
    return OwnerMark(secrets.token_urlsafe(_NAME_BYTES), secrets.token_bytes(_KEY_BYTES))


def user_mark(name: str) -> OwnerMark:
    """Return the mark of this user that has a name."""
    mark = _received_mark.get()
    if mark is not None and mark.name == name:
        return mark
    return OwnerMark(name, blake2b(_bytes(name), key=_user_key()).digest())


_temporary_key = secrets.token_bytes(_KEY_BYTES)


def _user_key() -> bytes:
    """Return the user's key, or a temporary key if the state directory can't be used."""
    path = user_state_path("nb_agents") / "owner.key"
    try:
        if (key := _stored_key(path)) is None:
            _store_key(path)
            key = _stored_key(path)
    except OSError as exc:
        _warn(path, exc.strerror or str(exc))
        key = None
    return key or _temporary_key


@cache
def _warn(path: Path, why: str) -> None:
    """Warn, once per path, that later processes won't recognize this process's sessions."""
    logger.warning(
        "%s: %s. Other processes can't recognize the sessions of this one as yours.", path, why
    )


def _stored_key(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        return read_file(path, _KEY_BYTES)
    return None


def _store_key(path: Path) -> None:
    """Store a new key atomically, unless another process has stored one."""
    make_folder(path.parent)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open_private(aside, "xb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        try:
            os.link(aside, path)
        except FileExistsError:
            pass
        except OSError:  # no hard links, as on SMB
            os.rename(aside, path)
    finally:
        aside.unlink(missing_ok=True)
