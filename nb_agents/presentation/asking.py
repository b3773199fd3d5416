"""The command syntax of cells and terminals, and questions and decisions at gates."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from nb_agents.launch.run import Run
from nb_agents.loop import wait_interruptibly
from nb_agents.presentation.rows import question_kind
from nb_agents.presentation.text import clip
from nb_agents.turns.awaited import waiting_for
from nb_agents.view.run_view import RunView
from nb_agents.view.steps import GateView, gate_title, is_stage_gate


@dataclass(frozen=True)
class EntryPoint:
    """The command syntax and wording of a user interface.

    Attributes:
        name: The start of each command.
        next_turn: The start of the command that continues a session.
        task: An example task at the end of that command, on the same line.
        task_below: An example task below that command, if the interface has room for it.
        later: A clause on when a turn can be resumed or continued.
        once_saved: The same clause for a turn that is not fully saved.
        writer: The kind of process that runs a turn.
        retried: A sentence on how saving is retried.
        again: The start of a sentence on how to continue a stopped sweep.
        quote: Quotes a string as a single argument.
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
        """Return a command that applies to a turn."""
        return f"{self.name} {verb} {self._words(words)}".rstrip()

    def next_line(self, words: Sequence[str]) -> str:
        """Return the command that continues a session."""
        return f"{self.next_turn} {self._words(words)}{self.task}"

    def _words(self, words: Sequence[str]) -> str:
        return " ".join(map(self.quote, words))


CELL = EntryPoint(
    name="%agents",
    next_turn="%%agents --continue --session",
    task="",
    task_below="\nWhat should the agents do now?",
    later="in any later cell, even after a restart",
    once_saved="in any later cell, after a successful `run.save()`",
    writer="kernel",
    retried="`run.save()` tries again.",
    again="Run the cell again",
    quote=lambda word: f'"{word}"' if " " in word else word,
)
TERMINAL = EntryPoint(
    name="nb-agents",
    next_turn="nb-agents run --continue --session",
    task=' "What should the agents do now?"',
    task_below="",
    later="at any time",
    once_saved="from the part that is on disk",
    writer="process",
    retried="The command waits, and tries again.",
    again="Run the same command again",
    quote=shlex.quote,
)


def advice_on_length(turn: str, agents: Sequence[str], entry_point: EntryPoint) -> str:
    """Return how to continue after a refusal for length, with commands that work as they are.

    Args:
        turn: The turn, as ``SESSION/TURN``.
        agents: Ids of the agents whose conversations are too long. Without any, returns "".
        entry_point: The command syntax.
    """
    if not agents:
        return ""
    at_end = [turn, "--to", "the end"]
    fold = entry_point.line("rewind", [*at_end, "--config", "FILE"])
    model = entry_point.line("rewind", [*at_end, "--model", "PROVIDER:MODEL"])
    start = entry_point.line("rewind", [turn, "--to", "the start"])
    return (
        f"The conversation of {clip(', '.join(agents), 200)} is too long for its model, and a "
        "resume would send it again. Fold it (set `context: {fold: summary}` in the team file, "
        f"then `{fold}`), use a model with a larger context window (`{model}`), or go back to an "
        f"earlier checkpoint (such as `{start}`; `{entry_point.line('log', [turn])}` lists all "
        "events by number)."
    )


def question(gate: GateView) -> str:
    """Return the question of an open gate, as a sentence."""
    asker = f"The gate {gate.address!r}" if is_stage_gate(gate.address) else "The run"
    return f"{asker} asks: “{clip(gate.prompt, 200)}”"


def unanswered(gate: GateView) -> str:
    """Return the reason for a stop at a gate where nobody can answer."""
    return f"nobody can answer “{clip(gate.prompt, 200)}”"


def how_to_answer(gate: GateView, view: RunView, run: str, entry_point: EntryPoint) -> str:
    """Return a sentence with the commands that answer an open gate.

    Args:
        view: The view of the turn.
        run: The name of the run in the commands.
        entry_point: The command syntax.
    """
    deny = f"`{entry_point.line('deny', [run])} [MESSAGE]`"
    approve = f"`{entry_point.line('approve', [run])} [MESSAGE]`"
    match question_kind(gate, view):
        case "text":
            return f"`{entry_point.line('answer', [run])} TEXT` answers, {deny} refuses."
        case "stage":
            return f"{approve} lets the recipe continue, {deny} stops it."
        case "budget":
            amount = f"`{entry_point.line('approve', [run])} [AMOUNT]`"
            return f"{amount} raises the budget, {deny} stops the run."
        case "approval":
            return f"{approve} allows it, {deny} rejects it."


def decide_gate(run: Run, approved: bool, message: str, gate: str = "") -> str:
    """Approve or deny an open gate with `Run.decide`, and return its new state as a sentence."""
    # Nothing is read before the decision is sent: a long journal takes seconds.
    gate = run.decide(approved, message, gate=gate)
    view = run.view
    decided = [each.prompt for each in view.approvals if each.address == gate]
    prompt = f"“{clip(decided[-1], 200)}”" if decided and decided[-1] else gate_title(gate)
    if gate in view.gates:
        prompt = f"“{clip(view.gates[gate].prompt, 200)}”"
        return f"{prompt} of run {run.id} is not decided yet: it waits for more approvals."
    effect = ""
    if gate in view.steps:
        effect = ": the recipe continues" if approved else ": the recipe stops"
    return f"{'Approved' if approved else 'Denied'} {prompt} of run {run.id}{effect}."


def wait_for_gate(run: Run, ignored_gates: Collection[str] = ()) -> GateView | None:
    """Block until a gate is open that only a user can decide, because it has no timeout.

    Args:
        ignored_gates: Addresses of gates to ignore, because the user already knows about them.

    Returns:
        The gate, or None if the run ends without one.
    """
    result = Future[GateView | None]()

    def check(view: RunView) -> None:
        gates = (
            g for g in view.gates.values() if not g.timeout_s and g.address not in ignored_gates
        )
        gate = None if view.is_over else next(gates, None)
        if (gate or view.is_over) and not result.done():
            result.set_result(gate)

    unsubscribe = run.subscribe(check)
    check(run.view)
    try:
        with waiting_for(run.path):
            return wait_interruptibly(result, run.press, None)
    finally:
        unsubscribe()
