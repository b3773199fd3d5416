"""How much a recipe may do, and how fast: recursion, rates, retries.

Source: amplifier-bundle-recipes, `models.py` (keys, defaults, ranges).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, model_validator

from nb_agents.config import recipe_values as v
from nb_agents.config.recipe_values import Number
from nb_agents.config.spec import Spec

__all__ = ["Backoff", "Orchestrator", "Pacing", "RateLimiting", "Recursion", "Retry"]


class Recursion(Spec):
    """How far recipes may call recipes.

    Attributes:
        max_depth: Recipes inside each other.
        max_total_steps: Agent steps of the whole run.
    """

    max_depth: Annotated[Number, BeforeValidator(v.MAX_DEPTH.written)] = 5
    max_total_steps: Annotated[Number, BeforeValidator(v.MAX_STEPS.written)] = 100


class Backoff(Spec):
    """How calls slow down after a server said "too many", milliseconds.

    Attributes:
        enabled: Whether they do.
        initial_delay_ms: The first delay.
        max_delay_ms: The longest.
        multiplier: How much longer each is than the one before.
        reset_after_success: Calls in a row that must succeed before it starts anew.
    """

    enabled: bool = True
    initial_delay_ms: Annotated[Number, BeforeValidator(v.INITIAL_DELAY_MS.written)] = 1000
    max_delay_ms: Annotated[Number, BeforeValidator(v.INITIAL_DELAY_MS.written)] = 60_000
    multiplier: Annotated[Number, BeforeValidator(v.FACTOR.written)] = 2.0
    reset_after_success: Annotated[Number, BeforeValidator(v.SUCCESSES.written)] = 3

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
        min_delay_ms: Between two calls.
        backoff: How calls slow down.
    """

    max_concurrent_llm: Annotated[Number, BeforeValidator(v.MAX_CONCURRENT.written)] | None = None
    min_delay_ms: Annotated[Number, BeforeValidator(v.MIN_DELAY_MS.written)] = 0
    backoff: Backoff = Backoff()


class Pacing(Spec):
    """What ``orchestrator.config`` says.

    Attributes:
        min_delay_between_calls_ms: Between two calls of one agent, milliseconds.
    """

    min_delay_between_calls_ms: Annotated[Number, BeforeValidator(v.MIN_DELAY_MS.written)] = 0


class Orchestrator(Spec):
    """The section ``orchestrator``.

    Attributes:
        config: What it says.
    """

    config: Pacing = Pacing()


class Retry(Spec):
    """How often a step is tried.

    Attributes:
        max_attempts: Tries in all.
        backoff: Whether delays double or stay as they are (the word for that is ``linear``).
        initial_delay: Seconds before the second try.
        max_delay: Seconds of the longest delay.
    """

    max_attempts: Annotated[Number, BeforeValidator(v.ATTEMPTS.written)] = 1
    backoff: Literal["exponential", "linear"] = "exponential"
    initial_delay: Annotated[Number, BeforeValidator(v.DELAY.written)] = 5
    max_delay: Annotated[Number, BeforeValidator(v.DELAY.written)] = 300
