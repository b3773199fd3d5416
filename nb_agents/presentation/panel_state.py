"""The state of a run's panel: a pure function of the view and the clock.

The kernel's widget and the server extension both send it to the page.
"""

from __future__ import annotations

from nb_agents.nouns import count
from nb_agents.presentation import text
from nb_agents.presentation.panel_types import (
    AgentRow,
    FollowUp,
    GateQuestion,
    PanelState,
    StopButton,
)
from nb_agents.presentation.rows import MAX_SAYS, UnitRow, agent_row, asked_for, name_of, units
from nb_agents.view.receipt import total_cost
from nb_agents.view.run_view import RunView

MAX_UNITS = 60
"""Rows of a recipe."""
MAX_QUESTION = 4_000
"""Characters of a gate's question."""


def panel_state(view: RunView, run: str, now: float) -> PanelState:
    """Return the state of a run's panel.

    Args:
        view: The turn.
        run: The run's id, which a page sends back with a stop.
        now: Unix seconds.

    Returns:
        Plain data for the widget.
    """
    elapsed, fraction = text.elapsed(view, now)
    flying = [a.id for a in view.agents.values() if a.in_flight]
    in_flight = f"{count(len(flying), 'call')} in flight: "
    return {
        "run": run,
        "session": view.session,
        "turn": view.turn,
        "task": text.clip(view.task, 300),
        "status": view.state,
        "chip": text.chip(view),
        "round": text.progress(view),
        "elapsed": elapsed,
        "fraction": round(text.done(view) if view.recipe else fraction, 4),
        "bar": "Steps complete" if view.recipe else "Time used",
        "cost": text.cost(total_cost(view)) if view.tokens else "",
        "in_flight": text.clip(in_flight + ", ".join(flying), 120) if flying else "",
        "agents": _rows(view, now),
        "gates": _gates(view, now),
        "button": _button(view, now),
        "can_say": view.state == "running",
        "said": _said(view),
        "notices": [n for n in (*view.notices, text.waits_for(view)) if n.strip()],
        "footer": [f"{view.session} · turn {view.turn}", run],
        "card": "",
    }


def _rows(view: RunView, now: float) -> list[AgentRow]:
    if not view.recipe:
        return [agent_row(agent, view, now) for agent in view.agents.values()]
    current = view.current_step
    return [
        _unit_row(unit, unit.address == current, _has_words(unit.address, view))
        for unit in units(view, now, MAX_UNITS)
    ]


def _has_words(address: str, view: RunView) -> bool:
    step = view.steps.get(address)
    return address in view.agents or (step is not None and step.unit == "bash")


def _unit_row(unit: UnitRow, is_current: bool, opens: bool) -> AgentRow:
    return {
        "id": unit.address,
        "name": unit.name,
        "depth": unit.depth,
        "model": unit.does,
        "chip": unit.chip,
        "tone": unit.tone,
        "says": unit.says,
        "writing": unit.is_writing,
        "numbers": unit.numbers,
        "stop": unit.stop,
        "title": unit.asks,
        "pending": unit.is_pending,
        "current": is_current,
        "opens": opens,
    }


def _gates(view: RunView, now: float) -> list[GateQuestion]:
    """Return the questions that a person can answer; a stop removes them."""
    if view.state != "running":
        return []
    return [
        {
            "id": gate.address,
            "name": name_of(gate.address),
            "asks": asked_for(gate, view),
            "prompt": text.cut(gate.prompt, MAX_QUESTION),
            "countdown": text.countdown(gate, now),
        }
        for gate in view.gates.values()
    ]


def _button(view: RunView, now: float) -> StopButton | None:
    if view.is_over:
        return None
    stop = view.stop
    if stop is None:
        title = "Stop after the calls in flight. Answers, files and words so far are kept."
        if view.recipe:
            title = "Stop after what is in hand. Outputs, files and words so far are kept."
        return {"label": "Stop", "now": False, "title": title}
    if stop.level == "immediate":
        return None
    left = (
        "" if stop.grace_s is None else f" · {max(0, stop.requested_at + stop.grace_s - now):.0f} s"
    )
    title = "Cut the calls in flight now. What was streamed so far is kept as partial text."
    if view.recipe:
        title = "Cut what is in hand now. What was written so far is kept; a resume does it again."
    return {"label": f"Stop now{left}", "now": True, "title": title}


def _said(view: RunView) -> FollowUp | None:
    """Return the last follow-up text, and how many agents have read it."""
    if not view.said:
        return None
    said = text.clip(view.said[-1], MAX_SAYS)
    if view.recipe:
        number = sum(a.heard >= len(view.said) for a in view.agents.values())
        read = f"read in {count(number, 'step')}" if number else "not read yet"
        return {"text": said, "read": read}
    # One that is called works on its input alone.
    readers = [a for a in view.agents.values() if a.outcome is None and not a.caller]
    if view.phase == "presenting":
        readers = [a for a in readers if a.id == view.winner]
    number = sum(a.heard >= len(view.said) for a in readers)
    read = "read by all" if number == len(readers) else f"read by {number} of {len(readers)}"
    return {"text": said, "read": read if readers else ""}
