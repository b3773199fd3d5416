"""The base of all events, their registry, and the numbers in them.

Writers make events as they like; a number is held to what it can be where an event is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar, dataclass_transform

from pydantic import AfterValidator, ValidationInfo

_Number = TypeVar("_Number", int, float)
LAST_MOMENT = 253_402_128_000.0
"""The day before the last one that `datetime` knows, whatever the time zone."""


def _between(least: _Number, most: _Number) -> Callable[[_Number, ValidationInfo], _Number]:
    """Return a validator that clamps a number, and notes the field's name when it does.

    A line with a number that can't be (a time of 1e308, NaN dollars) holds words, too: they count.
    """

    def hold(number: _Number, info: ValidationInfo) -> _Number:
        if least <= number <= most:
            return number
        if isinstance(info.context, list):
            info.context.append(info.field_name)
        return most if number > most else least  # NaN is neither

    return hold


def _in_calendar(at: float, info: ValidationInfo) -> float:
    held = _between(0.0, LAST_MOMENT)(at, info)
    return held if held == at else 0.0  # unknown: the nearest time would be as wrong


Moment = Annotated[float, AfterValidator(_in_calendar)]
"""Unix seconds; 0 when it is not known."""
Seconds = Annotated[float, AfterValidator(_between(0.0, 1e11))]
Dollars = Annotated[float, AfterValidator(_between(0.0, 1e11))]
Count = Annotated[int, AfterValidator(_between(0, 2**53))]
"""What JSON of any language holds."""
ExitCode = Annotated[int, AfterValidator(_between(-(2**31), 2**32))]


KINDS: dict[str, type[Event]] = {}
"""The class of each kind of event."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a turn. A subclass is a frozen dataclass, and a kind of its own.

    Attributes:
        seq: Position in the journal, from 1; stamped on emission.
        at: Unix time in seconds; stamped on emission.
        kind: The name of the event's class in snake case.
    """

    seq: Count = 0
    at: Moment = 0.0
    kind: str = ""

    def __init_subclass__(cls, is_kind: bool = True) -> None:
        """Declare a subclass; one with ``is_kind=False`` only holds fields for others."""
        if is_kind:
            kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
            cls.__annotations__["kind"] = Literal[kind]
            cls.kind = kind
            KINDS[kind] = cls
        dataclass(frozen=True, kw_only=True)(cls)
