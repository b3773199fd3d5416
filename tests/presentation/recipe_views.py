"""Helpers that make views of recipes from events."""

from __future__ import annotations

from typing import Any

from nb_agents import events as ev
from tests.kit.recipes import StepsPreview
from tests.kit.runs import Preview
from tests.kit.views import RunView, fold

__all__ = ["OUTLINE", "again", "asked", "began", "called", "finished", "over", "recipe", "wrote"]

OUTLINE = (
    ev.PlannedUnit("gather", "stage", "needs approval at its end"),
    ev.PlannedUnit("gather/draft", "agent", "agent writer"),
    ev.PlannedUnit("gather/each", "foreach", "bash"),
    ev.PlannedUnit("publish", "stage"),
    ev.PlannedUnit("publish/send", "bash", "bash"),
)


def recipe(*events: ev.Event, outline: tuple[ev.PlannedUnit, ...] = OUTLINE) -> RunView:
    """The start of a recipe's turn at second 1000."""
    started = ev.TurnStarted(
        session="s",
        turn=1,
        task="paper: Write it",
        agents=(),
        timeout_s=600,
        recipe="paper",
        seq=1,
        at=1000.0,
    )
    return fold([started, ev.RecipeLoaded(step="", path="", text="", outline=outline), *events])


def began(step: str, unit: ev.StepKind, **more: Any) -> ev.StepStarted:
    """The start of a unit at second 1001."""
    return ev.StepStarted(step=step, unit=unit, **{"at": 1001.0, **more})


def finished(step: str, output: Any = None, **more: Any) -> ev.StepFinished:
    """The end of a unit at second 1003."""
    return ev.StepFinished(step=step, output=output, **{"outcome": "ok", "at": 1003.0, **more})


def wrote(step: str, text: str) -> tuple[ev.Event, ...]:
    """The start of an agent's step, and text of its model."""
    return (
        began(step, "agent", worker="writer", model="gpt-5-mini", asks="Write it."),
        ev.ModelStarted(agent=step, call=1),
        ev.TextStreamed(agent=step, call=1, channel="text", text=text),
    )


def called(agent: str, text: str = "") -> tuple[ev.Event, ...]:
    """A call of an agent, and its text. The id starts with the caller's: ``draft/critic#1``."""
    caller, _, last = agent.rpartition("/")
    fields = {"name": last.partition("#")[0], "model": "gpt-4o", "workspace": "w", "input": "?"}
    return (
        ev.AgentCalled(agent=agent, caller=caller, **fields),
        ev.ModelStarted(agent=agent, call=1),
        ev.TextStreamed(agent=agent, call=1, channel="text", text=text),
    )


def asked(step: str, prompt: str, **more: Any) -> ev.ApprovalAsked:
    """A gate opened at second 1010."""
    return ev.ApprovalAsked(step=step, prompt=prompt, **{"at": 1010.0, **more})


def over(status: Any, **more: Any) -> ev.TurnEnded:
    """The end of the turn at second 1020."""
    return ev.TurnEnded(status=status, phase="coordinating", **{"at": 1020.0, **more})


def again(*next_: str, asked: tuple[str, ...] = (), **recipe: tuple[str, ...]) -> Preview:
    """The preview of a resume: of a recipe that starts with these units, or of a team."""
    lists = dict.fromkeys(("open", "failed", "cut", "to_ask", "tried", "gates"), ()) | recipe
    does = StepsPreview(finished=0, next=next_, **lists)
    nothing = {"answers": 0, "votes": 0, "calls": 0}
    none = dict.fromkeys(("begun_again", "tools_again", "tools_told"), ())
    does_it = does if next_ else None
    return Preview(1, asked_again=asked, cost=None, recipe=does_it, **nothing, **none)
