"""Who owns a session: the marks that its owner's processes write into it, and their check.

    the user's key, in the state directory        32 random bytes, made at first use
    a session's mark                              a name, and a key derived from both
    turn_N/events.jsonl                           names its mark in the first line; each line ends
                                                  with a MAC of all bytes before it
    turn_N/mark.json                              a MAC for each mark under which somebody trusted
                                                  the turn as it is: a stranger's, an old one,
                                                  MassGen's

A journal decides what a resume runs (the team, the recipe, calls to make again), so all of it is
covered, and whatever is left of it by a kill or a fork is valid by itself. Neither the session's
name nor its place is covered: its owner may move it. What lies in workspaces is not covered.

A process elsewhere that works for this user (a detached one, a worker of a cluster) is handed the
one session's mark, never the user's key.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path

from platformdirs import user_state_path

from nb_agents.context import within
from nb_agents.disk.directory import read_file
from nb_agents.errors import as_storage_error
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.session.views import write_atomic

logger = logging.getLogger("nb_agents")

MAX_MARK_BYTES = 1_000
"""Of a file that others may have written: of each of its marks, a whole journal is hashed."""

MAX_CONTENT_BYTES = 1 << 29
"""As of `nb_agents.session.journal`: what is larger is not loaded either."""

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
        name: Random letters, which stand in the session's journals.
        key: Authenticates its journals.
    """

    name: str
    key: bytes = field(repr=False)

    def mac(self, *parts: bytes) -> str:
        """Return the MAC of some bytes."""
        mac = self.hash()
        for part in parts:
            mac.update(part)
        return _text(mac)

    def hash(self) -> blake2b:
        """Return the MAC of no bytes, to be updated."""
        return blake2b(key=self.key, digest_size=_MAC_BYTES)


def _text(mac: blake2b) -> str:
    return urlsafe_b64encode(mac.digest()).decode()


class LineMarker:
    """Adds the MACs to the lines of one journal.

    Args:
        mark: The session's mark.
    """

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
        paths: The turn.
        journal: Its journal up to the last whole line.
        others: The files that a turn without a journal is loaded from.
        confirmed: The MAC of all this under each mark by whose owner it was trusted.
    """

    paths: TurnPaths
    journal: bytes = b""
    others: bytes = b""
    confirmed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the marks that it claims to bear."""
        return tuple(filter(None, (self._name, *self.confirmed)))

    @cached_property
    def _name(self) -> str:
        """The name of the mark in its journal, or ""."""
        first, _, _ = self.journal.partition(b"\n")
        _, found, rest = first.rpartition(_FIRST)
        return rest.partition(b'"')[0].decode("ascii", "replace") if found else ""

    def bears(self, mark: OwnerMark) -> bool:
        """Return whether the mark's owner wrote it as it is, or trusted it as it is."""
        if mark.name == self._name:
            body, end = self.journal[:-1][:-_MAC_END], self.journal[:-1][-_MAC_END:]
            written = end.removeprefix(_MAC).removesuffix(_END)
            if compare_digest(written, mark.mac(body).encode()):
                return True
        known = self.confirmed.get(mark.name)
        return known is not None and compare_digest(_bytes(known), self.mac(mark).encode())

    def mac(self, mark: OwnerMark) -> str:
        """Return the MAC of all that the turn is loaded from."""
        return mark.mac(len(self.journal).to_bytes(8), self.journal, self.others)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # a stranger's JSON may hold half a character


def judge(turns: Sequence[Evidence], mark_named: Callable[[str], OwnerMark]) -> OwnerMark | None:
    """Return the mark of a session whose turns its owner made or trusted; None for a stranger's.

    Args:
        turns: The evidence of its turns.
        mark_named: Returns the user's mark of a name.
    """
    names = dict.fromkeys(name for turn in reversed(turns) for name in turn.names)
    marks = (mark_named(name) for name in names)
    return next((mark for mark in marks if all(turn.bears(mark) for turn in turns)), None)


def evidence_of(session: Path) -> tuple[Evidence, ...]:
    """Return the evidence of a session's turns that have files."""
    return tuple(turn for turn in map(_read, turns_of(session)) if turn.journal or turn.others)


def _read(paths: TurnPaths) -> Evidence:
    data = _content(paths.journal)
    journal = data[: data.rfind(b"\n") + 1]  # what a kill has torn is no line
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
        found = json.loads(read_file(paths.mark, MAX_MARK_BYTES))
        if isinstance(found, dict) and all(isinstance(each, str) for each in found.values()):
            return found
    return {}


def confirm_turns(turns: Sequence[Evidence]) -> OwnerMark:
    """Note that this user trusts a session's turns as they are, and return the session's mark.

    Raises:
        StorageError: The turns can't be written.
    """
    names = dict.fromkeys(name for turn in turns for name in turn.names)
    own = (mark for mark in map(known_mark, names) if any(turn.bears(mark) for turn in turns))
    mark = next(own, None) or new_mark()
    for turn in turns:
        if turn.bears(mark):
            continue
        # The newest first; a file that others have filled is replaced.
        text = json.dumps({mark.name: turn.mac(mark), **turn.confirmed})
        if len(text) > MAX_MARK_BYTES:
            text = json.dumps({mark.name: turn.mac(mark)})
        with as_storage_error(turn.paths.path):
            write_atomic(turn.paths.mark, text)
    return mark


_handed: ContextVar[OwnerMark | None] = ContextVar("mark", default=None)


def handed(mark: OwnerMark) -> AbstractContextManager[None]:
    """Use a session's mark within the block, without its owner's key."""
    return within(_handed, mark)


def new_mark() -> OwnerMark:
    """Return the mark of a new session."""
    return _handed.get() or known_mark(secrets.token_urlsafe(_NAME_BYTES))


def known_mark(name: str) -> OwnerMark:
    """Return this user's mark of a name."""
    mark = _handed.get()
    if mark is not None and mark.name == name:
        return mark
    return OwnerMark(name, blake2b(_bytes(name), key=_user_key()).digest())


_key_of_process = secrets.token_bytes(_KEY_BYTES)


def _user_key() -> bytes:
    """Return the user's key; where the state directory can't be used, one of this process."""
    path = user_state_path("nb_agents") / "owner.key"
    try:
        if (key := _stored_key(path)) is None:
            _store_key(path)
            key = _stored_key(path)
    except OSError as exc:
        _warn(path, exc.strerror or str(exc))
        key = None
    return key or _key_of_process


@cache
def _warn(path: Path, why: str) -> None:
    """Warn once that sessions are known as this user's to this process alone."""
    logger.warning("%s: %s. Sessions are known as yours to this process alone.", path, why)


def _stored_key(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        return read_file(path, _KEY_BYTES)
    return None


def _store_key(path: Path) -> None:
    """Store a new key whole, unless another process is first."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        try:
            os.link(aside, path)
        except FileExistsError:
            pass
        except OSError:  # no links there, as on SMB
            os.rename(aside, path)
    finally:
        aside.unlink(missing_ok=True)
