"""The state of a recipe's units: the part of the view that is about recipes.

Pure, as `nb_agents.view.fold` is, which folds this into a `RunView`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from nb_agents import events as ev
from nb_agents.view.growing import grown

StepStatus = Literal["running", "retrying", "ok", "failed", "skipped", "cut", "stopped"]
"""What runs when its turn ends is cut; what waits to try again is stopped."""
_AT_THE_END: Mapping[StepStatus, StepStatus] = {"running": "cut", "retrying": "stopped"}
MAX_TAIL = 4_000
"""Characters of a running command's output that are shown; the journal has all of it."""


@dataclass(frozen=True, slots=True)
class StepView:
    """The state of one unit of a recipe.

    Attributes:
        address: Where it is, such as ``checks/review[2]/summarize``.
        unit: What it is.
        status: Its state.
        attempt: From 1.
        attempts: Their maximum, as far as it is known.
        retry_at: When the next one begins, in Unix seconds; None when that is not known.
        total: Iterations of a foreach, or None.
        worker, model: The agent of an agent step, and its model.
        asks: Its prompt or command.
        tail: The end of its command's output.
        output: Its output.
        exit_code: Of its command, or None.
        why: Why it failed or was skipped, or "".
        started_at, ended_at: Unix seconds; ended_at is None while it goes on.
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
        """Whether it has ended."""
        return self.status in ("ok", "failed", "skipped")

    @property
    def depth(self) -> int:
        """How many units it is in."""
        return self.address.count("/") + self.address.count("[")


@dataclass(frozen=True, slots=True)
class GateView:
    """A gate that waits for a person.

    Attributes:
        address: The stage's.
        prompt: The question.
        asked_at: Unix seconds.
        timeout_s: Seconds until ``default`` decides; 0 means never.
        default: What happens then.
        wants: A decision, or a text, which the approval's message contains.
    """

    address: str
    prompt: str
    asked_at: float
    timeout_s: float
    default: Literal["approve", "deny"]
    wants: Literal["approval", "input"] = "approval"


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """A gate that was decided.

    Attributes:
        address: The stage's.
        approved: Whether the recipe goes on.
        message: What was said.
        by: Who decided.
        at: Unix seconds.
    """

    address: str
    approved: bool
    message: str
    by: str
    at: float


StepEvent = ev.StepStarted | ev.OutputStreamed | ev.StepFailed | ev.StepFinished
GateEvent = ev.ApprovalAsked | ev.ApprovalGiven


def apply_step(steps: Mapping[str, StepView], event: StepEvent) -> Mapping[str, StepView]:
    """Return the units after one event; ``steps`` is unchanged.

    Args:
        steps: By address, in the order in which they began.
        event: What happened.
    """
    known = steps.get(event.step)
    return grown(steps, event.step, _changed(known or StepView(event.step, "group"), event))


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


def at_the_end(steps: Mapping[str, StepView]) -> Mapping[str, StepView]:
    """Return the units with the open ones cut or stopped, as at the end of their turn.

    Args:
        steps: By address.
    """
    open_ = {k: _AT_THE_END[s.status] for k, s in steps.items() if s.status in _AT_THE_END}
    cut = {address: replace(steps[address], status=status) for address, status in open_.items()}
    return MappingProxyType({**steps, **cut})


def revised(
    steps: Mapping[str, StepView], outputs: Mapping[str, str | None]
) -> dict[str, StepView]:
    """Return the units with other outputs of some.

    Args:
        steps: By address.
        outputs: By address; None for those that run again, with all that lies within them.
    """
    again = {address for address, output in outputs.items() if output is None}
    return {
        address: replace(step, output=outputs.get(address, step.output))
        for address, step in steps.items()
        if address not in again and again.isdisjoint(holders_of(address))
    }


def apply_gate(gates: Mapping[str, GateView], event: GateEvent) -> dict[str, GateView]:
    """Return the open gates after one event; ``gates`` is unchanged.

    Args:
        gates: By address, oldest first.
        event: What happened.
    """
    others = {address: gate for address, gate in gates.items() if address != event.step}
    if isinstance(event, ev.ApprovalGiven):
        return others
    gate = GateView(event.step, event.prompt, event.at, event.timeout_s, event.default, event.wants)
    return {**others, event.step: gate}


def parent_of(address: str) -> str:
    """Return the address of a unit's parent, or "".

    Example:
        >>> parent_of("checks/review[2]/summarize"), parent_of("checks/review[2]")
        ('checks/review[2]', 'checks/review')
    """
    cut = max(address.rfind("/"), address.rfind("["))
    return address[:cut] if cut > 0 else ""


def holders_of(address: str) -> Iterator[str]:
    """Yield the addresses of a unit's ancestors, the parent first.

    Example:
        >>> list(holders_of("checks/review[2]"))
        ['checks/review', 'checks']
    """
    while address := parent_of(address):
        yield address
