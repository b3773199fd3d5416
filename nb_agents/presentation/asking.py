"""What a person types to reach a turn or to answer it, in a cell or in a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from nb_agents.errors import UserError
from nb_agents.presentation.rows import asked_for
from nb_agents.presentation.text import clip
from nb_agents.runs.loop import wait_interruptibly
from nb_agents.runs.run import Run
from nb_agents.view.run_view import RunView
from nb_agents.view.steps import GateView

__all__ = [
    "CELL",
    "Door",
    "TERMINAL",
    "decide",
    "how_to_answer",
    "question",
    "wait_for_gate",
]


@dataclass(frozen=True)
class Door:
    """The words of one place where turns are shown.

    Attributes:
        name: Begins each command.
        next_turn: Begins the command for the next turn of a session.
        task: Follows it on the same line.
        task_below: Follows it where there is room for a task of its own.
        later: When one can go on, as a clause.
        once_saved: The same of a turn that the disk refused to take whole.
        writer: What a turn that it starts lives in.
        retried: How what the disk refused gets there after all, as a sentence.
        quote: Makes one word of a text.
    """

    name: str
    next_turn: str
    task: str
    task_below: str
    later: str
    once_saved: str
    writer: str
    retried: str
    quote: Callable[[str], str]

    def line(self, verb: str, words: Sequence[str]) -> str:
        """Return a command on a turn."""
        return f"{self.name} {verb} {self._words(words)}"

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
        run: What the commands call it.
        door: Where they are typed.
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


def decide(run: Run, approved: bool, message: str) -> str:
    """Approve or deny what has waited longest of all that is no question for a text.

    Args:
        run: The run.
        approved: Whether it may go on.
        message: What is said about it.

    Returns:
        What became of the gate, as a sentence.

    Raises:
        UserError: Nothing waits, or only a question for a text does.
    """
    # A stopped run keeps its gates for a resume.
    gates = () if run.is_over else run.view.gates.values()
    asked = {gate.address: asked_for(gate, run.view) for gate in gates}
    # A question for a text that has waited longer is no matter of yes or no.
    gate = next((each for each, what in asked.items() if what != "text"), "")
    if asked and not gate and approved:
        raise UserError(f"Run {run.id} asks for a text. `%agents answer {run.id} TEXT` gives it.")
    gate = gate or next(iter(asked), "")
    run.decide(approved, message, gate=gate)
    said = "approved" if approved else "denied"
    if asked[gate] == "stage":
        said += ": the recipe goes on" if approved else ": the recipe stops"
    if gate in run.view.gates:
        said = "not decided yet: it waits for more approvals"
    return f"Gate {gate!r} of run {run.id} is {said}."


def wait_for_gate(run: Run, told: Collection[str] = ()) -> GateView | None:
    """Wait for a gate that only a person can decide.

    Args:
        run: The run.
        told: Addresses of the gates that the person knows of.

    Returns:
        The gate; None when the run is over without one.
    """
    found = Future[GateView | None]()

    def look(view: RunView) -> None:
        gates = (g for g in view.gates.values() if not g.timeout_s and g.address not in told)
        gate = None if view.is_over else next(gates, None)
        if (gate or view.is_over) and not found.done():
            found.set_result(gate)

    end = run.subscribe(look)
    look(run.view)
    try:
        return wait_interruptibly(found, run.press, None)
    finally:
        end()
