"""The base class of all events, the event registry, and the types of numeric event fields.

Numbers are not validated when an event is created. They are clamped to a valid range when an event
is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, TypeVar, dataclass_transform

from pydantic import AfterValidator, ValidationInfo

_Number = TypeVar("_Number", int, float)
LAST_MOMENT = 253_402_128_000.0
"""The latest valid time.

It is one day before the last day of `datetime`, to be valid in every time zone.
"""


def _between(least: _Number, most: _Number) -> Callable[[_Number, ValidationInfo], _Number]:
    """Return a validator that clamps a number, and records the field's name if it does.

    The name is added to the validation context. An event with an impossible number (a time of
    1e308, NaN dollars) is not rejected, because its other fields are still useful.
    """

    def clamp(number: _Number, info: ValidationInfo) -> _Number:
        if least <= number <= most:
            return number
        if isinstance(info.context, list):
            info.context.append(info.field_name)
        return most if number > most else least  # NaN compares false with both

    return clamp


def _in_calendar(at: float, info: ValidationInfo) -> float:
    clamped = _between(0.0, LAST_MOMENT)(at, info)
    return (
        clamped if clamped == at else 0.0
    )  # unknown, because the nearest time would be just as wrong


Moment = Annotated[float, AfterValidator(_in_calendar)]
"""Unix time in seconds. 0 means unknown."""
Seconds = Annotated[float, AfterValidator(_between(0.0, 1e11))]
Dollars = Annotated[float, AfterValidator(_between(0.0, 1e11))]
Ratio = Annotated[float, AfterValidator(_between(0.0, 1e11))]
Count = Annotated[int, AfterValidator(_between(0, 2**53))]
"""A number from 0 to 2**53, the largest integer that all JSON parsers read exactly."""
ExitCode = Annotated[int, AfterValidator(_between(-(2**31), 2**32))]


KINDS: dict[str, type[Event]] = {}
"""The event classes by kind."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a turn. Each subclass is a frozen dataclass and its own kind.

    Attributes:
        seq: Position in the journal, starting at 1. Set when the event is emitted.
        at: Unix time in seconds. Set when the event is emitted.
        kind: The class name in snake case, or the former name of a renamed class.
        ignored_by: The names of the folds that the event does not change.
    """

    seq: Count = 0
    at: Moment = 0.0
    kind: str = ""
    ignored_by: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(
        cls, is_kind: bool = True, kind: str = "", ignored_by: Collection[str] = ()
    ) -> None:
        """Register a subclass. One with ``is_kind=False`` is only a base class for other events.

        A renamed class keeps its old ``kind``, so that old journals still load. Subclasses inherit
        ``ignored_by`` and add to it.
        """
        cls.ignored_by = cls.ignored_by.union(ignored_by)
        if is_kind:
            kind = kind or re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
            cls.__annotations__["kind"] = Literal[kind]
            cls.kind = kind
            KINDS[kind] = cls
        dataclass(frozen=True, kw_only=True)(cls)
