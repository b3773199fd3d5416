"""What all events have."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BaseEvent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseEvent:
    """What every event has.

    Attributes:
        seq: Position in the journal, from 1; stamped on emission.
        at: Unix time in seconds; stamped on emission.
    """

    seq: int = 0
    at: float = 0.0
