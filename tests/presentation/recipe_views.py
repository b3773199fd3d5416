"""Views of a recipe, made from its events."""

from __future__ import annotations

from typing import Any

from nb_agents import events as ev
from nb_agents.launch.recipes import RecipePreview
from nb_agents.launch.resume_plan import Preview
from nb_agents.view.fold import fold
from nb_agents.view.run_view import RunView

__all__ = ["OUTLINE", "again", "asked", "began", "called", "finished", "over", "recipe", "wrote"]

OUTLINE = (
    ev.PlannedUnit("gather", "stage", "a person must approve its end"),
    ev.PlannedUnit("gather/draft", "agent", "agent writer"),
    ev.PlannedUnit("gather/each", "foreach", "bash"),
    ev.PlannedUnit("publish", "stage"),
    ev.PlannedUnit("publish/send", "bash", "bash"),
)


def recipe(*events: ev.Event, outline: tuple[ev.PlannedUnit, ...] = OUTLINE) -> RunView:
    """A recipe's turn, begun at second 1000."""
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
    """A unit begins, at second 1001."""
    return ev.StepStarted(step=step, unit=unit, **{"at": 1001.0, **more})


def finished(step: str, output: Any = None, **more: Any) -> ev.StepFinished:
    """A unit ends, at second 1003."""
    return ev.StepFinished(step=step, output=output, **{"outcome": "ok", "at": 1003.0, **more})


def wrote(step: str, text: str) -> tuple[ev.Event, ...]:
    """An agent's step begins, and its model writes."""
    return (
        began(step, "agent", worker="writer", model="gpt-5-mini", asks="Write it."),
        ev.ModelStarted(agent=step, call=1),
        ev.TextStreamed(agent=step, call=1, channel="text", text=text),
    )


def called(agent: str, text: str = "") -> tuple[ev.Event, ...]:
    """One is called by who stands before it in its id, such as ``draft/critic#1``, and writes."""
    caller, _, last = agent.rpartition("/")
    fields = {"name": last.partition("#")[0], "model": "gpt-4o", "workspace": "w", "input": "?"}
    return (
        ev.AgentCalled(agent=agent, caller=caller, **fields),
        ev.ModelStarted(agent=agent, call=1),
        ev.TextStreamed(agent=agent, call=1, channel="text", text=text),
    )


def asked(step: str, prompt: str, **more: Any) -> ev.ApprovalAsked:
    """A gate asks, at second 1010."""
    return ev.ApprovalAsked(step=step, prompt=prompt, **{"at": 1010.0, **more})


def over(status: Any, **more: Any) -> ev.TurnEnded:
    """The turn ends, at second 1020."""
    return ev.TurnEnded(status=status, phase="coordinating", **{"at": 1020.0, **more})


def again(*next_: str, asked: tuple[str, ...] = (), **recipe: tuple[str, ...]) -> Preview:
    """What a resume does: of a recipe that begins with these units, or of a team."""
    lists = dict.fromkeys(("open", "failed", "cut", "to_ask", "tried", "gates"), ()) | recipe
    does = RecipePreview(finished=0, next=next_, **lists)
    nothing = {"answers": 0, "votes": 0, "calls": 0}
    none = dict.fromkeys(("begun_again", "tools_again", "tools_told"), ())
    does_it = does if next_ else None
    return Preview(1, asked_again=asked, cost=None, recipe=does_it, **nothing, **none)
