"""What a sweep leaves on disk beside its rows' sessions.

    <root>/<sweep>/
      sweep.json      what it is: source, task, team
      rows.jsonl      a line for each row that ended (the last of a row counts), and for what else
                      who looks on can't know: rows that began, and how the whole stands
      owner.lock      held by the process that works on it
      commands/       what other processes ask of that one
      <row>/turn_1/   a session for each row

The lines are there so that nobody has to open hundreds of sessions; a row without one is asked of
its session.
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
from nb_agents.runs.registry import find_group, live_runs, runs, stop
from nb_agents.session.commands import send, withdraw_older
from nb_agents.session.layout import TICKETS, TurnPaths, make_root, turns_of
from nb_agents.session.views import read_json, write_atomic

__all__ = [
    "ABOUT",
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
    "hold_sweep",
    "is_live_sweep",
    "is_sweep",
    "owner_lock",
    "read_noted",
    "read_notes",
    "read_results",
    "stop_sweep",
    "sweep_meant",
    "sweep_of",
    "sweeps_below",
    "sweeps_in",
]

Outcome = Literal["completed", "failed", "cancelled"]
SweepStatus = Literal["running", "paused", "stopping", "completed", "cancelled"]

FIRST_ROWS = 20
"""Rows of the source whose names are noted: those that a card shows."""

MAX_ASKED = 200
"""Characters of a task that are shown when two are mistaken for one."""

ABOUT = "sweep.json"
ROWS = "rows.jsonl"
_LOCK = "owner.lock"


@dataclass(frozen=True, slots=True)
class Result:
    """How a row ended.

    Attributes:
        row: Its name.
        status: How it ended.
        answer: The final answer, or a recipe's outputs by name; None when there is none.
        error: Why it failed.
        tokens: Tokens used, by all turns of its session.
        cost: US dollars, or None when a model's price is unknown.
        seconds: How long its last turn took.
        score: What the score function made of the answer.
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
    """A turn began to work on a row.

    Attributes:
        row: Its name.
        turn: The turn's number.
    """

    row: str
    turn: PositiveInt
    kind: Literal["row_began"] = "row_began"


@dataclass(frozen=True, slots=True)
class SweepBegan:
    """A process began to work on the sweep.

    Attributes:
        at: Unix seconds.
        rows: How many it has.
        first: The names of the first of them, as their source has them.
        others: Rows that ended earlier and are none of them: the source was another one then.
        retry_failed: Whether rows that failed before are tried again.
    """

    at: FiniteFloat
    rows: NonNegativeInt
    first: tuple[str, ...]
    others: tuple[str, ...]
    retry_failed: bool
    kind: Literal["sweep_began"] = "sweep_began"


@dataclass(frozen=True, slots=True)
class SweepChanged:
    """The sweep as a whole stands differently.

    Attributes:
        at: Unix seconds.
        status: How it stands from now on.
        reason: Why it stops, or stopped.
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
    """A sweep's files, while this process works on it.

    Args:
        path: The sweep's directory; made if missing.
        about: What it is, for who lists sweeps.

    Attributes:
        path: As given.
        results: How rows ended, by name.
        at_work: Rows that an earlier process left at work.

    Raises:
        UserError: The sweep of that name is another one.
        SweepBusyError: Another process, or another sweep of this one, works on it.
        StorageError: The directory can't be written.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        self._lock = owner_lock(path)
        try:
            make_root(path.parent)
            path.mkdir(exist_ok=True)
            asked_before = time.time_ns()
            self._lock.acquire(timeout=PROBE_S * 2)
            withdraw_older(TurnPaths(path), asked_before)  # meant for a process that is gone
            _remove_tickets(path)
            self._check_same(about)
            write_atomic(path / ABOUT, json.dumps(about, indent=1))
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
        """Note how a row ended, or what else became of the sweep.

        Raises:
            OSError: The disk refused; the row's session has it all the same.
        """
        if isinstance(note, Result):
            self.results[note.row] = note
        said = {field.name: getattr(note, field.name) for field in fields(note)}
        self._file.write(json.dumps(said) + "\n")
        self._file.flush()

    def score(self, row: str, score: float) -> None:
        """Note a row's score."""
        self.add(replace(self.results[row], score=score))

    def close(self) -> None:
        """Let others work on it."""
        with suppress(OSError):
            self._file.close()
        self._lock.release()

    def _check_same(self, about: Mapping[str, Any]) -> None:
        """Refuse a sweep that asks something else: the answers on disk are none to that."""
        before, now = _asked(read_json(self.path / ABOUT)), _asked(about)
        if before and now and before != now:
            raise UserError(
                f"Sweep {self.path.name!r} asks {before[:MAX_ASKED]!r}, and this call asks "
                f"{now[:MAX_ASKED]!r}. Use another name= (--name) for it."
            )

    def _mend(self) -> None:
        """End a line that a process died in the middle of."""
        size = self._file.seek(0, 2)
        if size:
            with (self.path / ROWS).open("rb") as file:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    self._file.write("\n")


def _remove_tickets(path: Path) -> None:
    """Let no row begin that a process which is gone has asked of a cluster."""
    for ticket in (path / TICKETS).glob("*"):
        ticket.unlink(missing_ok=True)


def _asked(about: Mapping[str, Any]) -> str:
    task, recipe = str(about.get("task") or "").strip(), about.get("recipe")
    return task or (f"the recipe {recipe}" if recipe else "")


def owner_lock(path: Path) -> FileLock:
    """Return the lock that is held while a process works on a sweep, whose directory this is."""
    return FileLock(path / _LOCK, thread_local=False)


class Noted(NamedTuple):
    """What a sweep has noted of its rows.

    Attributes:
        results: How they ended, by name.
        at_work: Those that began and have not ended since.
    """

    results: dict[str, Result]
    at_work: set[str]


def read_noted(path: Path) -> Noted:
    """Read what a sweep has noted of its rows; lines that are none are left out.

    Args:
        path: The sweep's directory.
    """
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
    """Read how a sweep's rows ended, by name.

    Args:
        path: The sweep's directory.
    """
    return read_noted(path).results


def read_notes(lines: Iterable[bytes]) -> Iterator[Note]:
    """Read lines of ``rows.jsonl``; those that are none are left out."""
    for line in lines:
        with suppress(ValidationError):
            yield _LINE.validate_json(line)


def sweeps_below(root: Path) -> list[Path]:
    """List the sweeps below a session root, by name."""
    try:
        return sorted(path.parent for path in root.glob(f"*/{ABOUT}"))
    except OSError:
        return []


def sweeps_in(root: Path) -> list[tuple[Path, Mapping[str, Any], bool]]:
    """Find the sweeps below a session root, by name.

    Args:
        root: The session root.

    Returns:
        For each its directory, what it is, and whether a process works on it.
    """
    return [
        (path, read_json(path / ABOUT), is_held(owner_lock(path))) for path in sweeps_below(root)
    ]


def has_died(path: Path, noted: Noted) -> bool:
    """Whether the process that worked on a sweep ended without a word of the rows at work.

    Args:
        path: The directory of a sweep that nobody works on.
        noted: What it has noted of its rows.

    Raises:
        SessionUnreadableError: The sweep, or a row of it, can't be read.
    """
    try:
        names = set(os.listdir(path))
    except OSError as exc:
        raise SessionUnreadableError(str(path), exc.strerror or str(exc)) from None
    left = (names - noted.results.keys()) | (names & noted.at_work)
    return any(turns_of(path / row) for row in left)


def is_sweep(path: Path) -> bool:
    """Whether a directory is a sweep's."""
    return os.path.isfile(path / ABOUT)  # unlike Path's, it raises for no name, however long


def sweep_of(turn: Path) -> Path | None:
    """Return the sweep that a turn works on a row of; None without one.

    Args:
        turn: The turn's directory.
    """
    path = Path(os.path.realpath(turn.parents[1]))
    return path if is_sweep(path) else None


def is_live_sweep(path: Path) -> bool:
    """Whether a directory is a sweep's and a process works on it."""
    return is_sweep(path) and is_held(owner_lock(path))


def sweep_meant(name: str, root: Path) -> Path | None:
    """Find the sweep that a person means by a name, or by none.

    Args:
        name: The sweep's; "" means what this process began last, else all that lives elsewhere.
        root: Where sessions are.

    Returns:
        The directory, in which there may be none by that name; None when a run is meant.
    """
    if name:
        return root / name
    if (group := find_group()) is not None:
        return group.path
    if live_runs():
        return None
    sweeps = {sweep_of(run.path) for run in runs() if run.where and not run.is_over}
    return sweeps.pop() if len(sweeps) == 1 else None


def stop_sweep(path: Path, now: bool, source: StopSource, reason: str = "") -> bool:
    """Stop a sweep, whichever process works on it.

    Args:
        path: Its directory; a sweep of this process is known by its name alone.
        now: Whether it is immediate, for all rows.
        source: The door.
        reason: Why.

    Returns:
        Whether there is such a sweep, and a process that works on it.

    Raises:
        StorageError: The command can't be written.
    """
    if find_group(path.name) is not None:
        stop(path.name, now, source, reason)
        return True
    level = CancellationStatus.IMMEDIATE if now else CancellationStatus.REQUESTED
    return _tell(path, StopRequest(level, source, reason))


def hold_sweep(path: Path, is_paused: bool) -> bool:
    """Pause a sweep, or let it go on, whichever process works on it.

    Args:
        path: Its directory; a sweep of this process is known by its name alone.
        is_paused: Whether it is to hold still.

    Returns:
        Whether a process works on it.

    Raises:
        StorageError: The command can't be written.
    """
    if (sweep := find_group(path.name)) is not None:
        sweep.hold(is_paused)
        return True
    return _tell(path, Pause() if is_paused else Continue())


def _tell(path: Path, command: Command) -> bool:
    if not is_live_sweep(path):
        return False
    send(TurnPaths(path), command)
    return True
