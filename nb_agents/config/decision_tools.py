"""The tools that end an agent's round: each declares its name, its arguments and its guide."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DecisionTool:
    """A tool whose call ends a round.

    Attributes:
        name: Its name.
        description: What it does, for models.
        arguments: The names of its arguments.
        guide: When to call it, for a system prompt.
    """

    name: str
    description: str
    arguments: tuple[str, ...]
    guide: str

    @property
    def call(self) -> str:
        """The call as a prompt writes it."""
        return f"{self.name}({', '.join(self.arguments)})"

    @property
    def line(self) -> str:
        """Its line in a system prompt's list."""
        return f"- `{self.call}`: {self.guide}"


ANSWER = DecisionTool(
    "new_answer",
    "Submit your complete answer to the task.",
    ("content",),
    "submit a complete answer of your own, when you can better what is there.",
)
VOTE = DecisionTool(
    "vote",
    "Vote for the best of the current answers.",
    ("agent_id", "reason"),
    "vote for the best answer, when that is the better choice.",
)
SUBMIT = DecisionTool(
    "submit",
    "Say that the final answer does all that the task asks.",
    ("confirmed",),
    "it will do.",
)
RESTART = DecisionTool(
    "restart_orchestration",
    "Let the team work again, because the final answer will not do.",
    ("reason", "instructions"),
    """it will not, and the team works again from the
beginning: what is missing or wrong, and what the next attempt is to do, in detail. That costs as
much again; a gain in style is not worth it.""",
)
OF_MEMBERS = (ANSWER.name, VOTE.name)
"""The names of the tools that an agent ends a round with, unless it judges."""
OF_JUDGES = (SUBMIT.name, RESTART.name)
DECISIONS = frozenset({*OF_MEMBERS, *OF_JUDGES})
