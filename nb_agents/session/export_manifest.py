"""The manifest of an exported session, from which changes of the export are found.

    <session>/export_manifest.jsonl    the last entry of the zip file

    {"format":1,"session":"s","chain":"…"}
    {"kind":"file","mode":384,"path":"turn_1/events.jsonl","size":812,"sha256":"…",
     "lines":["…","…"],"chain":"…"}
    {"entries":14,"mark":"…","mac":"…","chain":"…"}

Each line's ``chain`` is the SHA-256 of the previous chain and the line without it, so the last one,
the fingerprint, covers everything. Journals have a digest for each line, so that a report names the
event. Anybody can write a manifest: only the MAC, which needs the key of the user who exported the
session, or a fingerprint received in another way, shows that the whole manifest was not rewritten.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from hmac import compare_digest
from typing import Any, Literal, NamedTuple

from nb_agents.session.ownership import OwnerMark, user_mark

MANIFEST = "export_manifest.jsonl"
JOURNAL = "events.jsonl"
FORMAT = 1
_LINE_BYTES = 8
_PURPOSE = b"export manifest\0"

Kind = Literal["edited", "cut", "added", "moved"]
"""What happened to an entry or to events since the export."""


class Change(NamedTuple):
    """A change of an export.

    Attributes:
        path: The path of the changed entry in the session, or `MANIFEST`.
        kind: What happened to it.
        detail: Which part of it, such as "event 12", or "".
    """

    path: str
    kind: Kind
    detail: str = ""


@dataclass(frozen=True)
class ExportEntry:
    """An entry of an export.

    Attributes:
        path: Its path in the session.
        kind: "file", "folder" or "link".
        mode: Its permissions and file type, as in `stat`.
        time: Its local modification time, as in the zip file.
        size: Its size in bytes.
        sha256: The digest of its content. A link's content is its target.
        lines: The digests of a journal's lines, or None for other files.
    """

    path: str
    kind: str
    mode: int
    time: str
    size: int
    sha256: str
    lines: tuple[str, ...] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The entry as it is in the manifest."""
        facts = {name: value for name, value in vars(self).items() if value is not None}
        return facts if self.lines is None else {**facts, "lines": list(self.lines)}


@dataclass(frozen=True)
class ExportManifest:
    """The content of a manifest.

    Attributes:
        entries: The entries, in the order of the zip file.
        fingerprint: The last chain.
        changes: Changes of the manifest itself.
        mark: The name of the mark with which it was authenticated, or "".
        mac: Its MAC, or "".
        body_fingerprint: The chain that the MAC covers.
    """

    entries: tuple[ExportEntry, ...] = ()
    fingerprint: str = ""
    changes: tuple[Change, ...] = ()
    mark: str = ""
    mac: str = ""
    body_fingerprint: str = ""

    @property
    def is_own(self) -> bool:
        """Whether this user exported it, and the manifest was not rewritten."""
        if not self.mark or not self.mac:
            return False
        return compare_digest(
            _mac(user_mark(self.mark), self.body_fingerprint).encode(), self.mac.encode()
        )


@dataclass
class EntryDigest:
    """Computes the digests of an entry while its content is written or read.

    Args:
        has_lines: Whether to compute a digest for each line.
    """

    has_lines: bool = False
    size: int = 0
    _sha: Any = field(default_factory=sha256)
    _lines: list[str] = field(default_factory=list)
    _line: Any = None

    def write(self, data: bytes) -> None:
        """Add content."""
        self.size += len(data)
        self._sha.update(data)
        if self.has_lines:
            *lines, rest = data.split(b"\n")
            for line in lines:
                self._add(line + b"\n")
            self._add(rest)

    def _add(self, part: bytes) -> None:
        if not part:
            return
        self._line = self._line or blake2b(digest_size=_LINE_BYTES)
        self._line.update(part)
        if part.endswith(b"\n"):
            self._end_line()

    def _end_line(self) -> None:
        if self._line is not None:
            self._lines.append(self._line.hexdigest())
            self._line = None

    def entry(self, path: str, kind: str, mode: int, time: str) -> ExportEntry:
        """Return the entry with this content."""
        self._end_line()
        lines = tuple(self._lines) if self.has_lines else None
        return ExportEntry(path, kind, mode, time, self.size, self._sha.hexdigest(), lines)


def write_manifest(session: str, entries: Sequence[ExportEntry], mark: OwnerMark | None) -> bytes:
    """Return the content of a manifest.

    Args:
        session: The session's id.
        entries: Its entries, in the order of the zip file.
        mark: The session's mark if the user wrote or trusted all its turns, else None.
    """
    lines, chain = list[str](), ""
    for document in ({"format": FORMAT, "session": session}, *(each.facts for each in entries)):
        chain = _link(chain, document)
        lines.append(_text({**document, "chain": chain}))
    end: dict[str, Any] = {"entries": len(entries)}
    if mark is not None:
        end |= {"mark": mark.name, "mac": _mac(mark, chain)}
    lines.append(_text({**end, "chain": _link(chain, end)}))
    return "".join(f"{line}\n" for line in lines).encode()


def read_manifest(data: bytes) -> ExportManifest:
    """Return the content of a manifest and the changes of the manifest itself.

    Raises:
        ValueError: It is not a manifest of a known format.
    """
    *raw, rest = data.split(b"\n")
    lines = [_document(line) for line in raw]
    if not lines or lines[0].get("format") != FORMAT:
        raise ValueError("it is not a manifest of a known format")
    changes = [Change(MANIFEST, "added", "after its last line")] if rest else []
    entries = list[ExportEntry]()
    before = body = ""
    for number, (line, text) in enumerate(zip(lines, raw, strict=True), 1):
        is_as_written = _text(line).encode() == text
        written = line.pop("chain", "")
        body, chain = before, _link(before, line)
        if written != chain or not is_as_written:
            changes.append(Change(MANIFEST, "edited", f"line {number}"))
        before = str(written)
        if "path" in line:
            entries.append(_entry(line))
    end = lines[-1]
    if end.get("entries") != len(entries):
        changes.append(Change(MANIFEST, "cut", "its end" if "entries" not in end else "entries"))
    mark, mac = str(end.get("mark", "")), str(end.get("mac", ""))
    return ExportManifest(tuple(entries), before, tuple(changes), mark, mac, body)


def compare_entries(
    manifest: Sequence[ExportEntry], found: Sequence[ExportEntry]
) -> Iterator[Change]:
    """Yield the differences between a manifest and what an archive has.

    Args:
        manifest: The entries of the manifest.
        found: The entries of the archive, in its order. A path can occur twice.
    """
    written = {entry.path: entry for entry in manifest}
    counts = Counter(entry.path for entry in found)
    for entry in found:
        old = written.get(entry.path)
        if old is None:
            yield Change(entry.path, "added")
        elif old != entry:
            yield from _differences(old, entry)
    yield from (Change(path, "cut") for path in written if path not in counts)
    yield from (Change(path, "added", "twice") for path, times in counts.items() if times > 1)
    common = [entry.path for entry in manifest if entry.path in counts]
    order = list(dict.fromkeys(entry.path for entry in found if entry.path in written))
    yield from (Change(b, "moved") for a, b in zip(common, order, strict=False) if a != b)


def _differences(old: ExportEntry, new: ExportEntry) -> Iterator[Change]:
    if (old.sha256, old.size) != (new.sha256, new.size):
        if old.lines is None or new.lines is None:
            yield Change(old.path, "edited")
        else:
            yield _line_change(old.path, old.lines, new.lines)
    for name in ("kind", "mode", "time"):
        if getattr(old, name) != getattr(new, name):
            yield Change(old.path, "edited", name)


def _line_change(path: str, old: Sequence[str], new: Sequence[str]) -> Change:
    """Return how a journal's lines differ, from the first difference to the last."""
    shortest = min(len(old), len(new))
    first = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    rest = shortest - first
    last = next((i for i in range(rest) if old[-1 - i] != new[-1 - i]), rest)
    gone, come = old[first : len(old) - last], new[first : len(new) - last]
    if Counter(gone) == Counter(come):
        return Change(path, "moved", _events(first, len(gone)))
    if not come:
        return Change(path, "cut", _events(first, len(gone)))
    if not gone:
        return Change(path, "added", _events(first, len(come)))
    return Change(path, "edited", _events(first, len(gone)))


def _events(first: int, count: int) -> str:
    return f"event {first + 1}" if count < 2 else f"events {first + 1} to {first + count}"


def _entry(line: Mapping[str, Any]) -> ExportEntry:
    lines = line.get("lines")
    return ExportEntry(
        str(line["path"]),
        str(line.get("kind")),
        int(line.get("mode", 0)),
        str(line.get("time")),
        int(line.get("size", -1)),
        str(line.get("sha256")),
        tuple(map(str, lines)) if isinstance(lines, list) else None,
    )


def _document(line: bytes) -> dict[str, Any]:
    document = json.loads(line)
    if not isinstance(document, dict):
        raise ValueError("a line is not a JSON object")
    return document


def _link(chain: str, document: Mapping[str, Any]) -> str:
    return sha256(f"{chain}\n{_text(document)}".encode("utf-8", "surrogatepass")).hexdigest()


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _mac(mark: OwnerMark, chain: str) -> str:
    return mark.mac(_PURPOSE, chain.encode("utf-8", "surrogatepass"))
