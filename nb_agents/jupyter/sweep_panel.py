"""The live panel of a sweep: all its rows in one widget, and its card afterwards."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nb_agents.jupyter import text
from nb_agents.jupyter.cards import card_bundle
from nb_agents.jupyter.ipython import display
from nb_agents.jupyter.panel import LiveOutputs, do_as_asked
from nb_agents.jupyter.sweep_card import sweep_bundle
from nb_agents.jupyter.sweep_state import OpenedRow, sweep_state, sweep_title
from nb_agents.runs.run import Run

if TYPE_CHECKING:
    from nb_agents.sweeps.sweep import Sweep
    from nb_agents.sweeps.sweep_view import SweepView

__all__ = ["show_sweep"]


def show_sweep(sweep: Sweep) -> None:
    """Show a sweep in the current cell: live if it is, its card if it is over."""
    with _lock:
        if not sweep.is_over:
            panel = _panels.get(sweep.path)
            if panel is None:
                panel = _panels[sweep.path] = _SweepPanel(sweep)
            panel.show()
            return
    display(_bundle(sweep, sweep.view))


class _SweepPanel:
    """Shows one sweep in any number of outputs. Made on a cell's thread."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._title, self._path = sweep_title(sweep.path), text.shown_path(sweep.path)
        self._opened: _Opened | None = None
        self._outputs = LiveOutputs(sweep.name, self._state, self._do)
        self._written = _milestone(sweep.view)
        sweep.subscribe(self._on_news)

    def show(self) -> None:
        """Display the panel in the current cell."""
        self._outputs.show(_bundle(self._sweep, self._sweep.view))
        if self._sweep.view.is_over:
            self._freeze(self._sweep.view)

    def _state(self) -> dict[str, Any]:
        opened = self._opened.row() if self._opened else None
        return sweep_state(self._sweep.view, self._title, self._path, time.time(), opened)

    def _on_news(self, view: SweepView) -> None:
        with _lock:
            if view.is_over:
                self._freeze(view)
                return
            self._outputs.draw()
            if (reached := _milestone(view)) != self._written:
                self._written = reached
                self._outputs.rewrite(_bundle(self._sweep, view))

    def _freeze(self, view: SweepView) -> None:
        self._opened = None
        self._outputs.draw()
        self._outputs.freeze(_bundle(self._sweep, view))
        _panels.pop(self._sweep.path, None)

    def _do(self, content: Any) -> None:
        match content:
            case {"type": "stop", "sweep": str(), "now": bool(now)}:
                self._sweep.stop(now, source="widget")
            case {"type": "hold", "pause": bool(is_pause)} if not self._sweep.view.is_over:
                if is_pause:
                    self._sweep.pause()
                else:
                    self._sweep.resume()
            case {"type": "open", "row": str(row)} if not self._sweep.view.is_over:
                self._open(row)
            case {"run": str()}:
                do_as_asked(content)

    def _open(self, row: str) -> None:
        """Open a row that is worked on; "" closes the one that is open."""
        run = self._sweep.runs.get(row)
        with _lock:
            self._opened = _Opened(row, run) if run is not None else None
            self._outputs.draw()


class _Opened:
    """The run of the row that is open; its card is made once."""

    def __init__(self, name: str, run: Run) -> None:
        self._name, self._run, self._card = name, run, ""

    def row(self) -> OpenedRow:
        """Return the row as it stands."""
        view = self._run.view
        if view.is_over and not self._card:
            self._card = card_bundle(view, text.shown_path(self._run.path))["text/html"]
        return OpenedRow(self._name, self._run.id, view, self._card)


# Separates cells, which show a panel and open rows of it, from the sweep's thread, which draws.
_lock = threading.RLock()
_panels: dict[Path, _SweepPanel] = {}


def _milestone(view: SweepView) -> tuple[object, ...]:
    """Return what makes a static output out of date when it changes."""
    return view.status, view.waiting > 0


def _bundle(sweep: Sweep, view: SweepView) -> dict[str, Any]:
    table = sweep.table() if view.is_over else []
    return sweep_bundle(view, sweep_title(sweep.path), text.shown_path(sweep.path), table)
