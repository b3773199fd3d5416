"""Starts recipes, and resumes them from their last turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nb_agents import events as ev
from nb_agents.agents.replay import Past, readable, replay
from nb_agents.config.document import read_source
from nb_agents.config.file_findings import errors_in
from nb_agents.config.spec import start_directory
from nb_agents.config.team import TeamSpec
from nb_agents.errors import ConfigError, RecipeError, UserError
from nb_agents.extensions.recipes.agents import if_still_current
from nb_agents.extensions.recipes.check import check
from nb_agents.extensions.recipes.output import names_read, names_read_by
from nb_agents.extensions.recipes.plan import fatal, plan
from nb_agents.extensions.recipes.progress import Progress, Unit, apply, retry_failed_units, revise
from nb_agents.extensions.recipes.recipe import RECIPE_FILE, Recipe
from nb_agents.extensions.recipes.recipe_values import Plain
from nb_agents.extensions.recipes.recipe_work import RecipeWork
from nb_agents.extensions.recipes.revisions import (
    given_outputs,
    steps_from,
    unusable_steps,
)
from nb_agents.extensions.recipes.tasks import (
    AgentWork,
    CommandWork,
    Failed,
    GateWork,
)
from nb_agents.extensions.recipes.units import is_within, join, last_part
from nb_agents.launch.work_kind import LoadedWork, StepsPreview, WorkResume
from nb_agents.nouns import did_you_mean

_TEAM_OPTIONS = (
    "enable_memory_filesystem_mode",
    "enable_planning_mode",
    "enable_subagents",
    "max_orchestration_restarts",
)
"""Options of ``orchestrator.coordination`` that are ignored in a recipe, which has no rounds."""

_TURN_USES_ITS_COPY = (
    "This run uses the copy in the turn. To use the changed recipe, resume with `--recipe FILE`."
)
_STEPS_USE_THEIR_COPY = (
    "Steps that have already called it use the copy in the turn; others use the file."
)

READ_ONLY_IN_A_RECIPE = "In a recipe, context paths are read-only, because no agent is a presenter."

_PLAIN: TypeAdapter[Any] = TypeAdapter(Plain)


def fold_turns(events: Iterable[ev.Event]) -> Progress:
    """Return the progress from which the next turn of a recipe continues.

    Args:
        events: Events in journal order, of one turn or of turns that resumed one another.

    Raises:
        ConfigError: A recipe in the events is invalid.
    """
    progress = Progress()
    for event in events:
        if isinstance(event, ev.TurnStarted) and event.resumes:
            progress = without_failures(progress)
        progress = apply(progress, event)
    return without_failures(progress)


def without_failures(progress: Progress) -> Progress:
    """Return the progress without the failures that ended the run, so that they are retried."""
    if "" not in progress.recipes:
        return progress
    # A failure can hide another one, for example in a recipe that also timed out.
    while (retried := retry_failed_units(progress, fatal(progress))) != progress:
        progress = retried
    return progress


def load(recipe: Recipe, context: Mapping[str, Any], team: TeamSpec) -> LoadedWork:
    """Check that a recipe can run, and return it with its values, title and notices.

    Args:
        context: The recipe's initial values.
        team: The team that runs the steps.

    Raises:
        ConfigError: The recipe has errors, with their positions.
        RecipeError: A required value is missing, or a value is not plain data.
    """
    values = given_values(context)
    read_recipe(recipe, values, team)
    notices = (*recipe_notices(recipe, team, values), *unused_value_notices(recipe, values))
    return LoadedWork(RecipeWork(recipe, values), title(recipe), notices)


def read_recipe(recipe: Recipe, values: Mapping[str, Any], team: TeamSpec) -> Recipe:
    """Check that a recipe can run, and return it.

    Args:
        values: The recipe's initial values.
        team: The team that runs the steps.

    Raises:
        ConfigError: The recipe has errors, with their positions.
        RecipeError: A required value is missing.
    """
    if errors := errors_in(check(recipe, team).findings):
        first, *others = errors
        first.others = tuple(others)
        raise first
    if missing := missing_values(recipe, values):
        raise RecipeError(missing)
    return recipe


def missing_values(recipe: Recipe, values: Mapping[str, Any]) -> str:
    """Return a message about required values that are missing, or ""."""
    missing = [name for name in recipe.required if name not in values]
    if not missing:
        return ""
    return (
        f"The recipe {recipe.name!r} requires {', '.join(missing)}: pass it as "
        f"--set {missing[0]}=VALUE, in the cell as `{missing[0]}: VALUE`, or as "
        f"context={{{missing[0]!r}: …}}."
    )


def unused_value_notices(recipe: Recipe, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a notice for each given value that the recipe neither reads nor defines."""
    names = names_read(recipe) | recipe.context.keys() | {*recipe.required}
    return tuple(
        f"The recipe does not read the given value {name!r}.{did_you_mean(name, names)}"
        for name in values
        if name not in names and not name.startswith("_")
    )


def recipe_notices(recipe: Recipe, team: TeamSpec, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notices about the working directory of a recipe and about ignored options."""
    directory = values.get("_project") if recipe.workspace == "project" else team.project
    notices = [f"It changes files in {directory} directly."] if directory else []
    read_only = [p for p, _ in team.writable_paths if str(p) != str(directory)]
    notices += [READ_ONLY_IN_A_RECIPE] if read_only else []
    coordination = team.orchestrator.coordination
    if ignored := [name for name in _TEAM_OPTIONS if getattr(coordination, name)]:
        notices.append(f"A recipe ignores the team's {', '.join(ignored)}.")
    return tuple(notices)


def given_values(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's initial values as plain data for the journal.

    Raises:
        RecipeError: A value is not plain data.
    """
    return {**plain_values(context), "_project": str(start_directory())}


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
            raise RecipeError(f"The value of {name!r} can't be used: {why}.") from None
    return plain


def title(recipe: Recipe) -> str:
    """Return the title of a recipe's turn, which is shown instead of a task."""
    return f"{recipe.name}: {' '.join(recipe.description.split())}"


def plan_resume(
    events: Sequence[ev.Event],
    changed: Recipe | None,
    values: Mapping[str, Any],
    from_step: str = "",
) -> WorkResume:
    """Return the state from which a stopped recipe continues.

    Args:
        events: The events of its turns.
        changed: A recipe that replaces the one in the journal, or None.
        values: Values to add to or replace in its context, or to use as the output of a step that
            has started.
        from_step: Id of the step that runs again with everything after it, or "".

    Raises:
        UserError: The journal has no recipe and none is given, or the step does not exist.
        ConfigError: The recipe is invalid.
        RecipeError: A value is not plain data.
    """
    progress = fold_turns(events)
    stored = progress.recipes.get("")
    recipe = changed or stored
    if recipe is None:
        raise UserError(
            "The turn's journal does not contain its recipe. Pass it again with --recipe FILE or "
            "recipe=."
        )
    notices = () if changed else _changed_file_notice(recipe, _TURN_USES_ITS_COPY)
    new = plain_values(values)
    notices += (*unused_value_notices(recipe, new), *_stale_step_notices(recipe, progress, new))
    progress = replace(progress, context={**progress.context, **new})
    progress = replace(progress, recipes=_loaded_recipes(progress, stored, recipe))
    for recipe_state in {r.path: r for step, r in progress.recipes.items() if step}.values():
        notices += _changed_file_notice(recipe_state, _STEPS_USE_THEIR_COPY)
    progress = replace(progress, recipes={**progress.recipes, "": recipe})
    revised = {**given_outputs(recipe, events, new), **steps_from(recipe, from_step)}
    notices += tuple(f"Uses the given output of {step}." for step, out in revised.items() if out)
    progress = revise(progress, revised)
    while unusable := unusable_steps(progress):
        revised |= unusable
        progress = revise(progress, unusable)
    past = _without_finished_rounds(readable(replay((), events)), events)
    steps = _preview(progress, past, revised, events)
    return WorkResume(
        RecipeWork(recipe, progress.context, progress),
        past,
        steps.open,
        steps.next,
        steps,
        notices,
        revised,
        tuple(lines_of(progress.recipes.values())),
    )


def lines_of(recipes: Iterable[Recipe]) -> Iterator[str]:
    """Yield a line about each command and each called recipe, for a user to check."""
    for recipe in recipes:
        for step in recipe.walk():
            if step.command:
                yield f"command of {step.id}: {step.command}"
            elif step.recipe:
                yield f"recipe of {step.id}: {step.recipe}"


def _without_finished_rounds(past: Past, events: Sequence[ev.Event]) -> Past:
    """Drop the rounds of finished steps. If such a step runs again, it starts a new round."""
    ended_rounds: set[str] = set()
    for event in events:
        if isinstance(event, ev.RoundStarted):
            ended_rounds.discard(event.agent)
        elif isinstance(event, ev.StepFinished | ev.StepFailed):
            ended_rounds.add(event.step)
    rounds = {a: r for a, r in past.rounds.items() if a not in ended_rounds or not r.has_answered}
    return replace(past, rounds=rounds)


def _failure_before_start(progress: Progress) -> str:
    ending = plan(progress).ended
    if not isinstance(ending, Failed):
        return ""
    return (
        f"It would fail before anything runs, at {', '.join(ending.addresses)}: {ending.error} Set "
        "missing values with --set NAME=VALUE, change the recipe with --recipe FILE, or repeat a "
        "step and everything after it with --from STEP."
    )


def _stale_step_notices(
    recipe: Recipe, progress: Progress, new: Mapping[str, Any]
) -> Iterator[str]:
    """Yield notices about finished steps that read a value which has now been replaced."""
    before = {**recipe.context, **progress.context}
    top_level = _top_level(progress.units, progress.recipes)
    ended_steps = {last_part(address) for address in top_level if progress.units[address].outcome}
    reads = {s.id: names_read_by(s) for s in recipe.walk() if join("", s.id) in ended_steps}
    for name, value in new.items():
        ended_readers = [step for step, names in reads.items() if name in names]
        if ended_readers and (name not in before or before[name] != value):
            yield (
                f"Finished steps keep their results, although {name!r} has a new value: "
                f"{', '.join(ended_readers)}. Only steps that start from now on use it."
            )


def _loaded_recipes(
    progress: Progress, stored: Recipe | None, recipe: Recipe
) -> Mapping[str, Recipe]:
    """Return the loaded recipes, except those of unfinished steps that now call another file."""
    before, now = _calls(stored) if stored else {}, _calls(recipe)
    called_recipes = [
        address
        for address in _top_level(filter(None, progress.recipes), progress.recipes)
        if before.get(step := last_part(address)) != now.get(step)
        and _is_open(progress.units.get(address))
    ]
    return {
        address: recipe_state
        for address, recipe_state in progress.recipes.items()
        if not any(is_within(address, other) for other in called_recipes)
    }


def _top_level(addresses: Iterable[str], recipes: Iterable[str]) -> Iterator[str]:
    """Yield the addresses that are not inside a called recipe."""
    called_addresses = [address for address in recipes if address]
    for address in addresses:
        if not any(is_within(address, other) for other in called_addresses if other != address):
            yield address


def _is_open(unit: Unit | None) -> bool:
    return unit is None or not unit.outcome


def _calls(recipe: Recipe) -> dict[str, str]:
    """Return the recipe files that a recipe's steps call, by the step's last address part."""
    return {join("", step.id): step.recipe for step in recipe.walk()}


def _changed_file_notice(stored: Recipe, consequence: str) -> tuple[str, ...]:
    """Return a notice if a recipe's file differs from the copy in the turn."""
    try:
        differs = stored.path is not None and read_source(stored.path, RECIPE_FILE) != stored.text
    except ConfigError:
        differs = False
    return (f"{stored.path} has changed. {consequence}",) if differs else ()


def _preview(
    progress: Progress,
    past: Past,
    revised: Mapping[str, str | None],
    events: Sequence[ev.Event],
) -> StepsPreview:
    """Return the steps that a resume of a stopped recipe keeps or runs again."""
    kinds = (ev.StepStarted, ev.StepFailed, ev.StepFinished)
    last = {e.step: e for e in events if isinstance(e, kinds)}
    asked_gates = {e.step for e in events if isinstance(e, ev.ApprovalAsked)}
    work = plan(progress).work
    agents = [w for w in work if isinstance(w, AgentWork)]
    commands = [w for w in work if isinstance(w, CommandWork)]
    units = [u for u in progress.units.values() if u.kind in ("agent", "bash")]
    return StepsPreview(
        finished=sum(1 for unit in units if unit.outcome == "ok"),
        open=tuple(w.address for w in agents if if_still_current(past.rounds.get(w.address), w)),
        failed=tuple(w.address for w in agents if _has_failed(last.get(w.address))),
        cut=tuple(w.address for w in commands if w.was_cut and w.is_repeatable),
        to_ask=tuple(w.address for w in commands if w.was_cut and not w.is_repeatable),
        tried=tuple(w.address for w in commands if _has_failed(last.get(w.address))),
        gates=tuple(
            w.address for w in work if isinstance(w, GateWork) and w.address in asked_gates
        ),
        next=tuple(w.address for w in work),
        again=tuple(step for step, output in revised.items() if output is None),
        stuck=_failure_before_start(progress),
    )


def _has_failed(last: ev.Event | None) -> bool:
    return isinstance(last, ev.StepFailed) or (
        isinstance(last, ev.StepFinished) and last.outcome == "failed"
    )
