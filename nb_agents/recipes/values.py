"""The values of a recipe's keys, filled in with what a step sees.

What can't be filled in is the failure of the unit that needs it.
"""

from __future__ import annotations

from typing import Any

from nb_agents.config import recipe_values as ranges
from nb_agents.config.recipe_limits import Retry
from nb_agents.config.recipe_values import Range
from nb_agents.errors import RecipeError
from nb_agents.recipes import expression
from nb_agents.recipes.scope import Scope
from nb_agents.recipes.template import render, render_value

__all__ = ["FailedError", "delay_s", "holds", "number", "text", "value"]


class FailedError(Exception):
    """Units of a recipe failed.

    Attributes:
        addresses: Theirs; a unit that holds them fails with them unless it says otherwise.
        error: Why.
    """

    def __init__(self, addresses: tuple[str, ...], error: str) -> None:
        super().__init__(error)
        self.addresses = addresses
        self.error = error


def holds(condition: str, scope: Scope, address: str, what: str) -> bool:
    """Tell whether a condition holds.

    Args:
        condition: An expression.
        scope: What the step sees.
        address: The unit's.
        what: The condition's key, for the error.

    Raises:
        FailedError: It can't be told.
    """
    try:
        return expression.evaluate(expression.parse(condition), scope.values)
    except RecipeError as exc:
        raise FailedError((address,), f"{what}: {exc}") from exc


def text(template: str, scope: Scope, address: str) -> str:
    """Fill in a text; see `value`."""
    try:
        return render(template, scope.values)
    except RecipeError as exc:
        raise FailedError((address,), str(exc)) from exc


def value(given: Any, scope: Scope, address: str) -> Any:
    """Fill in a value of the recipe; one ``{{name}}`` alone keeps its type.

    Args:
        given: As the recipe has it.
        scope: What the step sees.
        address: The unit's.

    Raises:
        FailedError: It can't be filled in.
    """
    try:
        return render_value(given, scope.values)
    except RecipeError as exc:
        raise FailedError((address,), str(exc)) from exc


def number(range_: Range, given: object, scope: Scope, address: str) -> float:
    """Give a number that the recipe may have as a template.

    Args:
        range_: The numbers that the key takes.
        given: As the recipe has it: one that is no template was checked when it was read.
        scope: What the step sees.
        address: The unit's.

    Raises:
        FailedError: The template gives no such number.
    """
    if not isinstance(given, str):
        assert isinstance(given, int | float)
        return given
    filled_in = text(given, scope, address)
    try:
        return range_.number(filled_in)
    except ValueError as exc:
        raise FailedError((address,), f"{exc}.") from exc


def delay_s(retry: Retry, failures: int, scope: Scope, address: str) -> float:
    """Give the seconds before the next attempt: none before the first.

    Args:
        retry: How often a step is tried.
        failures: How many attempts have failed.
        scope: What the step sees.
        address: The step's.

    Raises:
        FailedError: A template gives no number of seconds.
    """
    if not failures:
        return 0.0
    first = number(ranges.DELAY, retry.initial_delay, scope, address)
    longest = number(ranges.DELAY, retry.max_delay, scope, address)
    doublings = min(failures - 1, 64) if retry.backoff == "exponential" else 0
    return min(first * 2.0**doublings, longest)
