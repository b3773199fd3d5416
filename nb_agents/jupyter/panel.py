"""The live panels of runs and of sweeps: a widget while one is live, its frozen card afterwards.

The widget only carries the state. A page with our extension draws from the disk instead, and says
so: then nothing is sent until some page mounts the widget. At the end the output is replaced by the
static card and the widget is closed. A page that was reloaded in between has lost the way to
replace an output, but still sees the widget: for it the widget stays, showing the card.
"""

from __future__ import annotations

import contextvars
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

import anywidget
import traitlets
from IPython.display import DisplayHandle

from nb_agents.jupyter.ipython import display
from nb_agents.jupyter.kernel import do_as_asked, drawn_by_page, on_page_message
from nb_agents.presentation import text
from nb_agents.presentation.cards import TURN_MIME, answers_of, card_bundle, card_text, turn_bundle
from nb_agents.presentation.panel_state import panel_state
from nb_agents.presentation.panel_types import PanelState, SweepState
from nb_agents.presentation.sweep_card import OpenedRow, sweep_bundle, sweep_state, sweep_title
from nb_agents.presentation.transcript import read_transcript
from nb_agents.runs.finding import find_run
from nb_agents.runs.run import Run
from nb_agents.session.history import PastTurn
from nb_agents.session.layout import TurnPaths
from nb_agents.verbs.table import ROUTES
from nb_agents.view.run_view import RunView

if TYPE_CHECKING:
    from nb_agents.sweeps.sweep_fold import SweepView
    from nb_agents.sweeps.sweep_handle import SweepHandle

_STATIC = Path(__file__).parent / "static"
REWRITE_S = 5.0
"""At least so long between two updates that show progress: each mounts the widget again."""
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def show_run(run: Run, beside: Run | None = None) -> None:
    """Show a run in the current cell: live if it is, its card if it is over.

    Args:
        run: The run.
        beside: A run that the cell has begun before and that still works.
    """
    with _lock:
        # A run whose view is over may still list its files: its panel gets them.
        if not run.is_over:
            panel = _panel_at(run.path, lambda: _RunPanel(run, f"{run.session}/{run.turn}"))
            panel.beside = beside or panel.beside
            panel.show()
            return
    display(_card(run, run.view))


def show_sweep(sweep: SweepHandle) -> None:
    """Show a sweep in the current cell: live if it is, its card if it is over."""
    with _lock:
        if not sweep.is_over:
            _panel_at(sweep.path, lambda: _SweepPanel(sweep)).show()
            return
    display(_sweep_card(sweep, sweep.view))


def show_earlier(run: Run) -> None:
    """Show a run that is complete since before its cell ran, and say that nothing was paid."""
    said = f"From {text.when(run.view.ended_at or 0.0)}, complete: nothing was run or paid."
    view = replace(run.view, notices=(said, *run.view.notices))
    bundle = _card(run, view)
    display({**bundle, TURN_MIME: {**bundle[TURN_MIME], "is_earlier": True}})


def show_text(run: Run) -> None:
    """Show a run where there are no widgets: a terminal."""
    display({"text/plain": card_text(run.view, _shown_path(run), run.preview)})


def show_turn(turn: PastTurn) -> None:
    """Display the card of a turn on disk, and what of it could not be read."""
    display(turn_bundle(turn, str(turn.paths.path)))
    for warning in turn.warnings:
        display({"text/plain": f"Not read: {warning}"})


class PanelWidget(anywidget.AnyWidget):
    """The widget; all that it knows is `state`, as `panel_state` makes it."""

    _esm = _STATIC / "panel.js"
    _css = _STATIC / "panel.css"
    state = traitlets.Dict().tag(sync=True)

    def __repr__(self) -> str:
        """Stay short and the same: the default has an address in it."""
        return "<nb_agents panel>"


class LiveOutputs:
    """A widget in any number of outputs, until a static bundle takes its place.

    Made on a cell's thread.

    Args:
        shown: What a page calls what is shown: "session/turn", or a sweep's name.
        state: Gives what the widget draws.
        take: Called with each message of a page, but for the one that it is there.
    """

    def __init__(
        self, shown: str, state: Callable[[], Mapping[str, Any]], take: Callable[[Any], object]
    ) -> None:
        self.widget = PanelWidget(state=state())
        self._state, self._take = state, take
        on_page_message(self.widget, self._on_message)
        self._outputs: list[tuple[DisplayHandle, contextvars.Context]] = []
        self._pages: set[str] = set()
        self._is_drawn_by_page = False
        self._end = drawn_by_page(shown, self._leave_to_page)

    def show(self, bundle: dict[str, Any]) -> None:
        """Display the widget in the current cell, and the bundle to whoever has no kernel."""
        handle = display(self._live(bundle), display_id=True)
        # The context holds the cell that an update belongs to.
        self._outputs.append((handle, contextvars.copy_context()))

    def draw(self) -> None:
        """Have the widget draw how it stands, where a page may draw it."""
        if self._pages or not self._is_drawn_by_page:
            self.widget.state = dict(self._state())

    def rewrite(self, bundle: dict[str, Any]) -> None:
        """Update the static part, which mounts the widget again."""
        self._update(self._live(bundle))

    def freeze(self, bundle: dict[str, Any]) -> None:
        """Put the bundle into the widget's place; a page that was reloaded sees it in the state."""
        self._update(bundle)
        if len(self._pages) > 1:
            self.draw_last(bundle)
        else:
            self._end()
            self.widget.close()

    def draw_last(self, bundle: dict[str, Any]) -> None:
        """Have the widget draw the bundle from now on."""
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
                transcript = read_transcript(TurnPaths(find_run(run).path), agent, after)
                self.widget.send({"type": "transcript", "id": message_id, "transcript": transcript})
            case _:
                self._take(content)


class _Milestones(NamedTuple):
    """What makes a static output out of date when it changes.

    Attributes:
        state: As on the chip, and what waits for a person: written at once.
        done: Answers, votes and steps: written now and then.
    """

    state: tuple[object, ...]
    done: tuple[object, ...] = ()


_Work = TypeVar("_Work", bound="Run | SweepHandle")


class _Panel(ABC, Generic[_Work]):
    """Shows a live run or sweep in any number of outputs. Made on a cell's thread.

    Args:
        work: The run or sweep.
        shown: As for `LiveOutputs`.
    """

    def __init__(self, work: _Work, shown: str) -> None:
        self._work = work
        self._outputs = LiveOutputs(shown, self._state, self._take)
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
    def _milestones(self, view: Any) -> _Milestones: ...

    @abstractmethod
    def _bundle(self, view: Any) -> dict[str, Any]:
        """Return what is shown without a kernel: the card, once it is over."""

    def _take(self, content: Any) -> None:
        _carry_out(content)

    def _on_news(self, view: Any) -> None:
        # The card of a large sweep takes a while: no cell waits for it.
        card = self._bundle(view) if view.is_over else None
        with _lock:
            self._outputs.draw()
            if card is not None:
                self._freeze(card)
            else:
                self._rewrite(view)

    def _rewrite(self, view: Any) -> None:
        """Bring the outputs up to date with the milestones; words are the widget's alone."""
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


class _RunPanel(_Panel[Run]):
    """Shows a run.

    Attributes:
        beside: A run that the cell has begun before and that may still work.
    """

    beside: Run | None = None

    def _state(self) -> PanelState:
        state = panel_state(self._work.view, self._work.address, time.time())
        if (before := self.beside) is not None and not before.is_over:
            said = (
                f"An earlier run of this cell, {before.id}, still works: "
                f"`%agents stop {before.id}` stops it, `%agents show {before.id}` shows it."
            )
            return {**state, "notices": [*state["notices"], said]}
        return state

    def _milestones(self, view: RunView) -> _Milestones:
        agents = view.agents.values()
        done = [(a.id, len(a.answers), a.vote, a.outcome) for a in agents]
        over = [step.address for step in view.steps.values() if step.is_over]
        return _Milestones((text.chip(view), *view.gates), (*done, *over))

    def _bundle(self, view: RunView) -> dict[str, Any]:
        if view.is_over:
            return _card(self._work, view)
        bundle = card_bundle(view, _shown_path(self._work))
        if self.beside is not None:
            bundle[TURN_MIME]["beside"] = _shown_path(self.beside)
        return bundle


def panel_of(run: Run) -> PanelWidget:
    """Return a run's panel as a widget for any front end; it is the card when the run is over."""
    if run not in _public:
        outputs = LiveOutputs(
            f"{run.session}/{run.turn}",
            lambda: panel_state(run.view, run.address, time.time()),
            _carry_out,
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


def _carry_out(content: Any, sweep: SweepHandle | None = None) -> None:
    """Carry out the verb that a page asks for, if it is one."""
    match content:
        case {"type": str(verb), **asked} if verb in ROUTES:
            do_as_asked(verb, asked, sweep)


# Separates cells, which show a panel and open rows of it, from the threads that draw it.
_lock = threading.RLock()
_panels: dict[Path, _Panel[Any]] = {}
_Shown = TypeVar("_Shown", bound=_Panel[Any])


def _panel_at(path: Path, make: Callable[[], _Shown]) -> _Shown:
    """Return the panel of the run or sweep in a directory, which has one alone."""
    if path not in _panels:
        _panels[path] = make()
    return cast(_Shown, _panels[path])


def _card(run: Run, view: RunView) -> dict[str, Any]:
    return card_bundle(view, _shown_path(run), run.timeline, run.preview)


def _shown_path(run: Run) -> str:
    return text.shown_path(run.path)


class _SweepPanel(_Panel["SweepHandle"]):
    """Shows a sweep."""

    def __init__(self, sweep: SweepHandle) -> None:
        self._title, self._path = sweep_title(sweep.path), text.shown_path(sweep.path)
        self._opened: _Opened | None = None
        super().__init__(sweep, sweep.name)

    def _state(self) -> SweepState:
        view = self._work.view
        opened = self._opened.row() if self._opened and not view.is_over else None
        return sweep_state(view, self._title, self._path, time.time(), opened)

    def _milestones(self, view: SweepView) -> _Milestones:
        return _Milestones((view.status, view.waiting > 0))

    def _bundle(self, view: SweepView) -> dict[str, Any]:
        return _sweep_card(self._work, view)

    def _take(self, content: Any) -> None:
        match content:
            case {"sweep": str()}:
                _carry_out(content, self._work)
            case {"type": "open", "row": str(row)} if not self._work.view.is_over:
                self._open(row)
            case {"run": str()}:
                _carry_out(content)

    def _open(self, row: str) -> None:
        """Open a row that is worked on; "" closes the one that is open."""
        run = self._work.runs.get(row)
        with _lock:
            self._opened = _Opened(row, run) if run is not None else None
            self._outputs.draw()


class _Opened:
    """The run of the row that is open; its card is made once."""

    def __init__(self, name: str, run: Run) -> None:
        self._name, self._run, self._card = name, run, ""
        self._answers: tuple[str, ...] = ()

    def row(self) -> OpenedRow:
        """Return the row as it stands."""
        view = self._run.view
        if view.is_over and not self._card:
            bundle = card_bundle(view, text.shown_path(self._run.path))
            self._card, self._answers = bundle["text/html"], tuple(answers_of(bundle))
        return OpenedRow(self._name, self._run.address, view, self._card, self._answers)


def _sweep_card(sweep: SweepHandle, view: SweepView) -> dict[str, Any]:
    table = sweep.table() if view.is_over else []
    return sweep_bundle(view, sweep_title(sweep.path), text.shown_path(sweep.path), table)
