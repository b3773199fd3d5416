"""Where the units of a recipe are, and which of them are known before they begin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nb_agents import events as ev
from nb_agents.config.recipe import Recipe
from nb_agents.config.recipe_step import Step
from nb_agents.recipes.outline import does

__all__ = ["is_within", "join", "planned"]

MAX_PLANNED = 200
"""Units of one recipe that are told before they begin: more than a panel shows."""


def join(base: str, name: str) -> str:
    """Give the address of a unit within another; "" is the recipe itself.

    Example:
        >>> join("checks", "review"), join("", "a/b")
        ('checks/review', 'a∕b')
    """
    name = name.replace("/", "∕").replace("[", "❲")
    return f"{base}/{name}" if base else name


def is_within(address: str, holder: str) -> bool:
    """Tell whether a unit is in another one, however deep, or is that one.

    Example:
        >>> is_within("sub/a[2]/b", "sub"), is_within("sub[0]", "sub"), is_within("sub2", "sub")
        (True, True, False)
    """
    return address == holder or address.startswith((f"{holder}/", f"{holder}["))


def planned(recipe: Recipe, base: str = "") -> tuple[ev.PlannedUnit, ...]:
    """List a recipe's stages and steps, in order, as they are known before they begin.

    Args:
        recipe: The recipe.
        base: Address of the step that calls it, or "".

    Returns:
        The first `MAX_PLANNED`. What is inside of a loop or of a recipe that a step calls is not
        known yet.
    """
    return tuple(_units(recipe, base))[:MAX_PLANNED]


def _units(recipe: Recipe, base: str) -> Iterator[ev.PlannedUnit]:
    for stage in recipe.stages:
        if not stage.name:  # a recipe without stages
            yield from _steps(stage.steps, base)
            continue
        address = join(base, stage.name)
        yield ev.PlannedUnit(address, "stage", "a person must approve its end" * bool(stage.gate))
        yield from _steps(stage.steps, address)


def _steps(steps: Sequence[Step], base: str) -> Iterator[ev.PlannedUnit]:
    for step in steps:
        yield ev.PlannedUnit(join(base, step.id), _kind(step), does(step))


def _kind(step: Step) -> ev.StepKind:
    if step.foreach:
        return "foreach"
    return "while" if step.while_condition else step.kind
