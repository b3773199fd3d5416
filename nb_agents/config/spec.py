"""The base class of all specs, and the types of their fields."""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    ValidationInfo,
    model_validator,
)

from nb_agents.context import within
from nb_agents.disk.names import as_on_disk, composed

_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Invisible letters and marks. Source: Unicode, Default_Ignorable_Code_Point."""
_MOST_CHARACTERS, _MOST_BYTES = 64, 200
_RESERVED = {"con", "prn", "aux", "nul"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10)}
"""Names of Windows devices, which are reserved with any extension."""


def safe_name(name: str) -> str:
    """Check that the id of an agent or session is a valid directory name on any system.

    Returns:
        The name in Unicode's normal form C, which some systems apply to all names.

    Raises:
        ValueError: The name has characters other than letters and digits of any script, ``_ . -``
            and inner spaces, or more than 64 characters or 200 bytes, or is reserved on some
            system.
    """
    safe = composed(name)
    fits = (
        0 < len(safe) <= _MOST_CHARACTERS
        and len(safe.encode(errors="replace")) <= _MOST_BYTES
        and all(map(_is_safe, safe))
        and not (safe.startswith((".", "-", " ")) or safe.endswith((".", " ")))
        and not unicodedata.category(safe[0]).startswith("M")
        and not _UNSEEN.search(safe)
    )
    if not fits or safe.lower().partition(".")[0] in _RESERVED:
        raise ValueError(
            f"{name!r} can't be a directory name: use at most 64 letters, digits, '_', '-' and '.'"
        )
    return safe


def _is_safe(character: str) -> bool:
    kind = unicodedata.category(character)
    return character in "_.- " or kind == "Nd" or kind[0] in "LM"


def _finite(noun: str, *, zero: bool = False) -> AfterValidator:
    """Return a validator for finite numbers that are positive, or not negative."""

    def check(value: float) -> float:
        if 0 < value < math.inf or (zero and value == 0):
            return value
        raise ValueError(f"{value:g} is not a number of {noun} {'>=' if zero else 'above'} 0")

    return AfterValidator(check)


def as_tuple(value: Any) -> Any:
    """Return a string as a tuple with one item, and other values unchanged."""
    return (value,) if isinstance(value, str) else value


def as_text(value: Any) -> Any:
    """Return YAML booleans and numbers, such as true or 5, as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def resolve_next_to_file(value: str | None, info: ValidationInfo) -> str | None:
    """Make a path absolute if it exists relative to the team file's directory.

    The journal stores the spec, but not the location of the team file.
    """
    folder: Path | None = (info.context or {}).get("folder")
    if not folder or not value:
        return value
    path = as_on_disk(folder / value)
    return str(path) if os.path.exists(path) else value


SafeName = Annotated[str, AfterValidator(safe_name)]
# Strict floats accept integers, but neither booleans nor text.
Seconds = Annotated[StrictFloat, _finite("seconds")]
Grace = Annotated[StrictFloat, _finite("seconds", zero=True)]
Dollars = Annotated[StrictFloat, _finite("US dollars")]
Count = Annotated[StrictInt, Field(ge=1)]
Texts = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
"""A string or a list of strings."""


class Spec(BaseModel):
    """Base class of specs.

    A spec is frozen, keeps unknown keys, and ignores keys without a value.
    """

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: v for k, v in value.items() if v is not None}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield only known keys, because the value of an unknown key may be secret."""
        fields = type(self).model_fields
        return ((k, v) for k, v in super().__repr_args__() if k in fields)


_start_directory: ContextVar[Path | None] = ContextVar("nb_agents_start_place", default=None)


def start_directory() -> Path:
    """Return the directory in which the run is started. By default, the working directory."""
    return _start_directory.get() or Path.cwd()


def use_start_directory(directory: Path) -> AbstractContextManager[None]:
    """Set the directory in which runs of a ``with`` block are started.

    Args:
        directory: The absolute path.
    """
    return within(_start_directory, directory)
