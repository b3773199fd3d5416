"""The live panel: a widget while the run is live, its frozen card afterwards.

The state is a pure function of the view and the clock; the widget only carries it. At the end the
output is replaced by the static card and the widget is closed. A page that was reloaded in
between has lost the way to replace an output, but still sees the widget: for it the widget stays,
showing the card.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.display import DisplayHandle

from nb_agents.jupyter import text
from nb_agents.jupyter.cards import card_bundle, card_text
from nb_agents.jupyter.ipython import display
from nb_agents.jupyter.kernel import decide_once, pin_comm, say_once, stop_as_asked
from nb_agents.jupyter.recipe_rows import UnitRow, asked_for, name_of, units
from nb_agents.jupyter.rows import MAX_SAYS, agent_row
from nb_agents.receipt import total_cost
from nb_agents.runs.run import Run
from nb_agents.view import RunView

__all__ = ["PanelWidget", "panel_state", "show_run"]

_STATIC = Path(__file__).parent / "static"
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
MAX_UNITS = 60
"""Rows of a recipe."""
MAX_QUESTION = 4_000
"""Characters of a gate's question."""


def show_run(run: Run) -> None:
    """Show a run in the current cell: live if it is, its card if it is over."""
    with _lock:
        # A run whose view is over may still list its files: its panel gets them.
        if not run.is_over:
            panel = _panels.get(run.id)
            if panel is None:
                panel = _panels[run.id] = Panel(run)
            panel.show()
            return
    display(card_bundle(run.view, _shown_path(run), run.timeline, run.preview))


def show_text(run: Run) -> None:
    """Show a run where there are no widgets: a terminal."""
    display({"text/plain": card_text(run.view, _shown_path(run), run.preview)})


class PanelWidget(anywidget.AnyWidget):
    """The widget; all that it knows is `state`, as `panel_state` makes it."""

    _esm = _STATIC / "panel.js"
    _css = _STATIC / "panel.css"
    state = traitlets.Dict().tag(sync=True)

    def __repr__(self) -> str:
        """Stay short and the same: the default has an address in it."""
        return "<nb_agents panel>"


class Panel:
    """Shows one run in any number of outputs. Made on a cell's thread.

    Args:
        run: A live run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._widget = PanelWidget(state=panel_state(run.view, run.id, time.time()))
        pin_comm(self._widget)
        self._widget.on_msg(self._on_message)
        self._outputs: list[tuple[DisplayHandle, contextvars.Context]] = []
        self._pages: set[str] = set()
        run.subscribe(self._on_news)

    def show(self) -> None:
        """Display the panel in the current cell."""
        bundle = self._card(self._run.view)
        bundle[_WIDGET_VIEW] = {
            "version_major": 2,
            "version_minor": 0,
            "model_id": self._widget.model_id,
        }
        handle = display(bundle, display_id=True)
        # The context holds the cell that an update belongs to.
        self._outputs.append((handle, contextvars.copy_context()))
        if self._run.view.is_over:
            self._freeze(self._run.view)

    def _card(self, view: RunView) -> dict[str, Any]:
        run = self._run
        return card_bundle(view, _shown_path(run), run.timeline, run.preview)

    def _on_news(self, view: RunView) -> None:
        self._widget.state = panel_state(view, self._run.id, time.time())
        if view.is_over:
            with _lock:
                self._freeze(view)

    def _freeze(self, view: RunView) -> None:
        bundle = self._card(view)
        for handle, context in self._outputs:
            context.run(handle.update, bundle, raw=True)
        if len(self._pages) > 1:
            shown = panel_state(view, self._run.id, time.time())
            self._widget.state = {**shown, "card": bundle["text/html"]}
        else:
            self._widget.close()
        _panels.pop(self._run.id, None)

    def _on_message(self, widget: object, content: Any, buffers: object) -> None:
        match content:
            case {"type": "stop", "now": bool()}:
                stop_as_asked(content)
            case {"type": "say", "run": str(run), "text": str(said), "id": str(message_id)}:
                say_once(run, said, message_id)
            case {
                "type": "decide",
                "run": str(run),
                "gate": str(gate),
                "approved": bool(approved),
                "text": str(said),
                "id": str(message_id),
            } if gate:
                decide_once(run, gate, approved, said, message_id)
            case {"type": "mounted", "page": str(page)}:
                self._pages.add(page)


# Separates cells, which show a panel, from the loop thread, which freezes it and closes its widget.
_lock = threading.RLock()
_panels: dict[str, Panel] = {}


def panel_state(view: RunView, run: str, now: float) -> dict[str, Any]:
    """Make what the panel draws; its shape is ``PanelState`` in js/src/state.ts.

    Args:
        view: The turn.
        run: The run's id, sent back with a stop.
        now: Unix seconds.

    Returns:
        Plain data for the widget.
    """
    elapsed, fraction = text.elapsed(view, now)
    flying = [a.id for a in view.agents.values() if a.in_flight]
    in_flight = f"{len(flying)} call{'' if len(flying) == 1 else 's'} in flight: "
    return {
        "run": run,
        "session": view.session,
        "turn": view.turn,
        "task": text.clip(view.task, 300),
        "status": text.state(view),
        "chip": text.chip(view),
        "round": text.progress(view),
        "elapsed": elapsed,
        "fraction": round(text.done(view) if view.recipe else fraction, 4),
        "bar": "Steps done" if view.recipe else "Time used",
        "cost": text.cost(total_cost(view)) if any(a.tokens for a in view.agents.values()) else "",
        "in_flight": text.clip(in_flight + ", ".join(flying), 120) if flying else "",
        "agents": _rows(view, now),
        "gates": _gates(view, now),
        "button": _button(view, now),
        "can_say": text.state(view) == "running",
        "said": _said(view),
        "notices": [n for n in view.notices if n.strip()],
        "footer": [f"{view.session} · turn {view.turn}", run],
        "card": "",
    }


def _rows(view: RunView, now: float) -> list[dict[str, Any]]:
    if not view.recipe:
        return [agent_row(agent, view) for agent in view.agents.values()]
    current = view.current_step
    return [_unit_row(unit, unit.address == current) for unit in units(view, now, MAX_UNITS)]


def _unit_row(unit: UnitRow, is_current: bool) -> dict[str, Any]:
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
    }


def _gates(view: RunView, now: float) -> list[dict[str, Any]]:
    """The questions that a person can answer; a stop takes them away."""
    if text.state(view) != "running":
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


def _button(view: RunView, now: float) -> dict[str, Any] | None:
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


def _said(view: RunView) -> dict[str, str] | None:
    """The last follow-up text, and who has read it of those that are to."""
    if not view.said:
        return None
    if view.recipe:
        count = sum(a.heard >= len(view.said) for a in view.agents.values())
        read = f"read in {count} step{'' if count == 1 else 's'}" if count else "not read yet"
        return {"text": text.clip(view.said[-1], MAX_SAYS), "read": read}
    # One that is called works on its input alone.
    readers = [a for a in view.agents.values() if a.outcome is None and not a.caller]
    if view.phase == "presenting":
        readers = [a for a in readers if a.id == view.winner]
    count = sum(a.heard >= len(view.said) for a in readers)
    if not readers:
        return {"text": text.clip(view.said[-1], MAX_SAYS), "read": ""}
    read = "read by all" if count == len(readers) else f"read by {count} of {len(readers)}"
    return {"text": text.clip(view.said[-1], MAX_SAYS), "read": read}


def _shown_path(run: Run) -> str:
    return shown_path(run.path)


def shown_path(path: Path) -> str:
    """Name a directory shortly: from the working directory when it is below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
