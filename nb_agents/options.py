"""`RunOptions` and the classes that its fields use.

The options follow the OS Protocol's `RunOptions`, with Python names and times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, get_args

from nb_agents.callbacks import check_callbacks
from nb_agents.cancel import CancelPolicy
from nb_agents.config.orchestrator import OnBudget, OnTimeout
from nb_agents.config.tools import NotebookAccess
from nb_agents.errors import UserError
from nb_agents.models.retry import Retry
from nb_agents.signatures import described
from nb_agents.tools.policy import ApprovalConfig

__all__ = ["ApprovalConfig", "CancelPolicy", "Cluster", "Retry", "RunOptions", "Timeout"]


@dataclass(frozen=True, slots=True)
class Timeout:
    """Time limit of a run. Time spent waiting for a user does not count.

    Attributes:
        seconds, ms: The limit, in seconds or in milliseconds. Exactly one is required.
        on_timeout: What to do at the limit: "fail" the run, "cancel" it, or "continue" with a
            notice.
        callback: Called with the StopRequest before the action.

    Raises:
        UserError: Neither or both of ``seconds`` and ``ms`` are given, the limit is not a positive
            number, or the action is unknown.
    """

    seconds: float | None = None
    ms: float | None = None
    on_timeout: OnTimeout = "fail"
    callback: Callable[..., object] | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) is (self.ms is None):
            raise UserError("A Timeout takes either seconds or ms. Pass exactly one of them.")
        if not 0 < self.total_s < math.inf:
            raise UserError(f"The timeout is {self.total_s!r} seconds. Use a number above 0.")
        check_callbacks(self, callback=1)
        if self.on_timeout not in ("fail", "cancel", "continue"):
            raise UserError(
                f'on_timeout is {self.on_timeout!r}. Use "fail", "cancel" or "continue".'
            )

    @property
    def total_s(self) -> float:
        """The limit in seconds."""
        return self.seconds if self.seconds is not None else (self.ms or 0.0) / 1000


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Dask cluster to which runs are sent. Requires ``pip install nb_agents[cluster]``.

    Attributes:
        client: The scheduler's address, a `distributed.Client`, or "local:N" for N worker processes
            on this machine, which exit together with this process.
        forward_env: Names of environment variables, such as API keys, to send from this process to
            the workers. They are sent over the client's connection and never written to disk. By
            default, workers use only their own environment.
        ship: Whether to send tools to the workers and call them there. By default, tools are called
            in this process, like those of a detached run.
    """

    client: Any
    forward_env: tuple[str, ...] = ()
    ship: bool = False


def _is_budget(value: Any, *, is_whole: bool) -> bool:
    is_number = isinstance(value, int) or (isinstance(value, float) and not is_whole)
    return is_number and value is not True and 0 < value < math.inf


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run. The team file provides the values of omitted options.

    Callbacks are called in worker threads, one at a time. A callback that takes fewer parameters is
    called without the remaining arguments. Each may take ``cancel.hook_timeout_s``. An error in a
    callback is recorded in the journal and does not affect the run.

    Attributes:
        session_root: Directory of the sessions. Defaults to NB_AGENTS_SESSIONS or
            .nb_agents/sessions.
        timeout: Time limit: a `Timeout`, or a number of seconds, for which the team file's
            `on_timeout` applies. The default is 1800 s. A recipe has no default limit, because its
            steps have their own limits.
        retry: How many times and how soon to retry a failed model call.
        wait_for_quota: Seconds that a model call may wait, after its retries, for its provider: for
            the end of a rate limit or quota, or for a server that is down. Defaults to the team
            file's `wait_for_quota`, or 0, so that the call fails.
        cancel: Stop policy: grace time and hooks.
        approval: How tool calls and the gates of recipes are approved.
        on_complete: Called with the result when the run has completed.
        on_failed: Called with the error when the run has failed. Neither is called for a cancelled
            run.
        on_status_change: Called with each new status of the run, in order.
        from_turn: With ``continue_``: number of the turn from which to continue in a new session.
            The given session does not change.
        skip_unsupported: Whether to start without the agents of the team that can't run here. A
            resume always continues without them.
        debug: Whether to write debug.log into the turn's directory.
        detach: Whether to run in a separate process, which outlives this one. None means that the
            team file decides. Python tools stay in this process and can be called as long as it is
            alive. Callbacks and models that are Python objects are not supported.
        cluster: Dask cluster to run on: a `Cluster`, or a value for its ``client``. The run starts
            when a worker is free. The session root must be visible to all machines.
        context_paths: Files and directories that the agents may read, in addition to the team's.
        max_cost: Budget of the task in US dollars, including its earlier turns. Defaults to the
            team's budget.
        max_tokens: Budget of the task in tokens, like `max_cost`.
        on_budget: What happens when the budget is used up: "stop" stops the run gracefully, "ask"
            asks the user whether to raise the budget. Defaults to the team's choice.
        notebook: Access of all agents of the team to the notebook that started the run: "read" its
            cells, also "propose" changes, which you accept or reject, or also "run" cells that you
            approve. Defaults to the team file's.
        notebook_file: The file of a notebook that the agents work on, instead of the notebook that
            started the run. It must not be open in a page. Cells run in a new kernel.
        trust: Whether to resume or continue a session that was created by another user or on
            another machine. From then on, it is treated as this user's session.

    Raises:
        UserError: The timeout is neither a number nor a Timeout, the grace time is negative, or a
            callback requires more arguments than it gets.

    Example:
        >>> RunOptions(timeout=Timeout(ms=1500), retry=Retry(attempts=1)).timeout_s
        1.5
    """

    session_root: str | PathLike[str] | None = None
    timeout: Timeout | float | None = field(
        default=None,
        metadata=described(
            "time limit of the run in seconds (default: the limit in the team file, or 1800)",
            metavar="S",
            flags=("--orchestrator-timeout",),
        ),
    )
    retry: Retry | None = None
    cancel: CancelPolicy | None = None
    approval: ApprovalConfig | None = None
    on_complete: Callable[..., object] | None = None
    on_failed: Callable[..., object] | None = None
    on_status_change: Callable[..., object] | None = None
    from_turn: int | None = field(
        default=None,
        metadata=described(
            "with --continue: continue from this turn, in a new session",
            metavar="TURN",
            flags=("--from",),
        ),
    )
    skip_unsupported: bool = field(
        default=False, metadata=described("leave out agents that can't run on this machine")
    )
    debug: bool = field(
        default=False, metadata=described("write debug.log into the turn's directory")
    )
    detach: bool | None = field(
        default=None,
        metadata=described("run in a separate process that outlives this one"),
    )
    cluster: Cluster | Any = field(
        default=None,
        metadata=described(
            "run on a Dask cluster: its address, or local:N for N local workers",
            metavar="ADDRESS",
        ),
    )
    context_paths: Sequence[str | PathLike[str]] = ()
    trust: bool = field(
        default=False,
        metadata=described(
            "continue or resume a session that was created by another user or on another machine"
        ),
    )
    max_cost: float | None = field(
        default=None,
        metadata=described(
            "budget of the task in US dollars, including its earlier turns (default: the team "
            "file's)",
            metavar="USD",
        ),
    )
    max_tokens: int | None = field(
        default=None,
        metadata=described(
            "budget of the task in tokens, including its earlier turns (default: the team file's)",
            metavar="TOKENS",
        ),
    )
    wait_for_quota: float | None = field(
        default=None,
        metadata=described(
            "seconds that a model call may wait for its provider's quota, or for a server that is "
            "down (default: the team file's, or 0)",
            metavar="S",
        ),
    )
    on_budget: OnBudget | None = field(
        default=None,
        metadata=described(
            "stop the run when the budget is used up, or ask whether to raise it (default: the "
            "team file's)",
            choices=get_args(OnBudget),
        ),
    )

    notebook: NotebookAccess | None = field(
        default=None,
        metadata=described(
            "let the agents read the notebook, also propose changes of cells, or also run cells "
            "(default: the team file's)",
            choices=get_args(NotebookAccess),
        ),
    )
    notebook_file: str | PathLike[str] | None = field(
        default=None,
        metadata=described(
            "let the agents work on the file of this notebook, which no page has open; cells run "
            "in a new kernel",
            metavar="NOTEBOOK",
            flags=("--on",),
        ),
    )

    def __post_init__(self) -> None:
        if not isinstance(self.timeout, Timeout | float | int | None):
            raise UserError(
                f"The timeout is {self.timeout!r}. Use a number of seconds or a Timeout."
            )
        grace_s = self.cancel.grace_timeout_s if self.cancel else None
        if grace_s is not None and not 0 <= grace_s:
            raise UserError(f"grace_timeout_s is {grace_s!r}. Use 0, a larger number, or None.")
        for name in ("max_cost", "max_tokens"):
            budget = getattr(self, name)
            is_whole = name == "max_tokens"
            if budget is not None and not _is_budget(budget, is_whole=is_whole):
                noun = "whole number" if is_whole else "number"
                raise UserError(f"{name} is {budget!r}. Use a {noun} above 0.")
        if self.wait_for_quota is not None and not 0 <= self.wait_for_quota < math.inf:
            raise UserError(
                f"wait_for_quota is {self.wait_for_quota!r}. Use 0 or more, in seconds."
            )
        if self.on_budget not in (None, *get_args(OnBudget)):
            raise UserError(f"on_budget is {self.on_budget!r}. Use 'stop' or 'ask'.")
        if self.notebook not in (None, *get_args(NotebookAccess)):
            raise UserError(f"notebook is {self.notebook!r}. Use 'read', 'propose' or 'run'.")
        check_callbacks(self, on_complete=1, on_failed=1, on_status_change=1)
        if self.cancel is not None:  # checked here, as cancel.py can't import UserError
            check_callbacks(self.cancel, before_cancel=1, after_cancel=1, on_timeout=1)

    def __repr__(self) -> str:
        """Show the options that are set."""
        changed_fields = (each for each in fields(self) if getattr(self, each.name) != each.default)
        values = (f"{each.name}={getattr(self, each.name)!r}" for each in changed_fields)
        return f"RunOptions({', '.join(values)})"

    @property
    def timeout_s(self) -> float | None:
        """The time limit in seconds. None means the limit in the team file."""
        return self.timeout.total_s if isinstance(self.timeout, Timeout) else self.timeout
