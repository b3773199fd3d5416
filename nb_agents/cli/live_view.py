"""What a terminal shows while a command waits for a run: a row for each agent, and what it asks.

The rows are drawn over each other on the error output where that is a terminal, and are gone when
the run is over. What a person must know is said there once, as lines that stay.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nb_agents.cli.keys import keys
from nb_agents.cli.printing import shown
from nb_agents.errors import UserError
from nb_agents.presentation import text
from nb_agents.presentation.asking import TERMINAL, how_to_answer, question
from nb_agents.presentation.rows import agent_row, units
from nb_agents.presentation.transcript import read_transcript
from nb_agents.runs.run import Run
from nb_agents.session.layout import TurnPaths
from nb_agents.view.run_view import RunView
from nb_agents.view.steps import GateView

REDRAWS = 4
"""Redraws a second."""
MAX_TASK = 60
MAX_TAIL = 20_000
"""Limit of an open agent's transcript, characters."""


@contextmanager
def live_view(run: Run, *, asks: bool = True) -> Iterator[Console]:
    """Show the state of a run on the error output, its questions, and that it is stopping.

    Args:
        run: The run.
        asks: Whether its questions are printed, with the command that answers.

    Returns:
        The console, for what else is to be said meanwhile.
    """
    console = Console(stderr=True)
    printed: set[str] = set()

    def tell(view: RunView) -> None:
        gates = view.gates.values() if asks else ()
        found = {said: said for said in (asked(run, gate) for gate in gates)}
        if view.stop and (waits := text.waits_for(view)):
            found[view.stop.level] = waits  # once: what it waits for gets less
        for key, news in found.items():
            if key not in printed:
                printed.add(key)
                with suppress(OSError):  # nobody reads it; the run goes on
                    console.print(Text(news), soft_wrap=True)

    pressed = _Pressed(run)
    rows = Live(
        get_renderable=lambda: pressed.draw(console.height),
        console=console,
        refresh_per_second=REDRAWS,
        transient=True,
    )
    taken = keys(pressed.press) if console.is_terminal else nullcontext()
    with rows if console.is_terminal else nullcontext(), taken:
        end = run.subscribe(tell)
        try:
            tell(run.view)
            yield console
        finally:
            end()


class _Pressed:
    """What keys have opened and typed, and how it is drawn."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._open: dict[str, _Open] = {}
        self._line: str | None = None

    def press(self, key: str) -> None:
        """Handle a key; while a text is typed, add it to the text."""
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
            with suppress(UserError):  # it is over
                if line.strip():
                    self._run.say(line.strip())
        elif key == "\x1b":
            self._line = None
        else:
            self._line = line[:-1] if key in "\x7f\b" else line + key

    def draw(self, height: int) -> Group:
        """Return the rows, the end of each open agent's transcript, and the keys."""
        view, opened = self._run.view, list(self._open.values())
        rows = _rows(view, height // 2 if opened else height - 1)
        rest = max(height - len(view.agents) - 3, len(opened))
        parts = [each.draw(rest // len(opened) - 1) for each in opened]
        say = None if self._line is None else Text(f"say: {shown(self._line)}▏")
        return Group(rows, *parts, say or Text(_KEYS, style="dim", no_wrap=True))


_KEYS = "s stop · S stop at once · 1-9 open an agent · / say"


class _Open:
    """An agent that is open: the last lines of its transcript."""

    def __init__(self, run: Run, agent: str) -> None:
        self._paths, self._agent = TurnPaths(run.path), agent
        self._end, self._text = 0, ""

    def draw(self, height: int) -> Group:
        """Return a title and as many of the last lines as there is room for."""
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


def asked(run: Run, gate: GateView) -> str:
    """Return what a gate asks and how it is answered from a terminal."""
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
    for row in _cells(view, now, max(height - 3, 1)):
        table.add_row(*(Text(" ".join(shown(cell).split())) for cell in row))
    return Group(title, table)


def _cells(view: RunView, now: float, limit: int) -> list[tuple[str, str, str]]:
    if view.recipe:
        return [("  " * u.depth + u.name, u.chip, u.says) for u in units(view, now, limit)]
    rows = [agent_row(agent, view, now) for agent in view.agents.values()]
    return [(row["id"], row["chip"], row["says"]) for row in rows[:limit]]
