"""Folds the notes of a sweep into its state, which is the same in all processes.

Applying a note, and creating a view, take the same time for any number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from nb_agents.errors import UserError
from nb_agents.extensions.sweeps.confidence import mean_interval
from nb_agents.extensions.sweeps.notes import (
    InterimScore,
    Note,
    NoteReader,
    RowBegan,
    RowResult,
    Steered,
    SweepBegan,
    SweepChanged,
    SweepStatus,
)
from nb_agents.extensions.sweeps.row_titles import row_title
from nb_agents.extensions.sweeps.steering import Steering, SteerRequest, check_model, rows_named
from nb_agents.presentation.text import clip
from nb_agents.view.receipt import total_cost
from nb_agents.view.run_view import RunState, RunView

_STATES: dict[SweepStatus, RunState] = {
    "running": "running",
    "paused": "running",
    "stopping": "stopping",
    "completed": "complete",
    "cancelled": "stopped",
}

PROCESS_DIED = "its process died"

FIRST_ROWS = 20
"""Number of rows at the start of a sweep whose names are recorded, because its card lists them."""

MAX_FAILURES = 50
"""Maximum number of failed rows in a view."""

MAX_RECENT = 40
"""Maximum number of ended rows in a view, those that ended last."""

MAX_ANSWER = 200
"""Maximum length of an ended row's answer in a view, in characters."""


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A running row.

    Attributes:
        name: The row's name.
        run: The id of its run.
        view: The current state of its turn.
    """

    name: str
    run: str
    view: RunView


class EndedRow(NamedTuple):
    """A row that has ended.

    Attributes:
        result: Its result, with at most `MAX_ANSWER` characters of its answer.
        turn: The number of its last turn, or 0 if it is unknown.
    """

    result: RowResult
    turn: int


@dataclass(frozen=True, slots=True)
class SweepView:
    """The state of a sweep at one moment.

    Attributes:
        name: The sweep's name.
        status: "completed" once every row has completed or failed.
        total: Number of rows.
        completed, failed: Number of rows with that status.
        tokens: Tokens used so far.
        cost: Cost so far in US dollars, or None if the price of a model is unknown.
        elapsed_s: Seconds since this process started the sweep.
        left_s: Estimated remaining seconds without pauses, or None until a row has ended.
        live: The running rows.
        failures: Up to `MAX_FAILURES` failed rows.
        scores: The scores so far.
        reason: Why the sweep was stopped.
        to_go: Number of rows that this process has not started yet.
        timed_out: Number of rows that a time limit ended.
        failed_late: Number of failed rows that a time limit ended.
        recent: The rows that ended last, newest first.
        values: The values of the listed rows as short text, by row and column.
        steering: The current limits, and the models whose rows are paused.
        models: Models of the rows, as "provider:model" or "provider".
        has_score: Whether the answers are scored.
        interim: The scores of what running rows had written so far, by row.
    """

    name: str
    status: SweepStatus
    total: int
    completed: int
    failed: int
    tokens: int
    cost: float | None
    elapsed_s: float
    left_s: float | None
    live: tuple[LiveRow, ...]
    failures: tuple[RowResult, ...]
    scores: tuple[float, ...]
    reason: str = ""
    to_go: int = 0
    timed_out: int = 0
    failed_late: int = 0
    recent: tuple[EndedRow, ...] = ()
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    steering: Steering = Steering()
    models: tuple[str, ...] = ()
    has_score: bool = False
    interim: Mapping[str, InterimScore] = field(default_factory=dict)

    def __str__(self) -> str:
        done = self.completed + self.failed
        state = "paused" if self.status == "paused" else self.state
        return f"{self.name}: {state}, {done} of {self.total} rows"

    @property
    def state(self) -> RunState:
        """The sweep's state, as shown in all user interfaces."""
        return _STATES[self.status]

    @property
    def waiting(self) -> int:
        """The number of rows that are waiting for the user."""
        return sum(bool(row.view.gates) for row in self.live)

    @property
    def is_over(self) -> bool:
        """Whether the sweep has ended."""
        return self.status in ("completed", "cancelled")

    @property
    def score(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the scores, or None if there are none."""
        if not self.scores:
            return None
        return fmean(self.scores), stdev(self.scores) if len(self.scores) > 1 else 0.0

    @property
    def score_interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean score, or None if it is unknown.

        Wilson's interval if all scores are 0 or 1, and otherwise Student's t interval.
        """
        return mean_interval(self.scores)


@dataclass
class SweepFold:
    """The state of a sweep, from its notes so far.

    Args:
        rows: The number of rows, for a sweep whose notes do not contain it.
        keeps_answers: Whether to keep the answers of all rows, or only of the first ones.

    Attributes:
        results: The rows' results, by name.
        at_work: Rows that started in any process and have no recorded end.
        running: The turn numbers of running rows that the last process started, by name.
        began: The start of the last process.
        change: The last change of the sweep's status.
        failures: Failed rows, by name.
        values: The values of the rows that a view or card lists, as short text.
        completed: Number of completed rows.
        requeued: Rows that run again and have not started yet.
        steering: The current limits, and the models whose rows are paused.
        interim: The scores of what running rows had written so far, by row.
    """

    rows: int | None = None
    keeps_answers: bool = True
    results: dict[str, RowResult] = field(default_factory=dict)
    at_work: set[str] = field(default_factory=set)
    running: dict[str, int] = field(default_factory=dict)
    began: SweepBegan = SweepBegan(0.0, 0, (), (), False)
    change: SweepChanged = SweepChanged(0.0, "running")

    def __post_init__(self) -> None:
        self.values: dict[str, Mapping[str, str]] = {}
        self._recent: dict[str, EndedRow] = {}
        self.requeued = set[str]()
        self.steering = Steering()
        self.interim: dict[str, InterimScore] = {}
        self._interim_tokens, self._interim_cost, self._interim_unpriced = 0, 0.0, 0
        self._reset()

    def _reset(self) -> None:
        self.completed, self.failures = 0, dict[str, RowResult]()
        self._tokens, self._cost, self._unpriced = 0, 0.0, 0
        self._timed_out = self._failed_late = 0
        self._scores: dict[str, float] = {}
        # Rows that had ended before this process, rows that it ended, and all rows that are done.
        self._kept_rows, self._ended_rows, self._started_rows = set[str](), set[str](), set[str]()
        self._paused_since: float | None = None
        self._paused_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the end of the sweep is recorded."""
        return self.change.status in ("completed", "cancelled")

    @property
    def total(self) -> int:
        """The number of rows."""
        return self.began.rows or (len(self.results) if self.rows is None else self.rows)

    @property
    def is_complete(self) -> bool:
        """Whether each row has completed or failed."""
        return self.completed + len(self.failures) >= self.total

    @property
    def spent(self) -> float | None:
        """US dollars spent on ended rows, or None if the price of a model is unknown."""
        is_unknown = self._unpriced or self._interim_unpriced
        return None if is_unknown else self.cost

    def spent_without(self, rows: Collection[str]) -> float | None:
        """Return the US dollars spent on ended rows except these. None if a price is unknown."""
        left_out = [self.results[row].cost for row in rows if row in self.results]
        if self._interim_unpriced or self._unpriced > left_out.count(None):
            return None
        return self.cost - sum(cost or 0.0 for cost in left_out)

    @property
    def tokens(self) -> int:
        """Tokens of ended rows."""
        return self._tokens + self._interim_tokens

    @property
    def cost(self) -> float:
        """US dollars spent on ended rows, without models whose price is unknown."""
        return self._cost + self._interim_cost

    @property
    def titles(self) -> dict[str, str]:
        """The titles of the rows that a view lists, by name."""
        return {row: row_title(row, values).title for row, values in self.values.items()}

    def is_kept(self, row: str) -> bool:
        """Return whether a row had ended when this process started, and does not run again."""
        return row in self._kept_rows

    def is_final(self, row: str, retry_failed: bool) -> bool:
        """Return whether repeating the sweep keeps the result of a row."""
        result = self.results.get(row)
        is_final = result is not None and result.is_final(retry_failed)
        return is_final and row not in self.at_work and row not in self.requeued

    def put_back(self, row: str) -> None:
        """Mark a row that had started as not started, so that it starts again."""
        self._started_rows.discard(row)
        self.running.pop(row, None)

    def apply(self, note: Note) -> None:
        """Apply the next note."""
        match note:
            case SweepBegan():
                self._begin(note)
            case SweepChanged():
                self._pause(note.status == "paused", note.at)
                self.change = note
            case Steered():
                self.steering = self.steering.after(note)
                for row in note.rows:
                    self._requeue(row)
            case InterimScore():
                self._add_interim(note)
            case RowBegan():
                self.requeued.discard(note.row)
                self.interim.pop(note.row, None)
                self.at_work.add(note.row)
                self.running[note.row] = note.turn
                self._started_rows.add(note.row)
                self.values[note.row] = note.values
            case RowResult():
                self._end(note)

    def _begin(self, began: SweepBegan) -> None:
        self.steering = self.steering.at_start(self.began, began)
        self.began, self.change = began, SweepChanged(began.at, "running")
        self.interim.clear()
        self.running.clear()
        self._reset()
        self.values |= dict(zip(began.first, began.first_values, strict=False))
        for row, result in self.results.items():
            if row in began.others:
                continue
            if self.is_final(row, began.retry_failed):
                self._kept_rows.add(row)
                self._started_rows.add(row)
                self._replace(result, None)
            else:  # the row will run again, so only its tokens and cost count
                self._replace(replace(result, status="cancelled", timed_out=False), None)
                self._recent.pop(row, None)

    def _pause(self, is_paused: bool, at: float) -> None:
        if is_paused and self._paused_since is None:
            self._paused_since = at
        elif not is_paused:
            self._paused_s, self._paused_since = self._paused_until(at), None

    def _paused_until(self, at: float) -> float:
        since = self._paused_since
        return self._paused_s + (0.0 if since is None else max(0.0, at - since))

    def _requeue(self, row: str) -> None:
        """Let a row run again. One that is running is stopped first."""
        self.requeued.add(row)
        if row in self.running or (result := self.results.get(row)) is None:
            return
        # Only its tokens and cost count.
        stopped = replace(result, status="cancelled", timed_out=False)
        self._replace(stopped, result)
        self.results[row] = stopped
        for rows in (self._kept_rows, self._ended_rows, self._started_rows):
            rows.discard(row)
        self._recent.pop(row, None)

    def _add_interim(self, note: InterimScore) -> None:
        self.interim[note.row] = note
        self._interim_tokens += note.tokens
        self._interim_cost += note.cost or 0.0
        self._interim_unpriced += note.cost is None

    def _end(self, result: RowResult) -> None:
        row = result.row
        self.interim.pop(row, None)
        if result.status != "cancelled":
            self.requeued.discard(row)
        self._replace(result, self.results.get(row))
        # Answers can be long, and there may be many rows.
        is_shown = row in self.began.first or len(self.results) < FIRST_ROWS
        keeps_answer = self.keeps_answers or is_shown
        self.results[row] = result if keeps_answer else replace(result, answer=None)
        self._add_recent(result)
        self.at_work.discard(row)
        self.running.pop(row, None)
        if row in self.requeued:
            self._started_rows.discard(row)
            self._recent.pop(row, None)
        elif result.status != "cancelled" and row not in self._kept_rows:
            self._ended_rows.add(row)
            self._started_rows.add(row)

    def _add_recent(self, result: RowResult) -> None:
        row, previous = result.row, self._recent.get(result.row)
        turn = self.running.get(row) or (previous.turn if previous else 0)
        ended = EndedRow(replace(result, answer=_short(result.answer)), turn)
        if row not in self.running and previous:  # a new score, which is not a new end
            self._recent[row] = ended
            return
        self._recent.pop(row, None)
        self._recent[row] = ended
        if len(self._recent) > MAX_RECENT:
            self._forget(next(iter(self._recent)))

    def _forget(self, row: str) -> None:
        """Drop an ended row that is no longer listed, because there may be many rows."""
        del self._recent[row]
        if row not in self.failures and row not in self.began.first:
            self.values.pop(row, None)

    def _replace(self, result: RowResult, previous: RowResult | None) -> None:
        if previous is not None:
            self._count(previous, -1)
        self._count(result, 1)
        self.failures.pop(result.row, None)
        if result.status == "failed":
            self.failures[result.row] = result
        if result.score is not None and math.isfinite(result.score):
            self._scores[result.row] = result.score

    def _count(self, result: RowResult, sign: int) -> None:
        self.completed += sign * (result.status == "completed")
        self._timed_out += sign * result.timed_out
        self._failed_late += sign * (result.timed_out and result.status == "failed")
        self._tokens += sign * result.tokens
        self._cost += sign * (result.cost or 0.0)
        self._unpriced += sign * (result.cost is None)

    def view(
        self, name: str, live: Sequence[LiveRow], now: float, died_at: float | None = None
    ) -> SweepView:
        """Return the state of the sweep.

        Args:
            name: The sweep's name.
            live: The running rows. Totals include what a resumed row used before.
            now: The current time in Unix seconds.
            died_at: When a process that died without recording an end last worked. None if it is
                alive.
        """
        change = self.change
        if died_at is not None and not self.is_over:
            change = SweepChanged(died_at, "cancelled", PROCESS_DIED)
            if self.is_complete:
                change = SweepChanged(died_at, "completed")
        until = change.at if self.is_over or died_at is not None else now
        elapsed_s = max(0.0, until - self.began.at) if self.began.at else 0.0
        to_go = max(0, self.total - len(self._started_rows))
        ended_count = len(self._ended_rows) if self.began.at else 0
        worked_s = elapsed_s - self._paused_until(until)
        failures = tuple(islice(self.failures.values(), MAX_FAILURES))
        is_running = {row.name for row in live}
        recent = tuple(
            each for each in reversed(self._recent.values()) if each.result.row not in is_running
        )
        ended = (*(each.row for each in failures), *(each.result.row for each in recent))
        listed = dict.fromkeys((*is_running, *ended, *self.began.first))
        return SweepView(
            name,
            change.status,
            self.total,
            self.completed,
            len(self.failures),
            self.tokens + sum(row.view.tokens for row in live),
            sum_of([self.spent, *(total_cost(row.view) for row in live)]),
            elapsed_s,
            worked_s / ended_count * (to_go + len(live)) if ended_count else None,
            tuple(live),
            failures,
            tuple(self._scores.values()),
            change.reason,
            to_go,
            self._timed_out,
            self._failed_late,
            recent,
            {row: self.values[row] for row in listed if self.values.get(row)},
            self.steering,
            self.began.models,
            self.began.has_score,
            {row: self.interim[row] for row in is_running if row in self.interim},
        )


def steered(request: SteerRequest, fold: SweepFold, source: str, now: float) -> Steered:
    """Return the note of a change.

    Args:
        request: The request.
        fold: The state of the sweep.
        source: The interface in which the user made the request.
        now: The current time in Unix seconds.

    Raises:
        UserError: The sweep has no such row or model, or does not score its answers.
    """
    if request.pause_model:
        check_model(request.pause_model, fold.began.models)
    paused = fold.steering.paused
    if request.unpause_model and request.unpause_model not in paused:
        raise UserError(
            f"{request.unpause_model!r} is not paused. Paused models: "
            f"{', '.join(paused) or 'none'}."
        )
    if request.score and not fold.began.has_score:
        raise UserError("The sweep has no score function and no judge. Start it with score=.")
    rows: Sequence[str] = ()
    if request.requeue:
        rows = rows_named(request.requeue, fold.results, fold.titles, fold.running)
    changes = {name: each for name, each in request.changes.items() if name != "requeue"}
    return Steered(now, source, rows=tuple(rows), **changes)


def fold_notes(path: Path) -> SweepFold:
    """Return the state from a sweep's notes, skipping invalid lines.

    Args:
        path: The sweep's directory. Without notes, the state is empty.
    """
    fold, reader = SweepFold(), NoteReader(path)
    with suppress(OSError):
        while notes := reader.read():
            for _, note in notes:
                fold.apply(note)
    return fold


def _short(answer: Any) -> Any:
    """Return an answer with at most `MAX_ANSWER` characters, or a recipe's outputs as text."""
    if isinstance(answer, dict):
        answer = " · ".join(f"{name}: {value}" for name, value in islice(answer.items(), 6))
    return None if answer is None else clip(str(answer), MAX_ANSWER)


def sum_of(costs: Sequence[float | None]) -> float | None:
    """Return the sum of costs in US dollars, or None if one is unknown."""
    return None if None in costs else sum(cost or 0.0 for cost in costs)
