"""The values of a recipe's keys: numbers, names, plain data, and how much it may do how fast.

A number may be written as ``{{name}}``; it is kept as text then, and the range that the key has
here checks it again when it is known.

Source: amplifier-bundle-recipes, `models.py` (keys, defaults, ranges).
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from nb_agents.config.spec import Spec, as_text
from nb_agents.unicode import well_formed

RESERVED = ("recipe", "session", "step")
"""Variables that the runtime sets; a step can't."""

FENCED = "_fenced"
"""Value of a start that names those that come from elsewhere, as from a table's row."""

_VARIABLE = re.compile(r"\w+")


def is_template(value: object) -> bool:
    """Return whether a value has a ``{{name}}`` to be filled in."""
    return isinstance(value, str) and "{{" in value


@dataclass(frozen=True)
class Range:
    """The numbers that a key takes.

    Attributes:
        low: The least.
        high: The greatest.
        is_whole: Whether it takes whole numbers only.
        is_above: Whether it takes only what is above `low`.
        unit: What it counts, as ``seconds``, or "".

    Example:
        >>> Range(1, 20).number("7")
        7
    """

    low: float
    high: float = math.inf
    is_whole: bool = True
    is_above: bool = False
    unit: str = ""

    def __str__(self) -> str:
        noun = "a whole number" if self.is_whole else "a number"
        counted = f"{noun} of {self.unit}" if self.unit else noun
        least = f" {'above' if self.is_above else 'from'} {self.low:g}"
        return counted + least + (f" to {self.high:g}" if self.high < math.inf else "")

    def number(self, value: object) -> int | float:
        """Read a number.

        Args:
            value: A number, or its text as a template gives it.

        Returns:
            The number.

        Raises:
            ValueError: It is none, or not one of these.
        """
        found = _as_number(value)
        if found is None or not self._has(found):
            raise ValueError(f"{reprlib.repr(value)} is not {self}")
        return int(found) if self.is_whole else found

    def written(self, value: object) -> int | float | str:
        """Read a number as a recipe has it: a template stays as it is."""
        if isinstance(value, str):
            if is_template(value):
                return value
            raise ValueError(f"{reprlib.repr(value)} is text: write {self}, or a {{{{variable}}}}")
        return self.number(value)

    def _has(self, value: float) -> bool:
        if not self.low <= value <= self.high or math.isinf(value):
            return False
        return (value > self.low or not self.is_above) and (
            value == int(value) or not self.is_whole
        )


def _as_number(value: object) -> int | float | None:
    if isinstance(value, str):
        for read in (int, float):
            try:
                return read(value.strip())
            except ValueError:
                continue
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


TIMEOUT = Range(0, is_whole=False, is_above=True, unit="seconds")
APPROVAL_TIMEOUT = Range(0, is_whole=False, unit="seconds")
DELAY = Range(0, is_whole=False, unit="seconds")
ATTEMPTS = Range(1)
ITERATIONS = Range(1)
WHILE_ITERATIONS = Range(1, 1000)
PARALLEL = Range(1)
MAX_DEPTH = Range(1, 20)
MAX_STEPS = Range(1, 1000)
MAX_CONCURRENT = Range(1, 100)
MIN_DELAY_MS = Range(0, 60_000, unit="milliseconds")
INITIAL_DELAY_MS = Range(100, unit="milliseconds")
FACTOR = Range(1, is_whole=False)
SUCCESSES = Range(1)

Number = int | float | str
"""A number, or a template that gives one."""


def _as_loop_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} can't be a variable: use letters, digits and '_'")
    return name


def _as_variable(name: str) -> str:
    if _as_loop_variable(name) in RESERVED:
        raise ValueError(f"{name!r} is set by the run itself. Take another name")
    return name


def _as_name(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError(f"{name!r} is not a name: use printable characters in one line")
    return name


def _as_plain(value: Any) -> Any:
    """Copy a value as the JSON that a turn keeps; YAML's dates become text."""
    try:
        plain = json.loads(json.dumps(value, default=_date_as_text, allow_nan=False))
        return well_formed(plain)
    except (TypeError, ValueError):
        raise ValueError("it is not plain data: use text, numbers, lists and mappings") from None


def _date_as_text(value: object) -> str:
    if isinstance(value, date):  # a datetime is one too
        return value.isoformat()
    raise TypeError


Text = Annotated[str, BeforeValidator(as_text)]
VariableName = Annotated[str, AfterValidator(_as_variable)]
LoopVariable = Annotated[str, AfterValidator(_as_loop_variable)]
"""May hide what the run sets: it is there for the loop only."""
Name = Annotated[str, Field(max_length=200), AfterValidator(_as_name)]
Plain = Annotated[Any, AfterValidator(_as_plain)]
PlainMap = Annotated[Mapping[str, Any], AfterValidator(_as_plain)]


class Recursion(Spec):
    """How far recipes may call recipes.

    Attributes:
        max_depth: Recipes inside each other.
        max_total_steps: Agent steps of the whole run.
    """

    max_depth: Annotated[Number, BeforeValidator(MAX_DEPTH.written)] = 5
    max_total_steps: Annotated[Number, BeforeValidator(MAX_STEPS.written)] = 100


class Backoff(Spec):
    """How calls slow down after a server said "too many", milliseconds.

    Attributes:
        enabled: Whether they do.
        initial_delay_ms: The first delay.
        max_delay_ms: The longest.
        multiplier: How much longer each is than the one before.
        reset_after_success: Calls in a row that must succeed before it starts over.
    """

    enabled: bool = True
    initial_delay_ms: Annotated[Number, BeforeValidator(INITIAL_DELAY_MS.written)] = 1000
    max_delay_ms: Annotated[Number, BeforeValidator(INITIAL_DELAY_MS.written)] = 60_000
    multiplier: Annotated[Number, BeforeValidator(FACTOR.written)] = 2.0
    reset_after_success: Annotated[Number, BeforeValidator(SUCCESSES.written)] = 3

    @model_validator(mode="after")
    def _longest_is_not_shorter_than_first(self) -> Backoff:
        first, longest = self.initial_delay_ms, self.max_delay_ms
        if not isinstance(first, str) and not isinstance(longest, str) and longest < first:
            raise ValueError(f"max_delay_ms {longest} is below initial_delay_ms {first}")
        return self


class RateLimiting(Spec):
    """How fast the run and its sub-recipes may call models; the outermost recipe's holds.

    Attributes:
        max_concurrent_llm: Calls at the same time; None has no limit.
        min_delay_ms: From the end of a call to the next one's beginning.
        backoff: How calls slow down.
    """

    max_concurrent_llm: Annotated[Number, BeforeValidator(MAX_CONCURRENT.written)] | None = None
    min_delay_ms: Annotated[Number, BeforeValidator(MIN_DELAY_MS.written)] = 0
    backoff: Backoff = Backoff()


class Pacing(Spec):
    """What ``orchestrator.config`` says.

    Attributes:
        min_delay_between_calls_ms: Between two calls of one agent, milliseconds.
    """

    min_delay_between_calls_ms: Annotated[Number, BeforeValidator(MIN_DELAY_MS.written)] = 0


class Orchestrator(Spec):
    """The section ``orchestrator``.

    Attributes:
        config: What it says.
    """

    config: Pacing = Pacing()


class StepRetry(Spec):
    """How often a step is tried.

    Attributes:
        max_attempts: Tries in all.
        backoff: Whether delays double or stay as they are (the word for that is ``linear``).
        initial_delay: Seconds before the second try.
        max_delay: Seconds of the longest delay.
    """

    max_attempts: Annotated[Number, BeforeValidator(ATTEMPTS.written)] = 1
    backoff: Literal["exponential", "linear"] = "exponential"
    initial_delay: Annotated[Number, BeforeValidator(DELAY.written)] = 5
    max_delay: Annotated[Number, BeforeValidator(DELAY.written)] = 300
