"""Which finished steps a resume changes: those given by hand, asked for, or of no use to the next.

A resume folds what has happened. Where that alone lets nothing begin, it would fail for ever: so
the step whose output can't be used runs again, as one that has failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nb_agents import events as ev
from nb_agents.config.recipe import Recipe
from nb_agents.config.recipe_step import Step
from nb_agents.errors import UserError
from nb_agents.recipes.expression import as_text
from nb_agents.recipes.output import unusable
from nb_agents.recipes.plan import plan
from nb_agents.recipes.progress import Progress
from nb_agents.recipes.tasks import Failed
from nb_agents.recipes.units import is_within, join, last_part, recipe_of
from nb_agents.view.steps import parent_of


def given_outputs(
    recipe: Recipe, events: Sequence[ev.Event], given: Mapping[str, Any]
) -> dict[str, str]:
    """Return the values that are outputs of steps which have begun, by the steps' addresses.

    Args:
        recipe: The recipe.
        events: The events of its turns.
        given: Values by name.
    """
    begun = {e.step for e in events if isinstance(e, ev.StepStarted)}
    return {
        address: as_text(given[step.output])
        for _, address, step in _own_steps(recipe)
        if address in begun and step.output and step.output in given
    }


def steps_from(recipe: Recipe, first: str) -> dict[str, None]:
    """Return the addresses of a step and of all that comes after it.

    Args:
        recipe: The recipe; what lies within its loops, or in recipes that it calls, goes with them.
        first: The step's id or address, or "" for none.

    Raises:
        UserError: There is no such step.
    """
    own = list(_own_steps(recipe))
    at = next((n for n, (_, address, step) in enumerate(own) if first in (address, step.id)), None)
    if not first:
        return {}
    if at is None:
        known = ", ".join(step.id for *_, step in own)
        raise UserError(
            f"The recipe has no step {first!r} that could run again by itself. It has: {known}. "
            "What lies in a loop, or in a recipe that is called, runs again with that."
        )
    stage = own[at][0]
    return {(there if there != stage else address): None for there, address, _ in own[at:]}


def unusable_steps(progress: Progress) -> dict[str, None]:
    """Return the steps whose outputs are why nothing can begin, by address.

    Args:
        progress: How far the recipe is.
    """
    ended = plan(progress).ended
    failed = ended.addresses if isinstance(ended, Failed) else ()
    return dict.fromkeys(address for each in failed for address in _unusable_for(progress, each))


def _own_steps(recipe: Recipe) -> Iterator[tuple[str, str, Step]]:
    """Yield the steps that are in no other one: the address of the stage, its own, the step."""
    for stage in recipe.stages:
        base = join("", stage.name) if stage.name else ""
        for step in stage.steps:
            yield base, join(base, step.id), step


def _unusable_for(progress: Progress, failed: str) -> Iterator[str]:
    holder = recipe_of(progress.recipes, failed)
    steps = {join("", step.id): step for step in progress.recipes[holder].walk()}
    if (reader := steps.get(last_part(failed))) is None:
        return
    gave: dict[str, str] = {}
    # The last one that has begun counts, but before all others what lies in the same iteration.
    for address in sorted(progress.units, key=lambda each: is_within(failed, parent_of(each))):
        step, unit = steps.get(last_part(address)), progress.units[address]
        is_over = unit.outcome == "ok" and unit.is_done
        if step and step.output and is_over and recipe_of(progress.recipes, address) == holder:
            gave[step.output] = address
    values = {name: progress.units[address].output.found for name, address in gave.items()}
    yield from (gave[name] for name in unusable(reader, values))
