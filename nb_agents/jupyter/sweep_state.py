"""What the panel of a sweep draws: a pure function of its view and the clock.

Only so much of it goes to the page as a person can look at: the other rows are numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nb_agents.jupyter import text
from nb_agents.jupyter.panel_state import panel_state
from nb_agents.jupyter.rows import MAX_SAYS, doing, name_of, numbers, says
from nb_agents.session.views import read_json
from nb_agents.view.receipt import total_cost
from nb_agents.view.run_view import AgentView, RunView

if TYPE_CHECKING:
    from nb_agents.sweeps.sweep_view import LiveRow, SweepView

__all__ = [
    "MAX_FAILURES",
    "MAX_LIVE",
    "MAX_WHY",
    "OpenedRow",
    "count",
    "counts",
    "score_of",
    "spent",
    "standing",
    "sweep_chip",
    "sweep_state",
    "sweep_title",
]

MAX_LIVE = 60
"""Rows at work that are listed."""
MAX_FAILURES = 50
"""Failed rows that are listed."""
MAX_WHY = 400
"""Characters of why a row failed."""
MAX_NAME = 60
"""Characters of a row's task below its name."""

_STATUS = {"paused": "running", "completed": "complete", "cancelled": "stopped"}

STOPPING_ROWS = "Stopping… (after the calls in flight)"


@dataclass(frozen=True)
class OpenedRow:
    """The row that a person has opened.

    Attributes:
        name: Its name.
        run: Its run's id.
        view: Its turn as it stands.
        card: Its card once it is over, else "".
    """

    name: str
    run: str
    view: RunView
    card: str = ""


def sweep_state(
    view: SweepView, title: str, path: str, now: float, opened: OpenedRow | None = None
) -> dict[str, Any]:
    """Return what the panel draws; its shape is ``SweepState`` in js/src/sweep-state.ts.

    Args:
        view: The sweep.
        title: What it asks, or its name.
        path: Its directory, as shown to the person.
        now: Unix seconds.
        opened: The row whose own panel is drawn too.

    Returns:
        Plain data for the widget.
    """
    ended = view.completed + view.failed
    # Who waits for a person comes first.
    live = sorted(view.live, key=lambda row: not row.view.gates)
    return {
        "sweep": view.name,
        "task": text.clip(title, 300),
        "status": standing(view),
        "chip": sweep_chip(view),
        "round": f"{ended} of {count(view.total)}",
        "fraction": round(ended / view.total, 4) if view.total else 0.0,
        "bar": "Rows done",
        "in_flight": _score(view),
        "elapsed": _time(view),
        "cost": spent(view),
        "counts": [{"text": words, "tone": tone} for words, tone in counts(view)],
        "failures": [_failure(row.row, row.error) for row in view.failures[:MAX_FAILURES]],
        "more_failures": _more(view.failed - min(len(view.failures), MAX_FAILURES), "failed"),
        "rows": [_row(row, opened) for row in live[:MAX_LIVE]],
        "more_rows": _more(len(live) - MAX_LIVE, "at work"),
        "open": _open(opened, now),
        "button": _button(view),
        "hold": _hold(view),
        "notices": [],
        "footer": [view.name, path],
        "card": "",
    }


def sweep_title(path: Path) -> str:
    """Return what a sweep asks: its task, or its recipe's file, else its name.

    Args:
        path: Its directory.
    """
    about = read_json(path / "sweep.json")
    task, recipe = str(about.get("task") or ""), str(about.get("recipe") or "")
    return task or (Path(recipe).name if "/" in recipe else path.name)


def standing(view: SweepView) -> str:
    """Return "running", "stopping", "stopped" or "complete", as for a run."""
    return _STATUS.get(view.status, view.status)


def sweep_chip(view: SweepView) -> str:
    """The text of the status chip."""
    if view.status == "stopping":
        return text.STOPPING_NOW if _is_cut(view) else STOPPING_ROWS
    return "paused" if view.status == "paused" else standing(view)


def counts(view: SweepView) -> list[tuple[str, str]]:
    """Count the rows in words, each with its tone; what is none is left out."""
    # A row that failed and is tried again is in two of these: there it is below 0.
    stopped = view.total - view.completed - view.failed - view.to_go - len(view.live)
    waits = "waits" if view.waiting == 1 else "wait"
    all_ = [
        (view.failed, "failed", "err"),
        (view.waiting, f"{waits} for you", "ing"),
        (len(view.live) - view.waiting, "at work", "run"),
        (view.completed, "done", "ok"),
        (stopped, "stopped", "cut"),
        (view.to_go, "not begun" if view.is_over else "to go", ""),
    ]
    return [(f"{number} {words}", tone) for number, words, tone in all_ if number > 0]


def count(number: int) -> str:
    """Count rows in words."""
    return f"{number} row{'' if number == 1 else 's'}"


def spent(view: SweepView) -> str:
    """Tokens and price so far; "" before there are any."""
    return numbers(view.tokens, view.cost)


def score_of(view: SweepView) -> str:
    """Mean and spread of the scores; "" without any."""
    if view.score is None:
        return ""
    mean, spread = view.score
    return f"{mean:.3g} ± {spread:.2g}"


def _score(view: SweepView) -> str:
    score = score_of(view)
    return f"score {score} ({len(view.scores)})" if score else ""


def _time(view: SweepView) -> str:
    used = text.seconds(view.elapsed_s)
    if view.left_s is None or view.status != "running":
        return used
    return f"{used} · about {text.seconds(view.left_s)} to go"


def _more(number: int, what: str) -> str:
    return f"{number} more {what}" if number > 0 else ""


def _failure(row: str, why: str) -> dict[str, str]:
    return {"row": text.clip(row, MAX_NAME), "why": text.clip(why, MAX_WHY)}


def _row(row: LiveRow, opened: OpenedRow | None) -> dict[str, Any]:
    view, agent = row.view, _speaker(row.view)
    chip, tone = _doing(view, agent)
    gate = next(iter(view.gates.values()), None)
    return {
        "id": row.name,
        "run": row.run,
        "model": text.clip(view.task, MAX_NAME),
        "title": text.clip(view.task, 300),
        "chip": chip,
        "tone": tone,
        "says": text.clip(gate.prompt, MAX_SAYS) if gate else says(agent) if agent else "",
        "writing": not gate and agent is not None and agent.in_flight and agent.phase == "writing",
        "numbers": numbers(sum(a.tokens for a in view.agents.values()), total_cost(view)),
        "stop": _stop(view),
        "current": opened is not None and opened.run == row.run,
    }


def _speaker(view: RunView) -> AgentView | None:
    """Return the agent whose words the row shows: one that writes, else the last to begin."""
    agents = list(view.agents.values())
    writing = (a for a in agents if a.in_flight and a.phase == "writing")
    busy = (a for a in reversed(agents) if a.outcome is None)
    return next(writing, None) or next(busy, None) or (agents[-1] if agents else None)


def _doing(view: RunView, agent: AgentView | None) -> tuple[str, str]:
    """Return a row's chip and its tone."""
    chip = text.chip(view)
    if view.stop:
        return "stopping now" if view.stop.level == "immediate" else "stopping", "ing"
    if view.gates:
        return chip, "ing"
    if chip != "running" or agent is None:
        return chip, "run"
    who = name_of(view.current_step or agent.id)
    return (doing(agent, view) if len(view.agents) == 1 else f"{who}: {doing(agent, view)}"), "run"


def _stop(view: RunView) -> dict[str, bool] | None:
    if view.is_over or (view.stop and view.stop.level == "immediate"):
        return None
    return {"now": view.stop is not None}


def _open(opened: OpenedRow | None, now: float) -> dict[str, Any] | None:
    if opened is None:
        return None
    state = panel_state(opened.view, opened.run, now)
    return {"row": opened.name, "state": {**state, "card": opened.card}}


def _is_cut(view: SweepView) -> bool:
    """Return whether no row at work could be stopped any harder."""
    return all(_stop(row.view) is None for row in view.live)


def _button(view: SweepView) -> dict[str, Any] | None:
    if view.is_over or (view.status == "stopping" and _is_cut(view)):
        return None
    if view.status == "stopping":
        title = "Cut the calls in flight now. What was streamed so far is kept as partial text."
        return {"label": "Stop now", "now": True, "title": title}
    title = "Begin no more rows, and stop those at work after their calls. All is kept."
    return {"label": "Stop", "now": False, "title": title}


def _hold(view: SweepView) -> str:
    """Return the other button's action on all rows: "pause", "continue", or "" for none."""
    return {"running": "pause", "paused": "continue"}.get(view.status, "")
