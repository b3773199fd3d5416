"""What all specs share: they are frozen, keep foreign keys, and take null for "left out"."""

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

_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters and marks that nobody sees. Source: Unicode, Default_Ignorable_Code_Point."""
_MOST_CHARACTERS, _MOST_BYTES = 64, 200
_RESERVED = {"con", "prn", "aux", "nul"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10)}
"""Windows' devices; it reserves them with any extension too."""


def safe_name(name: str) -> str:
    """Check that a name can be a directory on any system.

    Args:
        name: An agent's or a session's id.

    Returns:
        The name, in Unicode's normal form C, as some systems make all names.

    Raises:
        ValueError: It has other characters than letters and digits of any script, ``_ . -`` and
            inner spaces, or more than 64 (or 200 bytes), or is reserved on some system.
    """
    safe = unicodedata.normalize("NFC", name)
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
            f"{name!r} can't be a directory name: use letters, digits, '_', '-' and '.', at most 64"
        )
    return safe


def _is_safe(character: str) -> bool:
    kind = unicodedata.category(character)
    return character in "_.- " or kind == "Nd" or kind[0] in "LM"


def _finite(noun: str, *, zero: bool = False) -> AfterValidator:
    """Return a check that a number is finite and above 0, or from it."""

    def check(value: float) -> float:
        if 0 < value < math.inf or (zero and value == 0):
            return value
        raise ValueError(f"{value:g} is not a number of {noun} {'from' if zero else 'above'} 0")

    return AfterValidator(check)


def as_tuple(value: Any) -> Any:
    """Return a single text as a list of one; for a field's validation."""
    return (value,) if isinstance(value, str) else value


def as_text(value: Any) -> Any:
    """Return YAML's bare true, 5 and 0.5 as the words that they were written as."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def beside_the_file(value: str | None, info: ValidationInfo) -> str | None:
    """Make a path absolute that is relative to the team's file, if something is there.

    A journal keeps the spec without the place of the team's file.
    """
    folder: Path | None = (info.context or {}).get("folder")
    return str(folder / value) if folder and value and os.path.exists(folder / value) else value


SafeName = Annotated[str, AfterValidator(safe_name)]
# Strict takes an int for a float, and neither a bool nor text.
Seconds = Annotated[StrictFloat, _finite("seconds")]
Grace = Annotated[StrictFloat, _finite("seconds", zero=True)]
Dollars = Annotated[StrictFloat, _finite("US dollars")]
Count = Annotated[StrictInt, Field(ge=1)]
Texts = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
"""One text or a list of them."""


class Spec(BaseModel):
    """Frozen; keeps keys that it does not know, and takes a key without a value as left out."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: v for k, v in value.items() if v is not None}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield our own keys only: another's may hold a token or a password."""
        fields = type(self).model_fields
        return ((k, v) for k, v in super().__repr_args__() if k in fields)


_place: ContextVar[Path | None] = ContextVar("nb_agents_start_place", default=None)


def start_place() -> Path:
    """Return the directory that the run is started in; the process's own unless another is set."""
    return _place.get() or Path.cwd()


def started_in(place: Path) -> AbstractContextManager[None]:
    """Set the directory in which runs start within the block.

    Args:
        place: It, absolute.
    """
    return within(_place, place)
