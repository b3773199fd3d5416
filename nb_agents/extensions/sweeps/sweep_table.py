"""Converts a sweep to a table with a record for each row."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from nb_agents.errors import UserError
from nb_agents.extensions.sweeps.notes import RowResult

COLUMNS = frozenset(
    {
        "row",
        "status",
        "answer",
        "error",
        "tokens",
        "cost",
        "is_estimated",
        "seconds",
        "score",
        "session",
    }
)
"""Columns of a sweep's table other than those of its source and a recipe's outputs."""

_TEXT_COLUMNS = frozenset({"row", "status", "error", "session"})
_NUMBER_COLUMNS = frozenset({"tokens", "cost", "seconds", "score"})
MAX_INTEGER = 2**53
"""Limit of integers that a column of numbers stores exactly, even next to fractions."""
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{1,15})?")


def row_record(row: str, status: str, result: RowResult | None, session: Path) -> dict[str, Any]:
    """Return a row's record in the sweep's table.

    Args:
        row: The row's name.
        status: The row's status.
        result: The row's result, or None if it has not ended.
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
        "is_estimated": bool(result and result.is_estimated),
        "seconds": result.seconds if result else None,
        "score": result.score if result else None,
        "session": str(session),
    }


def outputs_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's outputs by column. "output.NAME" avoids the names of other columns."""
    return renamed(answer, COLUMNS - {"answer"}, "output")


def renamed(values: Mapping[str, Any], used_names: Collection[str], prefix: str) -> dict[str, Any]:
    """Return values by column. Names that are already in use get a prefix.

    Args:
        values: The values by column.
        used_names: The names of the other columns.
        prefix: The prefix of a new name, before a dot.
    """
    columns = dict[str, Any]()
    for name, value in values.items():
        new = name
        while new in used_names or (new != name and new in values):
            new = f"{prefix}.{new}"
        columns[new] = value
    return columns


def to_frame(table: Sequence[Mapping[str, Any]]) -> Any:
    """Return a table as a pandas DataFrame. Each column has a single type, as Parquet requires.

    A column in which each text is a number, as in a CSV file, becomes a column of numbers. In
    columns with lists, mappings or values of several types, values that are not text are converted
    to JSON.

    Raises:
        UserError: pandas is not installed.
    """
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise UserError(
            "sweep.to_frame() needs pandas: `pip install pandas`. sweep.table() needs no pandas."
        ) from None
    frame = pandas.DataFrame(table)
    for name, column in frame.items():
        is_own_number = name in _NUMBER_COLUMNS  # which may have no value at all yet
        if is_own_number or (name not in _TEXT_COLUMNS and is_numeric(column)):
            frame[name] = pandas.to_numeric(column)
        elif pandas.api.types.infer_dtype(column, skipna=True) in ("mixed", "mixed-integer"):
            frame[name] = column.map(_as_text, na_action="ignore")
    return frame


def is_numeric(values: Iterable[Any]) -> bool:
    """Return whether values are numbers or missing, and each text is a number as JSON writes it.

    A text such as "007", which a number would change, is not numeric.
    """
    known = [value for value in values if value is not None and value == value]  # without NaN
    return bool(known) and all(map(_is_number, known))


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < MAX_INTEGER


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
