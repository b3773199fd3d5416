"""The state of a sweep, computed by the process that runs it, or read from disk by others."""

from __future__ import annotations

import json
import os
import stat
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from nb_agents.session.journal import LineReader
from nb_agents.session.layout import SWEEP_FILE, TurnPaths
from nb_agents.session.views import read_json
from nb_agents.sweeps.manifest import (
    FIRST_ROWS,
    ROWS,
    Note,
    Result,
    RowBegan,
    SweepBegan,
    SweepChanged,
    SweepStatus,
    read_notes,
)
from nb_agents.view.receipt import total_cost
from nb_agents.view.run_view import RunView

__all__ = [
    "COLUMNS",
    "LiveRow",
    "NoteReader",
    "Pauses",
    "SweepReader",
    "SweepView",
    "Totals",
    "outputs_of",
    "plain_cells",
    "renamed",
    "row_record",
    "sum_of",
    "tokens_of",
]

COLUMNS = frozenset(
    {"row", "status", "answer", "error", "tokens", "cost", "seconds", "score", "session"}
)
"""Columns of a sweep's table besides those of its source and a recipe's outputs."""

MAX_FAILURES = 50
"""Failed rows that a view lists."""


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


@dataclass(frozen=True, slots=True)
class SweepView:
    """The state of a sweep at one moment.

    Attributes:
        name: The sweep's name.
        status: "completed" once every row has completed or failed.
        total: Number of rows.
        completed, failed: Number of rows with that status.
        tokens: Tokens used so far.
        cost: US dollars so far, or None when a model's price is unknown.
        elapsed_s: Seconds since this process started the sweep.
        left_s: Estimated seconds left, pauses left out; None before the first row has ended.
        live: The running rows.
        failures: Up to `MAX_FAILURES` failed rows.
        scores: Scores so far.
        reason: The reason of a stop.
        to_go: Number of rows that this process has not started yet.
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
    failures: tuple[Result, ...]
    scores: tuple[float, ...]
    reason: str = ""
    to_go: int = 0

    @property
    def waiting(self) -> int:
        """The number of rows that wait for the user."""
        return sum(bool(row.view.gates) for row in self.live)

    @property
    def is_over(self) -> bool:
        """Whether the sweep has ended."""
        return self.status in ("completed", "cancelled")

    @property
    def score(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the scores; None without any."""
        if not self.scores:
            return None
        return fmean(self.scores), stdev(self.scores) if len(self.scores) > 1 else 0.0


@dataclass
class Totals:
    """Running totals of the rows that ended, so that a view takes the same time for any number.

    Attributes:
        completed: Number of completed rows.
        tokens: Tokens used by all rows that ended.
        cost: US dollars of the rows whose cost is known.
        unpriced: Number of rows whose cost is unknown.
        failures: Failed rows by name.
        scores: Scores by row.
    """

    completed: int = 0
    tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0
    failures: dict[str, Result] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def spent(self) -> float | None:
        """US dollars, or None when a model's price is unknown."""
        return None if self.unpriced else self.cost

    def put(self, result: Result, before: Result | None) -> None:
        """Add a row's result, replacing its earlier one."""
        if before is not None:
            self._count(before, -1)
        self._count(result, 1)
        self.failures.pop(result.row, None)
        if result.status == "failed":
            self.failures[result.row] = result
        if result.score is not None:
            self.scores[result.row] = result.score

    def _count(self, result: Result, sign: int) -> None:
        self.completed += sign * (result.status == "completed")
        self.tokens += sign * result.tokens
        self.cost += sign * (result.cost or 0.0)
        self.unpriced += sign * (result.cost is None)

    def view(
        self,
        live: tuple[LiveRow, ...],
        *,
        name: str,
        status: SweepStatus,
        total: int,
        elapsed_s: float,
        paused_s: float,
        ended: int,
        to_go: int,
        reason: str,
    ) -> SweepView:
        """Return the state of the sweep; for most arguments see `SweepView`.

        Args:
            live: The running rows; the totals include what a resumed one used before.
            name: The sweep's name.
            status: The sweep's status.
            total: Number of rows.
            elapsed_s: Seconds since the process started the sweep.
            paused_s: Seconds of these in which it was paused.
            ended: Number of rows that ended in this process, for the estimate.
            to_go: Number of rows that it has not started.
            reason: The reason of a stop.
        """
        costs = [self.spent, *(total_cost(row.view) for row in live)]
        return SweepView(
            name,
            status,
            total,
            self.completed,
            len(self.failures),
            self.tokens + sum(tokens_of(row.view) for row in live),
            sum_of(costs),
            elapsed_s,
            (elapsed_s - paused_s) / ended * (to_go + len(live)) if ended else None,
            live,
            tuple(islice(self.failures.values(), MAX_FAILURES)),
            tuple(self.scores.values()),
            reason,
            to_go,
        )


@dataclass
class Pauses:
    """The time in which a sweep was paused; times are seconds of one clock.

    Attributes:
        since: When the current pause began; None without one.
        before_s: Seconds of the earlier pauses.
    """

    since: float | None = None
    before_s: float = 0.0

    def set(self, is_paused: bool, now: float) -> None:
        """Begin a pause, or end the current one."""
        if is_paused and self.since is None:
            self.since = now
        elif not is_paused:
            self.before_s, self.since = self.total_s(now), None

    def total_s(self, now: float) -> float:
        """Return the seconds of all pauses so far."""
        return self.before_s + (0.0 if self.since is None else max(0.0, now - self.since))


def row_record(row: str, status: str, result: Result | None, session: Path) -> dict[str, Any]:
    """Return a row's record in the sweep's table.

    Args:
        row: The row's name.
        status: The row's status.
        result: The row's result; None when it has not ended.
        session: The directory of the row's session.
    """
    answer = result.answer if result else None
    outputs = outputs_of(answer) if isinstance(answer, dict) else {"answer": answer}
    return {
        "row": row,
        "status": status,
        **outputs,
        "error": result.error if result else "",
        "tokens": result.tokens if result else 0,
        "cost": result.cost if result else 0.0,
        "seconds": result.seconds if result else None,
        "score": result.score if result else None,
        "session": str(session),
    }


def outputs_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's outputs by column; one with the name of another becomes "output.NAME"."""
    return renamed(answer, COLUMNS - {"answer"}, "output")


def renamed(values: Mapping[str, Any], taken: Collection[str], prefix: str) -> dict[str, Any]:
    """Return values by column, renaming those whose name is taken.

    Args:
        values: The values by column.
        taken: The names of the other columns.
        prefix: The prefix of a new name, before a dot.
    """
    made = dict[str, Any]()
    for name, value in values.items():
        new = name
        while new in taken or (new != name and new in values):
            new = f"{prefix}.{new}"
        made[new] = value
    return made


def plain_cells(table: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a table whose columns have one type each, as Parquet needs them.

    In a column with lists, mappings or values of several types, values that are not text are
    converted to JSON.
    """
    kinds = defaultdict[str, set[str]](set)
    for record in table:
        for name, value in record.items():
            kinds[name].add(_kind(value))
    texts = {name for name, found in kinds.items() if len(found - {""}) > 1 or "nested" in found}
    return [
        {name: _as_text(value) if name in texts else value for name, value in record.items()}
        for record in table
    ]


def _kind(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return "text"
        case bool():
            return "truth"
        case int() | float():
            return "number"
    return "nested"


def _as_text(value: Any) -> str | None:
    is_text = value is None or isinstance(value, str)
    return value if is_text else json.dumps(value, ensure_ascii=False)


def tokens_of(view: RunView) -> int:
    """Return the tokens that all agents of a turn used."""
    return sum(agent.tokens for agent in view.agents.values())


def sum_of(costs: Sequence[float | None]) -> float | None:
    """Return the sum of costs in US dollars; None when one of them is unknown."""
    return None if None in costs else sum(cost or 0.0 for cost in costs)


DIED = "the process that worked on it died"


class NoteReader(LineReader):
    """Reads new notes from a sweep's ``rows.jsonl``; ``path`` is the sweep's directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path / ROWS)
        self._count = 0

    def read(self) -> list[tuple[int, Note]]:
        """Return the notes since the last read, with their line numbers from 1.

        Raises:
            OSError: The file is missing or can't be read.
        """
        if not stat.S_ISREG(os.lstat(self._path).st_mode):  # a link may lead to a device
            return []
        found = []
        for line in self.read_lines():
            self._count += 1
            found += [(self._count, note) for note in read_notes([line])]
        return found


class SweepReader:
    """Follows a sweep by its files.

    Args:
        path: The sweep's directory.

    Attributes:
        about: The sweep's source, task and team.
        turns: The turns of the running rows, by the rows' names.
        changed_at: When the last note was written, in Unix seconds; None before the first.
    """

    def __init__(self, path: Path) -> None:
        self.about = read_json(path / SWEEP_FILE)
        self.turns: dict[str, TurnPaths] = {}
        self.changed_at: float | None = None
        self._path, self._notes = path, NoteReader(path)
        self._began = SweepBegan(0.0, 0, (), (), False)
        self._last = SweepChanged(0.0, "running")
        self._results: dict[str, Result] = {}
        self._totals = Totals()
        self._pauses = Pauses()
        self._not_to_go: set[str] = set()
        self._ended: set[str] = set()

    @property
    def is_over(self) -> bool:
        """Whether the end of the sweep is recorded."""
        return self._last.status in ("completed", "cancelled")

    def is_same(self) -> bool:
        """Return whether this is still the same sweep and not a new one of the same name."""
        return self._notes.is_same()

    def read(self) -> bool:
        """Read new notes; return whether there were any."""
        has_news = False
        with suppress(OSError):
            while notes := self._notes.read():
                for _, note in notes:
                    self._apply(note)
                has_news, self.changed_at = True, os.stat(self._path / ROWS).st_mtime
        return has_news

    def view(self, live: Mapping[str, RunView], is_live: bool, now: float) -> SweepView:
        """Return the state of the sweep.

        Args:
            live: The views of the running rows, by the rows' names.
            is_live: Whether a process runs the sweep.
            now: The current time, in Unix seconds.
        """
        status, until, reason = self._standing(is_live, now)
        return self._totals.view(
            tuple(LiveRow(row, _run_of(self.turns[row]), view) for row, view in live.items()),
            name=self._path.name,
            status=status,
            total=self._total,
            elapsed_s=max(0.0, until - self._began.at) if self._began.at else 0.0,
            paused_s=self._pauses.total_s(until),
            ended=len(self._ended) if self._began.at else 0,
            to_go=max(0, self._total - len(self._not_to_go)),
            reason=reason,
        )

    def table(self) -> Sequence[dict[str, Any]]:
        """Return the records of the first rows: `Sweep.table` without the source's columns."""
        names = self._began.first or tuple(self._results)[:FIRST_ROWS]
        found = ((name, self._results.get(name)) for name in names)
        return [
            row_record(name, self._status_of(name, each), each, self._path / name)
            for name, each in found
        ]

    def _status_of(self, row: str, result: Result | None) -> str:
        # A row that was running when its process died counts as cancelled.
        return "cancelled" if row in self.turns else result.status if result else "waiting"

    @property
    def _total(self) -> int:
        rows = self._began.rows or self.about.get("rows")
        # The files may have been edited.
        return rows if isinstance(rows, int) else len(self._results)

    def _standing(self, is_live: bool, now: float) -> tuple[SweepStatus, float, str]:
        """Return the status, the time until which the sweep ran, and the reason of a stop."""
        if is_live or self.is_over:
            return self._last.status, self._last.at if self.is_over else now, self._last.reason
        ended = self._totals.completed + len(self._totals.failures)
        is_complete = ended >= self._total
        until = max([self.changed_at or 0.0, *map(_written_at, self.turns.values())])
        return ("completed", until, "") if is_complete else ("cancelled", until, DIED)

    # Applying notes ---------------------------------------------------------------------------

    def _apply(self, note: Note) -> None:
        match note:
            case SweepBegan():
                self._begin(note)
            case SweepChanged():
                self._last = note
                self._pauses.set(note.status == "paused", note.at)
            case RowBegan():
                self._begin_row(note)
            case Result():
                self._end(note)

    def _begin(self, began: SweepBegan) -> None:
        self._began, self._last = began, SweepChanged(began.at, "running")
        self._pauses = Pauses()
        self.turns.clear()
        self._ended.clear()
        results = {n: r for n, r in self._results.items() if n not in began.others}
        over = ("completed",) if began.retry_failed else ("completed", "failed")
        self._not_to_go = {row for row, result in results.items() if result.status in over}
        self._totals = Totals()
        for row, result in results.items():
            # Of a row that will run again, only the tokens and the cost count.
            is_over = row in self._not_to_go
            self._totals.put(result if is_over else replace(result, status="cancelled"), None)

    def _begin_row(self, began: RowBegan) -> None:
        self._not_to_go.add(began.row)
        turn = self._path / began.row / f"turn_{began.turn}"
        # The files may have been edited so that a name or a link leads elsewhere.
        with suppress(ValueError):  # the name has characters that no path may have
            inside = Path(os.path.realpath(self._path), *turn.parts[-2:])
            if Path(os.path.realpath(turn)) == inside and os.path.isdir(turn):
                self.turns[began.row] = TurnPaths(turn)

    def _end(self, result: Result) -> None:
        row = result.row
        self._totals.put(result, self._results.get(row))
        # Answers may be long and many: only those of the rows that are shown are kept.
        is_shown = row in self._began.first or len(self._results) < FIRST_ROWS
        self._results[row] = result if is_shown else replace(result, answer=None)
        self.turns.pop(row, None)
        if result.status != "cancelled":  # or it has begun, or is still to begin
            self._not_to_go.add(row)
            self._ended.add(row)


def _written_at(turn: TurnPaths) -> float:
    """Return when a turn's last event was written, in Unix seconds."""
    try:
        return turn.journal.stat().st_mtime
    except OSError:
        return 0.0


def _run_of(turn: TurnPaths) -> str:
    return f"{turn.session}/{turn.number}"
