"""Starts a recorded sweep or comparison again; see `nb_agents.launch.group_record`.

A replay is an ordinary sweep. The turns of its rows are started by the replay, and their scores are
the recorded ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nb_agents.config.template import FENCED, render
from nb_agents.errors import UserError
from nb_agents.extensions.sweeps.compare import TeamComparison, row_of_team
from nb_agents.extensions.sweeps.comparison_file import COMPARISON, comparison_document
from nb_agents.extensions.sweeps.judge import JUDGE_SESSION, Judgement
from nb_agents.extensions.sweeps.manifest import DEFAULT_LIMIT
from nb_agents.extensions.sweeps.mapping import check_columns
from nb_agents.extensions.sweeps.notes import RowResult
from nb_agents.extensions.sweeps.source import Row, read_rows
from nb_agents.extensions.sweeps.sweep import Sweep, SweepSpec
from nb_agents.extensions.sweeps.sweep_record import RecordedSweep, sweep_record
from nb_agents.launch.group_record import GroupRecord, GroupReplay
from nb_agents.launch.run import Run
from nb_agents.launch.team_kind import kind_of_source
from nb_agents.nouns import count
from nb_agents.session.layout import new_session, session_root


@cache
def _recorded_type() -> TypeAdapter[RecordedSweep]:
    return TypeAdapter(RecordedSweep)


class SweepRecorder:
    """Records sweeps and comparisons, and replays them; see `GroupRecorder`."""

    def record(self, path: Path) -> GroupRecord:
        """Return the sweep in a directory, for a recording."""
        return sweep_record(path)

    def replay(self, arguments: GroupReplay) -> Sweep:
        """Start a recorded sweep or comparison again, in a new directory."""
        return _replayed(arguments)


RECORDER = SweepRecorder()
"""The registered recorder."""


def _replayed(arguments: GroupReplay) -> Sweep:
    try:
        recorded = _recorded_type().validate_python(arguments.record.facts)
    except ValidationError:
        raise UserError("The recording of the sweep is damaged. Record the sweep again.") from None
    rows, runs = _rows(recorded, arguments), set(arguments.record.runs)
    path = new_session(session_root(arguments.options.session_root), datetime.now())
    work = _work_of(arguments, rows)

    def begin(row: Row, timeout: float | None) -> Run:
        return arguments.begin(path / row.name, work(row))

    comparison = recorded.comparison
    if comparison is None:
        started = [row for row in rows if row.name in runs]
    else:
        both = (row_of_team(row, arm, comparison) for row in rows for arm in ("a", "b"))
        started = [row for row in both if row.name in runs]
    spec = SweepSpec(
        path,
        _about(recorded, len(started)),
        tuple(started),
        begin,
        limit=min(recorded.limit, DEFAULT_LIMIT),
        judge=_RecordedJudge(recorded.judgements) if recorded.judgements else None,
        first_turn=recorded.first_turn,
        error=arguments.error,
    )
    if comparison is None:
        return Sweep(spec)
    return TeamComparison(spec, comparison, rows, _has_all(recorded, started))


def _rows(recorded: RecordedSweep, arguments: GroupReplay) -> Sequence[Row]:
    """Return the rows of the replay, with their values.

    Raises:
        UserError: The source has other rows than the recorded one, or is missing or superfluous.
    """
    if arguments.task and arguments.recipe is not None:
        raise UserError("Provide either a task that contains {{column}}, or a recipe.")
    if arguments.source is None:
        if arguments.task or arguments.recipe is not None:
            raise UserError(
                "The recording contains a sweep. To compare its task or recipe, pass its rows, too."
            )
        return recorded.rows
    if recorded.comparison is not None:
        raise UserError("A recorded comparison is not compared with other rows. Leave them out.")
    rows = read_rows(arguments.source)
    names = {row.name for row in rows}
    if missing := [row for row in recorded.rows if row.name not in names]:
        raise UserError(
            f"The source does not contain {count(len(missing), 'row')} of the recording, such as "
            f"{missing[0].name!r}. Record the sweep again if this is intended."
        )
    if len(rows) != recorded.total:
        raise UserError(
            f"The source has {count(len(rows), 'row')}, and the recording {recorded.total}. Record "
            "the sweep again if this is intended."
        )
    return rows


def _work_of(arguments: GroupReplay, rows: Sequence[Row]) -> Callable[[Row], Mapping[str, Any]]:
    """Return a function that returns the arguments with which a row starts."""
    task, recipe = arguments.task.strip(), arguments.recipe
    if recipe is not None:
        loaded = kind_of_source(recipe).read(recipe)
        return lambda row: {"recipe": loaded, "context": {**row.values, FENCED: [*row.values]}}
    check_columns(task, rows)
    return lambda row: {"task": render(task, row.values)} if task else {}


def _about(recorded: RecordedSweep, rows: int) -> dict[str, Any]:
    """Return the content of the sweep's file."""
    about: dict[str, Any] = {
        "source": recorded.source,
        "task": recorded.task,
        "recipe": recorded.recipe,
        "rows": rows,
        "first_turn": recorded.first_turn,
    }
    if recorded.comparison is not None:
        about[COMPARISON] = comparison_document(recorded.comparison, "")
    return about


@dataclass(frozen=True)
class _RecordedJudge:
    """An `nb_agents.extensions.sweeps.judge.AnswerJudge` that returns the recorded scores."""

    judgements: Mapping[str, Judgement]

    def judge(
        self,
        row: Path,
        task: str,
        answer: Any,
        begun: Callable[[Run], object],
        session: str = JUDGE_SESSION,
    ) -> Judgement | None:
        return self.judgements.get(row.name, Judgement(None, "", 0, 0.0))


def _has_all(
    recorded: RecordedSweep, rows: Sequence[Row]
) -> Callable[[Mapping[str, RowResult]], bool]:
    """Return a function that returns whether all rows have ended and have their scores."""

    def has_ended(name: str, results: Mapping[str, RowResult]) -> bool:
        result, judgement = results.get(name), recorded.judgements.get(name)
        if result is None or result.status != "completed" or judgement is None:
            return result is not None
        return (result.score, result.error) == (judgement.score, judgement.error)

    return lambda results: all(has_ended(row.name, results) for row in rows)
