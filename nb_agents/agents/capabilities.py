"""Capabilities: optional abilities of agents that a team file enables, one module for each.

Teams and recipes treat all capabilities alike, without knowing them by name. The order of the list
determines the order of their sections in a prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nb_agents.cancel import CancelToken
from nb_agents.tools.base import Tool


class Results(NamedTuple):
    """The results of background sub-agents, for the agent that spawned them.

    Attributes:
        text: The results as text, or "" if there are no new ones.
        subagents: The ids of the sub-agents.
        in_result: Whether to append the text to the result of the agent's last tool call.
    """

    text: str = ""
    subagents: tuple[str, ...] = ()
    in_result: bool = False


class Capability:
    """An optional ability of agents. Each method does nothing unless a subclass overrides it.

    Attributes:
        holds_in_planning: Whether it is active in the planning phase.
    """

    holds_in_planning = False

    async def tools(self, agent: str, workspace: Path) -> Sequence[Tool]:
        """Prepare the capability for an agent, and return the agent's additional tools.

        Args:
            agent: The agent's id, or the address of its step.
            workspace: The agent's workspace.
        """
        return ()

    def guide(self, agent: str, tools: Collection[str]) -> str:
        """Return the instructions for an agent's system prompt.

        Args:
            agent: The agent's id, or the address of its step.
            tools: The names of the agent's tools.
        """
        return ""

    async def shown(self, agent: str, labels: Mapping[str, str]) -> str:
        """Return text for the end of a round's prompt, which may change from round to round.

        Args:
            agent: The agent's id.
            labels: The ids of all agents by their anonymous names.
        """
        return ""

    def note(self, agent: str) -> Results:
        """Return the results that an agent has not received yet, for its next request."""
        return Results()

    async def resume_work(self, tokens: Mapping[str, CancelToken]) -> None:
        """Continue work that a stop or a crash interrupted.

        Args:
            tokens: The agents' cancel tokens by id.
        """

    async def at_end(self, winner: str) -> None:
        """Finish the work after the final answer, for example merge the winner's changes.

        Args:
            winner: The agent that gave the final answer.
        """
