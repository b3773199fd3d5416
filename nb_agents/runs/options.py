"""How a run goes: its time, its retries, its stop, its approvals, and who is told.

The options of OS Protocol's `RunOptions`, in Python's spelling and in seconds. Each is optional;
what is left out comes from the team's file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from nb_agents.cancel import CancelPolicy, StopRequest
from nb_agents.config.orchestrator import OnTimeout
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UserError
from nb_agents.models.retry import Retry
from nb_agents.tools.approval import ApprovalConfig

__all__ = [
    "Chosen",
    "RunOptions",
    "Timeout",
    "chosen_options",
    "find_options",
]


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long a run may take, without the time in which it waits for a person.

    Attributes:
        seconds, ms: One of them says how long.
        on_timeout: What comes then: the run has failed, is cancelled, or goes on and only says so.
        callback: Called then, with the StopRequest, before that happens.

    Raises:
        UserError: Neither or both are given, it is no time, or there is no such action.
    """

    seconds: float | None = None
    ms: float | None = None
    on_timeout: OnTimeout = "fail"
    callback: Callable[[StopRequest], object] | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) is (self.ms is None):
            raise UserError("A Timeout takes seconds or ms: give one of them.")
        if not 0 < self.total_s < math.inf:
            raise UserError(f"The timeout is {self.total_s!r} seconds; give a number over 0.")
        if self.on_timeout not in ("fail", "cancel", "continue"):
            raise UserError(
                f"There is no on_timeout {self.on_timeout!r}. There are: fail, cancel, continue."
            )

    @property
    def total_s(self) -> float:
        """How long, in seconds."""
        return self.seconds if self.seconds is not None else (self.ms or 0.0) / 1000


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run goes.

    The functions are called in worker threads, one after the other, and each gets the cancel
    policy's ``hook_timeout_s``; what fails in one is noted in the journal and ends there.

    Attributes:
        timeout: How long it may take.
        retry: When a failed model call is tried again.
        cancel: How it stops.
        approval: How calls of tools, and a recipe's gates, are approved.
        on_complete: Called with the result of a run that completed.
        on_failed: Called with the error of one that failed. For a cancelled run neither is called.
        on_status_change: Called with each status that the run comes to, in order.

    Example:
        >>> options = RunOptions(timeout=Timeout(ms=1500), retry=Retry(attempts=1))
        >>> options.timeout.total_s
        1.5
    """

    timeout: Timeout | None = None
    retry: Retry | None = None
    cancel: CancelPolicy | None = None
    approval: ApprovalConfig | None = None
    on_complete: Callable[[Any], object] | None = None
    on_failed: Callable[[Exception], object] | None = None
    on_status_change: Callable[[str], object] | None = None


def find_options(name: str, namespace: Mapping[str, Any]) -> RunOptions:
    """Find options by name.

    Args:
        name: The variable's, as in ``--options NAME``.
        namespace: Where to look, such as the notebook's names.

    Raises:
        UserError: There is no such variable, or it holds something else.
    """
    if name not in namespace:
        raise UserError(
            f"--options {name}: no variable {name!r} is defined. Define it in a cell before: "
            f"{name} = nb_agents.RunOptions(…)"
        )
    found = namespace[name]
    if not isinstance(found, RunOptions):
        kind = type(found).__name__
        raise UserError(f"--options {name}: {name!r} is of type {kind}, and no RunOptions.")
    return found


class Chosen(NamedTuple):
    """What was chosen for a run: its options, its time in seconds or None, and how it stops."""

    options: RunOptions
    timeout_s: float | None
    policy: CancelPolicy


def chosen_options(
    options: RunOptions | None,
    timeout: float | None,
    policy: CancelPolicy | None,
    team: TeamSpec,
) -> Chosen:
    """Bring a run's options together.

    Args:
        options: All at once.
        timeout: Seconds, given apart.
        policy: How it stops, given apart.
        team: What is left out comes from its file.

    Raises:
        UserError: One is given twice.
    """
    given = options or RunOptions()
    twice = [
        *(["timeout"] if timeout is not None and given.timeout else []),
        *(["policy"] if policy is not None and given.cancel else []),
    ]
    for name in twice:
        raise UserError(f"{name}= is given, and options= has it too. Leave one of them out.")
    timeout_s = given.timeout.total_s if given.timeout else timeout
    given = replace(given, approval=given.approval or _approval_of(team))
    return Chosen(given, timeout_s, given.cancel or policy or _policy_of(team))


def _approval_of(team: TeamSpec) -> ApprovalConfig:
    spec = team.approval
    return ApprovalConfig(
        spec.timeout, spec.auto_approve_on_timeout, spec.approvers, spec.required_approvals
    )


def _policy_of(team: TeamSpec) -> CancelPolicy:
    spec = team.cancel
    grace_s = None if spec.grace_timeout == "never" else spec.grace_timeout
    return CancelPolicy(grace_timeout_s=grace_s, graceful=spec.graceful, reason=spec.reason)
