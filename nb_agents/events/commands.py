"""What is asked of a turn while it is worked on, by whatever door it comes.

A command is journalled as an event of its own first, and acted on then.
"""

from __future__ import annotations

from dataclasses import dataclass

from nb_agents.cancel import StopRequest

__all__ = ["Command", "Continue", "Decide", "Pause", "Say"]


@dataclass(frozen=True, slots=True)
class Say:
    """Add a follow-up text to the task."""

    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Let work hold still at its next boundary."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Let a paused turn go on."""


@dataclass(frozen=True, slots=True)
class Decide:
    """Approve or deny what waits for a person, or answer a question.

    Attributes:
        approved: Whether it may be.
        message: What the person says; to a question, the answer.
        by: Who decides.
        gate: Address of the gate; "" is the one that has waited longest.
    """

    approved: bool
    message: str = ""
    by: str = ""
    gate: str = ""


Command = StopRequest | Say | Pause | Continue | Decide
