"""The handle of a sweep, which runs the rows of a source, a limited number at a time.

Only the sweep's own thread changes its state: requests of other threads, and the end of each run,
are passed to it as functions. After a crash, a row's state is read from its session.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from nb_agents.cancel import (
    AgentStopped,
    CancellationStatus,
    StopRequest,
    StopResult,
)
from nb_agents.errors import ClusterLostError, SessionBusyError, UserError, said_by
from nb_agents.events.turn_events import Continue, Pause
from nb_agents.loop import interrupt_source
from nb_agents.runs.live_turns import watched
from nb_agents.runs.registry import join
from nb_agents.runs.run import Run
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.commands import has_commands, take_commands
from nb_agents.session.layout import TurnPaths
from nb_agents.sweeps.heap import less_garbage_collection
from nb_agents.sweeps.judge import JudgeAgent, Judgement
from nb_agents.sweeps.manifest import Manifest
from nb_agents.sweeps.notes import (
    Note,
    RowBegan,
    RowResult,
    SweepBegan,
    SweepChanged,
    SweepStatus,
)
from nb_agents.sweeps.row_session import find_row, result_of_turn
from nb_agents.sweeps.source import Row
from nb_agents.sweeps.sweep_fold import FIRST_ROWS, LiveRow, SweepView, sum_of
from nb_agents.sweeps.sweep_handle import SweepHandle
from nb_agents.sweeps.sweep_table import COLUMNS, outputs_of, renamed, row_record, to_frame

logger = logging.getLogger("nb_agents")

Score = Callable[[str, Any], Any]

SHOW_S = 0.2
"""Minimum interval between two views sent to subscribers."""

MAX_DEATHS = 3
"""Workers that may die while running a row before it fails, as the row may be the cause."""


def over_budget(cost: float | None, max_cost: float | None) -> str:
    """Return the reason why no more may be spent, or "".

    Args:
        cost: US dollars spent, or None when a model's price is unknown.
        max_cost: US dollars; None means no limit.
    """
    if max_cost is None:
        return ""
    if cost is None:
        return "a model's price is unknown, so that max_cost can't be kept"
    is_spent = cost >= max_cost
    return f"max_cost of {max_cost:g} US dollars is reached" if is_spent else ""


@dataclass(frozen=True)
class SweepSpec:
    """The configuration of a sweep.

    Attributes:
        path: The sweep's directory.
        about: The sweep's source, task and team, for lists of sweeps.
        rows: All rows.
        begin: Starts or resumes a row's run.
        limit: Maximum number of rows that run at a time.
        max_cost: US dollars after which no row is started; None means no limit.
        score: Returns a number for a task and its answer.
        judge: An agent that returns the number instead.
        task: Returns a row's task.
        retry_failed: Whether rows that failed before are run again.
        tools: Functions of this process that rows running in another process may call as well.
        withdraw: Withdraws rows whose `begin` still waits.
        first_turn: The first turn of a row's session that is the sweep's own.
    """

    path: Path
    about: Mapping[str, Any]
    rows: tuple[Row, ...]
    begin: Callable[[Row], Run]
    limit: int
    max_cost: float | None = None
    score: Score | None = None
    judge: JudgeAgent | None = None
    task: Callable[[Row], str] = lambda row: ""
    retry_failed: bool = False
    tools: Sequence[Callable[..., Any]] = ()
    withdraw: Callable[[], object] = lambda: None
    first_turn: int = 1


class Sweep(SweepHandle):
    """Handle of a sweep: one run for each row. Created by `nb_agents.map`; thread-safe.

    Args:
        spec: The configuration.

    Attributes:
        rows: All rows.
        path: The sweep's directory.
        began_at: When this process started the sweep, in Unix seconds.
    """

    def __init__(self, spec: SweepSpec) -> None:
        self.rows, self.path = spec.rows, spec.path
        self.began_at = time.time()
        self._done = Future[None]()
        self._spec, self._manifest = spec, Manifest(spec.path, spec.about)
        self._fold = self._manifest.fold
        # Rows that an earlier process left at work: they may live on elsewhere.
        self._left = {row.name for row in self.rows} & self._fold.at_work
        self._by_name = {row.name: row for row in self.rows}
        self._running: dict[str, Run] = {}
        self._beginning: set[str] = set()
        self._deaths: Counter[str] = Counter()
        self._stop: StopRequest | None = None
        self._asked = CancellationStatus.NONE
        self._is_paused, self._is_over = False, False
        self._has_begun_one, self._at_end = False, ExitStack()
        self._inbox: SimpleQueue[Callable[[], object]] = SimpleQueue()
        has_scores = spec.score is not None or spec.judge is not None
        self._scorers = ThreadPoolExecutor(spec.limit, "nb_agents score") if has_scores else None
        self._scoring = 0
        self._judging: dict[str, Run] = {}
        self._note(self._sweep_began(spec.retry_failed))
        begun = (row for row in self.rows if row.name not in self._left)
        self._waiting = deque(row for row in begun if not self._fold.is_kept(row.name))
        if self._waiting or self._left or spec.judge is not None:
            self._check_budget(self._fold.spent)
        self._score_those_without()
        self._view = self._current_view()
        self._unregister = join(self)
        Thread(target=self._work, name=f"nb_agents sweep {self.name}", daemon=True).start()

    def _sweep_began(self, retry_failed: bool) -> SweepBegan:
        names = [row.name for row in self.rows]
        others = self._fold.results.keys() - self._by_name.keys()
        return SweepBegan(
            self.began_at,
            len(names),
            tuple(names[:FIRST_ROWS]),
            tuple(sorted(others)),
            retry_failed,
        )

    # State ----------------------------------------------------------------------------------

    @property
    def view(self) -> SweepView:
        """The sweep's state, at most a fifth of a second old."""
        return self._view

    @property
    def is_over(self) -> bool:
        """Whether the sweep has ended and everything is written."""
        return self._done.done()

    @property
    def done(self) -> Future[None]:
        """A future that is resolved when the sweep has ended."""
        return self._done

    @property
    def runs(self) -> Mapping[str, Run]:
        """The current runs, by their rows' names."""
        return dict(self._running)

    def table(self) -> list[dict[str, Any]]:
        """Return a record for each row.

        Returns:
            The source's columns, then: row, status, answer (or each of a recipe's outputs), error,
            tokens, cost, seconds, score, session. A column of the source that has the name of
            another one is "row.NAME"; an output that has one of these names is "output.NAME".
        """
        running, results = self.runs, self._fold.results
        found = [results.get(row.name) for row in self.rows]
        answers = [result.answer for result in found if result]
        outputs = {name for each in answers if isinstance(each, dict) for name in outputs_of(each)}
        records = []
        for row, result in zip(self.rows, found, strict=True):
            ended = result.state if result else "waiting"
            status = "running" if row.name in running else ended
            record = row_record(row.name, status, result, self.path / row.name)
            records.append({**renamed(row.values, COLUMNS | outputs, "row"), **record})
        return records

    def to_frame(self) -> Any:
        """Return the current `table` as a pandas DataFrame.

        Returns:
            The frame. A column with lists, mappings or values of several types has JSON texts, so
            that a CSV or Parquet file can hold it.

        Raises:
            UserError: pandas is not installed.

        Example:
            sweep.to_frame().to_csv("answers.csv")
        """
        return to_frame(self.table())

    # Stopping -------------------------------------------------------------------------------

    def _request_stop(self, request: StopRequest) -> StopResult:
        is_new = request.level > self._asked
        self._asked = max(request.level, self._asked)
        self._inbox.put(lambda: self._on_stop(request))
        now = request.level >= CancellationStatus.IMMEDIATE
        return StopResult(is_new, "stopping-now" if now else "stopping")

    def press(self) -> None:
        """Handle an interrupt: the first stops gracefully, the next immediately."""
        now = self._asked > CancellationStatus.NONE
        self.stop(now, reason="interrupted", source=interrupt_source())

    def hold(self, is_paused: bool) -> bool:
        """Pause the sweep, or continue it; return whether it is running."""
        self._inbox.put(lambda: self._hold(is_paused))
        return not self.is_over

    def resume(self) -> Sweep:
        """Continue after a pause, or after the end with a new sweep for the remaining rows.

        Returns:
            This sweep after a pause; else a new one on the same directory.
        """
        if not self.is_over:
            self.hold(False)
            return self
        return Sweep(replace(self._spec, retry_failed=False))

    # The sweep's thread ---------------------------------------------------------------------

    def _work(self) -> None:
        try:
            for name in tuple(self._left):
                self._begin_in_thread(self._by_name[name])
            self._collect()
        except BaseException as exc:  # no row may go on that nobody collects
            logger.exception("sweep %s crashed", self.name)
            why = f"a bug in nb_agents ended the sweep: {said_by(exc, named=True)}"
            self._on_stop(StopRequest(CancellationStatus.IMMEDIATE, "parent", why))
            self._collect()
        finally:
            self._is_over = True
            for end in (
                self._at_end.close,
                self._end_scorers,
                self._note_status,
                self._unregister,
                self._manifest.close,
                self._publish,
            ):
                with ServiceLoop.SWEEPS.item():
                    end()
            self._done.set_result(None)

    def _collect(self) -> None:
        """Start rows, and handle what becomes of them, until the sweep is over."""
        shown_at = -math.inf
        asked = partial(has_commands, str(TurnPaths(self.path).commands))
        with watched(asked, lambda: self._inbox.put(self._take_commands)):
            while not self._is_finished():
                with ServiceLoop.SWEEPS.item():
                    self._begin_due()
                    if self._stop is not None and self._beginning:
                        self._spec.withdraw()  # again, as a row's thread may only now wait there
                    if time.monotonic() - shown_at >= SHOW_S:
                        shown_at = time.monotonic()
                        self._publish()
                        self._check_budget(self.view.cost)
                with ServiceLoop.SWEEPS.item(), suppress(Empty):
                    self._inbox.get(timeout=SHOW_S)()

    def _end_scorers(self) -> None:
        if self._scorers is not None:
            # A score function that hangs must not delay a stop.
            self._scorers.shutdown(wait=False, cancel_futures=True)

    def _take_commands(self) -> None:
        """Carry out the commands that other processes have sent."""
        for _, command in take_commands(TurnPaths(self.path)):
            with ServiceLoop.SWEEPS.item():
                match command:
                    case StopRequest():
                        self._on_stop(command)
                    case Pause():
                        self._hold(True)
                    case Continue():
                        self._hold(False)

    def _put_for(self, row: Row, handle: Callable[[], object], begun: object = None) -> None:
        """Have news of a row handled; where that fails, the row does, and its run is stopped."""

        def handled() -> None:
            with ServiceLoop.SWEEPS.item(lambda why: self._give_up(row, begun, why)):
                handle()

        self._inbox.put(handled)

    def _give_up(self, row: Row, begun: object, why: str) -> None:
        self._beginning.discard(row.name)
        self._left.discard(row.name)
        run = self._running.pop(row.name, begun)
        if not isinstance(run, Run) or run.is_over:
            self._end(RowResult(row.name, "failed", error=why))
            return
        self._stop_run(run, StopRequest(CancellationStatus.IMMEDIATE, "parent", why))
        run.add_done_callback(lambda: self._put_for(row, lambda: self._on_end(row)))
        self._running[row.name] = run

    def _is_finished(self) -> bool:
        # A judge's run is stopped and waited for like a row's; a score function may hang.
        is_judging = self._spec.judge is not None and self._scoring
        is_beginning = self._left or self._beginning
        if self._running or is_beginning or is_judging or not self._inbox.empty():
            return False
        return self._stop is not None or not (self._waiting or self._scoring)

    def _begin_due(self) -> None:
        if self._left:  # what they cost is not known yet, nor how many of them live
            return
        if self._is_throttled():
            return
        while self._waiting and len(self._running) + len(self._beginning) < self._spec.limit:
            if self._stop is not None or self._is_paused or not self._inbox.empty():
                return
            row = self._waiting.popleft()
            self._beginning.add(row.name)
            self._begin_in_thread(row)
            if row.name not in self._beginning:
                return

    def _begin_in_thread(self, row: Row) -> None:
        # The system may have no thread left.
        with ServiceLoop.SWEEPS.item(lambda _: self._on_begun(row, None)):
            # A row that waits for a place on a cluster must not delay the others.
            _in_thread(self._begin, row)

    def _is_throttled(self) -> bool:
        """Return whether a provider has too many requests of a row that runs elsewhere.

        Here the calls to one server are spaced already; another process knows of its own alone.
        """
        live = ((self._running.get(row.name), row.view) for row in self.view.live)
        return any(
            agent.is_throttled
            for run, view in live
            if run is not None and run.where
            for agent in view.agents.values()
        )

    def _begin(self, row: Row) -> None:
        """Start a row's run, or find one that an earlier process left, in a thread of its own."""
        begun: Run | RowResult | None = None
        was_left = row.name in self._left
        try:
            if was_left:
                begun = self._look(row)
            else:
                begun = self._find_or_begin(row)
        except SessionBusyError:  # the next attempt finds the run that holds it
            time.sleep(SHOW_S)
        except ClusterLostError as exc:  # no more rows can start: they are left for another call
            lost = StopRequest(CancellationStatus.REQUESTED, "parent", str(exc))
            self._inbox.put(lambda: self._on_stop(lost))
        except Exception as exc:  # an error of one row must not affect the others
            if not isinstance(exc, UserError):
                logger.exception("sweep %s: row %s can't begin", self.name, row.name)
            if not was_left:  # which is looked up once more before it is started
                begun = RowResult(row.name, "failed", error=said_by(exc))
        self._put_for(row, lambda: self._on_begun(row, begun), begun)

    def _find_or_begin(self, row: Row) -> Run | RowResult | None:
        """Start a row unless it is running or completed; None when the sweep is stopping."""
        if (found := self._find(row)) is not None or self._stop is not None:
            return found
        try:
            return self._spec.begin(row)
        except UserError:
            # A run that an earlier process submitted to a cluster may have started first.
            if (found := self._find(row)) is None:
                raise
            return found

    def _find(self, row: Row) -> Run | RowResult | None:
        """Return a row's run if it is running, or its result if it is complete without a line."""
        found = self._look(row)
        return None if isinstance(found, RowResult) and found.status != "completed" else found

    def _look(self, row: Row) -> Run | RowResult | None:
        return find_row(self.path / row.name, self._spec.tools, self._spec.first_turn)

    def _on_begun(self, row: Row, begun: Run | RowResult | None) -> None:
        was_left = row.name in self._left
        self._left.discard(row.name)
        self._beginning.discard(row.name)
        if isinstance(begun, Run):
            self._follow(row, begun)
        elif begun is not None and self._is_end(begun, was_left):
            self._end(begun)
        else:  # it was stopped before it started, or goes on from what an earlier process left
            self._waiting.appendleft(row)
            if begun is not None and was_left:  # count what it cost before its process died
                self._note(replace(begun, status="cancelled", timed_out=False))
        if was_left and not self._left:
            self._check_budget(self._fold.spent)

    def _is_end(self, result: RowResult, was_left: bool) -> bool:
        if was_left:
            return result.is_final(self._spec.retry_failed)
        return self._stop is None or result.status == "completed"

    def _follow(self, row: Row, run: Run) -> None:
        if not self._has_begun_one:  # after the first run's imports
            self._has_begun_one = True
            self._at_end.enter_context(less_garbage_collection())
        self._running[row.name] = run
        self._note(RowBegan(row.name, run.turn))
        run.add_done_callback(lambda: self._put_for(row, lambda: self._on_end(row)))
        if self._stop is not None:
            self._stop_run(run, self._stop)
        elif self._is_paused:
            _hold(run, True)

    def _on_end(self, row: Row) -> None:
        run = self._running.pop(row.name, None)
        if run is None:
            return
        result = result_of_turn(row.name, run.view, run.path, self._spec.first_turn)
        if run.view.ending != "killed" or self._stop is not None:
            self._end(result)
            return
        self._deaths[row.name] += 1
        if (deaths := self._deaths[row.name]) < MAX_DEATHS:
            self._fold.put_back(row.name)
            self._waiting.appendleft(row)  # another worker resumes it
        else:
            why = f"{deaths} workers died while they had it"
            self._end(replace(result, status="failed", error=why))

    def _end(self, result: RowResult) -> None:
        self._note(result)
        # The result stands, whatever follows from it.
        with ServiceLoop.SWEEPS.item():
            self._score(result)
        with ServiceLoop.SWEEPS.item():
            self._check_budget(self._fold.spent)

    def _check_budget(self, cost: float | None) -> None:
        if reason := over_budget(cost, self._spec.max_cost):
            self._on_stop(StopRequest(CancellationStatus.REQUESTED, "budget", reason))

    def _note(self, note: Note) -> None:
        try:
            self._manifest.add(note)
        except OSError as exc:
            logger.warning("sweep %s: it is not noted that %r: %s", self.name, note, exc)

    def _score_those_without(self) -> None:
        """Score the answers of an earlier call whose score function was missing or failed."""
        for row in self.rows:
            result = self._fold.results.get(row.name)
            if result is not None and result.score is None:
                self._score(result)

    def _score(self, result: RowResult) -> None:
        if self._scorers is not None and result.status == "completed":
            self._scorers.submit(self._judge if self._spec.judge else self._call_score, result)
            self._scoring += 1

    def _judge(self, result: RowResult) -> None:
        """Get the judge's score, in a thread of its own."""
        assert self._spec.judge is not None
        judged: Judgement | None = None
        row = self._by_name[result.row]
        try:
            if self._stop is None:
                task = self._spec.task(row)
                judged = self._spec.judge.judge(
                    self.path / row.name,
                    task,
                    result.answer,
                    lambda run: self._inbox.put(lambda: self._on_judging(row.name, run)),
                )
        except Exception as exc:  # an error of the judge must not lose the answer
            if not isinstance(exc, UserError):
                logger.exception("sweep %s: row %s can't be judged", self.name, row.name)
            judged = Judgement(None, f"The judge can't be asked: {said_by(exc)}", 0, 0.0)
        self._inbox.put(lambda: self._on_judgement(result, judged))

    def _on_judging(self, row: str, run: Run) -> None:
        self._judging[row] = run
        if self._stop is not None:
            now = self._stop.level >= CancellationStatus.IMMEDIATE
            run.stop(now, reason=self._stop.reason, source=self._stop.source)

    def _on_judgement(self, result: RowResult, judged: Judgement | None) -> None:
        self._judging.pop(result.row, None)
        if judged is None:  # stopped: the judge runs again when the sweep is continued
            self._scoring -= 1
            return
        cost = sum_of([result.cost, judged.cost])
        spent = replace(result, tokens=result.tokens + judged.tokens, cost=cost)
        self._on_score(spent, judged.score, judged.error)
        self._check_budget(self._fold.spent)

    def _call_score(self, result: RowResult) -> None:
        """Call the score function, in a thread of its own."""
        assert self._spec.score is not None
        score: float | None = None
        why = ""
        try:
            made = self._spec.score(self._spec.task(self._by_name[result.row]), result.answer)
            score = float(asyncio.run(_awaited(made)) if isawaitable(made) else made)
        except (Exception, AgentStopped, SystemExit, KeyboardInterrupt) as exc:
            why = f"The score function failed: {said_by(exc, named=True)}"
        self._inbox.put(lambda: self._on_score(result, score, why))

    def _on_score(self, result: RowResult, score: float | None, why: str) -> None:
        self._scoring -= 1
        self._note(replace(result, score=score, error=why))

    def _on_stop(self, request: StopRequest) -> None:
        if self._stop is not None and request.level <= self._stop.level:
            return
        self._stop, self._asked = request, max(request.level, self._asked)
        with ServiceLoop.SWEEPS.item():  # first, as a stopped run makes room for one that waits
            self._spec.withdraw()
        for run in (*self._running.values(), *self._judging.values()):
            with ServiceLoop.SWEEPS.item():
                self._stop_run(run, request)
        self._note_status()

    def _stop_run(self, run: Run, request: StopRequest) -> None:
        now = request.level >= CancellationStatus.IMMEDIATE
        stop = partial(run.stop, now, reason=request.reason, source=request.source)
        if run.where:  # another process runs it, and may take a while to answer
            _in_thread(stop)
        else:
            stop()

    def _hold(self, is_paused: bool) -> None:
        if self._is_paused is is_paused or self._stop is not None:
            return
        self._is_paused = is_paused
        self._note_status()
        for run in self._running.values():
            with ServiceLoop.SWEEPS.item():
                _hold(run, is_paused)

    def _note_status(self) -> None:
        reason = self._stop.reason if self._stop else ""
        self._note(SweepChanged(time.time(), self._status(), reason))

    def _publish(self) -> None:
        self._view = self._current_view()
        super()._publish()

    def _current_view(self) -> SweepView:
        live = [LiveRow(name, run.address, run.view) for name, run in self._running.items()]
        return self._fold.view(self.name, live, time.time())

    def _status(self) -> SweepStatus:
        if self._is_over:
            return "completed" if self._fold.is_complete else "cancelled"
        if self._stop is not None:
            return "stopping"
        return "paused" if self._is_paused else "running"


def _in_thread(function: Callable[..., object], *args: object) -> None:
    """Call a function that may wait for another machine, in a daemon thread."""
    Thread(target=function, args=args, name="nb_agents sweep row", daemon=True).start()


def _hold(run: Run, is_paused: bool) -> None:
    with suppress(UserError):  # it has ended or is stopping
        if is_paused:
            run.pause()
        elif run.view.is_paused:
            run.resume()


async def _awaited(made: Any) -> Any:
    return await made
