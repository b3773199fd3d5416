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

from nb_agents.cli.chat import STOPPING
from nb_agents.cli.printing import shown
from nb_agents.presentation import text
from nb_agents.presentation.asking import TERMINAL, how_to_answer, question
from nb_agents.presentation.rows import agent_row, units
from nb_agents.runs.run import Run
from nb_agents.view.run_view import RunView
from nb_agents.view.steps import GateView

REDRAWS = 4
"""A second."""
MAX_TASK = 60


@contextmanager
def told_of(run: Run) -> Iterator[Console]:
    """Show on the error output how a run stands, its questions, and once that a stop was heard.

    Args:
        run: The run.

    Returns:
        The console, for what else is to be said meanwhile.
    """
    console = Console(stderr=True)
    told: set[str] = set()

    def tell(view: RunView) -> None:
        stopping = [STOPPING] if view.stop and not view.is_over else []
        for news in (*(asked(run, gate) for gate in view.gates.values()), *stopping):
            if news not in told:
                told.add(news)
                with suppress(OSError):  # nobody reads it; the run goes on
                    console.print(Text(news), soft_wrap=True)

    rows = Live(
        get_renderable=lambda: _rows(run.view, console.height),
        console=console,
        refresh_per_second=REDRAWS,
        transient=True,
    )
    with rows if console.is_terminal else nullcontext():
        end = run.subscribe(tell)
        try:
            tell(run.view)
            yield console
        finally:
            end()


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
