"""Starting a run of a recipe, and resuming one from its last turn."""

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
from nb_agents.config.recipe import RECIPE_FILE, Recipe
from nb_agents.config.recipe_values import Plain
from nb_agents.config.spec import start_place
from nb_agents.config.team import TeamSpec
from nb_agents.errors import ConfigError, RecipeError, UserError
from nb_agents.masking import Mask
from nb_agents.nouns import did_you_mean
from nb_agents.recipes.agents import still_asked
from nb_agents.recipes.check import check
from nb_agents.recipes.output import names_read, names_read_by
from nb_agents.recipes.plan import fatal, plan
from nb_agents.recipes.progress import Progress, Unit, apply, forget, revise
from nb_agents.recipes.revisions import (
    given_outputs,
    steps_from,
    unusable_steps,
)
from nb_agents.recipes.tasks import (
    AgentWork,
    CommandWork,
    Failed,
    GateWork,
)
from nb_agents.recipes.units import is_within, join, last_part
from nb_agents.session.layout import TurnPaths

_OF_TEAMS = (
    "enable_memory_filesystem_mode",
    "enable_planning_mode",
    "enable_subagents",
    "max_orchestration_restarts",
)
"""Options of ``orchestrator.coordination`` without effect in a recipe, which has no rounds."""

_KEEPS_ITS_TEXT = (
    "This goes on with the text that the turn has kept; a resume with `--recipe FILE` takes "
    "another."
)
_STEPS_KEEP_ITS_TEXT = (
    "Steps that have begun with it go on with the text that the turn has kept; others read the "
    "file."
)

READ_ONLY_IN_A_RECIPE = "Context paths are only read in a recipe: none of its agents presents."

_PLAIN: TypeAdapter[Any] = TypeAdapter(Plain)


def fold_turns(events: Iterable[ev.Event]) -> Progress:
    """Return the progress from which the next turn of a recipe continues.

    Args:
        events: In journal order, of one turn or of turns that resumed one another.

    Raises:
        ConfigError: A recipe in the events can't be parsed.
    """
    progress = Progress()
    for event in events:
        if isinstance(event, ev.TurnStarted) and event.resumes:
            progress = without_failures(progress)
        progress = apply(progress, event)
    return without_failures(progress)


def without_failures(progress: Progress) -> Progress:
    """Return the progress without the failures that ended the run, which a resume tries again."""
    if "" not in progress.recipes:
        return progress
    # One failure may hide another, as in a recipe that then also timed out.
    while (again := forget(progress, fatal(progress))) != progress:
        progress = again
    return progress


def read_recipe(
    recipe: str | os.PathLike[str] | Recipe, given: Mapping[str, Any], team: TeamSpec
) -> Recipe:
    """Load a recipe and check that it can run.

    Args:
        recipe: The recipe or its file.
        given: The values that it is started with.
        team: The team whose agents run the steps.

    Raises:
        ConfigError: The recipe has faults, with their places.
        RecipeError: A required value is missing.
    """
    read = recipe if isinstance(recipe, Recipe) else Recipe.from_file(recipe)
    if faults := check(read, team).faults:
        first, *others = faults
        first.others = tuple(others)
        raise first
    if missing := missing_values(read, given):
        raise RecipeError(missing)
    return read


def missing_values(recipe: Recipe, given: Mapping[str, Any]) -> str:
    """Return a message about the required values that are missing, or ""."""
    missing = [name for name in recipe.required if name not in given]
    if not missing:
        return ""
    return (
        f"The recipe {recipe.name!r} needs {', '.join(missing)}: give it as "
        f"--set {missing[0]}=VALUE, in the cell as `{missing[0]}: VALUE`, or as "
        f"context={{{missing[0]!r}: …}}."
    )


def unread(recipe: Recipe, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a notice for each value given that the recipe neither reads nor defines."""
    known = names_read(recipe) | recipe.context.keys() | {*recipe.required}
    return tuple(
        f"Nothing in the recipe reads {name!r}, which was given.{did_you_mean(name, known)}"
        for name in given
        if name not in known and not name.startswith("_")
    )


def recipe_notices(recipe: Recipe, team: TeamSpec, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notices on the directory that a recipe works in and on options without effect."""
    place = given.get("_project") if recipe.workspace == "project" else team.project
    notices = [f"It works in {place} itself: what it changes there stays."] if place else []
    read_only = [p for p, _ in team.writable_paths if str(p) != str(place)]
    notices += [READ_ONLY_IN_A_RECIPE] if read_only else []
    coordination = team.orchestrator.coordination
    if idle := [name for name in _OF_TEAMS if getattr(coordination, name)]:
        notices.append(f"In a recipe nothing comes of the team's {', '.join(idle)}.")
    return tuple(notices)


def given_values(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a recipe is started with, as plain data for the journal.

    Raises:
        RecipeError: A value is not plain data.
    """
    return {**plain_values(context), "_project": str(start_place())}


def plain_values(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as plain data for the journal.

    Raises:
        RecipeError: A value is not plain data.
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
    """Return the title of a recipe's turn, which takes the place of a team's task."""
    return f"{recipe.name}: {' '.join(recipe.description.split())}"


def keep_recipe(paths: TurnPaths, recipe: Recipe, mask: Mask, was: str = "") -> None:
    """Write a recipe's text, which the journal contains as well, to a file for the user.

    Args:
        paths: The turn's paths.
        recipe: The recipe.
        mask: Masks secrets in the text.
        was: The recipe's name in the turn that this one resumes, after which the workspace is
            named: if the name has changed, the workspace is renamed.

    Raises:
        OSError: The turn's directory can't be written.
    """
    old, new = paths.live_workspaces / was, paths.live_workspaces / recipe.name
    if was and old.is_dir() and not new.exists():
        old.rename(new)
        with suppress(OSError):  # for values that contain the old path
            old.symlink_to(new.name, target_is_directory=True)
    (paths.path / "recipe.yaml").write_text(mask.text(recipe.text), encoding="utf-8")


class RecipeResume(NamedTuple):
    """The state that a resumed recipe continues from.

    Attributes:
        recipe: The recipe that the run continues with.
        progress: The progress so far.
        past: The state of its steps' agents.
        notices: Notices for the user.
        revised: Other outputs of steps that had ended, by address; None for steps that run again.
        stuck: Why it would fail before anything runs, and what to do about it; or "".
    """

    recipe: Recipe
    progress: Progress
    past: Past
    notices: tuple[str, ...]
    revised: Mapping[str, str | None]
    stuck: str = ""

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipe and those that its steps have called."""
        return tuple(self.progress.recipes.values())


def plan_resume(
    events: Sequence[ev.Event],
    changed: Recipe | None,
    given: Mapping[str, Any],
    from_step: str = "",
) -> RecipeResume:
    """Return the state that a stopped recipe continues from.

    Args:
        events: The events of its turns.
        changed: A recipe that replaces the one in the journal, or None.
        given: Values that are added to its context or replace values there, or the output of a
            step that has begun.
        from_step: Id of the step that runs again, with all that comes after it; or "".

    Raises:
        UserError: There is no recipe in the journal, and none is given, or no such step.
        ConfigError: The recipe can't be parsed.
        RecipeError: A value is not plain data.
    """
    progress = fold_turns(events)
    kept = progress.recipes.get("")
    recipe = changed or kept
    if recipe is None:
        raise UserError(
            "The turn's journal does not hold the recipe that it ran. Give it again: "
            "--recipe FILE, or recipe=."
        )
    notices = () if changed else _notice(recipe, _KEEPS_ITS_TEXT)
    new = plain_values(given)
    notices += (*unread(recipe, new), *_done_without(recipe, progress, new))
    progress = replace(progress, context={**progress.context, **new})
    progress = replace(progress, recipes=_still_called(progress, kept, recipe))
    for called in {r.path: r for step, r in progress.recipes.items() if step}.values():
        notices += _notice(called, _STEPS_KEEP_ITS_TEXT)
    progress = replace(progress, recipes={**progress.recipes, "": recipe})
    revised = {**given_outputs(recipe, events, new), **steps_from(recipe, from_step)}
    notices += tuple(
        f"The output of {step} is the one that was given." for step, out in revised.items() if out
    )
    progress = revise(progress, revised)
    while again := unusable_steps(progress):
        revised |= again
        progress = revise(progress, again)
    past = _without_answered(readable(replay((), events)), events)
    return RecipeResume(recipe, progress, past, notices, revised, _stuck(progress))


def _without_answered(past: Past, events: Sequence[ev.Event]) -> Past:
    """Drop the rounds of finished steps: a step that runs again starts a new one."""
    ended: set[str] = set()
    for event in events:
        if isinstance(event, ev.RoundStarted):
            ended.discard(event.agent)
        elif isinstance(event, ev.StepFinished | ev.StepFailed):
            ended.add(event.step)
    rounds = {a: r for a, r in past.rounds.items() if a not in ended or not r.has_answered}
    return replace(past, rounds=rounds)


def _stuck(progress: Progress) -> str:
    ended = plan(progress).ended
    if not isinstance(ended, Failed):
        return ""
    return (
        f"It would fail before anything runs, at {', '.join(ended.addresses)}: {ended.error} Give "
        "what is missing with --set NAME=VALUE, take a changed recipe with --recipe FILE, or let a "
        "step and all after it run again with --from STEP."
    )


def _done_without(recipe: Recipe, progress: Progress, new: Mapping[str, Any]) -> Iterator[str]:
    """Yield notices on the finished steps, which are kept, that read a value now replaced."""
    before = {**recipe.context, **progress.context}
    own = _called_by_none(progress.units, progress.recipes)
    done = {last_part(address) for address in own if progress.units[address].outcome}
    reads = {s.id: names_read_by(s) for s in recipe.walk() if join("", s.id) in done}
    for name, value in new.items():
        kept = [step for step, names in reads.items() if name in names]
        if kept and (name not in before or before[name] != value):
            yield (
                f"What was done before {name!r} was given stays as it is: {', '.join(kept)}. Only "
                "what begins from here on sees the new value."
            )


def _still_called(progress: Progress, kept: Recipe | None, recipe: Recipe) -> Mapping[str, Recipe]:
    """Return the loaded recipes, except those of unfinished steps that call another file now."""
    before, now = _calls(kept) if kept else {}, _calls(recipe)
    others = [
        address
        for address in _called_by_none(filter(None, progress.recipes), progress.recipes)
        if before.get(step := last_part(address)) != now.get(step)
        and _is_open(progress.units.get(address))
    ]
    return {
        address: called
        for address, called in progress.recipes.items()
        if not any(is_within(address, other) for other in others)
    }


def _called_by_none(addresses: Iterable[str], recipes: Iterable[str]) -> Iterator[str]:
    """Yield those of some addresses that are in the run's own recipe, not in a called one."""
    called = [address for address in recipes if address]
    for address in addresses:
        if not any(is_within(address, other) for other in called if other != address):
            yield address


def _is_open(unit: Unit | None) -> bool:
    return unit is None or not unit.outcome


def _calls(recipe: Recipe) -> dict[str, str]:
    """Return the files that a recipe's steps call, by the last part of the step's address."""
    return {join("", step.id): step.recipe for step in recipe.walk()}


def _notice(kept: Recipe, consequence: str) -> tuple[str, ...]:
    """Return a notice on a recipe whose file is not as the turn has kept it."""
    try:
        differs = kept.path is not None and read_source(kept.path, RECIPE_FILE) != kept.text
    except ConfigError:
        differs = False
    return (f"{kept.path} is another by now. {consequence}",) if differs else ()


class RecipePreview(NamedTuple):
    """The steps of a stopped recipe that a resume keeps, and those that it runs again.

    Attributes:
        finished: The number of agents' and commands' steps kept.
        open: Addresses of agents' steps that continue where they were.
        failed: Addresses of agents' steps that failed and start again.
        cut: Addresses of commands that were interrupted, perhaps halfway, and run again.
        to_ask: Addresses of those that only run again once a person agrees.
        tried: Addresses of commands that failed and run again.
        gates: Addresses of gates that were not approved.
        next: Addresses of the first steps to run, in order.
        again: Addresses of steps that had ended and run again.
        stuck: Why it would fail before anything runs, or "".
    """

    finished: int
    open: tuple[str, ...]
    failed: tuple[str, ...]
    cut: tuple[str, ...]
    to_ask: tuple[str, ...]
    tried: tuple[str, ...]
    gates: tuple[str, ...]
    next: tuple[str, ...]
    again: tuple[str, ...] = ()
    stuck: str = ""


def resume_preview(going: RecipeResume, events: Sequence[ev.Event]) -> RecipePreview:
    """Return which steps of a stopped recipe a resume keeps and runs again.

    Args:
        going: The state that it continues from.
        events: The events of its turns.
    """
    known = (ev.StepStarted, ev.StepFailed, ev.StepFinished)
    last = {e.step: e for e in events if isinstance(e, known)}
    asked = {e.step for e in events if isinstance(e, ev.ApprovalAsked)}
    work = plan(going.progress).work
    agents = [w for w in work if isinstance(w, AgentWork)]
    commands = [w for w in work if isinstance(w, CommandWork)]
    units = [u for u in going.progress.units.values() if u.kind in ("agent", "bash")]
    return RecipePreview(
        finished=sum(1 for unit in units if unit.outcome == "ok"),
        open=tuple(w.address for w in agents if still_asked(going.past.rounds.get(w.address), w)),
        failed=tuple(w.address for w in agents if _has_failed(last.get(w.address))),
        cut=tuple(w.address for w in commands if w.was_cut and w.is_repeatable),
        to_ask=tuple(w.address for w in commands if w.was_cut and not w.is_repeatable),
        tried=tuple(w.address for w in commands if _has_failed(last.get(w.address))),
        gates=tuple(w.address for w in work if isinstance(w, GateWork) and w.address in asked),
        next=tuple(w.address for w in work),
        again=tuple(step for step, output in going.revised.items() if output is None),
        stuck=going.stuck,
    )


def _has_failed(last: ev.Event | None) -> bool:
    return isinstance(last, ev.StepFailed) or (
        isinstance(last, ev.StepFinished) and last.outcome == "failed"
    )
