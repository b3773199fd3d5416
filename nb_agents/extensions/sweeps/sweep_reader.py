"""Follows a sweep by reading its files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic_core import to_jsonable_python

from nb_agents.cancel import StopRequest, StopResult
from nb_agents.errors import UserError
from nb_agents.events import Command
from nb_agents.events.turn_events import ChangeGroup, Continue, Pause
from nb_agents.extensions.sweeps.ended_sweeps import find_ended
from nb_agents.extensions.sweeps.manifest import is_live_sweep, turn_of_row
from nb_agents.extensions.sweeps.notes import ROWS, NoteReader, Steered
from nb_agents.extensions.sweeps.sweep_file import SWEEP_FILE
from nb_agents.extensions.sweeps.sweep_fold import FIRST_ROWS, LiveRow, SweepFold, SweepView
from nb_agents.extensions.sweeps.sweep_handle import SweepHandle
from nb_agents.extensions.sweeps.sweep_table import row_record
from nb_agents.launch.finding import attach
from nb_agents.launch.run import Run
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.commands import send
from nb_agents.session.layout import TurnPaths
from nb_agents.session.views import read_json

POLL_S = 0.2
"""Interval in seconds for reading a followed sweep of another process."""


class SweepReader(SweepHandle):
    """Reads a sweep's notes when they are needed, and continuously while the sweep is followed.

    It is the handle of a sweep that runs in another process or has ended.

    Args:
        path: The sweep's directory.

    Attributes:
        path: The sweep's directory.
        about: The sweep's source, task and team.
        changed_at: When the last note was written, in Unix seconds. None if there are no notes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about = read_json(path / SWEEP_FILE)
        self.changed_at: float | None = None
        rows = self.about.get("rows")
        # The files may have been edited.
        self._fold = SweepFold(rows if isinstance(rows, int) else None, keeps_answers=False)
        self._notes = NoteReader(path)
        self._runs: dict[str, Run] = {}
        # Cells, a panel's thread and the follower thread use this object concurrently.
        self._lock = threading.RLock()
        self._done: Future[None] | None = None
        self._was_pressed = False

    @property
    def is_over(self) -> bool:
        """Whether no process runs the sweep."""
        return not is_live_sweep(self.path)

    @property
    def has_ended(self) -> bool:
        """Whether the end of the sweep is recorded."""
        return self._fold.is_over

    @property
    def view(self) -> SweepView:
        """The current state of the sweep, according to its files."""
        with self._lock:
            is_live = not self.is_over  # checked first, so that the last notes are not missed
            self.read()
            live = [LiveRow(row, run.address, run.view) for row, run in self.runs.items()]
            return self.view_of(live, is_live)

    @property
    def runs(self) -> Mapping[str, Run]:
        """The current runs, by their rows' names."""
        with self._lock:
            turns, runs = self.turns, dict[str, Run]()
            for row, turn in turns.items():
                current = self._runs.get(row)
                with suppress(UserError):  # it has no file yet
                    runs[row] = (
                        current if current and current.path == turn.path else attach(turn.path)
                    )
            self._runs = runs
            return dict(runs)

    @property
    def turns(self) -> Mapping[str, TurnPaths]:
        """The turns of the running rows, by the rows' names."""
        turns = (
            (row, turn_of_row(self.path, row, number)) for row, number in self._fold.running.items()
        )
        return {row: turn for row, turn in turns if turn is not None}

    def table(self) -> Sequence[dict[str, Any]]:
        """Return the records of the first rows, like `Sweep.table` without the source's columns."""
        results = self._fold.results
        names = self._fold.began.first or tuple(results)[:FIRST_ROWS]
        # A row that was running when its process died counts as stopped.
        begun = "stopped" if self.is_over else "running"
        return [self._record(name, begun) for name in names]

    def _record(self, row: str, begun: str) -> dict[str, Any]:
        result = self._fold.results.get(row)
        status = begun if row in self._fold.running else result.state if result else ""
        return row_record(row, status or "waiting", result, self.path / row)

    # Reading --------------------------------------------------------------------------------

    def is_same(self) -> bool:
        """Return whether this is still the same sweep, not a new one of the same name."""
        return self._notes.is_same()

    def read(self) -> bool:
        """Read new notes. Returns whether there were any."""
        has_news = False
        with self._lock, suppress(OSError):
            while notes := self._notes.read():
                for _, note in notes:
                    self._fold.apply(note)
                has_news, self.changed_at = True, os.stat(self.path / ROWS).st_mtime
        return has_news

    def view_of(
        self, live: Sequence[LiveRow], is_live: bool, now: float | None = None
    ) -> SweepView:
        """Return the state of the sweep according to the notes read so far.

        Args:
            live: The running rows.
            is_live: Whether a process runs the sweep.
            now: Unix seconds. By default, the current time.
        """
        died_at = None
        if not is_live:
            died_at = max([self.changed_at or 0.0, *map(_written_at, self.turns.values())])
        return self._fold.view(self.name, live, time.time() if now is None else now, died_at)

    # Following ------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[SweepView], object]) -> Callable[[], None]:
        """Call a function with the view, about five times a second, and at the end."""
        end = super().subscribe(callback)
        self._follow()
        return end

    @property
    def done(self) -> Future[None]:
        """A future that is resolved when no process runs the sweep."""
        return self._follow()

    def _follow(self) -> Future[None]:
        with self._lock:
            if self._done is None:
                self._done = Future()
                name = f"nb_agents sweep {self.name}"
                threading.Thread(target=self._poll, name=name, daemon=True).start()
            return self._done

    def _poll(self) -> None:
        done = cast("Future[None]", self._done)
        try:
            while not self.is_over:
                with ServiceLoop.FOLLOWED.item():
                    self._publish()
                time.sleep(POLL_S)
            with ServiceLoop.FOLLOWED.item():
                self._publish()
        finally:
            done.set_result(None)

    # Stopping -------------------------------------------------------------------------------

    def _request_stop(self, request: StopRequest) -> StopResult:
        return StopResult(True, "asked") if self._send(request) else StopResult(False, "finished")

    def press(self) -> None:
        """Handle an interrupt: the first one stops gracefully, the next immediately."""
        now, self._was_pressed = self._was_pressed, True
        arguments = {"reason": "interrupted", "source": "interrupt"}
        # In a thread, because it writes to the disk.
        threading.Thread(target=self.stop, args=(now,), kwargs=arguments).start()

    def hold(self, is_paused: bool) -> bool:
        """Pause or unpause the sweep. Return whether a process runs it."""
        return self._send(Pause() if is_paused else Continue())

    @contextmanager
    def _folded(self) -> Iterator[SweepFold]:
        with self._lock:
            self.read()
            yield self._fold

    def _steer(self, note: Steered) -> None:
        fields = to_jsonable_python(note)
        if not self._send(ChangeGroup(fields)):
            raise UserError(f"Sweep {self.name} has ended. Nothing was changed.")

    def resume(self, retry_failed: bool = False) -> SweepHandle:
        """Unpause the sweep if a process runs it. Otherwise, continue it if this process can."""
        if self.hold(False):
            return self
        if (restart := find_ended(self.path)) is None:
            more = " with --retry-failed" if retry_failed else ""
            raise UserError(
                f"Sweep {self.name} has ended, and this process doesn't have its rows and "
                f"functions. Run its cell again{more}. Finished rows are not repeated."
            )
        return restart(retry_failed)

    def _send(self, command: Command) -> bool:
        if self.is_over:
            return False
        send(TurnPaths(self.path), command)
        return True


def _written_at(turn: TurnPaths) -> float:
    """Return when a turn's last event was written, in Unix seconds."""
    try:
        return turn.journal.stat().st_mtime
    except OSError:
        return 0.0


class SweepOnDisk(NamedTuple):
    """The state of a sweep according to its files, without its live rows.

    Attributes:
        view: The state.
        changed_at: When a row last started or ended, in Unix seconds. None without notes.
    """

    view: SweepView
    changed_at: float | None


def sweep_on_disk(path: Path) -> SweepOnDisk:
    """Return the state of a sweep according to the files in its directory."""
    is_live = is_live_sweep(path)
    try:
        status = os.lstat(path / ROWS)
    except OSError:
        return _read(path, 0, 0, is_live)
    return _read(path, status.st_mtime_ns, status.st_size, is_live)


@lru_cache(maxsize=1000)
def _read(path: Path, changed_ns: int, size: int, is_live: bool) -> SweepOnDisk:
    """Read a sweep. Cached per state of its notes file, which can be long."""
    reader = SweepReader(path)
    reader.read()
    return SweepOnDisk(reader.view_of((), is_live), reader.changed_at)
