"""`compare`, which finds out which of two teams is better on the rows of a source."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from nb_agents.config.secrets import snapshot
from nb_agents.config.team import TeamSpec
from nb_agents.config.template import render
from nb_agents.errors import TaskError, UserError
from nb_agents.extensions.sweeps.comparison import (
    Arm,
    ComparisonSpec,
    ComparisonVerdict,
    arm_name,
    arms_of,
    in_random_order,
    pair_of,
    stop_reason,
    verdict_of,
)
from nb_agents.extensions.sweeps.comparison_file import (
    COMPARISON,
    comparison_document,
    identity_at,
)
from nb_agents.extensions.sweeps.mapping import (
    begin_row,
    check_columns,
    check_owner,
    checked_name,
    derived_name,
    with_timeout,
    withdraw_rows,
)
from nb_agents.extensions.sweeps.notes import RowResult
from nb_agents.extensions.sweeps.pair_judge import ORDERS, PairJudge
from nb_agents.extensions.sweeps.scoring import Score
from nb_agents.extensions.sweeps.source import Row, read_rows, source_name
from nb_agents.extensions.sweeps.sweep import Sweep, SweepSpec
from nb_agents.extensions.sweeps.sweep_file import ESTIMATE
from nb_agents.extensions.sweeps.sweep_fold import SweepFold, fold_notes
from nb_agents.extensions.sweeps.sweep_request import SweepRequest
from nb_agents.launch.estimate import start_lines
from nb_agents.launch.past_runs import estimate_of
from nb_agents.launch.run import Run
from nb_agents.launch.start import StartRequest, team_for
from nb_agents.masking import safe_errors
from nb_agents.nouns import count
from nb_agents.options import RunOptions
from nb_agents.session.layout import session_root
from nb_agents.signatures import takes
from nb_agents.turns.budget import Budget
from nb_agents.turns.turn_spec import checked_functions

Config = str | os.PathLike[str] | TeamSpec | None
_ARMS: tuple[Arm, Arm] = ("a", "b")


class TeamComparison(Sweep):
    """Handle of a comparison of two teams. Created by `nb_agents.compare`. Thread-safe.

    It is a sweep with two rows for each row of the source, one for each team.

    Args:
        spec: The configuration of the sweep.
        comparison: What is compared.
        source: The rows of the source, in the order in which they are compared.
        can_stop: Returns whether it may end now if it is decided, given the results so far. None
            means at any time.
    """

    def __init__(
        self,
        spec: SweepSpec,
        comparison: ComparisonSpec,
        source: Sequence[Row],
        can_stop: Callable[[Mapping[str, RowResult]], bool] | None = None,
    ) -> None:
        self._comparison, self._source, self._can_stop = comparison, source, can_stop
        reason = stop_reason(comparison, spec.retry_failed)

        def end_reason(results: Mapping[str, RowResult]) -> str:
            return reason(results) if can_stop is None or can_stop(results) else ""

        super().__init__(replace(spec, end_reason=end_reason))

    def __repr__(self) -> str:
        view = self.view
        ended = f"{view.completed + view.failed:,} of {count(view.total, 'run')}"
        return f"<TeamComparison {view.name}: {view.state}, {ended}; {self.verdict}>"

    def _source_rows(self) -> Sequence[Row]:
        return self._source

    @property
    def verdict(self) -> ComparisonVerdict:
        """The verdict, or its state so far."""
        reason = self.view.reason
        return verdict_of(self._comparison, dict(self._fold.results), reason)

    def effect_so_far(self) -> str:
        """Return the effect so far and its interval as text, or "" before the first row."""
        now = verdict_of(self._comparison, dict(self._fold.results), max_points=1)
        if not now.rows_used:
            return ""
        interval = f"95 % interval: {now.low:+.3g} to {now.high:+.3g}"
        return f"effect {now.effect:+.3g} ({interval}, {count(now.rows_used, 'row')})"

    def table(self) -> list[dict[str, Any]]:
        """Return a record for each row of the source, in the order of the comparison.

        Returns:
            The source's columns, then: row, answer_a, answer_b, score_a, score_b, difference (b
            minus a), error_a, error_b, cost, session_a, session_b. A source column with one of
            these names becomes "row.NAME".
        """
        results = dict(self._fold.results)
        return [self._pair_record(row, results) for row in self._source]

    def _pair_record(self, row: Row, results: Mapping[str, Any]) -> dict[str, Any]:
        both = {arm: results.get(arm_name(row.name, arm)) for arm in _ARMS}
        pair = pair_of(row.name, results, self._comparison)
        difference = None if pair is None else pair.difference
        scale = self._comparison.high - self._comparison.low
        record: dict[str, Any] = {"row": row.name}
        for key in ("answer", "score", "error"):
            for arm, result in both.items():
                record[f"{key}_{arm}"] = getattr(result, key, None)
        record["difference"] = None if difference is None else difference * scale
        record["cost"] = None if pair is None else pair.cost
        for arm in _ARMS:
            record[f"session_{arm}"] = str(self.path / arm_name(row.name, arm))
        values = {f"row.{k}" if k in record else k: value for k, value in row.values.items()}
        return {**values, **record}

    def _restart(self) -> Callable[[bool], Self]:
        kind, spec = type(self), self._spec
        comparison, source, can_stop = self._comparison, self._source, self._can_stop
        return lambda retry_failed: kind(
            replace(spec, retry_failed=retry_failed), comparison, source, can_stop
        )


@dataclass(frozen=True)
class CompareRequest(SweepRequest):
    """The arguments of `nb_agents.compare`, which describes them."""

    a: Config
    b: Config
    _: KW_ONLY
    score: Score | str
    max_rows: int | None = None
    score_range: tuple[float, float] = (0.0, 1.0)
    margin: float = 0.0
    seed: int = 0

    def check(self) -> None:
        """Raise `UserError` for an invalid argument."""
        super().check()
        if self.max_rows is not None and self.max_rows < 1:
            raise UserError(f"max_rows is {self.max_rows}. Use 1 or more.")
        low, high = self.score_range
        if not low < high:
            raise UserError(
                f"score_range is {self.score_range}. Use the lowest, then the highest score."
            )
        if not 0 <= self.margin < high - low:
            raise UserError(
                f"margin is {self.margin}. Use a number from 0 to less than {high - low:g}."
            )

    def spec(self, rows: Sequence[Row]) -> ComparisonSpec:
        """Return what is compared.

        Args:
            rows: The rows, in the order in which they are compared.
        """
        low, high = self.score_range
        return ComparisonSpec(
            _labels(self.a, self.b),
            tuple(row.name for row in rows),
            low=float(low),
            high=float(high),
            margin=float(self.margin),
            max_cost=self.max_cost,
            pairwise=isinstance(self.score, str),
        )


@safe_errors
@takes(CompareRequest)
def compare(request: CompareRequest) -> TeamComparison:
    """Find out which of two teams is better, with as few rows of a source as possible.

    Both teams run the same rows, in a random order. After each row, an interval for the mean
    difference of the scores is computed. It is valid at any number of rows, so the comparison stops
    as soon as it excludes 0, or when the remaining rows are unlikely to decide. The probability of
    a wrong decision is at most 5 %.

    Repeating the call continues the same comparison and comes to the same verdict. Finished rows
    are not repeated. A row that fails gets the lowest score.

    Args:
        source: As for `nb_agents.map`.
        task: As for `nb_agents.map`.
        a: The first team, as `config` of `nb_agents.start`.
        b: The second team.
        score: A function that takes a row's task and answer and returns a number; see
            `score_range`. Or the name of one of the first team's ``callable_agents``, or of the
            second's. This judge compares the two answers of each row in both orders, without
            knowing the teams.
        name: As for `nb_agents.map`. One name can't be used for different teams.
        max_rows: Maximum number of rows to compare. By default, all rows.
        max_cost: As for `nb_agents.map`, for both teams together.
        score_range: The lowest and the highest possible score of a function.
        margin: Difference of the mean scores below which the teams count as equal. With a margin,
            the comparison also stops when the interval is within it.
        seed: Determines the random order.
        limit: Maximum number of runs at the same time.
        retry_failed: Whether to run failed rows again.
        tools: As for `nb_agents.start`.
        options: As for `nb_agents.start`, for each run.

    Returns:
        The running comparison. Its `verdict` is final when the comparison is over.

    Raises:
        UserError: As for `nb_agents.map`, or the arguments are invalid, or the name belongs to a
            comparison of other teams.
        SessionBusyError: The comparison is already running.
        NotYoursError: As for `nb_agents.map`.

    Example:
        comparison = nb_agents.compare(rows, "{{question}}?", "a.yaml", "b.yaml", score=grade)
        comparison.wait()
        print(comparison.verdict)
    """
    return _begin(request.reading_mentions())


@takes(CompareRequest)
def compare_verbatim(request: CompareRequest) -> TeamComparison:
    """Compare two teams like `compare`, but without including files for ``@path`` in the task."""
    return _begin(request)


def _begin(request: CompareRequest) -> TeamComparison:
    """Begin or continue a comparison."""
    request.check()
    task, score, seed = request.task.strip(), request.score, request.seed
    if not task:
        raise TaskError("Provide a task that contains {{column}}.")
    known = {row.name: row for row in read_rows(request.source)}
    rows = [known[each] for each in in_random_order([*known], seed)][: request.max_rows]
    check_columns(task, rows)
    options = request.options or RunOptions()
    teams = {"a": team_for(request.a, options)[0], "b": team_for(request.b, options)[0]}
    spec, identity = request.spec(rows), _identity([*teams.values()], seed, score)
    about = {"source": source_name(request.source), "task": task, "identity": identity}
    own_name = checked_name(request.name) or derived_name(about, rows, "compare")
    path = session_root(options.session_root) / own_name
    _check_identity(path, identity)
    functions, options = checked_functions(request.tools), replace(options, session_root=path)
    judge = _judge([*teams.values()], score, options) if isinstance(score, str) else None
    runs = [row_of_team(row, arm, spec) for row in rows for arm in arms_of(row.name, seed)]
    if not options.trust:
        for arm, team in teams.items():
            names = [run.name for run in runs if run.name.endswith(f"_{arm}")]
            check_owner(path, names, team, request.retry_failed, ORDERS if judge else ())
    values = {arm_name(row.name, arm): row.values for row in rows for arm in _ARMS}

    def begin(row: Row, timeout: float | None) -> Run:
        text, own = render(task, values[row.name]), with_timeout(options, timeout)
        start = StartRequest(text, teams[row.name[-1]], row.name, tools=functions, options=own)
        return begin_row(start, path)

    return TeamComparison(
        SweepSpec(
            path,
            {
                "source": about["source"],
                "task": task,
                "rows": len(runs),
                COMPARISON: comparison_document(spec, identity),
                ESTIMATE: _estimates(
                    teams, spec, path, options, fold_notes(path), request.retry_failed
                ),
            },
            tuple(runs),
            begin,
            limit=request.limit,
            max_cost=request.max_cost,
            score=None if isinstance(score, str) else score,
            judge=judge,
            task=lambda row: render(task, values[row.name]),
            retry_failed=request.retry_failed,
            tools=functions,
            withdraw=lambda: None if options.cluster is None else withdraw_rows(path),
            timeout=options.timeout_s,
            models=lambda row: teams[row.name[-1]].models,
        ),
        spec,
        rows,
    )


def _labels(a: Config, b: Config) -> tuple[str, str]:
    """Return the names of two teams: those of their files, if they differ."""
    names = [Path(each).stem if isinstance(each, str | os.PathLike) else "" for each in (a, b)]
    return (names[0], names[1]) if all(names) and names[0] != names[1] else ("a", "b")


def row_of_team(row: Row, arm: Arm, spec: ComparisonSpec) -> Row:
    """Return the row of a team in the sweep, with its team next to its first value."""
    (name, first), *others = row.values.items()
    column = "team" if "team" not in row.values else "compared_team"
    team = spec.teams[_ARMS.index(arm)]
    return Row(arm_name(row.name, arm), {name: first, column: team, **dict(others)})


def _judge(teams: Sequence[TeamSpec], agent: str, options: RunOptions) -> PairJudge:
    """Return the judge, from the first team that has it."""
    has_it = (team for team in teams if agent in {each.id for each in team.callable_agents})
    return PairJudge(next(has_it, teams[0]), agent, options)


def _identity(teams: Sequence[TeamSpec], seed: int, score: Score | str) -> str:
    """Return an identity of the teams' contents, the order of the rows and the score's name."""
    described = [
        [snapshot(team), *((agent.id, agent.backend.model) for agent in team.everyone)]
        for team in teams
    ]
    judge = score if isinstance(score, str) else getattr(score, "__qualname__", "")
    parts = json.dumps([described, seed, judge], sort_keys=True, default=str)
    return sha256(parts.encode()).hexdigest()[:16]


def _check_identity(path: Path, identity: str) -> None:
    """Raise `UserError` if the results on disk are not those of this comparison."""
    before = identity_at(path)
    if before is None or before == identity:
        return
    kind = "compares other teams, or the same teams with another score or seed"
    raise UserError(
        f"{path.name!r} {kind if before else 'is a sweep that compares no teams'}. Use another "
        "name= (--name)."
    )


def _estimates(
    teams: Mapping[str, TeamSpec],
    spec: ComparisonSpec,
    path: Path,
    options: RunOptions,
    fold: SweepFold,
    retry_failed: bool,
) -> list[str]:
    """Return lines about what all rows would cost, for each team."""
    lines = []
    for label, (arm, team) in zip(spec.teams, teams.items(), strict=True):
        names = [f"{row}_{arm}" for row in spec.rows]
        estimate = estimate_of(
            team,
            options,
            [path, path.parent],
            rows=sum(not fold.is_final(name, retry_failed) for name in names),
            budget=Budget(max_cost=spec.max_cost),
            with_prices=spec.max_cost is not None,
        )
        lines += [f"{label}: {line}" for line in start_lines(estimate)] if estimate.rows else []
    return lines
