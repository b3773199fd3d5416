"""Collects decisions made by tool calls, for agents that make their own model requests.

Such an agent calls the tools that end a round like any other tool, often through an MCP server. The
rules are those in `nb_agents.agents.decisions`. The first valid decision counts. An agent with too
many rejected decisions fails, because it would keep trying and spending.
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

RECORDED = "Recorded. This round is complete. Stop here."
ALREADY_DECIDED = "you have already decided, and only your first decision counts. Stop here."


class Ballot:
    """The tools that end an agent's round.

    Args:
        round: The round. Its context validates each decision.

    Attributes:
        ended: Set when the round is decided, or when too many decisions were rejected.
    """

    def __init__(self, round: Round) -> None:
        self._round = round
        self._refused = 0
        self._complaint = ""
        self.ended = anyio.Event()

    def tools(self) -> list[Tool]:
        """Return the decision tools that the agent can call now."""
        offered = decision_tools(self._round.context.offer())
        return [Tool.from_definition(each, partial(self._call_tool, each.name)) for each in offered]

    async def _call_tool(self, name: str, args: dict[str, Any]) -> str:
        return self.take(name, args)

    def take(self, name: str, args: dict[str, Any]) -> str:
        """Record the decision in a tool call, and return the tool's result.

        Raises:
            ToolError: The decision is invalid, or the round is already decided.
        """
        if self._round.decision is not None:
            raise ToolError(ALREADY_DECIDED)
        reading = read_call(name, args, self._round.context)
        if reading.decision is None:
            self._refused += 1
            self._complaint = reading.complaint
            if self._refused >= MAX_REJECTED_TURNS:
                self.ended.set()
            raise ToolError(reading.complaint)
        self._round.decision = reading.decision
        self.ended.set()
        return RECORDED

    def check(self, name: str) -> None:
        """Raise if too many decisions were rejected and none was accepted.

        Args:
            name: The name of the model or agent, for the message.

        Raises:
            ModelCallError: The agent has no attempts left.
        """
        if self.ended.is_set() and self._round.decision is None:
            raise ModelCallError(
                name,
                f"It submitted no valid answer in {self._refused} attempts. "
                f"The last one was rejected: {self._complaint}",
            )
