"""The states of a recipe's units and gates, which are parts of a `RunView`.

Pure functions, used by `nb_agents.view.fold`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from nb_agents import events as ev
from nb_agents.view.growing import with_entry

StepStatus = Literal["running", "retrying", "ok", "failed", "skipped", "cut", "stopped"]
"""At the end of a turn, "running" becomes "cut", and "retrying" becomes "stopped"."""
_AT_THE_END: Mapping[StepStatus, StepStatus] = {"running": "cut", "retrying": "stopped"}
_NUMBERED = re.compile(r"(.*) #\d+", re.DOTALL)
THE_QUESTION = "the question"
_QUESTIONS = {"input": THE_QUESTION, "approval": THE_QUESTION, "budget": "the budget"}
MAX_PROMPT = 300
"""Maximum number of characters that a view keeps of a decided gate's prompt."""
MAX_TAIL = 4_000
"""Maximum number of characters shown of a running command's output. The journal has all of it."""


@dataclass(frozen=True, slots=True)
class StepView:
    """The state of one unit of a recipe.

    Attributes:
        address: The path in the recipe, such as ``checks/review[2]/summarize``.
        unit: The kind of unit.
        status: The state of the unit.
        attempt: Number of the attempt, starting at 1.
        attempts: Maximum number of attempts, if known.
        retry_at: When the next attempt starts, in Unix seconds. None if unknown.
        total: Number of iterations of a foreach loop, or None.
        worker, model: The agent of an agent step, and its model.
        asks: The prompt or command.
        tail: The end of the command's output.
        output: The output of the unit.
        exit_code: The command's exit code, or None.
        why: Why it failed or was skipped, or "".
        started_at, ended_at: Unix seconds. `ended_at` is None until the unit ends.
    """

    address: str
    unit: ev.StepKind
    status: StepStatus = "running"
    attempt: int = 1
    attempts: int = 1
    retry_at: float | None = None
    total: int | None = None
    worker: str = ""
    model: str = ""
    asks: str = ""
    tail: str = ""
    output: Any = None
    exit_code: int | None = None
    why: str = ""
    started_at: float = 0.0
    ended_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the unit has ended."""
        return self.status in ("ok", "failed", "skipped")

    @property
    def depth(self) -> int:
        """Nesting depth: the number of units that contain this unit."""
        return self.address.count("/") + self.address.count("[")


@dataclass(frozen=True, slots=True)
class GateView:
    """An open gate.

    Attributes:
        address: The address of the stage, or of the tool call.
        prompt: The question.
        asked_at: When it was asked, in Unix seconds.
        timeout_s: Seconds until ``default`` is applied. 0 means never.
        default: The decision after the timeout.
        wants: Whether it asks for a decision, or for text, which becomes the message of an
            approval.
        about: "budget" if it asks whether to raise the budget of the task.
    """

    address: str
    prompt: str
    asked_at: float
    timeout_s: float
    default: Literal["approve", "deny"]
    wants: Literal["approval", "input"] = "approval"
    about: Literal["", "budget"] = ""


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """A decided gate.

    Attributes:
        address: The address of the stage, or of the tool call.
        approved: Whether it was approved.
        message: The message of the decision, or "".
        by: Who decided.
        at: When it was decided, in Unix seconds.
        prompt: The beginning of what the gate asked, at most `MAX_PROMPT` characters, or "".
    """

    address: str
    approved: bool
    message: str
    by: str
    at: float
    prompt: str = ""


StepEvent = ev.StepStarted | ev.OutputStreamed | ev.StepFailed | ev.StepFinished
GateEvent = ev.ApprovalAsked | ev.ApprovalGiven


def apply_step(steps: Mapping[str, StepView], event: StepEvent) -> Mapping[str, StepView]:
    """Return the units after an event. ``steps`` is unchanged.

    Args:
        steps: The units by address, in the order of their start.
        event: The event.
    """
    step = steps.get(event.step) or StepView(event.step, "group")
    return with_entry(steps, event.step, _changed(step, event))


def _changed(step: StepView, event: StepEvent) -> StepView:
    match event:
        case ev.StepStarted():
            return StepView(
                event.step,
                event.unit,
                attempt=event.attempt,
                attempts=max(step.attempts, event.attempt),
                total=event.total,
                worker=event.worker,
                model=event.model,
                asks=event.asks,
                started_at=step.started_at or event.at,
            )
        case ev.OutputStreamed():
            return replace(step, tail=(step.tail + event.text)[-MAX_TAIL:])
        case ev.StepFailed():
            wait_s = event.retry_in_s
            return replace(
                step,
                status="retrying",
                why=event.error,
                attempt=event.attempt,
                attempts=event.attempts,
                retry_at=None if wait_s is None else event.at + wait_s,
            )
        case ev.StepFinished():
            return replace(
                step,
                status=event.outcome,
                output=event.output,
                exit_code=event.exit_code,
                why=event.why,
                ended_at=event.at,
            )


def steps_at_end(steps: Mapping[str, StepView]) -> Mapping[str, StepView]:
    """Return the units by address as of the end of their turn.

    Running units become "cut", and units that wait for a retry become "stopped".
    """
    open_ = {k: _AT_THE_END[s.status] for k, s in steps.items() if s.status in _AT_THE_END}
    cut = {address: replace(steps[address], status=status) for address, status in open_.items()}
    return MappingProxyType({**steps, **cut})


def with_outputs(
    steps: Mapping[str, StepView], outputs: Mapping[str, str | None]
) -> dict[str, StepView]:
    """Return the units with changed outputs.

    Args:
        steps: The units by address.
        outputs: The new outputs by address. None removes a unit and all units in it, so that it
            runs again.
    """
    again = {address for address, output in outputs.items() if output is None}
    return {
        address: replace(step, output=outputs.get(address, step.output))
        for address, step in steps.items()
        if address not in again and again.isdisjoint(holders_of(address))
    }


def is_stage_gate(address: str) -> bool:
    """Return whether a gate belongs to a recipe's stage. Other gates are numbered."""
    return _NUMBERED.fullmatch(address) is None


def gate_title(address: str) -> str:
    """Return what a gate is about, in words that can be a part of a sentence.

    Example:
        >>> [gate_title(each) for each in ("ada: custom_tool__growth #1", "input #2", "draft")]
        ["ada's call of growth", 'the question', 'the gate of draft']
    """
    numbered = _NUMBERED.fullmatch(address)
    agent, has_agent, tool = (numbered[1] if numbered else "").partition(": ")
    if has_agent:
        tool = tool.removeprefix("custom_tool__")
        return f"{agent}'s question" if tool == "input" else f"{agent}'s call of {tool}"
    if agent in _QUESTIONS:
        return _QUESTIONS[agent]
    return f"the gate of {agent or address}"


def apply_gate(gates: Mapping[str, GateView], event: GateEvent) -> dict[str, GateView]:
    """Return the open gates after an event. ``gates`` is unchanged.

    Args:
        gates: The open gates by address, oldest first.
        event: The event.
    """
    other_gates = {address: gate for address, gate in gates.items() if address != event.step}
    if isinstance(event, ev.ApprovalGiven):
        return other_gates
    gate = GateView(
        event.step,
        event.prompt,
        event.at,
        event.timeout_s,
        event.default,
        event.wants,
        event.about,
    )
    return {**other_gates, event.step: gate}


def parent_of(address: str) -> str:
    """Return the address of a unit's parent, or "".

    Example:
        >>> parent_of("checks/review[2]/summarize"), parent_of("checks/review[2]")
        ('checks/review[2]', 'checks/review')
    """
    cut = max(address.rfind("/"), address.rfind("["))
    return address[:cut] if cut > 0 else ""


def holders_of(address: str) -> Iterator[str]:
    """Yield the addresses of a unit's ancestors, parent first.

    Example:
        >>> list(holders_of("checks/review[2]"))
        ['checks/review', 'checks']
    """
    while address := parent_of(address):
        yield address
