"""What a recording of a sweep or comparison contains besides the turns of its rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from nb_agents.config.spec import safe_name
from nb_agents.errors import UserError
from nb_agents.extensions.sweeps.comparison import ComparisonSpec, arms_of_row
from nb_agents.extensions.sweeps.comparison_file import comparison_at
from nb_agents.extensions.sweeps.ended_sweeps import find_rows
from nb_agents.extensions.sweeps.judge import Judgement
from nb_agents.extensions.sweeps.manifest import DEFAULT_LIMIT
from nb_agents.extensions.sweeps.notes import NoteReader, RowBegan, RowResult
from nb_agents.extensions.sweeps.row_session import result_of_turn
from nb_agents.extensions.sweeps.source import Row, read_rows
from nb_agents.extensions.sweeps.sweep_file import SWEEP_FILE
from nb_agents.extensions.sweeps.sweep_fold import SweepFold, fold_notes
from nb_agents.launch.group_record import GroupRecord
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.session.views import read_json


@dataclass(frozen=True)
class RecordedSweep:
    """A recorded sweep, without its turns.

    Attributes:
        rows: The rows of its source, in order. Those that had not started are left out, except in a
            comparison.
        total: The number of rows of the source.
        source, task, recipe: As in the sweep's file.
        limit: Maximum number of rows that run at the same time.
        first_turn: The first turn of a row's session that belongs to the sweep.
        judgements: The scores of completed rows, by the names of their sessions.
        comparison: What is compared, if it compares two teams.
    """

    rows: tuple[Row, ...]
    total: int
    source: str = ""
    task: str = ""
    recipe: str = ""
    limit: int = DEFAULT_LIMIT
    first_turn: int = 1
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    comparison: ComparisonSpec | None = None


def sweep_record(path: Path) -> GroupRecord:
    """Return the sweep in a directory, for a recording."""
    about, fold, comparison = read_json(path / SWEEP_FILE), fold_notes(path), comparison_at(path)
    first_turn, limit = about.get("first_turn"), about.get("limit")
    first = first_turn if isinstance(first_turn, int) else 1  # the file may have been edited
    known, begun = _known_rows(path, about), _begun_rows(path)
    turns = {name: _last_turn(path, name, first) for name in begun if name not in fold.began.others}
    if comparison:
        rows = [known.get(name) or _row_of_both(name, begun) for name in comparison.rows]
        names = [arm for row in rows for arm in arms_of_row(row.name)]
    else:
        rows = [row for row in known.values() if row.name in turns]
        rows += [row for name, row in begun.items() if name in turns and name not in known]
        names = [row.name for row in rows]
    recorded = RecordedSweep(
        tuple(rows),
        fold.total if comparison is None else len(rows),
        str(about.get("source") or ""),
        str(about.get("task") or ""),
        str(about.get("recipe") or ""),
        limit=limit if isinstance(limit, int) and limit > 0 else DEFAULT_LIMIT,
        first_turn=first,
        judgements=_judgements(fold, turns, first) if fold.began.has_score else {},
        comparison=comparison,
    )
    runs = tuple(name for name in names if turns.get(name) is not None)
    return GroupRecord("sweep", path.name, to_jsonable_python(recorded), runs)


def _known_rows(path: Path, about: Mapping[str, Any]) -> dict[str, Row]:
    """Return the rows of a sweep's source by name, if this process has them or can read them."""
    rows: Sequence[Row] = find_rows(path)
    source = about.get("source")
    if not rows and isinstance(source, str) and os.path.isabs(source):
        with suppress(UserError):  # it was moved or has changed
            rows = read_rows(source)
    return {row.name: row for row in rows}


def _begun_rows(path: Path) -> dict[str, Row]:
    """Return the rows that have started, by name, with their values as short text."""
    rows, reader = dict[str, Row](), NoteReader(path)
    with suppress(OSError):
        while notes := reader.read():
            for _, note in notes:
                if isinstance(note, RowBegan):
                    rows[note.row] = Row(note.row, note.values)
    return rows


def _row_of_both(name: str, begun: Mapping[str, Row]) -> Row:
    """Return a row of a comparison's source, from the row of either team."""
    both = [begun[arm] for arm in arms_of_row(name) if arm in begun]
    if not both:
        return Row(name, {})
    first, _, *others = both[0].values.items()  # the second one is the team
    return Row(name, dict([first, *others]))


def _last_turn(sweep: Path, row: str, first: int) -> TurnPaths | None:
    """Return the last turn of a row, or None if it has none."""
    with suppress(ValueError):  # an edited file could name a directory outside of the sweep
        turns = turns_of(sweep / safe_name(row))
        return next((t for t in reversed(turns) if t.number >= first and t.has_begun), None)
    return None


def _judgements(
    fold: SweepFold, turns: Mapping[str, TurnPaths | None], first: int
) -> dict[str, Judgement]:
    results = ((fold.results.get(name), turn) for name, turn in turns.items() if turn is not None)
    return {
        result.row: _judgement(result, turn, first)
        for result, turn in results
        if result is not None and result.status == "completed"
    }


def _judgement(result: RowResult, turn: TurnPaths, first: int) -> Judgement:
    """Return the score of a row, with the tokens and cost of its judge."""
    own = result_of_turn(result.row, load_turn(turn).view, turn.path, first)
    cost: float | None = 0.0
    if own.cost is not None:
        cost = None if result.cost is None else max(0.0, result.cost - own.cost)
    tokens = max(0, result.tokens - own.tokens)
    return Judgement(result.score, result.error, tokens, cost, result.is_estimated)
