r"""The journal: an append-only file of JSON lines, the authoritative record of a turn.

Each event is one `os.write`, so that a killed process leaves at most one torn line, at the end,
which is cut off before the next append. When a write fails (a full disk), its lines stay in memory
and are retried with the next one: nothing is lost while the process lives. Any process can follow a
journal that another one writes.

Source: measurements with 150 kill -9 each, and other projects' issues: cut off the torn tail, skip
bad lines in the middle, split on b"\n" only, keep ASCII (U+2028 ends a line for some readers).
"""

from __future__ import annotations

import json
import os
from asyncio import to_thread  # anyio's threads would outlive a kernel that shuts down
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
from pydantic import ValidationError

from nb_agents.disk.directory import read_file
from nb_agents.disk.entry import RefusedError
from nb_agents.errors import UserError
from nb_agents.events import EVENT, SCHEMA_VERSION, Event
from nb_agents.session.layout import TurnPaths
from nb_agents.session.ownership import LineMarker, OwnerMark

MAX_BYTES = 1 << 29
"""Size limit for reading a journal as a whole: half of one would look like a turn that died there.
"""

_CHUNK = 1 << 16

POLL_S = 0.1
"""Interval for polling a journal that another process writes: that of its streaming events."""

_READ_BYTES = 1 << 20
_HEAD_BYTES = 256  # the first line includes the time, so that no two files start alike


class Journal:
    """Appends events to a file.

    Args:
        path: The file; created if missing, and a torn tail is cut off.
        mark: The session's mark, for a file that is new.

    Attributes:
        path: As given.
        error: The error of the last write; None when all events are on disk.
        unwritten: What is not on disk yet.
    """

    def __init__(self, path: Path, mark: OwnerMark | None = None) -> None:
        self.path = path
        self._marker = LineMarker(mark) if mark else None
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.unwritten = b""
        self._is_held = False
        self.error: OSError | None = None
        self._is_synced = True
        _cut_torn_tail(self._fd)

    def append(self, event: Event) -> None:
        """Write an event; on failure keep it for the next attempt and set `error`."""
        line = _line(event)
        self.unwritten += self._marker.marked(line) if self._marker else line
        if not self._is_held:
            self.flush()

    @contextmanager
    def in_one_write(self) -> Iterator[None]:
        """Write the events of the block at its end: a killed process leaves all of them or none."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self.flush()

    def flush(self) -> None:
        """Write pending events, and set or clear `error`."""
        try:
            while self.unwritten:
                # A short write (the disk filled up in the middle) leaves the rest pending.
                written = os.write(self._fd, self.unwritten)
                self.unwritten = self.unwritten[written:]
                self._is_synced = False
            self.error = None
        except OSError as exc:
            self.error = exc

    def sync(self) -> None:
        """Flush the file to the disk itself, against power loss."""
        if self._is_synced or self._fd < 0:
            return
        self._is_synced = True
        try:
            os.fsync(self._fd)
        except OSError as exc:
            self._is_synced = False
            self.error = exc

    def close(self) -> None:
        """Flush and close, without a sync; safe to call twice."""
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
    """Read a journal, including one that a killed process left.

    Returns:
        Every event that can be read: none from a missing file, from anything but a regular file, or
        from one larger than `MAX_BYTES`. A bad line is skipped with a warning; a torn last line is
        dropped silently, as it never was an event. A number out of range (a time of 1e308) is
        replaced by the nearest valid one, a time by that of the line before.
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
    events = parser.parse(data.split(b"\n")[:-1])
    warnings = (
        *_lines_warning(path.name, parser.skipped, "can't be read and {was} skipped"),
        *_lines_warning(
            path.name, parser.mended, "{has} a number out of range, which was corrected"
        ),
        *_version_warning(path.name, events),
    )
    return JournalContents(tuple(events), warnings)


class _EventParser:
    """Parses the lines of a journal, all at once or as they come.

    Attributes:
        skipped: The numbers of the lines that can't be read, from 1.
        mended: Those of the lines with a number out of range.
    """

    def __init__(self) -> None:
        self.skipped: list[int] = []
        self.mended: list[int] = []
        self._count = 0
        self._last_at: float | None = None

    def parse(self, lines: Sequence[bytes]) -> list[Event]:
        """Return the events of the next lines.

        A time out of range is replaced by that of the line before; where there is none, by the
        first valid one of these lines, or 0.
        """
        events = []
        for line in lines:
            self._count += 1
            if not line.strip():
                continue
            out_of_range: list[str] = []
            try:
                event = EVENT.validate_json(line, context=out_of_range)
            except ValidationError:
                self.skipped.append(self._count)
                continue
            if out_of_range:
                self.mended.append(self._count)
            if "at" in out_of_range:
                if self._last_at is None:
                    self._last_at = _first_time(lines)
                event = replace(event, at=self._last_at)
            self._last_at = event.at
            events.append(event)
        return events


def _lines_warning(name: str, numbers: Sequence[int], what: str) -> tuple[str, ...]:
    """Return one warning for any number of lines with the same problem."""
    if not numbers:
        return ()
    if len(numbers) == 1:
        return (f"{name}: line {numbers[0]} {what.format(was='was', has='has')}",)
    many = what.format(was="were", has="have")
    return (f"{name}: {len(numbers)} lines {many} (the first is line {numbers[0]})",)


def _version_warning(name: str, events: Sequence[Event]) -> tuple[str, ...]:
    version = getattr(events[0], "schema_version", SCHEMA_VERSION) if events else SCHEMA_VERSION
    if version <= SCHEMA_VERSION:
        return ()
    return (
        f"{name} was written by a newer nb_agents (schema {version}, here {SCHEMA_VERSION}); "
        "upgrade to see all of it",
    )


def _first_time(lines: Iterable[bytes]) -> float:
    """Return the first valid time in lines of a journal; 0 when there is none."""
    for line in lines:
        with suppress(ValidationError):
            if at := EVENT.validate_json(line).at:
                return at
    return 0.0


def _line(event: Event) -> bytes:
    text = json.dumps(EVENT.dump_python(event), separators=(",", ":"), default=str)
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
    """Yield all events of a turn: the past ones, then new ones until its process ends.

    Args:
        path: The turn's directory, such as ``run.path``.

    Raises:
        UserError: There is no turn, or its session was deleted or renamed.

    Example:
        async for event in nb_agents.follow(".nb_agents/sessions/talk/turn_1"):
            print(event.kind)
    """
    paths = TurnPaths(Path(path))
    if not paths.journal.is_file():
        raise UserError(
            f"{paths.path} is not a turn: it has no {paths.journal.name}. Give its turn_N."
        )
    reader = JournalReader(paths.journal)
    is_live = True
    while True:
        try:
            while events := await to_thread(reader.read):
                for event in events:
                    yield event
        except FileNotFoundError:
            gone = f"{paths.path} is no longer there: its session was deleted or renamed."
            raise UserError(gone) from None
        if not is_live:
            return
        await anyio.sleep(POLL_S)
        # After the writer has released the turn, its last events are read once more.
        is_live = await to_thread(paths.is_live)


class LineReader:
    """Reads new lines from a file that another process appends to.

    Args:
        path: The file.
        from_end: Whether to skip the present contents.
        at: Bytes to skip: where another reader stood.

    Attributes:
        at: Bytes read.
    """

    def __init__(self, path: Path, *, from_end: bool = False, at: int = 0) -> None:
        self._path = path
        self.at = path.stat().st_size if from_end else at
        self._head = b""

    def is_same(self) -> bool:
        """Return whether the file is still the same one, not deleted and created again."""
        try:
            with open(self._path, "rb") as file:
                return file.read(len(self._head)) == self._head
        except OSError:
            return True

    def has_news(self) -> bool:
        """Return whether the file has grown since the last read."""
        try:
            return os.stat(self._path).st_size > self.at
        except OSError:
            return False

    def read_lines(self) -> list[bytes]:
        """Return the complete lines since the last read, up to about a megabyte."""
        with open(self._path, "rb") as file:
            file.seek(self.at)
            data = file.read(_READ_BYTES)
            while data and b"\n" not in data and (more := file.read(_READ_BYTES)):
                data += more
        data = data[: data.rfind(b"\n") + 1]
        if self.at == 0:
            self._head = data[:_HEAD_BYTES]
        self.at += len(data)
        return data.split(b"\n")[:-1]


class JournalReader(LineReader):
    """Reads new events from a journal; parameters are those of `LineReader`."""

    def __init__(self, path: Path, *, from_end: bool = False, at: int = 0) -> None:
        super().__init__(path, from_end=from_end, at=at)
        self._parser = _EventParser()

    def read(self) -> list[Event]:
        """Return the events since the last read, skipping lines that can't be read."""
        return self._parser.parse(self.read_lines())

    def read_about(self, words: bytes) -> list[Event]:
        """Return those of the events since the last read whose lines hold these bytes."""
        return self._parser.parse([line for line in self.read_lines() if words in line])
