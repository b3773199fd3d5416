"""Decisions by tool call, for agents whose model requests are not made by us.

They list and call the tools that end a round as any other tool, often by way of an MCP server; the
rules are those of `nb_agents.agents.decisions`. The first decision counts. An agent of which too
many are refused is out: it would go on trying, and spending.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio

from nb_agents.agents.decisions import decision_tools, read_call
from nb_agents.agents.runner import Round
from nb_agents.agents.voting import MAX_REJECTED_TURNS
from nb_agents.errors import ModelCallError
from nb_agents.tools.base import Tool, ToolError

TAKEN = "Recorded. Your work in this round is done: stop here."
DECIDED = "you have decided already, and your first decision stands. Stop here."


class Ballot:
    """The tools by which an agent decides its round.

    Args:
        round: The round; its context judges each decision.

    Attributes:
        ended: Set with the decision, or when too many were refused.
    """

    def __init__(self, round: Round) -> None:
        self._round = round
        self._refused = 0
        self._complaint = ""
        self.ended = anyio.Event()

    def tools(self) -> list[Tool]:
        """Return the tools by which the agent may decide now."""
        offered = decision_tools(self._round.context.offer())
        return [Tool.from_definition(each, partial(self._called, each.name)) for each in offered]

    async def _called(self, name: str, args: dict[str, Any]) -> str:
        return self.take(name, args)

    def take(self, name: str, args: dict[str, Any]) -> str:
        """Take a call of one of the tools; return the tool's result.

        Raises:
            ToolError: The decision does not count, or comes after another.
        """
        if self._round.decision is not None:
            raise ToolError(DECIDED)
        reading = read_call(name, args, self._round.context)
        if reading.decision is None:
            self._refused += 1
            self._complaint = reading.complaint
            if self._refused >= MAX_REJECTED_TURNS:
                self.ended.set()
            raise ToolError(reading.complaint)
        self._round.decision = reading.decision
        self.ended.set()
        return TAKEN

    def check(self, name: str) -> None:
        """Raise if too many decisions were refused, and none was taken.

        Args:
            name: What people call the model or program.

        Raises:
            ModelCallError: So many were.
        """
        if self.ended.is_set() and self._round.decision is None:
            raise ModelCallError(
                name,
                f"It gave no answer that counts in {self._refused} tries. "
                f"The last one was refused: {self._complaint}",
            )
