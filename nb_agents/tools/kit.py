"""What the agents of a run work with besides the files of their workspaces.

Shell, Python, MCP servers, functions of the notebook and of files, the data store: started with the
run, ended with it. Calls that the team's file lets nobody make alone wait for a person.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
from anyio import CancelScope, to_thread

from nb_agents.config.tools import ToolKeys
from nb_agents.tools.base import Tool
from nb_agents.tools.context import ToolContext
from nb_agents.tools.custom import CustomTools
from nb_agents.tools.data_store import DataStore
from nb_agents.tools.functions import function_tool
from nb_agents.tools.mcp import McpServers
from nb_agents.tools.policy import AgentTools, Ask, ruled
from nb_agents.tools.python import PythonCells
from nb_agents.tools.shell import Shell

__all__ = ["ToolKit", "ToolPlaces"]

MAX_TOLD = 2_000
"""Characters of a running tool's output that the panel gets at a time; the tool keeps all of it."""


@dataclass(frozen=True)
class ToolPlaces:
    """Where the tools of a run work.

    Attributes:
        session: The session's directory.
        turn: The turn's directory.
        readable: Files and directories that all agents may read.
        secrets: Values that must not leak.
    """

    session: Path
    turn: Path
    readable: Sequence[Path]
    secrets: Sequence[str]


class ToolKit:
    """The tools of one run; an async context manager, on the loop.

    Args:
        places: Where they work.
        functions: Functions of the notebook, for all agents.
        notice: Takes what a person should know, in a sentence.
        ask: Asks a person whether a call may be made.
        caller: Says, within a call, whose it is: a recipe's agent works in steps.
    """

    def __init__(
        self,
        places: ToolPlaces,
        functions: Sequence[Callable[..., Any]],
        notice: Callable[[str], None],
        ask: Ask,
        caller: Callable[[], str] = str,
    ) -> None:
        self._places = places
        self._functions = functions
        self._notice = notice
        self._ask = ask
        self._caller = caller
        self._told: dict[str, list[str]] = {}
        self._tools: dict[str, AgentTools] = {}
        self._opening: dict[str, anyio.Lock] = {}
        self._servers = McpServers(notice)
        self._custom = CustomTools(notice)
        self._ends = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._ends.enter_async_context(self._servers)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._ends.__aexit__(kind, exc, trace)

    def call_at_end(self, end: Callable[[], Awaitable[None]]) -> None:
        """Call this when the run ends, before the tools that there are now are ended.

        Args:
            end: Must not raise, nor take long.
        """
        self._ends.push_async_callback(end)

    async def open(
        self, agent: str, workspace: Path, keys: ToolKeys, others: Sequence[Tool] = ()
    ) -> AgentTools:
        """Give an agent its tools; the first time they are started.

        Args:
            agent: The agent's id. It comes with the same place and keys each time: what a step
                wishes for changes the model alone, and each agent that is called has its own id.
            workspace: Where it works.
            keys: What its configuration gives it.
            others: Tools that are made elsewhere; what the configuration says of them is heeded.
        """
        async with self._opening.setdefault(agent, anyio.Lock()):
            if agent not in self._tools:
                self._tools[agent] = await self._open(agent, workspace, keys, others)
        return self._tools[agent]

    async def _open(
        self, agent: str, workspace: Path, keys: ToolKeys, others: Sequence[Tool]
    ) -> AgentTools:
        context = self._context(agent, workspace)
        for notice in keys.tool_notices:
            self._notice(notice)
        tools = [function_tool(function, context) for function in self._functions]
        tools += others
        if keys.runs_commands:
            tools += await to_thread.run_sync(self._hands, context)
        if keys.data_store:
            tools += DataStore.of(context).tools(context)
        if keys.custom_tools:
            tools += await self._custom.tools(context, keys.custom_tools, keys.exclude_tools)
        if keys.mcp_servers:
            tools += await self._servers.tools(context, keys.mcp_servers, keys.exclude_tools)
        rule = partial(
            ruled, exclude=keys.exclude_tools, rules=keys.tool_policy, ask=partial(self._ask, agent)
        )
        return AgentTools(rule(tools), rule)

    def _hands(self, context: ToolContext) -> list[Tool]:
        """Give an agent a shell and a Python; looks for the sandbox, which takes a moment."""
        shell, cells = Shell(context), PythonCells(context)
        self._ends.push_async_callback(_close, cells)
        if not shell.is_sandboxed:
            self._notice(
                f"Commands of {context.agent} are not sandboxed: bubblewrap is not to be had here."
            )
        return [*shell.tools(), *cells.tools()]

    def _context(self, agent: str, workspace: Path) -> ToolContext:
        places = self._places
        return ToolContext(
            agent=agent,
            workspace=workspace,
            readable=places.readable,
            session=places.session,
            kept=places.turn / "tools",
            secrets=places.secrets,
            tell=partial(self._tell, agent),
        )

    def _tell(self, agent: str, text: str) -> None:
        self._told.setdefault(self._caller() or agent, []).append(text)

    def take_told(self) -> dict[str, str]:
        """Give the last of what running tools wrote since the last time.

        Returns:
            By whose call it was: an agent's, or that of a recipe's step.
        """
        told = {}
        for agent, pieces in tuple(self._told.items()):
            if count := len(pieces):  # a thread may add more meanwhile
                told[agent] = "".join(pieces[:count])[-MAX_TOLD:]
                del pieces[:count]
        return told


async def _close(cells: PythonCells) -> None:
    with CancelScope(shield=True):
        await cells.close()
