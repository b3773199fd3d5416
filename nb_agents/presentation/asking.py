"""The commands that act on a turn, as they are shown in a cell or in a terminal, and its gates."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from nb_agents.loop import wait_interruptibly
from nb_agents.presentation.rows import asked_for
from nb_agents.presentation.text import clip
from nb_agents.runs.run import Run
from nb_agents.view.run_view import RunView
from nb_agents.view.steps import GateView


@dataclass(frozen=True)
class Door:
    """How commands are written in one user interface.

    Attributes:
        name: The start of each command.
        next_turn: The start of the command for the next turn of a session.
        task: The task that ends it, on the same line.
        task_below: The task that ends it, where there is room for one below.
        later: When one can go on, as a clause.
        once_saved: The same for a turn that the disk did not take whole.
        writer: The kind of process that runs a turn.
        retried: How writing to the disk is tried again, as a sentence.
        again: How a sweep that was stopped is gone on with, as the beginning of a sentence.
        quote: Quotes a text as one word.
    """

    name: str
    next_turn: str
    task: str
    task_below: str
    later: str
    once_saved: str
    writer: str
    retried: str
    again: str
    quote: Callable[[str], str]

    def line(self, verb: str, words: Sequence[str]) -> str:
        """Return a command on a turn."""
        return f"{self.name} {verb} {self._words(words)}".rstrip()

    def next_line(self, words: Sequence[str]) -> str:
        """Return the command for the next turn."""
        return f"{self.next_turn} {self._words(words)}{self.task}"

    def _words(self, words: Sequence[str]) -> str:
        return " ".join(map(self.quote, words))


CELL = Door(
    name="%agents",
    next_turn="%%agents --continue --session",
    task="",
    task_below="\nWhat should the agents do now?",
    later="in any later cell, also after a restart",
    once_saved="in any later cell, once `run.save()` has brought it to the disk",
    writer="kernel",
    retried="`run.save()` tries again.",
    again="Run the cell again",
    quote=lambda word: f'"{word}"' if " " in word else word,
)
TERMINAL = Door(
    name="nb-agents",
    next_turn="nb-agents run --continue --session",
    task=' "What should the agents do now?"',
    task_below="",
    later="at any time",
    once_saved="with what the disk has",
    writer="process",
    retried="The command waits, and tries again.",
    again="Run the same command again",
    quote=shlex.quote,
)


def question(gate: GateView) -> str:
    """Return what an open gate asks, as a sentence."""
    return f"The gate {gate.address!r} asks: “{clip(gate.prompt, 200)}”"


def how_to_answer(gate: GateView, view: RunView, run: str, door: Door) -> str:
    """Return how an open gate is answered, as a sentence.

    Args:
        gate: The gate.
        view: The turn.
        run: The name of the run in the commands.
        door: The user interface.
    """
    deny = f"`{door.line('deny', [run])} [MESSAGE]`"
    approve = f"`{door.line('approve', [run])} [MESSAGE]`"
    match asked_for(gate, view):
        case "text":
            return f"`{door.line('answer', [run])} TEXT` answers, {deny} refuses."
        case "stage":
            return f"{approve} lets the recipe go on, {deny} stops it."
        case "approval":
            return f"{approve} allows it, {deny} does not."


def decide(run: Run, approved: bool, message: str, gate: str = "") -> str:
    """Approve or deny an open gate, and return its new state as a sentence; see `Run.decide`."""
    gate = run.decide(approved, message, gate=gate)
    said, view = "approved" if approved else "denied", run.view
    if gate in view.steps:
        said += ": the recipe goes on" if approved else ": the recipe stops"
    if gate in view.gates:
        said = "not decided yet: it waits for more approvals"
    return f"Gate {gate!r} of run {run.id} is {said}."


def wait_for_gate(run: Run, known: Collection[str] = ()) -> GateView | None:
    """Block until a gate is open that only a person can decide.

    Args:
        run: The run.
        known: Addresses of the gates that the person knows of.

    Returns:
        The gate; None when the run is over without one.
    """
    found = Future[GateView | None]()

    def look(view: RunView) -> None:
        gates = (g for g in view.gates.values() if not g.timeout_s and g.address not in known)
        gate = None if view.is_over else next(gates, None)
        if (gate or view.is_over) and not found.done():
            found.set_result(gate)

    end = run.subscribe(look)
    look(run.view)
    try:
        return wait_interruptibly(found, run.press, None)
    finally:
        end()
