"""Who must approve: a call of a tool, what code asks, a recipe's gate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from nb_agents.errors import UserError

__all__ = ["ApprovalConfig", "Decision", "Tally"]


@dataclass(frozen=True, slots=True)
class ApprovalConfig:
    """How a call of a tool, `Run.wait_for_approval` or a recipe's gate is approved.

    A gate that the recipe gives a timeout keeps that, and what comes then.

    Attributes:
        timeout: Seconds after which nobody's answer is awaited any more; None means never.
        auto_approve_on_timeout: Whether that approves; else it denies.
        approvers: Who may decide; empty means everybody.
        required_approvals: How many of them must approve. One who denies is enough to deny.

    Raises:
        UserError: Nobody could ever approve.
    """

    timeout: float | None = None
    auto_approve_on_timeout: bool = False
    approvers: Sequence[str] = ()
    required_approvals: int = 1

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise UserError(f"The approval's timeout is {self.timeout!r} s; give a number over 0.")
        most = len(set(self.approvers)) or math.inf
        if isinstance(self.approvers, str) or not 1 <= self.required_approvals <= most:
            raise UserError(
                f"{self.required_approvals} approvals are required of {self.approvers!r}: list at "
                "least as many approvers, and require at least one."
            )

    @property
    def default(self) -> Literal["approve", "deny"]:
        """What happens when the time is over."""
        return "approve" if self.auto_approve_on_timeout else "deny"


class Decision(NamedTuple):
    """What was decided, what was said with it, and by whom."""

    approved: bool
    message: str
    by: str


@dataclass
class Tally:
    """Counts the approvals of one thing.

    It lives in memory alone: what is half approved when the process ends, or the run is stopped, is
    asked of everybody again.

    Attributes:
        config: Who may decide, and how many must approve.
        messages: What those said who have approved, by name.

    Example:
        >>> tally = Tally(ApprovalConfig(required_approvals=2))
        >>> tally.take(True, "fine", "ann"), str(tally)
        (None, '1 of 2 approvals (ann)')
        >>> tally.take(True, "go", "bob")
        Decision(approved=True, message='fine; go', by='ann, bob')
    """

    config: ApprovalConfig
    messages: dict[str, str] = field(default_factory=dict)

    def take(self, approved: bool, message: str, by: str) -> Decision | None:
        """Take what a person says; who says it twice counts once.

        Args:
            approved: Whether they approve.
            message: What they say with it.
            by: Their name.

        Returns:
            The decision, or None while others must approve, too.

        Raises:
            UserError: This person is not among the approvers.
        """
        config = self.config
        if config.approvers and by not in config.approvers:
            named = ", ".join(config.approvers)
            raise UserError(f"{by!r} is no approver of this run. They are: {named}.")
        if not approved:
            return Decision(False, message, by)
        self.messages[by] = message
        if len(self.messages) < config.required_approvals:
            return None
        said = "; ".join(filter(None, self.messages.values()))
        return Decision(True, said, ", ".join(self.messages))

    def __str__(self) -> str:
        """Say how many have approved, and who."""
        named = ", ".join(self.messages)
        return f"{len(self.messages)} of {self.config.required_approvals} approvals ({named})"
