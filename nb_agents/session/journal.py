r"""The journal: an append-only file of JSON lines, the authoritative record of a turn.

Each event is written with one `os.write`, so a killed process leaves at most one torn line, at the
end, which is removed before the next append. If a write fails, such as on a full disk, the lines
stay in memory and are written with the next event, so nothing is lost as long as the process lives.
Any process can follow a journal that another process writes.

Measurements with 150 kill -9 each, and issues in other projects, led to these rules: remove the
torn tail, skip invalid lines in the middle, split at line feeds only, and write ASCII only (some
readers treat U+2028 as the end of a line).
"""

from __future__ import annotations

import json
import os
import re
from asyncio import to_thread  # anyio's threads would outlive a kernel that shuts down
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
from pydantic import ValidationError

from nb_agents.disk.directory import read_file
from nb_agents.disk.entry import RefusedError, open_file, require_file, stat_at
from nb_agents.disk.private import FILE_MODE
from nb_agents.errors import UserError
from nb_agents.events import EVENT, SCHEMA_VERSION, Event
from nb_agents.session.event_lines import read_event
from nb_agents.session.layout import TurnPaths
from nb_agents.session.ownership import LineMarker, OwnerMark
from nb_agents.unicode import json_text, well_formed

MAX_BYTES = 1 << 29
"""Maximum size of a journal in bytes.

A larger one is not read at all, because a truncated journal would look like a turn that died there.
"""

_CHUNK = 1 << 16

POLL_S = 0.1
"""Interval in seconds for polling a journal that another process writes.

The same as between streaming events.
"""

_NOT_JSON = re.compile(rb"NaN|Infinity|[0-9][eE]\+?[0-9]{3}")
"""Numbers that are not valid JSON, which earlier versions wrote in arguments and results."""

_READ_BYTES = 1 << 20
_HEAD_BYTES = 256  # includes the time of the first event, so no two journals start alike


class Journal:
    """Appends events to a file.

    Args:
        path: The file, which is created if missing. A torn last line is removed.
        mark: The session's mark, which authenticates the lines of a new file. None means no MACs.

    Attributes:
        error: The error of the last write, or None if all events are on disk.
        unwritten: The bytes that are not on disk yet.
    """

    def __init__(self, path: Path, mark: OwnerMark | None = None) -> None:
        self.path = path
        self._marker = LineMarker(mark) if mark else None
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, FILE_MODE)
        self.unwritten = b""
        self._is_batching = False
        self.error: OSError | None = None
        self._is_synced = True
        _cut_torn_tail(self._fd)

    def append(self, event: Event) -> None:
        """Write an event. On failure, set `error` and keep the event for the next write."""
        line = _line(event)
        self.unwritten += self._marker.marked(line) if self._marker else line
        if not self._is_batching:
            self.flush()

    @contextmanager
    def in_one_write(self) -> Iterator[None]:
        """Write all events of the block together, so that a kill leaves all of them or none."""
        self._is_batching = True
        try:
            yield
        finally:
            self._is_batching = False
            self.flush()

    def flush(self) -> None:
        """Write pending events, and set or clear `error`."""
        try:
            while self.unwritten:
                # After a partial write, such as on a full disk, the rest stays pending.
                written = os.write(self._fd, self.unwritten)
                self.unwritten = self.unwritten[written:]
                self._is_synced = False
            self.error = None
        except OSError as exc:
            self.error = exc

    def sync(self) -> None:
        """Call fsync, so that the events survive a power failure."""
        if self._is_synced or self._fd < 0:
            return
        self._is_synced = True
        try:
            os.fsync(self._fd)
        except OSError as exc:
            self._is_synced = False
            self.error = exc

    def close(self) -> None:
        """Write pending events and close the file, without `sync`. Can be called twice."""
        if self._fd < 0:
            return
        self.flush()
        os.close(self._fd)
        self._fd = -1


@dataclass(frozen=True)
class JournalContents:
    """The contents of a journal.

    Attributes:
        events: The events, in order.
        warnings: A sentence for each problem.
    """

    events: tuple[Event, ...]
    warnings: tuple[str, ...] = ()


def read_journal(path: Path) -> JournalContents:
    """Read a journal, even one that a killed process left.

    An invalid line is skipped with a warning, and a torn last line without one. A number out of
    range is replaced with the nearest valid one, and a time with that of the previous line. A file
    that is missing, not a regular file or larger than `MAX_BYTES` has no events.
    """
    try:
        data = read_file(path, MAX_BYTES)
    except FileNotFoundError:
        return JournalContents((), (f"{path.name} is missing",))
    except RefusedError as exc:
        return JournalContents((), (f"{path.name} {exc.strerror}",))
    except OSError as exc:
        return JournalContents((), (f"{path.name} can't be read: {exc.strerror}",))
    parser = _EventParser()
    events = parser.parse(_lines(data))
    warnings = (
        *_lines_warning(path.name, parser.skipped, "can't be read and {was} skipped"),
        *_lines_warning(
            path.name, parser.corrected, "{has} a number out of range, which was corrected"
        ),
        *_version_warning(path.name, events),
    )
    return JournalContents(tuple(events), warnings)


def first_event(path: Path) -> dict[str, Any]:
    """Return the first line of a journal as a dict, or {} if it can't be read."""
    try:
        with open_file(path) as file:
            event = json.loads(file.readline(MAX_BYTES))
    except (OSError, ValueError):
        return {}
    return event if isinstance(event, dict) else {}


class _EventParser:
    """Parses the lines of a journal, which may arrive in several parts.

    Attributes:
        skipped: The numbers of invalid lines, starting at 1.
        corrected: The numbers of lines with a number out of range.
    """

    def __init__(self) -> None:
        self.skipped: list[int] = []
        self.corrected: list[int] = []
        self._count = 0
        self._last_at: float | None = None

    def parse(self, lines: Sequence[bytes]) -> list[Event]:
        """Return the events of the next lines.

        A time out of range is replaced with that of the previous line. In the first line, it is
        replaced with the first valid time in ``lines``, or with 0.
        """
        events = []
        for line in lines:
            self._count += 1
            if not line.strip():
                continue
            out_of_range: list[str] = []
            try:
                event = read_event(line, out_of_range)
            except ValidationError:
                self.skipped.append(self._count)
                continue
            if out_of_range:
                self.corrected.append(self._count)
            if "at" in out_of_range:
                if self._last_at is None:
                    self._last_at = _first_time(lines)
                event = replace(event, at=self._last_at)
            self._last_at = event.at
            events.append(well_formed(event) if _NOT_JSON.search(line) else event)
        return events


def _lines_warning(name: str, numbers: Sequence[int], problem: str) -> tuple[str, ...]:
    """Return one warning for all lines with the same problem."""
    if not numbers:
        return ()
    if len(numbers) == 1:
        return (f"{name}: line {numbers[0]} {problem.format(was='was', has='has')}",)
    many = problem.format(was="were", has="have")
    return (f"{name}: {len(numbers)} lines {many} (the first is line {numbers[0]})",)


def _version_warning(name: str, events: Sequence[Event]) -> tuple[str, ...]:
    version = getattr(events[0], "schema_version", SCHEMA_VERSION) if events else SCHEMA_VERSION
    if version <= SCHEMA_VERSION:
        return ()
    return (
        f"{name} was written by a newer nb_agents (schema {version}; this version supports "
        f"{SCHEMA_VERSION}); upgrade to see all of it",
    )


def _first_time(lines: Iterable[bytes]) -> float:
    """Return the first valid time in the lines of a journal, or 0 if there is none."""
    for line in lines:
        with suppress(ValidationError):
            if at := EVENT.validate_json(line).at:
                return at
    return 0.0


def _lines(data: bytes) -> list[bytes]:
    """Return the complete lines of some bytes, without a byte order mark."""
    return data.removeprefix(BOM_UTF8).split(b"\n")[:-1]


def _line(event: Event) -> bytes:
    text = json_text(EVENT.dump_python(event), separators=(",", ":"), default=str)
    return text.encode("ascii") + b"\n"


def _cut_torn_tail(fd: int) -> None:
    end = os.fstat(fd).st_size
    position = end
    while position > 0:
        start = max(0, position - _CHUNK)
        newline = os.pread(fd, position - start, start).rfind(b"\n")
        if newline >= 0:
            position = start + newline + 1
            break
        position = start
    if position < end:
        os.ftruncate(fd, position)


async def follow(path: str | os.PathLike[str]) -> AsyncIterator[Event]:
    """Yield all events of a turn: past events, then new events until its process ends.

    Args:
        path: The turn's directory, such as ``run.path``.

    Raises:
        UserError: The path is not a turn, or its session was deleted or renamed in the meantime.

    Example:
        async for event in nb_agents.follow(".nb_agents/sessions/talk/turn_1"):
            print(event.kind)
    """
    paths = TurnPaths(Path(path))
    if not paths.journal.is_file():
        raise UserError(
            f"{paths.path} is not a turn: it has no {paths.journal.name}. Use a turn_N directory."
        )
    reader = JournalReader(paths.journal)
    is_live = True
    while True:
        try:
            while events := await to_thread(reader.read):
                for event in events:
                    yield event
        except FileNotFoundError:
            text = f"{paths.path} no longer exists: its session was deleted or renamed."
            raise UserError(text) from None
        if not is_live:
            return
        await anyio.sleep(POLL_S)
        # After the writer has released the turn, its last events still have to be read.
        is_live = await to_thread(paths.is_live)


class LineReader:
    """Reads new lines from a file that another process appends to.

    Args:
        path: The file.
        from_end: Whether to skip the current content.
        at: The offset in bytes to start from, such as that of another reader.

    Attributes:
        at: The offset of the next line, in bytes.
    """

    def __init__(self, path: Path, *, from_end: bool = False, at: int = 0) -> None:
        self._path = path
        self.at = path.stat().st_size if from_end else at
        self._head = b""

    def is_same(self) -> bool:
        """Return whether the file is still the same, and was not deleted and created again."""
        try:
            with open_file(self._path) as file:
                return file.read(len(self._head)) == self._head
        except OSError:
            return True

    def has_news(self) -> bool:
        """Return whether the file has grown since the last read."""
        try:
            status = stat_at(self._path)
            require_file(status)
            return status.st_size > self.at
        except OSError:
            return False

    def read_lines(self) -> list[bytes]:
        """Return the complete lines since the last read, up to about a megabyte.

        A link, pipe or device in the file's place has no lines.

        Raises:
            OSError: The file is missing or can't be read.
        """
        try:
            with open_file(self._path) as file:
                file.seek(self.at)
                data = file.read(_READ_BYTES)
                while data and b"\n" not in data and (more := file.read(_READ_BYTES)):
                    data += more
        except RefusedError:
            return []
        data = data[: data.rfind(b"\n") + 1]
        if self.at == 0:
            self._head = data[:_HEAD_BYTES]
        self.at += len(data)
        return _lines(data)


class JournalReader(LineReader):
    """Reads new events from a journal. Takes the parameters of `LineReader`."""

    def __init__(self, path: Path, *, from_end: bool = False, at: int = 0) -> None:
        super().__init__(path, from_end=from_end, at=at)
        self._parser = _EventParser()

    def read(self) -> list[Event]:
        """Return the events since the last read, skipping lines that can't be read."""
        return self._parser.parse(self.read_lines())

    def read_about(self, words: bytes) -> list[Event]:
        """Return the events since the last read, but only those whose line contains some bytes."""
        return self._parser.parse([line for line in self.read_lines() if words in line])
