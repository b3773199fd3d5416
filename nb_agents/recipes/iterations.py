"""What a loop goes over, how much of it at the same time, and how the failures of some fail it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nb_agents.config import recipe_values as ranges
from nb_agents.config.recipe_step import Step
from nb_agents.recipes import values
from nb_agents.recipes.expression import as_text
from nb_agents.recipes.output import value_of
from nb_agents.recipes.scope import Scope
from nb_agents.recipes.values import FailedError

__all__ = ["all_of", "concurrency", "items_of"]

_KINDS: Mapping[type, str] = {dict: "a mapping", str: "text", type(None): "empty"}


def items_of(step: Step, scope: Scope, address: str) -> list[Any]:
    """Give the items of a foreach.

    Args:
        step: The loop.
        scope: What it sees.
        address: Where it is.

    Raises:
        FailedError: It has no list, or one that is too long.
    """
    items = values.value(step.foreach.strip(), scope, address)
    if isinstance(items, str):
        items = value_of(items)
    if not isinstance(items, list):
        kind = _KINDS.get(type(items), "a value")
        raise FailedError((address,), f"foreach needs a list, and {step.foreach} is {kind}.")
    most = values.number(ranges.ITERATIONS, step.max_iterations, scope, address)
    if len(items) > most:
        said = f"{step.foreach} has {len(items)} items, and max_iterations is {most}."
        raise FailedError((address,), said)
    return items


def concurrency(step: Step, count: int, scope: Scope, address: str) -> float | None:
    """Give how many iterations may run at the same time; None for one after the other.

    Args:
        step: The loop.
        count: How many there are.
        scope: What it sees.
        address: Where it is.

    Raises:
        FailedError: Its ``parallel`` is no such number.
    """
    given = values.text(as_text(step.parallel), scope, address).strip().lower()
    if given in ("true", "false"):
        return count if given == "true" else None
    return values.number(ranges.PARALLEL, given, scope, address)


def all_of(failures: Mapping[int, FailedError], count: int) -> FailedError:
    """Give the failure of a parallel loop.

    Args:
        failures: Those of its iterations, by index.
        count: How many iterations there are.
    """
    each = [failures[index] for index in sorted(failures)]
    said = "; ".join(failure.error for failure in each)[:2000]
    addresses = tuple(address for failure in each for address in failure.addresses)
    return FailedError(addresses, f"{len(each)} of {count} iterations failed: {said}")
