"""A sweep's directory, beside its rows' sessions.

<root>/<sweep>/
sweep.json      its source, task and team
rows.jsonl      its notes, see `nb_agents.sweeps.notes`
owner.lock      held by the process that runs the sweep
commands/       commands sent by other processes
<row>/turn_1/   a session for each row
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nb_agents.disk.lock import PROBE_S, is_held
from nb_agents.errors import SessionUnreadableError, StorageError, SweepBusyError, UserError
from nb_agents.session.commands import remove_commands_before
from nb_agents.session.layout import SWEEP_FILE, TICKETS, TurnPaths, make_root, turns_of
from nb_agents.session.views import read_json, write_atomic
from nb_agents.sweeps.notes import ROWS, Note
from nb_agents.sweeps.sweep_fold import SweepFold, fold_notes

MAX_ASKED = 200
"""Characters of a task that are shown when two are mistaken for one."""


class Manifest:
    """A sweep's files, while this process runs the sweep.

    Args:
        path: The sweep's directory, created if missing.
        about: The sweep's source, task and team, for lists of sweeps.

    Attributes:
        path: As given.
        fold: The notes so far, those of earlier processes included.

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
            self.fold = fold_notes(path)
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
        """Apply a note, and append it to ``rows.jsonl``.

        Raises:
            OSError: The write failed; the row's session still has its result.
        """
        self.fold.apply(note)
        document = {field.name: getattr(note, field.name) for field in fields(note)}
        self._file.write(json.dumps(document) + "\n")
        self._file.flush()

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
    return FileLock(path / "owner.lock", thread_local=False)


def sweep_paths(root: Path) -> list[Path]:
    """Return the directories of the sweeps in a session root, sorted by name."""
    try:
        return sorted(path.parent for path in root.glob(f"*/{SWEEP_FILE}"))
    except OSError:
        return []


def has_died(path: Path, fold: SweepFold) -> bool:
    """Return whether the process of a sweep that is not running died with rows unfinished.

    Args:
        path: The sweep's directory.
        fold: Its notes.

    Raises:
        SessionUnreadableError: The sweep, or one of its rows, can't be read.
    """
    try:
        names = set(os.listdir(path))
    except OSError as exc:
        raise SessionUnreadableError(str(path), exc.strerror or str(exc)) from None
    first = read_json(path / SWEEP_FILE).get("first_turn")
    left = (names - fold.results.keys()) | (names & fold.at_work)
    first = first if isinstance(first, int) else 1  # the file may have been edited
    return any(turn.number >= first for row in left for turn in turns_of(path / row))


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
