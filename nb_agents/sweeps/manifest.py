"""A sweep's own files on disk, beside its rows' sessions.

    <root>/<sweep>/
      sweep.json      its source, task and team
      rows.jsonl      a line for each row that ended (a row's last line counts), each row that
                      started, and each change of the sweep's status
      owner.lock      held by the process that runs the sweep
      commands/       commands sent by other processes
      <row>/turn_1/   a session for each row

The lines spare readers from opening hundreds of sessions; a row without one is read from its
session.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from filelock import FileLock, Timeout
from pydantic import (
    Discriminator,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    Tag,
    TypeAdapter,
    ValidationError,
)

from nb_agents.cancel import CancellationStatus, StopRequest, StopSource
from nb_agents.disk.lock import PROBE_S, is_held
from nb_agents.errors import SessionUnreadableError, StorageError, SweepBusyError, UserError
from nb_agents.events import Command
from nb_agents.events.turn_events import Continue, Pause
from nb_agents.runs.finding import live_runs_of_here, runs_elsewhere_of_here
from nb_agents.runs.registry import find_group, group_at
from nb_agents.session.commands import remove_commands_before, send
from nb_agents.session.layout import (
    SWEEP_FILE,
    TICKETS,
    TurnPaths,
    make_root,
    session_root,
    turns_of,
)
from nb_agents.session.views import read_json, write_atomic

__all__ = [
    "FIRST_ROWS",
    "Manifest",
    "Note",
    "Noted",
    "Outcome",
    "ROWS",
    "Result",
    "RowBegan",
    "SweepBegan",
    "SweepChanged",
    "SweepStatus",
    "has_died",
    "is_live_sweep",
    "is_sweep",
    "owner_lock",
    "pause_sweep",
    "read_noted",
    "read_notes",
    "read_results",
    "resolve_sweep",
    "stop_sweep",
    "sweep_of",
    "sweep_paths",
    "sweeps_in",
]

Outcome = Literal["completed", "failed", "cancelled"]
SweepStatus = Literal["running", "paused", "stopping", "completed", "cancelled"]

FIRST_ROWS = 20
"""Number of the source's first rows whose names are recorded: those that a card shows."""

MAX_ASKED = 200
"""Characters of a task that are shown when two are mistaken for one."""

ROWS = "rows.jsonl"
_LOCK = "owner.lock"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a row.

    Attributes:
        row: The row's name.
        status: How the row ended.
        answer: The final answer, or a recipe's outputs by name; None when there is none.
        error: Why the row failed.
        tokens: Tokens used in all turns of the row's session.
        cost: US dollars, or None when a model's price is unknown.
        seconds: Duration of the row's last turn.
        score: The answer's score.
    """

    row: str
    status: Outcome
    answer: Any = None
    error: str = ""
    tokens: int = 0
    cost: float | None = 0.0
    seconds: float = 0.0
    score: float | None = None


@dataclass(frozen=True, slots=True)
class RowBegan:
    """A turn of a row's session started.

    Attributes:
        row: The row's name.
        turn: The turn's number.
    """

    row: str
    turn: PositiveInt
    kind: Literal["row_began"] = "row_began"


@dataclass(frozen=True, slots=True)
class SweepBegan:
    """A process started to run the sweep.

    Attributes:
        at: Unix seconds.
        rows: The number of rows.
        first: The names of the first rows, in the source's order.
        others: Rows with a result that are no longer in the source.
        retry_failed: Whether rows that failed before are run again.
    """

    at: FiniteFloat
    rows: NonNegativeInt
    first: tuple[str, ...]
    others: tuple[str, ...]
    retry_failed: bool
    kind: Literal["sweep_began"] = "sweep_began"


@dataclass(frozen=True, slots=True)
class SweepChanged:
    """The sweep's status changed.

    Attributes:
        at: Unix seconds.
        status: The new status.
        reason: The reason of a stop.
    """

    at: FiniteFloat
    status: SweepStatus
    reason: str = ""
    kind: Literal["sweep_changed"] = "sweep_changed"


Note = Result | RowBegan | SweepBegan | SweepChanged
"""A line of ``rows.jsonl``."""

_LINE: TypeAdapter[Note] = TypeAdapter(
    Annotated[
        Annotated[Result, Tag("")]
        | Annotated[RowBegan, Tag("row_began")]
        | Annotated[SweepBegan, Tag("sweep_began")]
        | Annotated[SweepChanged, Tag("sweep_changed")],
        Discriminator(lambda line: str(line.get("kind", "")) if isinstance(line, dict) else ""),
    ]
)


class Manifest:
    """A sweep's files, while this process runs the sweep.

    Args:
        path: The sweep's directory, created if missing.
        about: The sweep's source, task and team, for lists of sweeps.

    Attributes:
        path: As given.
        results: The rows' results, by name.
        at_work: Rows that an earlier process left running.

    Raises:
        UserError: The sweep of that name has another task or recipe.
        SweepBusyError: This process or another is already running the sweep.
        StorageError: The directory can't be written.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        self._lock = owner_lock(path)
        try:
            make_root(path.parent)
            path.mkdir(exist_ok=True)
            sent_before = time.time_ns()
            self._lock.acquire(timeout=PROBE_S * 2)
            # Older commands were sent to a process that is gone.
            remove_commands_before(TurnPaths(path), sent_before)
            _remove_tickets(path)
            self._check_same(about)
            write_atomic(path / SWEEP_FILE, json.dumps(about, indent=1))
            self._file = (path / ROWS).open("a+", encoding="utf-8", newline="\n")
            self.results, self.at_work = read_noted(path)
            self._mend()
        except Timeout:
            raise SweepBusyError(path.name, "another sweep") from None
        except UserError:
            self._lock.release()
            raise
        except OSError as exc:
            self._lock.release()
            raise StorageError(str(path), exc.strerror or str(exc)) from None

    def add(self, note: Note) -> None:
        """Append a note to ``rows.jsonl``.

        Raises:
            OSError: The write failed; the row's session still has its result.
        """
        if isinstance(note, Result):
            self.results[note.row] = note
        document = {field.name: getattr(note, field.name) for field in fields(note)}
        self._file.write(json.dumps(document) + "\n")
        self._file.flush()

    def score(self, row: str, score: float) -> None:
        """Record a row's score."""
        self.add(replace(self.results[row], score=score))

    def close(self) -> None:
        """Close the files and release the lock."""
        with suppress(OSError):
            self._file.close()
        self._lock.release()

    def _check_same(self, about: Mapping[str, Any]) -> None:
        """Refuse another task or recipe, which the results on disk do not belong to."""
        before, now = _asked(read_json(self.path / SWEEP_FILE)), _asked(about)
        if before and now and before != now:
            raise UserError(
                f"Sweep {self.path.name!r} asks {before[:MAX_ASKED]!r}, and this call asks "
                f"{now[:MAX_ASKED]!r}. Use another name= (--name) for it."
            )

    def _mend(self) -> None:
        """Terminate a line that a killed process left unfinished."""
        size = self._file.seek(0, 2)
        if size:
            with (self.path / ROWS).open("rb") as file:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    self._file.write("\n")


def _remove_tickets(path: Path) -> None:
    """Withdraw the rows that a dead process submitted to a cluster."""
    for ticket in (path / TICKETS).glob("*"):
        ticket.unlink(missing_ok=True)


def _asked(about: Mapping[str, Any]) -> str:
    task, recipe = str(about.get("task") or "").strip(), about.get("recipe")
    return task or (f"the recipe {recipe}" if recipe else "")


def owner_lock(path: Path) -> FileLock:
    """Return the lock that a process holds while it runs the sweep in a directory."""
    return FileLock(path / _LOCK, thread_local=False)


class Noted(NamedTuple):
    """The rows in a sweep's notes.

    Attributes:
        results: The rows' results, by name.
        at_work: Rows that started and have not ended since.
    """

    results: dict[str, Result]
    at_work: set[str]


def read_noted(path: Path) -> Noted:
    """Return the rows in a sweep's notes, skipping invalid lines."""
    noted = Noted({}, set())
    with suppress(OSError), (path / ROWS).open("rb") as file:
        for note in read_notes(file):
            if isinstance(note, Result):
                noted.results[note.row] = note
                noted.at_work.discard(note.row)
            elif isinstance(note, RowBegan):
                noted.at_work.add(note.row)
    return noted


def read_results(path: Path) -> dict[str, Result]:
    """Return the results of a sweep's rows by name."""
    return read_noted(path).results


def read_notes(lines: Iterable[bytes]) -> Iterator[Note]:
    """Parse lines of ``rows.jsonl``, skipping invalid ones."""
    for line in lines:
        with suppress(ValidationError):
            yield _LINE.validate_json(line)


def sweep_paths(root: Path) -> list[Path]:
    """Return the directories of the sweeps in a session root, sorted by name."""
    try:
        return sorted(path.parent for path in root.glob(f"*/{SWEEP_FILE}"))
    except OSError:
        return []


def sweeps_in(root: Path) -> list[tuple[Path, Mapping[str, Any], bool]]:
    """Return the directory and description of each sweep in a session root, and whether it runs."""
    paths = sweep_paths(root)
    return [(path, read_json(path / SWEEP_FILE), is_held(owner_lock(path))) for path in paths]


def has_died(path: Path, noted: Noted) -> bool:
    """Return whether the process of a sweep that is not running died with rows unfinished.

    Args:
        path: The sweep's directory.
        noted: The rows in its notes.

    Raises:
        SessionUnreadableError: The sweep, or one of its rows, can't be read.
    """
    try:
        names = set(os.listdir(path))
    except OSError as exc:
        raise SessionUnreadableError(str(path), exc.strerror or str(exc)) from None
    left = (names - noted.results.keys()) | (names & noted.at_work)
    return any(turns_of(path / row) for row in left)


def is_sweep(path: Path) -> bool:
    """Return whether a directory is a sweep's."""
    return os.path.isfile(path / SWEEP_FILE)  # Path.is_file would raise for a name that is too long


def sweep_of(turn: Path) -> Path | None:
    """Return the directory of the sweep that a turn's directory belongs to; None without one."""
    path = Path(os.path.realpath(turn.parents[1]))
    return path if is_sweep(path) else None


def is_live_sweep(path: Path) -> bool:
    """Return whether a directory is that of a sweep that a process is running."""
    return is_sweep(path) and is_held(owner_lock(path))


def resolve_sweep(name: str, root: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the directory of the sweep that the user refers to.

    Args:
        name: The sweep's name; "" means the one that this process started last, else the only one
            of here that runs in another process.
        root: A session root that limits the search. By default a name means a sweep of this
            process, else one in this directory's root.

    Returns:
        The directory, which need not exist; None when ``name`` is "" and there is no such sweep.

    Raises:
        UserError: This process runs several sweeps of that name.
    """
    if (group := find_group(name, root)) is not None:
        return group.path
    if name:
        return session_root(root) / name
    if live_runs_of_here(root):
        return None
    sweeps = {sweep_of(run.path) for run in runs_elsewhere_of_here(root)}
    return sweeps.pop() if len(sweeps) == 1 else None


def stop_sweep(path: Path, now: bool, source: StopSource, reason: str = "") -> bool:
    """Stop a sweep, whichever process runs it.

    Args:
        path: The sweep's directory.
        now: Whether to stop all rows immediately.
        source: The interface that the request came from.
        reason: The reason, for the record.

    Returns:
        Whether there is such a sweep, and it is running.

    Raises:
        StorageError: The command can't be written.
    """
    if (sweep := group_at(path)) is not None:
        sweep.stop(now, reason=reason, source=source)
        return True
    level = CancellationStatus.IMMEDIATE if now else CancellationStatus.REQUESTED
    return _send_command(path, StopRequest(level, source, reason))


def pause_sweep(path: Path, is_paused: bool) -> bool:
    """Pause or continue a sweep, whichever process runs it.

    Args:
        path: The sweep's directory.
        is_paused: Whether to pause it.

    Returns:
        Whether the sweep is running.

    Raises:
        StorageError: The command can't be written.
    """
    if (sweep := group_at(path)) is not None:
        sweep.hold(is_paused)
        return True
    return _send_command(path, Pause() if is_paused else Continue())


def _send_command(path: Path, command: Command) -> bool:
    if not is_live_sweep(path):
        return False
    send(TurnPaths(path), command)
    return True
