"""The live view of a run in a terminal: a row for each agent, and open gates.

If stderr is a terminal, the rows are redrawn there and disappear when the run ends. Notices, such
as the estimate of the cost, are printed above them. Questions and the progress of a stop are
printed once, as permanent lines. `activity_lines` returns the rows for output that can't be
redrawn, such as a file or a pipe.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from queue import SimpleQueue

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nb_agents.cli.keys import keys
from nb_agents.cli.printing import shown
from nb_agents.errors import UserError
from nb_agents.launch.run import Run
from nb_agents.presentation import text
from nb_agents.presentation.asking import TERMINAL, how_to_answer, question
from nb_agents.presentation.transcript import read_transcript
from nb_agents.presentation.work_display import display_of
from nb_agents.session.layout import TurnPaths
from nb_agents.view.run_view import RunView
from nb_agents.view.steps import GateView

REDRAWS = 4
"""Redraws per second."""
MAX_TASK = 60
MAX_TAIL = 20_000
"""Maximum length of the transcript of an opened agent, in characters."""


@contextmanager
def live_view(run: Run, *, asks: bool = True, draws: bool = True) -> Iterator[Console]:
    """Show the state of a run on stderr during the block: notices, rows, questions and stops.

    Args:
        asks: Whether to print the run's questions, with the commands that answer them.
        draws: Whether to print notices, draw the rows and read keys if stderr is a terminal.

    Yields:
        The console, for other output during the block.
    """
    console = Console(stderr=True)
    is_drawn = draws and console.is_terminal
    printed: set[str] = set()

    def tell(view: RunView) -> None:
        gates = view.gates.values() if asks else ()
        lines = {line: shown(line) for line in view.notices if is_drawn and line.strip()}
        lines |= {line: line for line in (gate_prompt(run, gate) for gate in gates)}
        if view.stop and (waits := text.waits_for(view)):
            lines[view.stop.level] = waits  # once per level, although the list shrinks later
        for key, news in lines.items():
            if key not in printed:
                printed.add(key)
                with suppress(OSError):  # stderr is closed; the run continues
                    console.print(Text(news), soft_wrap=True)

    controls = _Controls(run)
    rows = Live(
        get_renderable=lambda: controls.draw(console.height),
        console=console,
        refresh_per_second=REDRAWS,
        transient=True,
    )
    key_input = keys(controls.press) if is_drawn else nullcontext()
    with rows if is_drawn else nullcontext(), key_input:
        unsubscribe = run.subscribe(tell)
        try:
            tell(run.view)
            yield console
        finally:
            unsubscribe()


def activity_lines(run: Run) -> Iterator[str]:
    """Yield the rows of a run as lines: first all rows, then each row whose activity changes.

    Ends when the run is over. A line consists of the agent or step, its activity and its latest
    text.
    """
    views = SimpleQueue[RunView | None]()
    unsubscribe = run.subscribe(views.put)
    run.add_done_callback(lambda: views.put(None))
    printed = dict[str, str]()
    view: RunView | None = run.view
    try:
        while view is not None:
            yield from _changed_rows(view, printed)
            view = views.get()
    finally:
        unsubscribe()
    yield from _changed_rows(run.view, printed)


def _changed_rows(view: RunView, printed: dict[str, str]) -> Iterator[str]:
    """Yield a line for each row with a new activity, and add these to `printed`."""
    for name, activity, words in display_of(view).lines(view, time.time(), sys.maxsize):
        timeless = _DURATION.sub("", activity)
        if activity and printed.get(name) != timeless:
            printed[name] = timeless
            yield "  ".join(filter(None, (name, activity, " ".join(words.split()))))


_DURATION = re.compile(r"(\d+ min )?\d+ s\b")
"""The part of an activity that keeps changing, as in "silent for 31 s"."""


class _Controls:
    """Handles keys (stops, transcripts, a message being typed) and draws the view."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._open: dict[str, _Open] = {}
        self._line: str | None = None

    def press(self, key: str) -> None:
        """Handle a key. While a message is typed, add the key to it."""
        if self._line is not None:
            self._write(key, self._line)
        elif key in "sS":
            self._run.stop(now=key == "S", source="cli")
        elif key == "/":
            self._line = ""
        elif key in "123456789" and int(key) <= len(agents := list(self._run.view.agents)):
            agent = agents[int(key) - 1]
            if self._open.pop(agent, None) is None:
                self._open[agent] = _Open(self._run, agent)

    def _write(self, key: str, line: str) -> None:
        if key in "\r\n":
            self._line = None
            with suppress(UserError):  # the run is over
                if line.strip():
                    self._run.say(line.strip())
        elif key == "\x1b":
            self._line = None
        else:
            self._line = line[:-1] if key in "\x7f\b" else line + key

    def draw(self, height: int) -> Group:
        """Return the rows, the end of each open transcript, and the line with keys or input."""
        view, opened = self._run.view, list(self._open.values())
        rows = _rows(view, height // 2 if opened else height - 1)
        rest = max(height - len(view.agents) - 3, len(opened))
        parts = [each.draw(rest // len(opened) - 1) for each in opened]
        say = None if self._line is None else Text(f"say: {shown(self._line)}▏")
        return Group(rows, *parts, say or Text(_KEYS, style="dim", no_wrap=True))


_KEYS = "s stop · S stop now · 1-9 open an agent · / message"


class _Open:
    """Displays the end of the transcript of the agent that the user has opened."""

    def __init__(self, run: Run, agent: str) -> None:
        self._paths, self._agent = TurnPaths(run.path), agent
        self._end, self._text = 0, ""

    def draw(self, height: int) -> Group:
        """Return a title and the last lines that fit into a height."""
        more = True
        while more:
            read = read_transcript(self._paths, self._agent, self._end)
            more, self._end = read["more"] and read["end"] > self._end, read["end"]
            for piece in read["pieces"]:
                head = f"\n[{piece['title']}] " if piece["title"] else ""
                self._text = f"{self._text}{head}{piece['text']}"[-MAX_TAIL:]
        lines = [line for line in shown(self._text).splitlines() if line.strip()]
        words = Text("\n".join(lines), overflow="fold")
        wrapped = words.wrap(_MEASURE, max(_MEASURE.width, 20))[-max(height, 1) :]
        return Group(Text(f"── {shown(self._agent)} ──", style="bold"), *wrapped)


_MEASURE = Console(stderr=True)


def gate_prompt(run: Run, gate: GateView) -> str:
    """Return a gate's question with the commands that answer it in a terminal."""
    how = how_to_answer(gate, run.view, run.session, TERMINAL)
    decides = f" ({text.countdown(gate, gate.asked_at)})" if gate.timeout_s else ""
    return shown(f"{question(gate)}{decides} {how}")


def _rows(view: RunView, height: int) -> Group:
    now = time.time()
    head = [text.chip(view), text.progress(view), text.elapsed(view, now)[0]]
    title = Text(shown(" · ".join([*filter(None, head), text.clip(view.task, MAX_TASK)])))
    title.no_wrap, title.overflow = True, "ellipsis"
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
    for row in display_of(view).lines(view, now, max(height - 3, 1)):
        table.add_row(*(Text(" ".join(shown(cell).split())) for cell in row))
    return Group(title, table)
