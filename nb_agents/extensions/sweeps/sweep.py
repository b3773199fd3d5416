"""The handle of a sweep, which runs the rows of a source, a limited number of them at a time.

Only the sweep's own thread changes its state. Requests from other threads, and the ends of runs,
are passed to it as functions. After a crash, a row's state is read from its session.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Self

from nb_agents.cancel import CancellationStatus, StopRequest, StopResult
from nb_agents.config.secrets import secrets_of_environment
from nb_agents.errors import ClusterLostError, SessionBusyError, UserError, error_message
from nb_agents.events.turn_events import ChangeGroup, Continue, Pause
from nb_agents.extensions.sweeps.ended_sweeps import EndedSweep, keep_ended
from nb_agents.extensions.sweeps.heap import less_garbage_collection
from nb_agents.extensions.sweeps.judge import AnswerJudge, Judgement
from nb_agents.extensions.sweeps.manifest import Manifest, over_budget
from nb_agents.extensions.sweeps.notes import (
    InterimScore,
    Note,
    RowBegan,
    RowResult,
    Steered,
    SweepBegan,
    SweepChanged,
    SweepStatus,
    steered_from,
)
from nb_agents.extensions.sweeps.row_session import find_row, result_of_turn, text_so_far
from nb_agents.extensions.sweeps.row_titles import shown_values
from nb_agents.extensions.sweeps.scoring import Score, Scoring
from nb_agents.extensions.sweeps.source import Row
from nb_agents.extensions.sweeps.steering import Steering, position_of_next, uses_paused
from nb_agents.extensions.sweeps.sweep_fold import (
    FIRST_ROWS,
    LiveRow,
    SweepFold,
    SweepView,
    sum_of,
)
from nb_agents.extensions.sweeps.sweep_handle import SweepHandle
from nb_agents.extensions.sweeps.sweep_table import (
    COLUMNS,
    outputs_of,
    renamed,
    row_record,
    to_frame,
)
from nb_agents.extensions.sweeps.waiting_rows import WaitingRows
from nb_agents.launch.run import Run
from nb_agents.loop import interrupt_source
from nb_agents.masking import Mask
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.commands import has_commands, take_commands
from nb_agents.session.layout import TurnPaths
from nb_agents.turns.budget import Budget, Spent, cost_of_turn, used_up
from nb_agents.turns.live_turns import polling
from nb_agents.turns.registry import join
from nb_agents.view.run_view import RunView

logger = logging.getLogger("nb_agents")

SHOW_S = 0.2
"""Minimum interval between two views sent to subscribers, in seconds."""

MAX_MODELS = 20
"""Maximum number of models that the start of a sweep records, because its panel lists them."""

MAX_MODEL_ROWS = 1000
"""Number of rows whose models are listed."""

MAX_DEATHS = 3
"""Number of dead workers after which a row fails, because the row may be the cause."""


@dataclass(frozen=True)
class SweepSpec:
    """The configuration of a sweep.

    Attributes:
        path: The sweep's directory.
        about: The sweep's source, task and team, for lists of sweeps.
        rows: All rows.
        begin: Starts or resumes a row's run. Gets the row, and its time limit in seconds if it is
            not `timeout`, or None.
        limit: Maximum number of rows that run at the same time.
        max_cost: US dollars after which no row is started. None means no limit.
        budget: A budget of all rows together in which models without a price do not count.
        score: Returns the score of an answer, given the task and the answer.
        judge: An agent that returns the score instead.
        task: Returns a row's task.
        retry_failed: Whether failed rows run again.
        tools: Functions of this process that rows in other processes may also call.
        withdraw: Withdraws rows that are still waiting to start.
        first_turn: The first turn of a row's session that belongs to the sweep.
        timeout: The time limit of each row in seconds. None means the limit of its team.
        models: Returns the models of a row, as "provider:model" or "provider".
        end_reason: Returns why the sweep needs no more rows, or "", given the results so far.
        error: Returns the error to raise to those who wait for the sweep, or None.
    """

    path: Path
    about: Mapping[str, Any]
    rows: tuple[Row, ...]
    begin: Callable[[Row, float | None], Run]
    limit: int
    max_cost: float | None = None
    budget: Budget = Budget()
    score: Score | None = None
    judge: AnswerJudge | None = None
    task: Callable[[Row], str] = lambda row: ""
    retry_failed: bool = False
    tools: Sequence[Callable[..., Any]] = ()
    withdraw: Callable[[], object] = lambda: None
    first_turn: int = 1
    timeout: float | None = None
    models: Callable[[Row], Collection[str]] = lambda row: ()
    end_reason: Callable[[Mapping[str, RowResult]], str] = lambda results: ""
    error: Callable[[], Exception | None] = lambda: None


class Sweep(SweepHandle):
    """Handle of a sweep, with a run for each row. Created by `nb_agents.map`. Thread-safe.

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
        # Forks share the budget of their task, which is recorded in their journals.
        limits = {"limit": spec.limit, "has_budget": spec.max_cost is not None}
        about = {**spec.about, **limits}
        self._spec, self._manifest = spec, Manifest(spec.path, about)
        self._fold = self._manifest.fold
        # Rows without a recorded end may still be running in another process.
        self._possibly_running = {row.name for row in self.rows} & self._fold.at_work
        self._by_name = {row.name: row for row in self.rows}
        self._mask = Mask(secrets_of_environment())
        self._running: dict[str, Run] = {}
        self._beginning: set[str] = set()
        self._away = WaitingRows(_set_paused)
        self._deaths: Counter[str] = Counter()
        self._stop: StopRequest | None = None
        self._requested_level = CancellationStatus.NONE
        self._is_paused, self._is_over, self._has_enough = False, False, False
        self._has_begun_one, self._exit_stack = False, ExitStack()
        self._inbox: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._scoring = Scoring(
            self.path,
            lambda name: spec.task(self._by_name[name]),
            spec.score,
            spec.judge,
            spec.limit,
            self._inbox.put,
        )
        self._record(self._sweep_began(spec.retry_failed))
        begun = (row for row in self.rows if row.name not in self._possibly_running)
        self._waiting = deque(row for row in begun if not self._fold.is_kept(row.name))
        if self._waiting or self._possibly_running or spec.judge is not None:
            self._check_budget(self._fold.spent)
        self._check_end()
        self._score_unscored()
        self._view = self._current_view()
        self._unregister = join(self)
        Thread(target=self._work, name=f"nb_agents sweep {self.name}", daemon=True).start()

    def _sweep_began(self, retry_failed: bool) -> SweepBegan:
        names = [row.name for row in self.rows]
        other_rows = self._fold.results.keys() - self._by_name.keys()
        return SweepBegan(
            self.began_at,
            len(names),
            tuple(names[:FIRST_ROWS]),
            tuple(sorted(other_rows)),
            retry_failed,
            tuple(self._shown_values(row) for row in self.rows[:FIRST_ROWS]),
            self._spec.limit,
            self._spec.max_cost,
            self._spec.timeout,
            self._models_of_rows(),
            self._scoring.is_wanted,
        )

    def _models_of_rows(self) -> tuple[str, ...]:
        rows = self.rows[:MAX_MODEL_ROWS]
        models = dict.fromkeys(name for row in rows for name in sorted(self._spec.models(row)))
        return tuple(models)[:MAX_MODELS]

    def _shown_values(self, row: Row) -> Mapping[str, str]:
        return shown_values(row.values, self._mask.text)

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

    def _source_rows(self) -> Sequence[Row]:
        return self.rows

    @property
    def runs(self) -> Mapping[str, Run]:
        """The current runs, by their rows' names."""
        return dict(self._running)

    def table(self) -> list[dict[str, Any]]:
        """Return a record for each row.

        Returns:
            The source's columns, then: row, status, answer (or each of a recipe's outputs), error,
            tokens, cost, seconds, score, session. A source column with the name of another column
            becomes "row.NAME", and an output with one of these names "output.NAME".
        """
        running, results = self.runs, self._fold.results
        row_results = [results.get(row.name) for row in self.rows]
        answers = [result.answer for result in row_results if result]
        outputs = {name for each in answers if isinstance(each, dict) for name in outputs_of(each)}
        records = []
        for row, result in zip(self.rows, row_results, strict=True):
            has_ended = result is not None and row.name not in self._fold.requeued
            state = result.state if result and has_ended else "waiting"
            status = "running" if row.name in running else state
            record = row_record(row.name, status, result, self.path / row.name)
            records.append({**renamed(row.values, COLUMNS | outputs, "row"), **record})
        return records

    def to_frame(self) -> Any:
        """Return the current `table` as a pandas DataFrame.

        Columns with lists, mappings or values of several types contain JSON text, so that the frame
        can be saved as CSV or Parquet.

        Raises:
            UserError: pandas is not installed.

        Example:
            sweep.to_frame().to_csv("answers.csv")
        """
        return to_frame(self.table())

    # Stopping -------------------------------------------------------------------------------

    def _request_stop(self, request: StopRequest) -> StopResult:
        is_new = request.level > self._requested_level
        self._requested_level = max(request.level, self._requested_level)
        self._inbox.put(lambda: self._on_stop(request))
        now = request.level >= CancellationStatus.IMMEDIATE
        return StopResult(is_new, "stopping-now" if now else "stopping")

    def press(self) -> None:
        """Handle an interrupt: the first one stops gracefully, the next immediately."""
        now = self._requested_level > CancellationStatus.NONE
        self.stop(now, reason="interrupted", source=interrupt_source())

    def hold(self, is_paused: bool) -> bool:
        """Pause or unpause the sweep. Returns whether it is running."""
        self._inbox.put(lambda: self._set_paused(is_paused))
        return not self.is_over

    @contextmanager
    def _folded(self) -> Iterator[SweepFold]:
        # The sweep's thread decides again, so a change in between does no harm.
        yield self._fold

    def _steer(self, note: Steered) -> None:
        self._inbox.put(lambda: self._on_steer(note))

    def resume(self, retry_failed: bool = False) -> Self:
        """Unpause the sweep, or run the remaining rows of one that has ended.

        Args:
            retry_failed: Whether failed rows of a sweep that has ended also run again.

        Returns:
            This sweep if it was paused, or else a new one for the same directory.
        """
        if not self.is_over:
            self.hold(False)
            return self
        return self._restart()(retry_failed)

    def _restart(self) -> Callable[[bool], Self]:
        """Return a function that runs the remaining rows and, on request, the failed ones."""
        kind, spec = type(self), self._spec  # without this object, which has the views of all rows
        return lambda retry_failed: kind(replace(spec, retry_failed=retry_failed))

    # The sweep's thread ---------------------------------------------------------------------

    def _work(self) -> None:
        try:
            for name in tuple(self._possibly_running):
                self._begin_in_thread(self._by_name[name])
            self._collect()
        except BaseException as exc:  # without this thread, no row may continue
            logger.exception("sweep %s crashed", self.name)
            why = f"a bug in nb_agents ended the sweep: {error_message(exc, named=True)}"
            self._on_stop(StopRequest(CancellationStatus.IMMEDIATE, "parent", why))
            self._collect()
        finally:
            self._is_over = True
            for end in (
                self._exit_stack.close,
                self._scoring.close,
                self._record_status,
                self._unregister,
                self._manifest.close,
                self._publish,
            ):
                with ServiceLoop.SWEEPS.item():
                    end()
            keep_ended(self.path, EndedSweep(self._restart(), self._source_rows()))
            if (error := self._spec.error()) is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)

    def _collect(self) -> None:
        """Start rows and handle their results until the sweep is over."""
        shown_at = -math.inf
        has_new = partial(has_commands, str(TurnPaths(self.path).commands))
        with polling(has_new, lambda: self._inbox.put(self._take_commands)):
            while not self._is_finished():
                with ServiceLoop.SWEEPS.item():
                    self._begin_due()
                    if self._stop is not None and self._beginning:
                        self._spec.withdraw()  # repeated, because a row may start to wait later
                    if time.monotonic() - shown_at >= SHOW_S:
                        shown_at = time.monotonic()
                        self._publish()
                        self._check_budget(self.view.cost)
                with ServiceLoop.SWEEPS.item(), suppress(Empty):
                    self._inbox.get(timeout=SHOW_S)()

    def _take_commands(self) -> None:
        """Carry out commands from other processes."""
        for _, command in take_commands(TurnPaths(self.path)):
            with ServiceLoop.SWEEPS.item():
                match command:
                    case StopRequest():
                        self._on_stop(command)
                    case Pause():
                        self._set_paused(True)
                    case Continue():
                        self._set_paused(False)
                    case ChangeGroup(fields) if note := steered_from(fields):
                        self._on_steer(note)

    def _handle_later(self, row: Row, handle: Callable[[], object], begun: object = None) -> None:
        """Queue a handler for a row. If it fails, so does the row, and its run is stopped."""

        def handled() -> None:
            with ServiceLoop.SWEEPS.item(lambda why: self._fail_row(row, begun, why)):
                handle()

        self._inbox.put(handled)

    def _fail_row(self, row: Row, begun: object, why: str) -> None:
        self._beginning.discard(row.name)
        self._possibly_running.discard(row.name)
        run = self._running.pop(row.name, begun)
        if not isinstance(run, Run) or run.is_over:
            self._end(RowResult(row.name, "failed", error=why))
            return
        self._stop_run(run, StopRequest(CancellationStatus.IMMEDIATE, "parent", why))
        run.add_done_callback(lambda: self._handle_later(row, lambda: self._on_end(row)))
        self._running[row.name] = run

    def _is_finished(self) -> bool:
        # A judge's run is stopped and awaited like a row's run. A score function may hang.
        is_beginning = self._possibly_running or self._beginning
        is_judging = self._scoring.is_judging
        if self._running or is_beginning or is_judging or not self._inbox.empty():
            return False
        return self._stop is not None or not (self._waiting or self._scoring.count)

    def _begin_due(self) -> None:
        if self._stop is None and not self._is_paused:
            paused = {name for name in self._running if self._uses_paused(self._by_name[name])}
            limit = self._steering.limit
            self._away.update(self._running, len(self._beginning), time.time(), limit, paused)
        if self._possibly_running:  # their cost, and how many are still running, is unknown
            return
        if self._is_throttled():
            return
        while self._waiting and self._places_taken < self._steering.limit:
            if self._stop is not None or self._is_paused or not self._inbox.empty():
                return
            if (at := position_of_next(self._waiting, self._uses_paused)) is None:
                return
            row = self._waiting[at]
            del self._waiting[at]
            self._beginning.add(row.name)
            self._begin_in_thread(row)
            if row.name not in self._beginning:
                return

    @property
    def _steering(self) -> Steering:
        return self._fold.steering

    @property
    def _changed_timeout(self) -> float | None:
        """The time limit of each row in seconds, or None for that of the call."""
        timeout = self._steering.timeout
        return None if timeout == self._spec.timeout else timeout

    def _uses_paused(self, row: Row) -> bool:
        paused = self._steering.paused
        return bool(paused) and uses_paused(self._spec.models(row), paused)

    @property
    def _places_taken(self) -> int:
        """The number of rows that count towards the limit."""
        return len(self._running) - self._away.count + len(self._beginning)

    def _begin_in_thread(self, row: Row) -> None:
        # Starting a thread can fail if the system has too many.
        with ServiceLoop.SWEEPS.item(lambda _: self._on_begun(row, None)):
            # A row that waits for a worker of a cluster must not delay the others.
            _in_thread(self._start_row, row)

    def _is_throttled(self) -> bool:
        """Return whether a row in another process is waiting because of a provider's rate limit.

        Calls in this process are already spaced, but other processes only know their own calls.
        """
        live = ((self._running.get(row.name), row.view) for row in self.view.live)
        return any(
            agent.is_throttled and agent.wait is None
            for run, view in live
            if run is not None and run.where
            for agent in view.agents.values()
        )

    def _start_row(self, row: Row) -> None:
        """Start a row's run in its own thread, or find one that an earlier process started."""
        result: Run | RowResult | None = None
        was_unfinished = row.name in self._possibly_running
        try:
            if was_unfinished:
                result = self._find_any(row)
            else:
                result = self._find_or_begin(row)
        except SessionBusyError:  # the next attempt finds the live run
            time.sleep(SHOW_S)
        except ClusterLostError as exc:  # no more rows can start; another call resumes them
            lost = StopRequest(CancellationStatus.REQUESTED, "parent", str(exc))
            self._inbox.put(lambda: self._on_stop(lost))
        except Exception as exc:  # an error in one row must not affect the others
            if not isinstance(exc, UserError):
                logger.exception("sweep %s: row %s can't begin", self.name, row.name)
            if not was_unfinished:  # an abandoned row is looked up again before it starts
                result = RowResult(row.name, "failed", error=error_message(exc))
        self._handle_later(row, lambda: self._on_begun(row, result), result)

    def _find_or_begin(self, row: Row) -> Run | RowResult | None:
        """Start a row unless it is running or completed. Returns None if the sweep is stopping."""
        if (existing := self._find(row)) is not None or self._stop is not None:
            return existing
        try:
            return self._spec.begin(row, self._changed_timeout)
        except UserError:
            # A run that an earlier process submitted to a cluster may have started in between.
            if (existing := self._find(row)) is None:
                raise
            return existing

    def _find(self, row: Row) -> Run | RowResult | None:
        """Return a row's live run, or its result if it completed without a note."""
        existing = self._find_any(row)
        return (
            None if isinstance(existing, RowResult) and existing.status != "completed" else existing
        )

    def _find_any(self, row: Row) -> Run | RowResult | None:
        return find_row(self.path / row.name, self._spec.tools, self._spec.first_turn)

    def _on_begun(self, row: Row, begun: Run | RowResult | None) -> None:
        was_unfinished = row.name in self._possibly_running
        self._possibly_running.discard(row.name)
        self._beginning.discard(row.name)
        if isinstance(begun, Run):
            self._follow(row, begun)
        elif begun is not None and self._is_end(begun, was_unfinished):
            self._end(begun)
        else:  # it was stopped before it started, or continues after its process died
            self._waiting.appendleft(row)
            if begun is not None and was_unfinished:  # count its cost before its process died
                self._record(replace(begun, status="cancelled", timed_out=False))
        if was_unfinished and not self._possibly_running:
            self._check_budget(self._fold.spent)

    def _is_end(self, result: RowResult, was_unfinished: bool) -> bool:
        if was_unfinished and result.row in self._fold.requeued:
            return result.status == "completed"
        if was_unfinished:
            return result.is_final(self._spec.retry_failed)
        return self._stop is None or result.status == "completed"

    def _follow(self, row: Row, run: Run) -> None:
        if not self._has_begun_one:  # now that the first run has imported its modules
            self._has_begun_one = True
            self._exit_stack.enter_context(less_garbage_collection())
        self._running[row.name] = run
        self._record(RowBegan(row.name, run.turn, self._shown_values(row)))
        run.add_done_callback(lambda: self._handle_later(row, lambda: self._on_end(row)))
        if self._changed_timeout is not None:
            self._set_time_limit(run, self._changed_timeout)
        if self._stop is not None:
            self._stop_run(run, self._stop)
        elif self._is_paused:
            _set_paused(run, True)

    def _on_end(self, row: Row) -> None:
        run = self._running.pop(row.name, None)
        if run is None:
            return
        result = result_of_turn(row.name, run.view, run.path, self._spec.first_turn)
        if row.name in self._fold.requeued and result.status != "completed":
            self._end(replace(result, status="cancelled", timed_out=False))
            self._waiting.append(row)
            return
        if run.view.ending != "killed" or self._stop is not None:
            self._end(result)
            self._stop_if_spent(run.view)
            return
        self._deaths[row.name] += 1
        if (deaths := self._deaths[row.name]) < MAX_DEATHS:
            self._fold.put_back(row.name)
            self._waiting.appendleft(row)  # another worker resumes it
        else:
            why = f"{deaths} workers died while running this row"
            self._end(replace(result, status="failed", error=why))

    def _end(self, result: RowResult) -> None:
        self._record(result)
        # The result is recorded, so errors from here on do not affect it.
        with ServiceLoop.SWEEPS.item():
            self._score(result)
        with ServiceLoop.SWEEPS.item():
            self._check_budget(self._fold.spent)
        with ServiceLoop.SWEEPS.item():
            self._check_end()

    def _stop_if_spent(self, view: RunView) -> None:
        """Stop the sweep if a row has used up the budget that all rows share."""
        is_shared = self._spec.budget != Budget()
        if is_shared and view.stop is not None and view.stop.source == "budget":
            self._on_stop(StopRequest(CancellationStatus.REQUESTED, "budget", view.stop.reason))

    def _check_budget(self, cost: float | None) -> None:
        if reason := over_budget(cost, self._steering.max_cost) or self._used_up():
            self._on_stop(StopRequest(CancellationStatus.REQUESTED, "budget", reason))

    def _check_end(self) -> None:
        """Stop the sweep if it needs no more rows. It then counts as complete."""
        if self._stop is None and (reason := self._spec.end_reason(self._fold.results)):
            self._has_enough = True
            self._on_stop(StopRequest(CancellationStatus.REQUESTED, "parent", reason))

    def _used_up(self) -> str:
        if self._spec.budget == Budget():
            return ""
        views = [run.view for run in self.runs.values()]
        tokens = self._fold.tokens + sum(view.tokens for view in views)
        cost = self._fold.cost + sum(map(cost_of_turn, views))
        return used_up(Spent(tokens, cost), self._spec.budget)

    def _record(self, note: Note) -> None:
        try:
            self._manifest.add(note)
        except OSError as exc:
            logger.warning("sweep %s: can't record %r: %s", self.name, note, exc)

    def _score_unscored(self) -> None:
        """Score answers from an earlier call whose score function was missing or failed."""
        for row in self.rows:
            result = self._fold.results.get(row.name)
            if result is not None and result.score is None:
                self._score(result)

    def _score(self, result: RowResult) -> None:
        if result.status == "completed":
            self._scoring.score(result.row, result.answer, partial(self._on_judgement, result))

    def _on_judgement(self, result: RowResult, judgement: Judgement | None) -> None:
        if judgement is None:  # stopped: the judge runs again when the sweep is continued
            return
        if self._spec.judge is not None:
            result = replace(
                result,
                tokens=result.tokens + judgement.tokens,
                cost=sum_of([result.cost, judgement.cost]),
                is_estimated=result.is_estimated or judgement.is_estimated,
            )
        self._record(replace(result, score=judgement.score, error=judgement.error))
        self._check_end()
        self._check_budget(self._fold.spent)

    def _on_steer(self, note: Steered) -> None:
        """Record a change of the user, and make it."""
        if self._stop is not None:
            return
        note = replace(note, rows=tuple(filter(self._may_requeue, note.rows)))
        self._record(note)
        for row in note.rows:
            with ServiceLoop.SWEEPS.item():
                self._requeue(self._by_name[row])
        for name, run in self._running.items():
            with ServiceLoop.SWEEPS.item():
                if note.timeout is not None:
                    self._set_time_limit(run, note.timeout)
                if note.score:
                    self._score_so_far(name, run)
        with ServiceLoop.SWEEPS.item():
            self._check_budget(self._current_view().cost)

    def _may_requeue(self, row: str) -> bool:
        result = self._fold.results.get(row)
        is_complete = result is not None and result.status == "completed"
        has_started = row in self._running or result is not None
        return row in self._by_name and has_started and not is_complete

    def _requeue(self, row: Row) -> None:
        self._deaths.pop(row.name, None)
        if (run := self._running.get(row.name)) is not None:
            request = StopRequest(CancellationStatus.IMMEDIATE, "parent", "it was requeued")
            self._stop_run(run, request)
        elif row not in self._waiting and row.name not in self._beginning:
            self._waiting.append(row)

    def _set_time_limit(self, run: Run, timeout_s: float) -> None:
        if run.where:
            _in_thread(_try, run.set_time_limit, timeout_s)
        else:
            _try(run.set_time_limit, timeout_s)

    def _score_so_far(self, row: str, run: Run) -> None:
        """Score what a running row has written."""
        if answer := text_so_far(run.view):
            done = partial(self._on_interim_score, row)
            self._scoring.score(row, answer, done, is_interim=True)

    def _on_interim_score(self, row: str, judgement: Judgement | None) -> None:
        if judgement is not None:
            score, why, tokens, cost, _ = judgement
            self._record(InterimScore(row, score, why, tokens, cost))
            self._check_budget(self._fold.spent)

    def _on_stop(self, request: StopRequest) -> None:
        if self._stop is not None and request.level <= self._stop.level:
            return
        self._stop, self._requested_level = request, max(request.level, self._requested_level)
        self._scoring.stop(request)
        with (
            ServiceLoop.SWEEPS.item()
        ):  # withdrawn first, because a stopped run would let a waiting one start
            self._spec.withdraw()
        for run in (*self._running.values(), *self._scoring.runs.values()):
            with ServiceLoop.SWEEPS.item():
                self._stop_run(run, request)
        self._record_status()

    def _stop_run(self, run: Run, request: StopRequest) -> None:
        now = request.level >= CancellationStatus.IMMEDIATE
        stop = partial(run.stop, now, reason=request.reason, source=request.source)
        if run.where:  # another process runs it and may take a while to reply
            _in_thread(stop)
        else:
            stop()

    def _set_paused(self, is_paused: bool) -> None:
        if self._is_paused is is_paused or self._stop is not None:
            return
        self._is_paused = is_paused
        self._record_status()
        for name, run in self._running.items():
            with ServiceLoop.SWEEPS.item():
                _set_paused(run, is_paused or self._away.is_held(name))

    def _record_status(self) -> None:
        reason = self._stop.reason if self._stop else ""
        self._record(SweepChanged(time.time(), self._status(), reason))

    def _publish(self) -> None:
        self._view = self._current_view()
        super()._publish()

    def _current_view(self) -> SweepView:
        live = [LiveRow(name, run.address, run.view) for name, run in self._running.items()]
        return self._fold.view(self.name, live, time.time())

    def _status(self) -> SweepStatus:
        if self._is_over:
            is_complete = self._has_enough or self._fold.is_complete
            return "completed" if is_complete else "cancelled"
        if self._stop is not None:
            return "stopping"
        return "paused" if self._is_paused else "running"


def _in_thread(function: Callable[..., object], *args: object) -> None:
    """Call a function in a daemon thread, because it may wait for another machine."""
    Thread(target=function, args=args, name="nb_agents sweep row", daemon=True).start()


def _try(function: Callable[..., object], *args: object) -> None:
    """Call a function of a run, which may have ended."""
    with suppress(UserError):
        function(*args)


def _set_paused(run: Run, is_paused: bool) -> None:
    with suppress(UserError):  # the run has ended or is stopping
        if is_paused:
            run.pause()
        elif run.view.is_paused:
            run.resume()
