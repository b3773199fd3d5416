"""A sweep as a table: a record for each row."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from nb_agents.sweeps.notes import RowResult

COLUMNS = frozenset(
    {"row", "status", "answer", "error", "tokens", "cost", "seconds", "score", "session"}
)
"""Columns of a sweep's table besides those of its source and a recipe's outputs."""


def row_record(row: str, status: str, result: RowResult | None, session: Path) -> dict[str, Any]:
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
