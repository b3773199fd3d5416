"""Titles rows by their own values, as short text for notes, panels and cards. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from nb_agents.presentation.text import clip

MAX_COLUMNS = 6
"""Maximum number of a row's columns in notes and on cards."""
MAX_VALUE = 120
"""Maximum length of a value as text, in characters."""
MAX_COLUMN = 40
"""Maximum length of a column's name, in characters."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def shown_values(values: Mapping[str, Any], mask: Callable[[str], str]) -> dict[str, str]:
    """Return a row's first values as short text by column.

    Args:
        values: The row's values by column.
        mask: Hides secrets in a text.
    """
    return {
        clip(mask(name), MAX_COLUMN): clip(mask(_as_text(value)), MAX_VALUE)
        for name, value in islice(values.items(), MAX_COLUMNS)
    }


class RowTitle(NamedTuple):
    """How a row is called on panels and cards.

    Attributes:
        title: Its first value that is not empty, after its column if it is a number. Without
            values, its name.
        other_values: Its other values, each with its column.
    """

    title: str
    other_values: str


def row_title(row: str, values: Mapping[str, str]) -> RowTitle:
    """Return how a row is called.

    Args:
        row: The row's name.
        values: The row's values; see `shown_values`. Empty in notes of earlier versions.
    """
    filled = [(name, value) for name, value in values.items() if value.strip()]
    if not filled:
        return RowTitle(row, "")
    rest = " · ".join(f"{name}: {value}" for name, value in filled[1:])
    name, value = filled[0]
    return RowTitle(f"{name} {value}" if _NUMBER.fullmatch(value) else value, rest)


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
