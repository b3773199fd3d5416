"""Computes the progress of a recipe as a pure fold of its events.

The result of each unit is stored once. Everything else, such as variables and the next iteration,
is derived from the results and the recipe (see `nb_agents.extensions.recipes.plan`). A resume is
therefore just the fold of an older journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from nb_agents import events as ev
from nb_agents.extensions.recipes.output import Output
from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.extensions.recipes.units import is_within
from nb_agents.view.growing import with_entry
from nb_agents.view.steps import holders_of


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that has started.

    Attributes:
        kind: The kind of unit.
        outcome: How it ended, or "" while it is open.
        output: Its result. Empty for a unit that contains others.
        exit_code: The exit code of a command, or None.
        failures: The number of failed attempts.
        why: Why the last attempt failed, or why the unit was skipped.
        cut_by: Address of the called recipe that timed out while this was open, or "".
        has_begun: Whether an attempt has started and not ended: it is running or was interrupted.
    """

    kind: ev.StepKind
    outcome: Literal["", "ok", "failed", "skipped"] = ""
    output: Output = Output()
    exit_code: int | None = None
    failures: int = 0
    why: str = ""
    cut_by: str = ""
    has_begun: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the planner is done with this unit: it failed, was skipped, or has its result."""
        return bool(self.outcome) and (self.outcome != "ok" or self.kind in ("agent", "bash"))


@dataclass(frozen=True, slots=True)
class GateState:
    """A gate that was reached. ``approved`` is None while it is waiting. ``by`` is who decided."""

    approved: bool | None = None
    message: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a recipe.

    Attributes:
        recipes: The loaded recipes, by the address of the step that calls them. "" is the run's own
            recipe.
        units: The units that have started, by address.
        gates: The gates that were reached, by the address of their stage.
        context: The values that the run was started with.
        session: The session's id.
        started: When the first turn started, in Unix seconds.
        agent_steps: The number of agent steps among the units.
        retried: Iterations that had started before the failure that a resume retries.
    """

    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    units: Mapping[str, Unit] = field(default_factory=dict)
    gates: Mapping[str, GateState] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    session: str = ""
    started: float = 0.0
    agent_steps: int = 0
    retried: frozenset[str] = frozenset()


def fold(events: Iterable[ev.Event], progress: Progress | None = None) -> Progress:
    """Return the progress after some events.

    Args:
        events: Events in journal order, of one turn or of turns that resumed one another.
        progress: The progress to start from.

    Raises:
        ConfigError: A recipe in the events is invalid.
    """
    progress = progress or Progress()
    for event in events:
        progress = apply(progress, event)
    return progress


def apply(progress: Progress, event: ev.Event) -> Progress:
    """Return the progress after one event.

    Raises:
        ConfigError: The event contains an invalid recipe.
    """
    return PROGRESS.apply(progress, event)


PROGRESS: ev.Fold[Progress] = ev.Fold("progress", of=(ev.UnitEvent, ev.TurnStarted))
"""The handlers that update the progress for each kind of event."""


@PROGRESS.on(ev.TurnStarted)
def _turn_started(progress: Progress, e: ev.TurnStarted) -> Progress:
    if not e.resumes:
        return replace(progress, context=e.context, session=e.session, started=e.at)
    # A resume may add values.
    return revise(replace(progress, context={**progress.context, **e.context}), e.revised)


@PROGRESS.on(ev.RecipeLoaded)
def _recipe_loaded(progress: Progress, e: ev.RecipeLoaded) -> Progress:
    recipes = with_entry(progress.recipes, e.step, _recipe(e.text, e.path))
    return replace(progress, recipes=recipes)


@PROGRESS.on(ev.StepStarted)
def _step_started(progress: Progress, e: ev.StepStarted) -> Progress:
    unit = progress.units.get(e.step)
    if unit is None or unit.outcome:  # it was a loop, and had ended, before the recipe was edited
        unit = Unit(e.unit)
    return _with_unit(progress, e.step, replace(unit, kind=e.unit, has_begun=True))


@PROGRESS.on(ev.StepFailed)
def _step_failed(progress: Progress, e: ev.StepFailed) -> Progress:
    # An attempt can fail before it starts, for example because there is no API key.
    unit = progress.units.get(e.step) or Unit("group")
    failed = replace(unit, failures=e.attempt, why=e.error, has_begun=False)
    progress = _with_unit(progress, e.step, failed)
    return _interrupt_inside(progress, e.step) if unit.kind == "recipe" else progress


@PROGRESS.on(ev.StepFinished)
def _step_finished(progress: Progress, e: ev.StepFinished) -> Progress:
    unit = progress.units.get(e.step) or Unit("group")
    finished = replace(
        unit,
        outcome=e.outcome,
        output=Output("" if e.output is None else str(e.output), unit.kind == "bash"),
        exit_code=e.exit_code,
        why=e.why,
        has_begun=False,
    )
    return _with_unit(progress, e.step, finished)


@PROGRESS.on(ev.ApprovalAsked)
def _approval_asked(progress: Progress, e: ev.ApprovalAsked) -> Progress:
    return replace(progress, gates=with_entry(progress.gates, e.step, GateState()))


@PROGRESS.on(ev.ApprovalGiven)
def _approval_given(progress: Progress, e: ev.ApprovalGiven) -> Progress:
    gate = GateState(e.approved, e.message, e.by)
    return replace(progress, gates=with_entry(progress.gates, e.step, gate))


PROGRESS.ignore(ev.OutputStreamed)
PROGRESS.check()


def retry_failed_units(progress: Progress, failed: Iterable[str]) -> Progress:
    """Return the progress with which a resume starts.

    Units that failed, the units around them, and units that a timeout interrupted start again. So
    do gates that were not approved.

    Args:
        progress: The progress at the end of the old turn.
        failed: Addresses of the units whose failure ended the recipe.
    """
    failed = frozenset(failed)
    restarted = failed.union(*map(holders_of, failed))
    units = {
        address: unit if unit.outcome else replace(unit, failures=0, cut_by="")
        for address, unit in progress.units.items()
        if unit.outcome != "failed" or (address not in restarted and unit.cut_by not in failed)
    }
    retried = {each for each in progress.units.keys() - units.keys() if each.endswith("]")}
    gates = {address: gate for address, gate in progress.gates.items() if gate.approved}
    agent_steps = sum(unit.kind == "agent" for unit in units.values())
    return replace(
        progress,
        units=units,
        gates=gates,
        agent_steps=agent_steps,
        retried=progress.retried | retried,
    )


def revise(progress: Progress, revised: Mapping[str, str | None]) -> Progress:
    """Return the progress with other outputs for some steps.

    Args:
        progress: The progress at the end of the old turn.
        revised: The new outputs by address of the step. None means that the step, and everything
            inside it, runs again, and that the gate after it asks again.
    """
    restarted = [address for address, output in revised.items() if output is None]
    if not revised:
        return progress

    def is_unchanged(address: str) -> bool:
        return not any(is_within(address, each) for each in restarted)

    # Marked as a command's output, because no agent wrote it.
    revised_units = {
        address: Unit("bash", "ok", Output(text, True))
        for address, text in revised.items()
        if text is not None
    }
    units = {a: unit for a, unit in progress.units.items() if is_unchanged(a)} | revised_units
    gates = {
        a: gate
        for a, gate in progress.gates.items()
        if is_unchanged(a) and not any(is_within(each, a) for each in restarted)
    }
    return replace(
        progress,
        recipes={a: recipe for a, recipe in progress.recipes.items() if not a or is_unchanged(a)},
        units=units,
        gates=gates,
        agent_steps=sum(unit.kind == "agent" for unit in units.values()),
    )


def _interrupt_inside(progress: Progress, recipe: str) -> Progress:
    """Mark the units that were open in a called recipe when it timed out."""
    interrupted = {
        address: replace(unit, cut_by=recipe)
        for address, unit in progress.units.items()
        if not unit.outcome and address != recipe and is_within(address, recipe)
    }
    return replace(progress, units={**progress.units, **interrupted})


def _with_unit(progress: Progress, address: str, unit: Unit) -> Progress:
    before = progress.units.get(address)
    was_agent = before is not None and before.kind == "agent"
    agent_steps = progress.agent_steps + (unit.kind == "agent") - was_agent
    return replace(
        progress, units=with_entry(progress.units, address, unit), agent_steps=agent_steps
    )


@lru_cache(maxsize=64)
def _recipe(text: str, path: str) -> Recipe:
    """Parse a recipe. Cached, because each iteration of a loop loads its own copy."""
    file = Path(path) if path else None
    return Recipe.from_text(text, path or "recipe", path=file, is_kept=True)
