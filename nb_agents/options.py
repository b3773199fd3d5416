"""The options of a run, and all that they are made of.

They are those of OS Protocol's `RunOptions`, in Python's spelling and in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from nb_agents.cancel import CancelPolicy, StopRequest
from nb_agents.config.orchestrator import OnTimeout
from nb_agents.errors import UserError
from nb_agents.models.retry import Retry
from nb_agents.tools.policy import ApprovalConfig

__all__ = ["ApprovalConfig", "CancelPolicy", "Cluster", "Retry", "RunOptions", "Timeout"]


@dataclass(frozen=True, slots=True)
class Timeout:
    """Time limit of a run; the time in which it waits for a person does not count.

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
        """The limit in seconds."""
        return self.seconds if self.seconds is not None else (self.ms or 0.0) / 1000


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Dask cluster, on whose workers runs work; needs ``pip install nb_agents[cluster]``.

    Attributes:
        client: The address of its scheduler, "local:N" for N processes of this machine that end
            with this one, or a `distributed.Client`.
        forward_env: Names of variables of this process that its workers get, such as that of a
            key: through the client's connection, and never by the disk. By default workers have
            their own.
        ship: Whether tools are sent to the worker and called there; by default they are called in
            this process, as those of a detached run are.
    """

    client: Any
    forward_env: tuple[str, ...] = ()
    ship: bool = False


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run; what is left out comes from the team's file.

    The functions are called in worker threads, one after the other, and each gets the cancel
    policy's ``hook_timeout_s``; what fails in one is noted in the journal and ends there.

    Attributes:
        session_root: Where sessions are; by default NB_AGENTS_SESSIONS or .nb_agents/sessions.
        timeout: How long it may take; a number of seconds leaves to the team's file what comes
            then. By default 1800, and none for a recipe, whose steps have their own.
        retry: When a failed model call is tried again.
        cancel: How it stops: grace time and hooks.
        approval: How calls of tools, and a recipe's gates, are approved.
        on_complete: Called with the result of a run that completed.
        on_failed: Called with the error of one that failed. For a cancelled run neither is called.
        on_status_change: Called with each status that the run comes to, in order.
        from_turn: For a start with ``continue_``: leave that session as it is, and go on from this
            turn of it in a new one.
        skip_unsupported: Whether a start leaves out the agents of the team that can't run here; a
            resume goes on without them in any case.
        debug: Whether to write debug.log into the turn's directory.
        detach: Whether it goes in a process of its own, which outlives this one; None leaves it
            to the team's file. Tools stay here and are called from there as long as this process
            lives; callbacks and models of this process can't be had.
        cluster: Where it works instead: a `Cluster`, or what may stand in its first place. It
            begins as soon as a worker has a place for it; the session root, which all machines
            must see, has all of it.
        context_paths: Files and directories that the agents may read, besides the team's.
        trust: Whether to go on with a session that this user has not made on this machine; it
            counts as this user's from then on.

    Raises:
        UserError: The timeout is no number and no Timeout, or the grace time is below 0.

    Example:
        >>> RunOptions(timeout=Timeout(ms=1500), retry=Retry(attempts=1)).timeout_s
        1.5
    """

    session_root: str | PathLike[str] | None = None
    timeout: Timeout | float | None = None
    retry: Retry | None = None
    cancel: CancelPolicy | None = None
    approval: ApprovalConfig | None = None
    on_complete: Callable[[Any], object] | None = None
    on_failed: Callable[[Exception], object] | None = None
    on_status_change: Callable[[str], object] | None = None
    from_turn: int | None = None
    skip_unsupported: bool = False
    debug: bool = False
    detach: bool | None = None
    cluster: Cluster | Any = None
    context_paths: Sequence[str | PathLike[str]] = ()
    trust: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.timeout, Timeout | float | int | None):
            raise UserError(f"The timeout is {self.timeout!r}. Give seconds, or a Timeout.")
        grace_s = self.cancel.grace_timeout_s if self.cancel else None
        if grace_s is not None and not 0 <= grace_s:
            raise UserError(f"grace_timeout_s is {grace_s!r}. Give a number from 0, or None.")

    @property
    def timeout_s(self) -> float | None:
        """The time limit in seconds; None leaves it to the team's file."""
        return self.timeout.total_s if isinstance(self.timeout, Timeout) else self.timeout
