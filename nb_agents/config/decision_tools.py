"""The tools that end an agent's round, with their arguments and how prompts describe them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DecisionTool:
    """A tool whose call ends a round.

    Attributes:
        name: The tool's name.
        description: What the tool does, for models.
        arguments: The names of its arguments.
        guide: When to call the tool, for the system prompt.
    """

    name: str
    description: str
    arguments: tuple[str, ...]
    guide: str

    @property
    def call(self) -> str:
        """The call with its arguments, as prompts show it."""
        return f"{self.name}({', '.join(self.arguments)})"

    @property
    def line(self) -> str:
        """The tool's line in the system prompt."""
        return f"- `{self.call}`: {self.guide}"


ANSWER = DecisionTool(
    "new_answer",
    "Submit your complete answer to the task.",
    ("content",),
    "submit your own complete answer if it is better than the current answers.",
)
VOTE = DecisionTool(
    "vote",
    "Vote for the best of the current answers.",
    ("agent_id", "reason"),
    "vote for the best answer if you cannot improve on it.",
)
SUBMIT = DecisionTool(
    "submit",
    "Confirm that the final answer does everything that the task asks.",
    ("confirmed",),
    "the final answer is good enough.",
)
RESTART = DecisionTool(
    "restart_orchestration",
    "Reject the final answer and let the team start again.",
    ("reason", "instructions"),
    """the final answer is not good enough, and
the team starts again. As `reason`, write what is missing or wrong. As `instructions`, write in
detail what the next attempt must do. A restart costs as much as the first attempt. Do not restart
for matters of style.""",
)
OF_MEMBERS = (ANSWER.name, VOTE.name)
"""Names of the tools that end a member's round."""
OF_JUDGES = (SUBMIT.name, RESTART.name)
"""Names of the tools with which the presenter judges its final answer."""
DECISIONS = frozenset({*OF_MEMBERS, *OF_JUDGES})
