"""The live panels of runs and groups: a widget while the work is live, and its card afterwards.

The widget only carries the state. A page with the JupyterLab extension of nb_agents draws from disk
instead and reports that. Nothing is sent then until a page mounts the widget. At the end, the
static card replaces the output and the widget is closed. A page that was reloaded in between can't
replace the output but still has the widget, so for such pages the widget stays open and shows the
card.
"""

from __future__ import annotations

import contextvars
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

import anywidget
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import DisplayHandle

from nb_agents.jupyter.ipython import display
from nb_agents.jupyter.kernel import (
    handle_page_request,
    is_headless,
    on_drawn_by_page,
    on_page_message,
)
from nb_agents.launch.finding import find_live
from nb_agents.launch.run import Run
from nb_agents.options import RunOptions
from nb_agents.presentation import text
from nb_agents.presentation.cards import TURN_MIME, card_bundle, card_text, turn_bundle
from nb_agents.presentation.panel_state import panel_state
from nb_agents.presentation.panel_types import PanelState
from nb_agents.presentation.transcript import read_transcript
from nb_agents.session.history import PastTurn
from nb_agents.session.layout import TurnPaths
from nb_agents.turns.groups import Group, GroupKind, kind_of
from nb_agents.verbs.table import ROUTES
from nb_agents.view.run_view import RunView

_STATIC = Path(__file__).parent / "static"
REWRITE_S = 5.0
"""Minimum seconds between two updates of the output, because each mounts the widget again."""
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def show_run(run: Run, earlier_run: Run | None = None) -> None:
    """Show a run in the current cell: its panel while it is live, otherwise its card.

    Args:
        earlier_run: An earlier run of the cell that is still live.
    """
    with LOCK:
        # A run that has just ended may still list its files, so it gets a panel, too.
        if not run.is_over:
            panel = _panel_at(run.path, lambda: _RunPanel(run, f"{run.session}/{run.turn}"))
            panel.earlier_run = earlier_run or panel.earlier_run
            panel.show()
            return
    display(_card(run, run.view))


class GroupCells(Protocol):
    """Starts groups of one kind, and shows them in cells."""

    def start(self, shell: Any, args: Any, task: str, options: RunOptions) -> Group:
        """Start the group of a cell, and show it.

        Args:
            args: The parsed arguments of the cell magic.
            task: The cell's text.

        Raises:
            UserError: The group can't be started.
        """
        ...

    def panel(self, group: Group) -> Panel[Any]:
        """Return a new panel for a live group. Called on a cell's thread."""
        ...

    def card(self, group: Group) -> dict[str, Any]:
        """Return the card of a group as a mime bundle."""
        ...

    def table(self, view: Any) -> dict[str, Any]:
        """Return a view of a group as a mime bundle."""
        ...


def cells_of(kind: GroupKind) -> GroupCells:
    """Return the object that starts and shows groups of a kind in cells."""
    return cast(GroupCells, resolve_name(kind.cells))


def show_group(group: Group) -> None:
    """Show a group in the current cell: its panel while it is live, otherwise its card."""
    cells = cells_of(kind_of(group))
    with LOCK:
        if not group.is_over:
            _panel_at(group.path, lambda: cells.panel(group)).show()
            return
    display(cells.card(group))


def show_cached_run(run: Run) -> None:
    """Show the card of an earlier complete run, with a notice that nothing was run or paid for."""
    when = text.when(run.view.ended_at or 0.0)
    notice = f"Complete result from {when}. Nothing was run or paid for."
    view = replace(run.view, notices=(notice, *run.view.notices))
    bundle = _card(run, view)
    display({**bundle, TURN_MIME: {**bundle[TURN_MIME], "is_earlier": True}})


def show_text(run: Run) -> None:
    """Show a run's card as text, for a terminal."""
    display({"text/plain": card_text(run.view, _shown_path(run), run.preview)})


def show_turn(turn: PastTurn) -> None:
    """Display the card of a turn on disk, and warnings about files that could not be read."""
    display(turn_bundle(turn, str(turn.paths.path)))
    for warning in turn.warnings:
        display({"text/plain": f"Not read: {warning}"})


class PanelWidget(anywidget.AnyWidget):
    """The widget of a panel. `state` comes from `panel_state` or a kind of group."""

    _esm = _STATIC / "panel.js"
    _css = _STATIC / "panel.css"
    state = traitlets.Dict().tag(sync=True)

    def __repr__(self) -> str:
        """Return a short, stable repr. The default one contains a memory address."""
        return "<nb_agents panel>"


class LiveOutputs:
    """A widget shown in any number of outputs, until a static bundle replaces it.

    Must be created on a cell's thread.

    Args:
        page_name: The page's name for the run or group: "session/turn", or the group's name.
        state: Returns the state that the widget draws.
        take: Called with each message from a page, except "mounted" and "read".
    """

    def __init__(
        self, page_name: str, state: Callable[[], Mapping[str, Any]], take: Callable[[Any], object]
    ) -> None:
        self.widget = PanelWidget(state=state())
        self._state, self._handle_action = state, take
        on_page_message(self.widget, self._on_message)
        self._outputs: list[tuple[DisplayHandle, contextvars.Context]] = []
        self._pages: set[str] = set()
        self._is_drawn_by_page = False
        self._end = on_drawn_by_page(page_name, self._leave_to_page)

    def show(self, bundle: dict[str, Any]) -> None:
        """Display the widget in the current cell, with the bundle for viewers without a kernel."""
        handle = display(self._live(bundle), display_id=True)
        # The context identifies the cell that later updates belong to.
        self._outputs.append((handle, contextvars.copy_context()))

    def draw(self) -> None:
        """Send the current state to the widget, unless pages draw without it."""
        if self._pages or not self._is_drawn_by_page:
            self.widget.state = dict(self._state())

    def rewrite(self, bundle: dict[str, Any]) -> None:
        """Update the static part, which mounts the widget again."""
        self._update(self._live(bundle))

    def freeze(self, bundle: dict[str, Any]) -> None:
        """Replace the widget with the bundle.

        A reloaded page gets the bundle as the widget's state.
        """
        self._update(bundle)
        if len(self._pages) > 1:
            self.draw_last(bundle)
        else:
            self._end()
            if (ip := get_ipython()) is not None and is_headless(ip):
                # nbclient saves the last state of each widget in the notebook, closed ones too.
                self.widget.set_trait("_esm", "")
                self.widget.set_trait("_css", "")
                self.widget.state = {}
            self.widget.close()

    def draw_last(self, bundle: dict[str, Any]) -> None:
        """Send the final card to the widget, as its last state."""
        self._end()
        last = {**self._state(), "card": bundle["text/html"]}
        self._state = lambda: last
        self.widget.state = dict(last)

    def _live(self, bundle: dict[str, Any]) -> dict[str, Any]:
        view_of_widget = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return {**bundle, _WIDGET_VIEW: view_of_widget}

    def _update(self, bundle: dict[str, Any]) -> None:
        for handle, context in self._outputs:
            context.run(handle.update, bundle, raw=True)

    def _leave_to_page(self) -> None:
        self._is_drawn_by_page = True

    def _on_message(self, content: Any) -> None:
        match content:
            case {"type": "mounted", "page": str(page)}:
                self._pages.add(page)
                self.draw()
            case {
                "type": "read",
                "run": str(run),
                "agent": str(agent),
                "after": int(after),
                "id": str(message_id),
            }:
                transcript = read_transcript(TurnPaths(find_live(run).path), agent, after)
                self.widget.send({"type": "transcript", "id": message_id, "transcript": transcript})
            case _:
                self._handle_action(content)


class Milestones(NamedTuple):
    """Values whose change makes a static output out of date.

    Attributes:
        state: The state and the open gates. A change is written immediately.
        done: Answers, votes and steps. Changes are written every `REWRITE_S` seconds.
    """

    state: tuple[object, ...]
    done: tuple[object, ...] = ()


class LiveWork(Protocol):
    """A run or group that a panel follows."""

    @property
    def path(self) -> Path:
        """The directory of the run or group."""
        ...

    @property
    def view(self) -> Any:
        """The current state of the run or group."""
        ...

    def subscribe(self, callback: Callable[[Any], None]) -> Callable[[], None]:
        """Call a function with each new view. Returns a function that unsubscribes it."""
        ...


_Work = TypeVar("_Work", bound=LiveWork)


class Panel(ABC, Generic[_Work]):
    """The panel of a live run or group, in any number of outputs. Created on a cell's thread.

    Args:
        work: The run or group.
        page_name: As for `LiveOutputs`.
    """

    def __init__(self, work: _Work, page_name: str) -> None:
        self._work = work
        self._outputs = LiveOutputs(page_name, self._state, self._handle_action)
        self._written, self._written_at = self._milestones(work.view), time.monotonic()
        work.subscribe(self._on_news)

    def show(self) -> None:
        """Display the panel in the current cell."""
        view = self._work.view
        bundle = self._bundle(view)
        self._outputs.draw()
        self._outputs.show(bundle)
        if view.is_over:
            self._freeze(bundle)

    @abstractmethod
    def _state(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def _milestones(self, view: Any) -> Milestones: ...

    @abstractmethod
    def _bundle(self, view: Any) -> dict[str, Any]:
        """Return the static bundle: a summary, or the card once the work is over."""

    def _handle_action(self, content: Any) -> None:
        carry_out(content)

    def _on_news(self, view: Any) -> None:
        # The card of a large group takes a while, so it is created before the lock is taken.
        card = self._bundle(view) if view.is_over else None
        with LOCK:
            self._outputs.draw()
            if card is not None:
                self._freeze(card)
            else:
                self._rewrite(view)

    def _rewrite(self, view: Any) -> None:
        """Update the outputs if a milestone changed. Streamed text appears in the widget only."""
        reached = self._milestones(view)
        waited = time.monotonic() - self._written_at
        if reached == self._written or (
            reached.state == self._written.state and waited < REWRITE_S
        ):
            return
        self._written, self._written_at = reached, time.monotonic()
        self._outputs.rewrite(self._bundle(view))

    def _freeze(self, card: dict[str, Any]) -> None:
        self._outputs.freeze(card)
        _panels.pop(self._work.path, None)


class _RunPanel(Panel[Run]):
    """The panel of a run.

    Attributes:
        earlier_run: An earlier run of the cell that may still be live.
    """

    earlier_run: Run | None = None

    def _state(self) -> PanelState:
        state = panel_state(self._work.view, self._work.address, time.time())
        if (before := self.earlier_run) is not None and not before.is_over:
            notice = (
                f"An earlier run of this cell, {before.id}, is still running: "
                f"`%agents stop {before.id}` stops it, `%agents show {before.id}` shows it."
            )
            return {**state, "notices": [*state["notices"], notice]}
        return state

    def _milestones(self, view: RunView) -> Milestones:
        agents = view.agents.values()
        done = [(a.id, len(a.answers), a.vote, a.outcome) for a in agents]
        over = [step.address for step in view.steps.values() if step.is_over]
        return Milestones((text.chip(view), *view.gates), (*done, *over))

    def _bundle(self, view: RunView) -> dict[str, Any]:
        if view.is_over:
            return _card(self._work, view)
        bundle = card_bundle(view, _shown_path(self._work))
        if self.earlier_run is not None:
            bundle[TURN_MIME]["earlier_run"] = _shown_path(self.earlier_run)
        return bundle


def panel_of(run: Run) -> PanelWidget:
    """Return a run's panel as a widget. It shows the card when the run is over."""
    if run not in _public:
        outputs = LiveOutputs(
            f"{run.session}/{run.turn}",
            lambda: panel_state(run.view, run.address, time.time()),
            carry_out,
        )

        def follow(view: RunView) -> None:
            if view.is_over:
                outputs.draw_last(_card(run, view))
            else:
                outputs.draw()

        _public[run] = outputs.widget
        run.subscribe(follow)
        if run.view.is_over:
            follow(run.view)
    return _public[run]


_public: WeakKeyDictionary[Run, PanelWidget] = WeakKeyDictionary()


def carry_out(content: Any, group: Group | None = None) -> None:
    """Run the verb in a page's message, if there is one."""
    match content:
        case {"type": str(verb), **fields} if verb in ROUTES:
            handle_page_request(verb, fields, group)


# Serializes the cells that show panels and open rows, and the threads that draw panels.
LOCK = threading.RLock()
_panels: dict[Path, Panel[Any]] = {}
_Shown = TypeVar("_Shown", bound=Panel[Any])


def _panel_at(path: Path, make: Callable[[], _Shown]) -> _Shown:
    """Return the panel of the run or group in a directory, creating it if necessary."""
    if path not in _panels:
        _panels[path] = make()
    return cast(_Shown, _panels[path])


def _card(run: Run, view: RunView) -> dict[str, Any]:
    return card_bundle(view, _shown_path(run), run.timeline, run.preview, run.path)


def _shown_path(run: Run) -> str:
    return text.shown_path(run.path)
