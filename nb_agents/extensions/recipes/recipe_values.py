"""The values of a recipe's keys: numbers, names, plain data, limits and delays.

A number may be written as ``{{name}}``. It remains text until the variable has a value, which is
then checked against the key's range.

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
"""Variables that only the runtime can set."""

_VARIABLE = re.compile(r"\w+")


def is_template(value: object) -> bool:
    """Return whether a value contains a ``{{name}}``."""
    return isinstance(value, str) and "{{" in value


@dataclass(frozen=True)
class Range:
    """The numbers that a key accepts.

    Attributes:
        low: The minimum.
        high: The maximum.
        is_whole: Whether only whole numbers are accepted.
        is_above: Whether numbers must be greater than `low`.
        unit: The unit, such as ``seconds``, or "".

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
        quantity = f"{noun} of {self.unit}" if self.unit else noun
        if self.high < math.inf:
            return f"{quantity} from {self.low:g} to {self.high:g}"
        return f"{quantity} {'above' if self.is_above else '>='} {self.low:g}"

    def number(self, value: object) -> int | float:
        """Return a value as a number.

        Args:
            value: A number, or its text if it comes from a template.

        Raises:
            ValueError: The value is not a number or not in this range.
        """
        parsed = _as_number(value)
        if parsed is None or not self._has(parsed):
            raise ValueError(f"{reprlib.repr(value)} is not {self}")
        return int(parsed) if self.is_whole else parsed

    def written(self, value: object) -> int | float | str:
        """Check a number as written in a recipe. Returns a template unchanged."""
        if isinstance(value, str):
            if is_template(value):
                return value
            raise ValueError(f"{reprlib.repr(value)} is text: write {self} or a {{{{variable}}}}")
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
"""A number, or a template that is replaced with a number."""


def _as_loop_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} can't be a variable: use letters, digits and '_'")
    return name


def _as_variable(name: str) -> str:
    if _as_loop_variable(name) in RESERVED:
        raise ValueError(f"{name!r} is set by the run itself. Choose another name")
    return name


def _as_name(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError(f"{name!r} is not a name: use printable characters in one line")
    return name


def _as_plain(value: Any) -> Any:
    """Copy a value as JSON data, as the turn stores it. Dates become text."""
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
"""A loop variable. It may have a reserved name, which it replaces inside the loop."""
Name = Annotated[str, Field(max_length=200), AfterValidator(_as_name)]
Plain = Annotated[Any, AfterValidator(_as_plain)]
PlainMap = Annotated[Mapping[str, Any], AfterValidator(_as_plain)]


class Recursion(Spec):
    """Limits of recipes that call recipes.

    Attributes:
        max_depth: Maximum depth of nested recipes.
        max_total_steps: Maximum number of agent steps in the whole run.
    """

    max_depth: Annotated[Number, BeforeValidator(MAX_DEPTH.written)] = 5
    max_total_steps: Annotated[Number, BeforeValidator(MAX_STEPS.written)] = 100


class Backoff(Spec):
    """How calls slow down after a server's rate limit error.

    Attributes:
        enabled: Whether calls slow down.
        initial_delay_ms: The first delay in milliseconds.
        max_delay_ms: The longest delay in milliseconds.
        multiplier: The ratio of each delay to the previous one.
        reset_after_success: Number of consecutive successful calls that resets the delay.
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
    """How fast a run may call models. The outermost recipe's limits apply to its sub-recipes.

    Attributes:
        max_concurrent_llm: Maximum number of concurrent calls. By default, there is no limit.
        min_delay_ms: Milliseconds between the end of a call and the start of the next one.
        backoff: How calls slow down after a server's rate limit error.
    """

    max_concurrent_llm: Annotated[Number, BeforeValidator(MAX_CONCURRENT.written)] | None = None
    min_delay_ms: Annotated[Number, BeforeValidator(MIN_DELAY_MS.written)] = 0
    backoff: Backoff = Backoff()


class Pacing(Spec):
    """The section ``orchestrator.config``.

    Attributes:
        min_delay_between_calls_ms: Milliseconds between two calls of the same agent.
    """

    min_delay_between_calls_ms: Annotated[Number, BeforeValidator(MIN_DELAY_MS.written)] = 0


class Orchestrator(Spec):
    """The section ``orchestrator``.

    Attributes:
        config: Delays between model calls.
    """

    config: Pacing = Pacing()


class StepRetry(Spec):
    """How many times a failed step is tried, and how soon.

    Attributes:
        max_attempts: Maximum number of attempts, including the first.
        backoff: Whether delays double (``exponential``) or stay constant (``linear``).
        initial_delay: Seconds before the second attempt.
        max_delay: The longest delay in seconds.
    """

    max_attempts: Annotated[Number, BeforeValidator(ATTEMPTS.written)] = 1
    backoff: Literal["exponential", "linear"] = "exponential"
    initial_delay: Annotated[Number, BeforeValidator(DELAY.written)] = 5
    max_delay: Annotated[Number, BeforeValidator(DELAY.written)] = 300
