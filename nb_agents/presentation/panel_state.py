"""Computes the state of a run's panel from the view and the time. Pure.

The kernel's widget and the server extension both send it to the page.
"""

from __future__ import annotations

from nb_agents.nouns import count, price
from nb_agents.presentation import text
from nb_agents.presentation.panel_parts import panel_parts
from nb_agents.presentation.panel_types import (
    FollowUp,
    GateQuestion,
    PanelState,
    StopButton,
)
from nb_agents.presentation.rows import MAX_SAYS, name_of, question_kind, summary
from nb_agents.presentation.work_display import display_of
from nb_agents.view.receipt import total_cost
from nb_agents.view.run_view import RunView
from nb_agents.view.steps import THE_QUESTION, gate_title, is_stage_gate

MIN_SUMMARIZED = 4
"""Minimum size of a team whose panel has a summary line."""
MAX_QUESTION = 4_000
"""Maximum length of a gate's question, in characters."""


def panel_state(view: RunView, run: str, now: float) -> PanelState:
    """Return the state of a run's panel.

    Args:
        view: The view of the turn.
        run: The run's id, which a page sends back with its requests.
        now: The current time, in Unix seconds.

    Returns:
        Plain data for the widget.
    """
    display = display_of(view)
    flying = [a.id for a in view.agents.values() if a.in_flight]
    in_flight = f"{count(len(flying), 'call')} in flight: "
    parts = panel_parts(view)
    state: PanelState = {
        "run": run,
        "session": view.session,
        "turn": view.turn,
        "task": text.clip(view.task, 300),
        "status": view.state,
        "chip": text.chip(view),
        "round": text.progress(view),
        "elapsed": text.elapsed(view, now)[0],
        "fraction": round(display.fraction(view, now), 4),
        "bar": display.bar,
        "cost": price(view.tokens, total_cost(view)),
        "in_flight": text.clip(in_flight + ", ".join(flying), 120) if flying else "",
        "agents": display.rows(view, now),
        "gates": _gates(view, now),
        "button": _button(view, now),
        "can_say": view.state == "running",
        "said": _last_message(view),
        "notices": [n for n in (*view.notices, text.waits_for(view)) if n.strip()],
        "footer": [f"{view.session} · turn {view.turn}", run],
        "card": "",
    }
    if text.waits_for_providers(view):
        state["waits"] = True
    if parts:
        state["parts"] = parts
    if not view.has_steps and len(view.agents) >= MIN_SUMMARIZED:
        state["summary"] = summary(view)
    return state


def _gates(view: RunView, now: float) -> list[GateQuestion]:
    """Return the questions that the user can answer. There are none after a stop."""
    if view.state != "running":
        return []
    return [
        {
            "id": gate.address,
            "name": _gate_name(gate.address),
            "asks": question_kind(gate, view),
            "prompt": text.cut(gate.prompt, MAX_QUESTION),
            "countdown": text.countdown(gate, now),
        }
        for gate in view.gates.values()
    ]


def _gate_name(address: str) -> str:
    if is_stage_gate(address):
        return name_of(address)
    title = gate_title(address)
    return "this" if title == THE_QUESTION else title  # "Approve this?"


def _button(view: RunView, now: float) -> StopButton | None:
    if view.is_over:
        return None
    stop = view.stop
    if stop is None:
        return {"label": "Stop", "now": False, "title": display_of(view).stop_title}
    if stop.level == "immediate":
        return None
    left = (
        "" if stop.grace_s is None else f" · {max(0, stop.requested_at + stop.grace_s - now):.0f} s"
    )
    return {"label": f"Stop now{left}", "now": True, "title": display_of(view).stop_now_title}


def _last_message(view: RunView) -> FollowUp | None:
    """Return the last message to the agents, and how many agents have read it."""
    if not view.said:
        return None
    message = text.clip(view.said[-1], MAX_SAYS)
    return {"text": message, "read": display_of(view).read_by(view)}
