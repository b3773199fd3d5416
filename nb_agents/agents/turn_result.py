"""The result of a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TurnResult:
    """The result of a team's or recipe's turn that was not stopped.

    Attributes:
        winner: The agent that gave the final answer, or "".
        answer: The final answer, or "".
        outputs: A recipe's outputs by name, or None for a team.
    """

    winner: str = ""
    answer: str = ""
    outputs: Mapping[str, Any] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether there is a final answer."""
        return bool(self.winner) or self.outputs is not None
