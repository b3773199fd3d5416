"""How far a recipe is: a pure fold of its events.

What units gave is kept once, where they gave it. Everything else (a context variable, which
iteration is next) follows from that and from the recipe: see `nb_agents.recipes.plan`. So a resume
is nothing but the fold of an older journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from nb_agents import events as ev
from nb_agents.config.recipe import Recipe
from nb_agents.recipes.output import Output
from nb_agents.recipes.units import is_within
from nb_agents.view.growing import grown
from nb_agents.view.steps import holders_of


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that has begun.

    Attributes:
        kind: What it is.
        outcome: How it ended, or "" while it is open.
        output: What it gave; nothing for one that holds others.
        exit_code: Of a command, or None.
        failures: Attempts that failed.
        why: Why the last attempt failed, or why it was skipped.
        cut_by: Address of the called recipe whose time was over while this was open, or "".
        has_begun: Whether an attempt has begun whose end is not known: at work, or cut.
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
        """Whether this is the end of an agent's or a command's step, not of what holds others."""
        return bool(self.outcome) and (self.outcome != "ok" or self.kind in ("agent", "bash"))


@dataclass(frozen=True, slots=True)
class GateState:
    """A gate that was reached; ``approved`` is None while it waits, ``by`` is who decided."""

    approved: bool | None = None
    message: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a recipe is.

    Attributes:
        recipes: Those that were loaded, by the address of the step that calls them; "" is the
            run's own.
        units: Those that have begun, by address.
        gates: Those that were reached, by the address of their stage.
        context: The values that the run was started with.
        session: The session's id.
        started: When the first turn started, in Unix seconds.
        agent_steps: How many of the units are agents' steps.
        retried: Iterations that had begun before the failure that a resume tries again.
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
    """Fold events into a progress.

    Args:
        events: In journal order: of one turn, or of turns that resumed one another.
        progress: Where to start from.

    Raises:
        ConfigError: A recipe in them can't be read.
    """
    progress = progress or Progress()
    for event in events:
        progress = apply(progress, event)
    return progress


def apply(progress: Progress, event: ev.Event) -> Progress:
    """Return the progress after one event; ``progress`` is unchanged.

    Raises:
        ConfigError: The event is a recipe that can't be read.
    """
    match event:
        case ev.TurnStarted(resumes=0):
            return replace(progress, context=event.context, session=event.session, started=event.at)
        case ev.TurnStarted(context=context, revised=revised):  # a resume may bring further values
            return revise(replace(progress, context={**progress.context, **context}), revised)
        case ev.RecipeLoaded(step=step, path=path, text=text):
            return replace(progress, recipes=grown(progress.recipes, step, _recipe(text, path)))
        case ev.StepStarted(step=step, unit=kind):
            unit = progress.units.get(step)
            if unit is None or unit.outcome:  # of a loop, where a changed recipe has one step
                unit = Unit(kind)
            return _with_unit(progress, step, replace(unit, kind=kind, has_begun=True))
        case ev.StepFailed(step=step, attempt=attempt, error=error):
            # An attempt may fail before it has begun: no model, no key.
            unit = progress.units.get(step) or Unit("group")
            progress = _with_unit(
                progress, step, replace(unit, failures=attempt, why=error, has_begun=False)
            )
            return _cut_within(progress, step) if unit.kind == "recipe" else progress
        case ev.StepFinished(step=step):
            unit = progress.units.get(step) or Unit("group")
            over = replace(
                unit,
                outcome=event.outcome,
                output=Output(
                    "" if event.output is None else str(event.output), unit.kind == "bash"
                ),
                exit_code=event.exit_code,
                why=event.why,
                has_begun=False,
            )
            return _with_unit(progress, step, over)
        case ev.ApprovalAsked(step=step):
            return replace(progress, gates=grown(progress.gates, step, GateState()))
        case ev.ApprovalGiven(step=step, approved=approved, message=message, by=by):
            gate = GateState(approved, message, by)
            return replace(progress, gates=grown(progress.gates, step, gate))
        case _:
            return progress


def forget(progress: Progress, failed: Iterable[str]) -> Progress:
    """Return the progress with which a resume continues.

    Args:
        progress: Where the recipe had come to.
        failed: Addresses of the units whose failure ended it: they are tried again.

    Returns:
        One in which those, all that hold them and what they cut have never begun, and every gate
        that was not passed is asked again.
    """
    failed = frozenset(failed)
    again = failed.union(*map(holders_of, failed))
    units = {
        address: unit if unit.outcome else replace(unit, failures=0, cut_by="")
        for address, unit in progress.units.items()
        if unit.outcome != "failed" or (address not in again and unit.cut_by not in failed)
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
    """Return the progress with other outputs of some steps.

    Args:
        progress: Where the recipe had come to.
        revised: The outputs, by the addresses of the steps; None for those that have never begun,
            as has nothing within them. What holds these asks its gate again.
    """
    again = [address for address, output in revised.items() if output is None]
    if not revised:
        return progress

    def stays(address: str) -> bool:
        return not any(is_within(address, each) for each in again)

    # As if a command had printed it: it is nobody's answer.
    given = {
        address: Unit("bash", "ok", Output(text, True))
        for address, text in revised.items()
        if text is not None
    }
    units = {a: unit for a, unit in progress.units.items() if stays(a)} | given
    gates = {
        a: gate
        for a, gate in progress.gates.items()
        if stays(a) and not any(is_within(each, a) for each in again)
    }
    return replace(
        progress,
        recipes={a: recipe for a, recipe in progress.recipes.items() if not a or stays(a)},
        units=units,
        gates=gates,
        agent_steps=sum(unit.kind == "agent" for unit in units.values()),
    )


def _cut_within(progress: Progress, recipe: str) -> Progress:
    """Record what was running in a called recipe when its time was over."""
    cut = {
        address: replace(unit, cut_by=recipe)
        for address, unit in progress.units.items()
        if not unit.outcome and address != recipe and is_within(address, recipe)
    }
    return replace(progress, units={**progress.units, **cut})


def _with_unit(progress: Progress, address: str, unit: Unit) -> Progress:
    before = progress.units.get(address)
    was_agent = before is not None and before.kind == "agent"
    agent_steps = progress.agent_steps + (unit.kind == "agent") - was_agent
    return replace(progress, units=grown(progress.units, address, unit), agent_steps=agent_steps)


@lru_cache(maxsize=64)
def _recipe(text: str, path: str) -> Recipe:
    """Read a recipe; each iteration of a loop loads its own, and mostly it is the same."""
    return Recipe.from_text(text, path or "recipe", path=Path(path) if path else None)
