"""What a run of a recipe needs to begin, and to go on where the last of its turns ended."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from nb_agents import events as ev
from nb_agents.agents.replay import Past, readable, replay
from nb_agents.config.document import read_source
from nb_agents.config.faults import nearest
from nb_agents.config.recipe import RECIPE_FILE, Recipe
from nb_agents.config.recipe_step import Step
from nb_agents.config.recipe_values import Plain
from nb_agents.config.spec import start_place
from nb_agents.config.team import TeamSpec
from nb_agents.errors import ConfigError, RecipeError, UserError
from nb_agents.masking import Mask
from nb_agents.recipes.agents import goes_on
from nb_agents.recipes.check import check
from nb_agents.recipes.output import names_read, names_read_by
from nb_agents.recipes.plan import fatal, plan
from nb_agents.recipes.progress import Progress, Unit, apply, forget
from nb_agents.recipes.tasks import (
    AgentWork,
    CommandWork,
    GateWork,
)
from nb_agents.recipes.units import is_within, join
from nb_agents.session.layout import TurnPaths

__all__ = [
    "Again",
    "READ_ONLY_IN_A_RECIPE",
    "RecipeResume",
    "given_to",
    "given_values",
    "keep_recipe",
    "missing_values",
    "past",
    "plain_values",
    "plan_resume",
    "read_recipe",
    "resume_preview",
    "resumed",
    "title",
    "told_beforehand",
    "unread",
]

_OF_TEAMS = (
    "enable_memory_filesystem_mode",
    "enable_planning_mode",
    "enable_subagents",
    "max_orchestration_restarts",
)
"""Of ``orchestrator.coordination``: the steps of a recipe have no rounds, and nobody presents."""

READ_ONLY_IN_A_RECIPE = "Context paths are only read in a recipe: none of its agents presents."

_PLAIN: TypeAdapter[Any] = TypeAdapter(Plain)


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


def read_recipe(
    recipe: str | os.PathLike[str] | Recipe, given: Mapping[str, Any], team: TeamSpec
) -> Recipe:
    """Read a recipe that is to run, and refuse one that can't.

    Args:
        recipe: Its file, or itself.
        given: The values that it is started with.
        team: Whose agents work.

    Returns:
        The recipe.

    Raises:
        ConfigError: It has faults, with their places.
        RecipeError: It needs a value that is not given.
    """
    read = recipe if isinstance(recipe, Recipe) else Recipe.from_file(recipe)
    if faults := check(read, team).faults:
        errors = [ConfigError(f.what, file=f.file, line=f.line, column=f.column) for f in faults]
        errors[0].others = tuple(errors[1:])
        raise errors[0]
    if missing := missing_values(read, given):
        raise RecipeError(missing)
    return read


def missing_values(recipe: Recipe, given: Mapping[str, Any]) -> str:
    """Say which values a recipe needs and is not given, or ""."""
    missing = [name for name in recipe.required if name not in given]
    if not missing:
        return ""
    return (
        f"The recipe {recipe.name!r} needs {', '.join(missing)}: give it as "
        f"--set {missing[0]}=VALUE, in the cell as `{missing[0]}: VALUE`, or as "
        f"context={{{missing[0]!r}: …}}."
    )


def unread(recipe: Recipe, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Tell of the values that were given and that the recipe neither reads nor has itself."""
    known = names_read(recipe) | recipe.context.keys() | {*recipe.required}
    return tuple(
        f"Nothing in the recipe reads {name!r}, which was given."
        + (f" Did you mean {near!r}?" if (near := nearest(name, known)) else "")
        for name in given
        if name not in known and not name.startswith("_")
    )


def told_beforehand(recipe: Recipe, team: TeamSpec, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Tell where a recipe works that works in no workspace of its own, and what is not for it."""
    place = given.get("_project") if recipe.workspace == "project" else team.project
    told = [f"It works in {place} itself: what it changes there stays."] if place else []
    read_only = [p for p, _ in team.writable_paths if str(p) != str(place)]
    told += [READ_ONLY_IN_A_RECIPE] if read_only else []
    coordination = team.orchestrator.coordination
    if idle := [name for name in _OF_TEAMS if getattr(coordination, name)]:
        told.append(f"In a recipe nothing comes of the team's {', '.join(idle)}.")
    return tuple(told)


def given_values(context: Mapping[str, Any]) -> dict[str, Any]:
    """Give the values that a recipe is started with, as the journal keeps them.

    Raises:
        RecipeError: One is no plain data.
    """
    return {**plain_values(context), "_project": str(start_place())}


def plain_values(context: Mapping[str, Any]) -> dict[str, Any]:
    """Give values as the journal keeps them.

    Raises:
        RecipeError: One is no plain data.
    """
    plain: dict[str, Any] = {}
    for name, value in context.items():
        try:
            plain[str(name)] = _PLAIN.validate_python(value)
        except ValidationError as exc:
            why = exc.errors()[0]["msg"].removeprefix("Value error, ")
            raise RecipeError(f"{name!r} of the context can't be used: {why}.") from None
    return plain


def title(recipe: Recipe) -> str:
    """Say what a recipe's turn is about, as a team's task does."""
    return f"{recipe.name}: {' '.join(recipe.description.split())}"


def keep_recipe(paths: TurnPaths, recipe: Recipe, mask: Mask, was: str = "") -> None:
    """Put a recipe's text beside the journal that has it too, for people.

    Args:
        paths: The turn's.
        recipe: The recipe.
        mask: Takes secrets out of it.
        was: The name that it had in the turn that this one resumes: the workspace has it, too.

    Raises:
        OSError: The turn's directory can't be written.
    """
    old, new = paths.live_workspaces / was, paths.live_workspaces / recipe.name
    if was and old.is_dir() and not new.exists():
        old.rename(new)
        with suppress(OSError, NotImplementedError):  # for values that hold its path
            old.symlink_to(new.name, target_is_directory=True)
    (paths.path / "recipe.yaml").write_text(mask.text(recipe.text), encoding="utf-8")


class RecipeResume(NamedTuple):
    """How a stopped recipe goes on.

    Attributes:
        recipe: Its text as the run goes on with it.
        progress: How far it is.
        past: Where the agents of its steps were.
        notices: What a person should know.
    """

    recipe: Recipe
    progress: Progress
    past: Past
    notices: tuple[str, ...]


def plan_resume(
    events: Sequence[ev.Event], changed: Recipe | None, given: Mapping[str, Any]
) -> RecipeResume:
    """Find where a stopped recipe goes on.

    Args:
        events: Of its turns.
        changed: Takes the place of the recipe that the turn has kept, or None.
        given: Values that it goes on with besides those that it was started with, or instead.

    Returns:
        Where.

    Raises:
        UserError: The turn has kept none, and none is given.
        ConfigError: It can't be read.
        RecipeError: A value is no plain data.
    """
    progress = past(events)
    kept = progress.recipes.get("")
    recipe = changed or kept
    if recipe is None:
        raise UserError(
            "The turn's journal does not hold the recipe that it ran. Give it again: "
            "--recipe FILE, or recipe=."
        )
    notices = () if changed else _notice(recipe)
    new = plain_values(given)
    notices += (*unread(recipe, new), *_done_without(recipe, progress, new))
    progress = replace(progress, context={**progress.context, **new})
    progress = replace(progress, recipes=_still_called(progress, kept, recipe))
    for called in {r.path: r for step, r in progress.recipes.items() if step}.values():
        notices += _notice_called(called)
    progress = replace(progress, recipes={**progress.recipes, "": recipe})
    return RecipeResume(recipe, progress, readable(replay((), events)), notices)


def _done_without(recipe: Recipe, progress: Progress, new: Mapping[str, Any]) -> Iterator[str]:
    """Say which steps were done with another value: they are kept, as all that is paid for."""
    before = {**recipe.context, **progress.context}
    done = {_last_part(a) for a in _own_units(progress) if progress.units[a].outcome}
    reads = {
        step.id: names_read_by(step)
        for stage in recipe.stages
        for step in _all(stage.steps)
        if join("", step.id) in done
    }
    for name, value in new.items():
        kept = [step for step, names in reads.items() if name in names]
        if kept and (name not in before or before[name] != value):
            yield (
                f"What was done before {name!r} was given stays as it is: {', '.join(kept)}. Only "
                "what begins from here on sees the new value."
            )


def given_to(events: Sequence[ev.Event]) -> Mapping[str, Any]:
    """Return the values that a recipe's turn was started with."""
    return past(events).context


def _still_called(progress: Progress, kept: Recipe | None, recipe: Recipe) -> Mapping[str, Recipe]:
    """Give the recipes that were loaded, without what steps began that call another file now."""
    before, now = _calls(kept) if kept else {}, _calls(recipe)
    others = [
        address
        for address, step in _called_by_itself(progress.recipes)
        if before.get(step) != now.get(step) and _is_open(progress.units.get(address))
    ]
    return {
        address: called
        for address, called in progress.recipes.items()
        if not any(is_within(address, other) for other in others)
    }


def _own_units(progress: Progress) -> Iterator[str]:
    """List the units of the run's own recipe."""
    called = [address for address in progress.recipes if address]
    for address in progress.units:
        if not any(is_within(address, other) for other in called if other != address):
            yield address


def _is_open(unit: Unit | None) -> bool:
    return unit is None or not unit.outcome


def _called_by_itself(addresses: Iterable[str]) -> Iterator[tuple[str, str]]:
    """List the calls of the run's own recipe: where each is, and the last part of that."""
    called = [address for address in addresses if address]
    for address in called:
        if not any(is_within(address, other) for other in called if other != address):
            yield address, _last_part(address)


def _last_part(address: str) -> str:
    return address.rpartition("/")[2].partition("[")[0]


def _calls(recipe: Recipe) -> dict[str, str]:
    """Give the files that a recipe's steps call, by the last part of a step's address."""
    return {join("", step.id): step.recipe for stage in recipe.stages for step in _all(stage.steps)}


def _all(steps: Iterable[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        yield from _all(step.steps)


def _notice(kept: Recipe) -> tuple[str, ...]:
    if not _differs(kept):
        return ()
    return (
        f"{kept.path} is another by now. This goes on with the text that the turn has kept; "
        "a resume with `--recipe FILE` takes another.",
    )


def _notice_called(kept: Recipe) -> tuple[str, ...]:
    if not _differs(kept):
        return ()
    return (
        f"{kept.path} is another by now. Steps that have begun with it go on with the text that "
        "the turn has kept; others read the file.",
    )


def _differs(kept: Recipe) -> bool:
    try:
        return kept.path is not None and read_source(kept.path, RECIPE_FILE) != kept.text
    except ConfigError:
        return False


class Again(NamedTuple):
    """What of a stopped recipe a resume keeps, does again and asks again.

    Attributes:
        finished: How many agents' and commands' steps are kept.
        open: Addresses of the agents' steps that go on where they were.
        failed: Addresses of the agents' steps that had failed: they begin anew.
        cut: Addresses of the commands that were cut: they may have happened in part.
        tried: Addresses of the commands that had failed: they run anew.
        gates: Addresses of the gates that nobody has approved.
        next: Addresses of all that it begins with, in order.
    """

    finished: int
    open: tuple[str, ...]
    failed: tuple[str, ...]
    cut: tuple[str, ...]
    tried: tuple[str, ...]
    gates: tuple[str, ...]
    next: tuple[str, ...]


def resume_preview(going: RecipeResume, events: Sequence[ev.Event]) -> Again:
    """Say what of a stopped recipe runs again.

    Args:
        going: Where it goes on.
        events: Of its turns.

    Returns:
        What does.
    """
    known = (ev.StepStarted, ev.StepFailed, ev.StepFinished)
    last = {e.step: e for e in events if isinstance(e, known)}
    asked = {e.step for e in events if isinstance(e, ev.ApprovalAsked)}
    work = plan(going.progress).work
    agents = [w for w in work if isinstance(w, AgentWork)]
    commands = [w.address for w in work if isinstance(w, CommandWork)]
    units = [u for u in going.progress.units.values() if u.kind in ("agent", "bash")]
    return Again(
        finished=sum(1 for unit in units if unit.outcome == "ok"),
        open=tuple(w.address for w in agents if goes_on(going.past.rounds.get(w.address), w)),
        failed=tuple(w.address for w in agents if _has_failed(last.get(w.address))),
        cut=tuple(c for c in commands if isinstance(last.get(c), ev.StepStarted)),
        tried=tuple(c for c in commands if _has_failed(last.get(c))),
        gates=tuple(w.address for w in work if isinstance(w, GateWork) and w.address in asked),
        next=tuple(w.address for w in work),
    )


def _has_failed(last: ev.Event | None) -> bool:
    return isinstance(last, ev.StepFailed) or (
        isinstance(last, ev.StepFinished) and last.outcome == "failed"
    )
