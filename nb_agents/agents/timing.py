"""How much time an agent has, and what it is told of it. Pure functions of seconds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Elapsed", "duration", "is_late", "round_is_over", "time_note"]

WRAP_UP_AT = 0.8
"""Share of the turn's time after which agents are told to wrap up."""

WRAP_UP = "Most of the time is gone. Wrap up: finish now with the best that you have."
ROUND_OVER = (
    "The time of this round is over. No other tools are left: finish now with what you have, "
    "by {tools}. In {grace} the round is cut."
)


@dataclass(frozen=True)
class Elapsed:
    """Where an agent is in its time; all in seconds.

    Attributes:
        turn_s, turn_limit_s: Of the turn: used, and its limit.
        round_s: Of the round: used.
        round_limit_s: Its limit, or None.
        grace_s: From the round's limit to its end.
    """

    turn_s: float
    turn_limit_s: float
    round_s: float = 0.0
    round_limit_s: float | None = None
    grace_s: float = 0.0


def is_late(elapsed: Elapsed) -> bool:
    """Whether the turn's time comes to its end, so that agents should wrap up."""
    return elapsed.turn_s >= WRAP_UP_AT * elapsed.turn_limit_s


def round_is_over(elapsed: Elapsed) -> bool:
    """Whether the round's time is over, so that only an answer or a vote is left."""
    return elapsed.round_limit_s is not None and elapsed.round_s >= elapsed.round_limit_s


def time_note(elapsed: Elapsed, tools: str, *, wraps_up: bool) -> str:
    """Say how much time is left.

    Args:
        elapsed: Where the agent is in its time.
        tools: What it can finish with, as "new_answer or vote".
        wraps_up: Whether it is to be told that time comes to its end.

    Returns:
        One line, and a second one where it has to hurry.
    """
    left = elapsed.turn_limit_s - elapsed.turn_s
    of_all = f" of {duration(elapsed.turn_limit_s)}"
    note = f"[Time left: {duration(left)}{of_all}" if left > 0 else f"[Time left: none{of_all}"
    if elapsed.round_limit_s is not None:
        left_of_round = max(0.0, elapsed.round_limit_s - elapsed.round_s)
        note += f"; of this round: {duration(left_of_round)}"
    note += "]"
    if round_is_over(elapsed):
        end_s = (elapsed.round_limit_s or 0.0) + elapsed.grace_s
        grace = duration(max(0.0, end_s - elapsed.round_s))
        return f"{note}\n{ROUND_OVER.format(tools=tools, grace=grace)}"
    return f"{note}\n{WRAP_UP}" if wraps_up else note


def duration(seconds: float) -> str:
    """Write seconds for a reader: ``25 min 3 s``, ``40 s``, ``0.3 s``."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(int(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"
