"""The tools of a run's agents, other than the file tools of their workspaces.

Shell, Python, MCP servers, functions of the notebook and of files, the data store: they start and
end with the run. Calls that need approval wait for a person. Notices about tools are shown at a
run's start, and by ``%agents check`` before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import anyio
from anyio import to_thread

from nb_agents.config.permissions import CommandRules
from nb_agents.config.report import command_line
from nb_agents.config.tools import ToolKeys, why_withheld
from nb_agents.events import EndChecked
from nb_agents.masking import Mask
from nb_agents.process.bubblewrap import readable_directories
from nb_agents.process.environment import remove_leftovers
from nb_agents.process.writable import WritablePath, WriteAccess
from nb_agents.tools.base import BUILT_IN, Tool, ToolContext, ToolPlace, current_call
from nb_agents.tools.command_guard import CommandGuard, find_programs
from nb_agents.tools.custom import CustomTools
from nb_agents.tools.data_store import DataStore
from nb_agents.tools.data_tools import DATA_TOOLS, AgentStore
from nb_agents.tools.mcp import McpServers
from nb_agents.tools.offer import OfferedFunction, tool_of
from nb_agents.tools.policy import AgentTools, Ask, Policy
from nb_agents.tools.python import PythonCells
from nb_agents.tools.sandbox import Sandbox, confinement
from nb_agents.tools.shell import Shell, last_chars
from nb_agents.tools.task_plan import PLAN_TOOLS
from nb_agents.tools.web_search import search_tool
from nb_agents.tools.workspace import FILE_TOOLS

KeepFiles = Callable[
    [Path, str, Sequence[str] | None, Sequence[WritablePath]], AbstractAsyncContextManager[None]
]
"""Keeps what a writer may change within a block.

Called with its workspace, its call, the paths that it writes or None for any, and the places of the
person's own that it may write.
"""

_LOOKS = frozenset(
    {name for name in (*FILE_TOOLS, *PLAN_TOOLS) if BUILT_IN[name].action == "read_file"}
    | {*DATA_TOOLS, "web_search"}
)
"""Tools that write nothing into a workspace."""

MAX_TOLD = 2_000
"""Limit of a running tool's output in one update of the panel; the tool keeps all of it."""


def announcements(
    agents: Iterable[tuple[str, ToolKeys]], *, has_protected_paths: bool
) -> Iterator[str]:
    """Yield notices on tools that agents don't get, and on unconfined commands.

    It looks at the machine, which takes a moment: not on the event loop.

    Args:
        agents: All that may work in the run, with what their configuration gives them.
        has_protected_paths: Whether the team's file protects paths.
    """
    for agent, keys in agents:
        # The machine is looked at for those that ask for it.
        found = confinement(keys.sandbox and keys.enable_mcp_command_line)
        line = command_line(
            keys, is_confined=found.is_confined, has_protected_paths=has_protected_paths
        )
        for server in keys.mcp_servers:
            if server.fault:
                yield f"{agent}: MCP server {server.name!r} is left out: {server.fault}."
        yield from (f"{agent}: {text}" for text in line.notices)
        if line.has_shell and (notice := found.notice(agent)):
            yield notice


@dataclass(frozen=True)
class ToolPlaces:
    """Where the tools of a run work.

    Attributes:
        session: The session's directory.
        kept: Directory for what is too long for a model.
        readable: Files and directories that all agents may read.
        secrets: Values that processes must not inherit.
        mask: Removes secrets from what tools write to disk.
        writable: What of those an agent may write while it presents.
        has_protected_paths: Whether the team's file protects some of them.
        project: The person's directory that agents work in, if they do.
        keep: Keeps what a tool may change, by `KeepFiles`; None keeps nothing.
    """

    session: Path
    kept: Path
    readable: Sequence[Path]
    secrets: Sequence[str]
    mask: Mask = field(default_factory=Mask)
    writable: Sequence[WritablePath] = ()
    has_protected_paths: bool = False
    project: WritablePath | None = None
    keep: KeepFiles | None = None


class RunTools:
    """The tools of one run; an async context manager, on the loop.

    Args:
        places: Where they work.
        functions: Functions of the notebook, here or elsewhere, for all agents.
        notice: Called with each notice for the user, one sentence.
        ask: Asks a person whether a call may be made.
        wake: Called, from any thread, when a running tool has written something.
    """

    def __init__(
        self,
        places: ToolPlaces,
        functions: Sequence[Callable[..., Any] | OfferedFunction],
        notice: Callable[[str], None],
        ask: Ask,
        wake: Callable[[], None],
    ) -> None:
        self._places = places
        self._functions = functions
        self._notice = notice
        self._ask = ask
        self._wake = wake
        self._told: dict[str, list[str]] = {}
        self._tools: dict[str, AgentTools] = {}
        self._opening: dict[str, anyio.Lock] = {}
        self._servers = McpServers(notice)
        self._custom = CustomTools(notice)
        self._ends = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._ends.enter_async_context(self._servers)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._ends.__aexit__(*exc)

    def ends(self) -> Iterable[EndChecked]:
        """Return what is known of the ends of its processes, once the block was left."""
        return self._servers.ends()

    def call_at_end(self, end: Callable[[], Awaitable[None]]) -> None:
        """Register a function to call at the run's end, before the tools opened so far are closed.

        Args:
            end: Must not raise, nor take long.
        """
        self._ends.push_async_callback(end)

    async def announce(self, agents: Iterable[tuple[str, ToolKeys]]) -> None:
        """Emit notices on missing tools and unconfined commands, before any agent works.

        Args:
            agents: All that may work in the run, with what their configuration gives them.
        """
        known = tuple(agents)
        protects = self._places.has_protected_paths

        def look() -> list[str]:
            return list(announcements(known, has_protected_paths=protects))

        if not _tidy.cache_info().currsize:
            await to_thread.run_sync(_tidy, abandon_on_cancel=True)
        if any(keys.enable_mcp_command_line for _, keys in known):
            texts = await to_thread.run_sync(look, abandon_on_cancel=True)
        else:  # the machine is not looked at
            texts = look()
        for text in texts:
            self._notice(text)

    async def open(
        self, agent: str, workspace: Path, keys: ToolKeys, others: Sequence[Tool] = ()
    ) -> AgentTools:
        """Return an agent's tools; they are started the first time.

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
        # Only rules need the real path; resolved once, before an agent could put a link there.
        real = await to_thread.run_sync(workspace.resolve) if keys.rules is not None else workspace
        policy = Policy(keys, real, partial(self._ask, agent))
        kept = partial(self._kept, context)

        def take(tools: Iterable[Tool]) -> tuple[Tool, ...]:
            return policy.take(map(kept, tools))

        tools = [tool_of(function, context) for function in self._functions]
        tools += others
        if keys.enable_mcp_command_line:
            tools += await to_thread.run_sync(self._hands, context, keys)
        if keys.searches_web and "web_search" not in {tool.name for tool in tools}:
            tools.append(await to_thread.run_sync(search_tool))
        if keys.data_store:
            tools += AgentStore(DataStore.of(context), context.mask).tools()
        found = list(take(tools))
        if keys.custom_tools:
            made = await self._custom.tools(context, keys.custom_tools, keys.takes)
            found += map(policy.guarded, map(kept, made))
        if keys.mcp_servers:
            served = await self._servers.tools(context, keys.mcp_servers, keys.takes)
            found += map(policy.guarded, map(kept, served))
        withheld = why_withheld(keys, "enable_image_generation", "image_generation")
        place = ToolPlace(context, policy.check, self._keeps(context))
        given = AgentTools(found, take, context.access, keeps_images=not withheld, place=place)
        if keys.chosen_tools and not (found or any(map(keys.takes, FILE_TOOLS))):
            names = ", ".join(keys.chosen_tools)
            self._notice(f"{agent}: `tool_choice` names no tool that it has: {names}.")
        return given

    def _keeps(
        self, context: ToolContext
    ) -> Callable[[], AbstractAsyncContextManager[None]] | None:
        keep = self._places.keep
        if keep is None:
            return None
        return lambda: keep(context.workspace, context.agent, None, context.own)

    def _kept(self, context: ToolContext, tool: Tool) -> Tool:
        """Return a tool that keeps what it may change."""
        keep = self._places.keep
        if keep is None or tool.name in _LOOKS or not tool.knows_workspace:
            return tool

        def around(args: dict[str, Any]) -> AbstractAsyncContextManager[None]:
            call = current_call()
            paths = [args["path"]] if tool.name in FILE_TOOLS else None
            return keep(context.workspace, f"{call.agent} {call.id}", paths, context.own)

        return tool.within(around)

    def _hands(self, context: ToolContext, keys: ToolKeys) -> list[Tool]:
        """Return an agent's shell and Python, if enabled; checks the machine for a sandbox."""
        sandbox = Sandbox(context, keys)
        line = command_line(
            keys,
            is_confined=sandbox.confinement.is_confined,
            has_protected_paths=self._places.has_protected_paths,
        )
        if not line.has_shell or sandbox.confinement.is_refused:
            return []
        guard = _guard(line.rules, [*readable_directories(), *context.readable])
        shell, cells = Shell(sandbox, guard=guard), PythonCells(sandbox)
        self._ends.push_async_callback(cells.close)
        return [*shell.tools(), *(cells.tools() if line.has_python else [])]

    def _context(self, agent: str, workspace: Path) -> ToolContext:
        places = self._places
        # Agents that are called have workspaces of their own.
        is_project = places.project is not None and workspace == places.project.path
        return ToolContext(
            agent=agent,
            workspace=workspace,
            readable=places.readable,
            session=places.session,
            kept=places.kept,
            secrets=places.secrets,
            tell=partial(self._tell, agent),
            mask=places.mask,
            access=WriteAccess(places.writable),
            project=places.project if is_project else None,
        )

    def _tell(self, agent: str, text: str) -> None:
        # A recipe's agent works in steps.
        self._told.setdefault(current_call().agent or agent, []).append(text)
        self._wake()

    def take_told(self) -> dict[str, str]:
        """Return the end of what running tools have written since the last call.

        Returns:
            By whose call it was: an agent's, or that of a recipe's step.
        """
        tails = {}
        for agent, pieces in tuple(self._told.items()):
            if count := len(pieces):  # a thread may add more meanwhile
                tails[agent] = last_chars("".join(pieces[:count]), MAX_TOLD)
                del pieces[:count]
        return tails


_tidy = cache(remove_leftovers)  # once a process: it goes through all that is temporary


def _guard(rules: CommandRules, places: Iterable[Path]) -> CommandGuard | None:
    if rules.is_open:
        return None
    return CommandGuard(rules, find_programs(rules, places) if rules.blocked else {})
