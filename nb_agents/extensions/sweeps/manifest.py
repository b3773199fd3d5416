"""The directory of a sweep, next to its rows' sessions.

<root>/<sweep>/
sweep.json      its source, task and team
rows.jsonl      its notes (see `nb_agents.extensions.sweeps.notes`)
owner.lock      locked by the process that runs the sweep
commands/       commands from other processes
<row>/turn_1/   a session for each row
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from filelock import Timeout

from nb_agents.disk.lock import PROBE_S, FileLock, is_held
from nb_agents.disk.private import make_folder, open_private, private_lock
from nb_agents.errors import SessionUnreadableError, StorageError, SweepBusyError, UserError
from nb_agents.extensions.sweeps.notes import ROWS, Note
from nb_agents.extensions.sweeps.sweep_file import SWEEP_FILE, is_sweep
from nb_agents.extensions.sweeps.sweep_fold import SweepFold, fold_notes, sum_of
from nb_agents.session.commands import remove_commands_before
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TICKETS, TurnPaths, make_root, turns_of
from nb_agents.session.views import read_json, write_atomic
from nb_agents.unicode import json_text
from nb_agents.view.receipt import total_cost

DEFAULT_LIMIT = 8
"""Default number of rows that run at the same time."""

MAX_ASKED = 200
"""Maximum number of characters of a task that an error message quotes."""


class Manifest:
    """The files of a sweep that this process runs.

    Args:
        path: The sweep's directory. It is created if missing.
        about: The sweep's source, task and team, for lists of sweeps.

    Attributes:
        path: The sweep's directory.
        fold: The state from all notes, including those of earlier processes.

    Raises:
        UserError: The sweep with that name has another task or recipe.
        SweepBusyError: This or another process is already running the sweep.
        StorageError: The directory can't be written.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path = path
        self._lock = owner_lock(path)
        try:
            make_root(path.parent)
            make_folder(path)
            sent_before = time.time_ns()
            self._lock.acquire(timeout=PROBE_S * 2)
            # Earlier commands were meant for a previous process.
            remove_commands_before(TurnPaths(path), sent_before)
            _remove_tickets(path)
            self._check_task(about)
            write_atomic(path / SWEEP_FILE, json_text(about, indent=1))
            self._file = open_private(path / ROWS, "a+", encoding="utf-8", newline="\n")
            self.fold = fold_notes(path)
            self._end_last_line()
        except Timeout:
            raise SweepBusyError(path.name, "another sweep") from None
        except UserError:
            self._lock.release()
            raise
        except OSError as exc:
            self._lock.release()
            raise StorageError(str(path), exc.strerror or str(exc)) from None

    def add(self, note: Note) -> None:
        """Apply a note and append it to ``rows.jsonl``.

        Raises:
            OSError: The write failed. The row's session still has its result.
        """
        self.fold.apply(note)
        document = {field.name: getattr(note, field.name) for field in fields(note)}
        self._file.write(json_text(document) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the files and release the lock."""
        with suppress(OSError):
            self._file.close()
        self._lock.release()

    def _check_task(self, about: Mapping[str, Any]) -> None:
        """Raise `UserError` if the results on disk belong to a different task or recipe."""
        before, now = _task_or_recipe(read_json(self.path / SWEEP_FILE)), _task_or_recipe(about)
        if before and now and before != now:
            raise UserError(
                f"Sweep {self.path.name!r} has the task {before[:MAX_ASKED]!r}, but this call has "
                f"{now[:MAX_ASKED]!r}. Use another name= (--name) for it."
            )

    def _end_last_line(self) -> None:
        """Terminate a line that a killed process left unfinished."""
        size = self._file.seek(0, 2)
        if size:
            with (self.path / ROWS).open("rb") as file:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    self._file.write("\n")


def _remove_tickets(path: Path) -> None:
    """Delete the tickets of rows that a dead process submitted to a cluster."""
    for ticket in (path / TICKETS).glob("*"):
        ticket.unlink(missing_ok=True)


def _task_or_recipe(about: Mapping[str, Any]) -> str:
    task, recipe = str(about.get("task") or "").strip(), about.get("recipe")
    return task or (f"the recipe {recipe}" if recipe else "")


def owner_lock(path: Path) -> FileLock:
    """Return the lock of the process that runs the sweep in a directory."""
    return private_lock(path / "owner.lock")


class SweepLimits(NamedTuple):
    """The limits of a sweep.

    Attributes:
        rows: The maximum number of rows that run at the same time.
        has_budget: Whether there is a budget for all rows together.
    """

    rows: int = DEFAULT_LIMIT
    has_budget: bool = False


def limits_of(path: Path) -> SweepLimits:
    """Return the limits of the sweep in a directory."""
    about = read_json(path / SWEEP_FILE)
    limit = about.get("limit")  # missing in sweeps of earlier versions, as the budget is
    rows = limit if isinstance(limit, int) and limit > 0 else DEFAULT_LIMIT
    return SweepLimits(rows, about.get("has_budget") is not False)


def over_budget(cost: float | None, max_cost: float | None) -> str:
    """Return why nothing more may be spent, or "".

    Args:
        cost: US dollars spent, or None if the price of a model is unknown.
        max_cost: The limit in US dollars, or None.
    """
    if max_cost is None:
        return ""
    if cost is None:
        return "a model's price is unknown, so max_cost can't be enforced"
    is_spent = cost >= max_cost
    return f"max_cost of {max_cost:g} US dollars was reached" if is_spent else ""


def spent_of(path: Path, fold: SweepFold) -> float | None:
    """Return the US dollars that all rows of a sweep have cost, including unfinished rows.

    Args:
        path: The sweep's directory. No process runs the sweep.
        fold: The state from its notes.

    Returns:
        The cost, or None if the price of a model is unknown.

    Raises:
        SessionUnreadableError: A row can't be read.
    """
    first = read_json(path / SWEEP_FILE).get("first_turn")
    first = first if isinstance(first, int) else 1  # the file may have been edited
    ended = [fold.spent_without(fold.at_work)]
    turns = (turn for row in fold.at_work for turn in turns_of(path / row) if turn.number >= first)
    return sum_of([*ended, *(total_cost(load_turn(turn).view) for turn in turns)])


def has_died(path: Path, fold: SweepFold) -> bool:
    """Return whether the last process of a sweep died with rows unfinished.

    Args:
        path: The sweep's directory. No process runs the sweep.
        fold: The state from its notes.

    Raises:
        SessionUnreadableError: The sweep, or one of its rows, can't be read.
    """
    try:
        names = set(os.listdir(path))
    except OSError as exc:
        raise SessionUnreadableError(str(path), exc.strerror or str(exc)) from None
    first = read_json(path / SWEEP_FILE).get("first_turn")
    unfinished = (names - fold.results.keys()) | (names & fold.at_work)
    first = first if isinstance(first, int) else 1  # the file may have been edited
    return any(turn.number >= first for row in unfinished for turn in turns_of(path / row))


def turn_of_row(sweep: Path, row: str, number: int) -> TurnPaths | None:
    """Return a turn of a row's session, or None if the sweep's directory has no such turn.

    Args:
        sweep: The sweep's directory.
        row: The row's name, as in a note. Edited files could contain a name or a link that leads
            outside the sweep.
        number: The turn's number.
    """
    path = sweep / row / f"turn_{number}"
    with suppress(ValueError):  # the name has characters that are invalid in a path
        inside = Path(os.path.realpath(sweep), *path.parts[-2:])
        if Path(os.path.realpath(path)) == inside and os.path.isdir(path):
            return TurnPaths(path)
    return None


def is_live_sweep(path: Path) -> bool:
    """Return whether a directory contains a sweep that a process is running."""
    return is_sweep(path) and is_held(owner_lock(path))
