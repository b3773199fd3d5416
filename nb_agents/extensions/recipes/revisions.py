"""Selects the finished steps that a resume replaces or repeats.

These are steps whose outputs the user supplies, steps that the user wants to repeat, and steps
whose outputs later steps can't use. If the last kind were not repeated, a resume would fail again
immediately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nb_agents import events as ev
from nb_agents.config.expression import as_text
from nb_agents.errors import UserError
from nb_agents.extensions.recipes.output import missing_fields
from nb_agents.extensions.recipes.plan import plan
from nb_agents.extensions.recipes.progress import Progress
from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.extensions.recipes.recipe_step import Step
from nb_agents.extensions.recipes.tasks import Failed
from nb_agents.extensions.recipes.units import is_within, join, last_part, recipe_of
from nb_agents.view.steps import parent_of


def given_outputs(
    recipe: Recipe, events: Sequence[ev.Event], values: Mapping[str, Any]
) -> dict[str, str]:
    """Return the supplied values that replace outputs of steps, by the steps' addresses.

    Args:
        events: The events of the recipe's turns. Only steps that have started count.
        values: Supplied values by name.
    """
    begun = {e.step for e in events if isinstance(e, ev.StepStarted)}
    return {
        address: as_text(values[step.output])
        for _, address, step in _own_steps(recipe)
        if address in begun and step.output and step.output in values
    }


def steps_from(recipe: Recipe, first: str) -> dict[str, None]:
    """Return the addresses of a step and of everything after it, or {} if `first` is "".

    Args:
        recipe: The recipe. Steps inside loops and called recipes repeat together with these.
        first: The step's id or address, or "".

    Raises:
        UserError: There is no such step, or it is inside a loop or a called recipe.
    """
    steps = list(_own_steps(recipe))
    at = next(
        (n for n, (_, address, step) in enumerate(steps) if first in (address, step.id)), None
    )
    if not first:
        return {}
    if at is None:
        ids = ", ".join(step.id for *_, step in steps)
        raise UserError(
            f"The recipe has no step {first!r} that can run again on its own. It has: {ids}. "
            "Steps inside a loop or a called recipe run again with it."
        )
    stage = steps[at][0]
    return {(base if base != stage else address): None for base, address, _ in steps[at:]}


def unusable_steps(progress: Progress) -> dict[str, None]:
    """Return the addresses of steps whose outputs later steps can't use."""
    ending = plan(progress).ended
    failed = ending.addresses if isinstance(ending, Failed) else ()
    return dict.fromkeys(address for each in failed for address in _unusable_for(progress, each))


def _own_steps(recipe: Recipe) -> Iterator[tuple[str, str, Step]]:
    """Yield the top-level steps: the stage's address, the step's address, and the step."""
    for stage in recipe.stages:
        base = join("", stage.name) if stage.name else ""
        for step in stage.steps:
            yield base, join(base, step.id), step


def _unusable_for(progress: Progress, failed: str) -> Iterator[str]:
    holder = recipe_of(progress.recipes, failed)
    steps = {join("", step.id): step for step in progress.recipes[holder].walk()}
    if (reader := steps.get(last_part(failed))) is None:
        return
    addresses: dict[str, str] = {}
    # The latest step wins, except that steps in the same iteration come first.
    for address in sorted(progress.units, key=lambda each: is_within(failed, parent_of(each))):
        step, unit = steps.get(last_part(address)), progress.units[address]
        is_over = unit.outcome == "ok" and unit.is_done
        if step and step.output and is_over and recipe_of(progress.recipes, address) == holder:
            addresses[step.output] = address
    values = {name: progress.units[address].output.found for name, address in addresses.items()}
    yield from (addresses[name] for name in missing_fields(reader, values))
