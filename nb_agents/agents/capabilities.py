"""What a team's file may add to what agents do: each capability in a file of its own.

A team and the executor of a recipe ask all that they have and know none by name; the order of the
list is the order in which agents are told of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nb_agents.cancel import CancelToken
from nb_agents.tools.base import Tool


class Results(NamedTuple):
    """What sub-agents in the background came to.

    Attributes:
        text: For the agent that spawned them; "" when there is nothing new.
        subagents: Their ids.
        in_result: Whether it is put into the result of the agent's last call.
    """

    text: str = ""
    subagents: tuple[str, ...] = ()
    in_result: bool = False


class Capability:
    """What agents can do by a team's file; each method adds nothing unless it is overridden.

    Attributes:
        holds_in_planning: Whether agents are told of it while their team only plans.
    """

    holds_in_planning = False

    async def tools(self, agent: str, workspace: Path) -> Sequence[Tool]:
        """Make what an agent needs for it, and return its tools.

        Args:
            agent: The agent's id, or the address of its step.
            workspace: Where it works.
        """
        return ()

    def guide(self, agent: str, tools: Collection[str]) -> str:
        """Return what an agent's system prompt says of it.

        Args:
            agent: The agent's id, or the address of its step.
            tools: The names of the tools that it has.
        """
        return ""

    async def shown(self, agent: str, labels: Mapping[str, str]) -> str:
        """Return what a round's opening shows last, as it changes from round to round.

        Args:
            agent: The agent's id.
            labels: The ids of all agents by their anonymous names.
        """
        return ""

    def note(self, agent: str) -> Results:
        """Return what an agent gets with its next request, once."""
        return Results()

    async def go_on(self, tokens: Mapping[str, CancelToken]) -> None:
        """Go on with what a stop or a crash has interrupted.

        Args:
            tokens: The agents' own, by id.
        """

    async def at_end(self, winner: str) -> None:
        """Finish when the final answer is there.

        Args:
            winner: Whose it is.
        """
