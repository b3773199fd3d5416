"""Converts arbitrary Python values to valid JSON for models.

JSON has no NaN, and models read "nan" as a word. So missing values of all kinds (NaN as a float or
Decimal, pandas' NaT and NA) become null, and infinity becomes the string "Infinity".

All values that are sent to a model and are not strings are converted here.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from pydantic_core import from_json, to_json

from nb_agents.unicode import well_formed

_NOT_JSON = (b"NaN", b"NaT", b"Infinity", b'"nan"')
"""Signs of values that JSON does not have in pydantic's output. NaN as a key becomes "nan"."""


def json_text(value: object, *, is_compact: bool = False) -> str:
    """Return a value as JSON text, or its repr if that fails, for example for circular references.

    Args:
        value: Any value. Parts that JSON can't represent, such as a figure, become their repr.
        is_compact: Whether to omit the spaces after commas and colons.

    Example:
        >>> json_text({"price": float("nan"), "city": "Genève"})
        '{"price": null, "city": "Genève"}'
    """
    try:
        text = _json(value, _replacement)
    except ValueError:
        return repr(value)
    return text.decode() if is_compact else json.dumps(from_json(text), ensure_ascii=False)


def plain(value: object, fallback: Callable[[Any], Any] = repr) -> Any:
    """Convert a value to dicts, lists, strings, finite numbers, booleans and None.

    Args:
        value: Any value.
        fallback: Called with each part that JSON can't represent. Returns its replacement.

    Raises:
        ValueError: The value can't be converted, such as a list that contains itself.
    """
    return from_json(_json(value, lambda each: _replacement(each, fallback)))


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, or pandas' NaT or NA."""
    if value is None or isinstance(value, float | Decimal):
        return value is None or math.isnan(value)
    pandas = sys.modules.get("pandas")
    return pandas is not None and (value is pandas.NaT or value is pandas.NA)


def _json(value: object, fallback: Callable[[Any], Any]) -> bytes:
    try:
        text = to_json(value, fallback=fallback, inf_nan_mode="constants")
    except ValueError:  # a NaT, which pydantic mistakes for a date, or a lone surrogate
        text = b"NaT"
    if not any(each in text for each in _NOT_JSON):
        return text
    return to_json(well_formed(_finite(value)), fallback=fallback, inf_nan_mode="null")


def _finite(value: Any, depth: int = 0) -> Any:
    """Return a copy without values that JSON does not have, at any depth."""
    if depth > _MAX_DEPTH:
        raise ValueError("The value is nested too deeply.")
    if isinstance(value, Mapping):
        return {_key(key): _finite(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each, depth + 1) for each in value]
    return _number(value)


def _key(key: Any) -> Any:
    return "null" if key is not None and is_missing(key) else key


def _number(value: Any) -> Any:
    if is_missing(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


_MAX_DEPTH = 200
"""Maximum depth of nested lists and mappings. A value that contains itself exceeds it."""


def _replacement(value: Any, fallback: Callable[[Any], Any] = repr) -> Any:
    """Return the JSON replacement of a value that pydantic can't represent."""
    if is_missing(value):
        return None
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")
    return _number(value.item()) if is_scalar else fallback(value)  # numpy's numbers
