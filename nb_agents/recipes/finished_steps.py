"""Where a stopped recipe goes on: the fold of its turns, each from where the last one ended."""

from __future__ import annotations

from collections.abc import Iterable

from nb_agents import events as ev
from nb_agents.recipes.plan import fatal
from nb_agents.recipes.progress import Progress, apply, forget

__all__ = ["past", "resumed"]


def past(events: Iterable[ev.Event]) -> Progress:
    """Fold the turns of a recipe.

    Args:
        events: In journal order: of one turn, or of turns that resumed one another.

    Returns:
        The progress that the next turn goes on with.

    Raises:
        ConfigError: A recipe in them can't be read.
    """
    progress = Progress()
    for event in events:
        if isinstance(event, ev.TurnStarted) and event.resumes:
            progress = resumed(progress)
        progress = apply(progress, event)
    return resumed(progress)


def resumed(progress: Progress) -> Progress:
    """Give the progress that a resume goes on with: what ended it is tried and asked again."""
    if "" not in progress.recipes:
        return progress
    # What ended it may hide what else had failed, as in a recipe that then took too long.
    while (again := forget(progress, fatal(progress))) != progress:
        progress = again
    return progress
