"""Where in its file a recipe says something: of a check's findings, and of what fails a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nb_agents.config.faults import Finding
from nb_agents.config.recipe import Recipe
from nb_agents.config.recipe_rules import Keys
from nb_agents.config.recipe_step import Step
from nb_agents.recipes.units import FailedError, FaultyError

__all__ = ["path_of", "placed", "with_place"]

_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")


def placed(recipe: Recipe, what: str, path: Keys, text: str) -> Finding:
    """Make a finding about a text inside the value at ``path``: a prompt has many lines.

    Args:
        recipe: The recipe.
        what: A sentence.
        path: Keys and list positions from the top.
        text: What to look for, from there on.
    """
    found = recipe.finding(what, *path)
    if found.line is None:
        return found
    for number, line in enumerate(recipe.text.split("\n")[found.line - 1 :], found.line):
        # A key may hold the same words as its value begins with.
        start = found.column - 1 if found.column and number == found.line else 0
        if (at := line.find(text, start)) >= 0:
            return replace(found, line=number, column=at + 1)
    return found


def path_of(recipe: Recipe, step: str) -> Keys:
    """Return the keys of a step, by its id; () for a recipe that has none."""
    for stage, path in recipe.placed_stages:
        for each, keys in _steps(stage.steps, (*path, "steps")):
            if each.id == step:
                return keys
    return ()


def _steps(steps: Sequence[Step], path: Keys) -> Iterator[tuple[Step, Keys]]:
    for number, step in enumerate(steps):
        yield step, (*path, number)
        yield from _steps(step.steps, (*path, number, "steps"))


def with_place(failure: FailedError, recipe: Recipe, path: Keys) -> FailedError:
    """Return a failure with its file, line and column where the recipe's text is at fault.

    Args:
        failure: Of a unit.
        recipe: The recipe that has it.
        path: Its keys.
    """
    if not isinstance(failure, FaultyError):
        return failure
    template = _TEMPLATE.search(failure.error)
    found = placed(recipe, failure.error, path, template[0] if template else failure.error)
    return FailedError(failure.addresses, str(found))
