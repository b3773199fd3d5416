"""The tools of a run's agents, other than the file tools of their workspaces.

Shell, Python, MCP servers, functions from the notebook and from files, and the data store are
started and closed with the run. Calls that need approval wait for the user. Notices about tools are
shown at the start of a run, and by ``%agents check``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import anyio
from anyio import to_thread

from nb_agents.config.permissions import CommandRules
from nb_agents.config.report import command_line
from nb_agents.config.tools import ToolKeys, withheld_reason
from nb_agents.errors import UserError
from nb_agents.events import ProcessExitChecked
from nb_agents.masking import Mask
from nb_agents.nouns import did_you_mean
from nb_agents.plugins import ExtensionPoint
from nb_agents.process.bubblewrap import readable_directories
from nb_agents.process.environment import remove_leftovers
from nb_agents.process.writable import WritablePath, WriteAccess
from nb_agents.tools.base import BUILT_IN, Tool, ToolContext, ToolEnvironment, current_call
from nb_agents.tools.command_guard import CommandGuard, find_programs
from nb_agents.tools.custom import CustomTools
from nb_agents.tools.data_store import DataStore
from nb_agents.tools.data_tools import DATA_TOOLS, AgentStore
from nb_agents.tools.mcp import McpServers
from nb_agents.tools.offer import OfferedFunction, tool_for_function
from nb_agents.tools.policy import AgentTools, Ask, Policy
from nb_agents.tools.python import PythonCells
from nb_agents.tools.sandbox import Sandbox, confinement
from nb_agents.tools.shell import Shell, last_chars
from nb_agents.tools.task_plan import PLAN_TOOLS
from nb_agents.tools.web_search import search_tool
from nb_agents.tools.workspace import FILE_TOOLS

SnapshotFiles = Callable[
    [Path, str, Sequence[str] | None, Sequence[WritablePath]], AbstractAsyncContextManager[None]
]
"""Returns a context manager that snapshots the files that a tool call may change in the block.

Called with the workspace, the call, the paths that it writes to (None if unknown), and the user's
paths that it may write to.
"""

_READ_ONLY = frozenset(
    {name for name in (*FILE_TOOLS, *PLAN_TOOLS) if BUILT_IN[name].action == "read_file"}
    | {*DATA_TOOLS, "web_search"}
)
"""Tools that don't write to a workspace."""

MAX_UPDATE_CHARS = 2_000
"""Maximum number of characters of a running tool's output in a panel update."""


def tool_notices(
    agents: Iterable[tuple[str, ToolKeys]], *, has_protected_paths: bool
) -> Iterator[str]:
    """Yield notices about missing tools and unsandboxed commands.

    Blocks while it checks whether the sandbox works. Don't call it on the event loop.

    Args:
        agents: The id and configuration of each agent of the run.
        has_protected_paths: Whether the team file protects paths.
    """
    for agent, keys in agents:
        # The sandbox is checked only for agents that use it.
        problem = confinement(keys.sandbox and keys.enable_mcp_command_line)
        line = command_line(
            keys, is_confined=problem.is_confined, has_protected_paths=has_protected_paths
        )
        for server in keys.mcp_servers:
            if server.fault:
                yield f"{agent}: MCP server {server.name!r} is left out: {server.fault}."
        yield from (f"{agent}: {text}" for text in line.notices)
        yield from (f"{agent}: {text}" for text in extension_functions(keys).errors)
        if line.has_shell and (notice := problem.notice(agent)):
            yield notice


TOOLS = ExtensionPoint[Callable[..., Any]]("tools")
"""The tools of extensions: functions like those that are passed to `nb_agents.start`."""


class ExtensionFunctions(NamedTuple):
    """The functions for an agent's `extension_tools`, and why others are missing."""

    found: tuple[Callable[..., Any], ...]
    errors: tuple[str, ...]


def extension_functions(keys: ToolKeys) -> ExtensionFunctions:
    """Import the functions for an agent's `extension_tools`. Blocks."""
    functions, errors = list[Callable[..., Any]](), list[str]()
    for name in keys.extension_tools:
        try:
            functions.append(TOOLS[name])
        except KeyError:
            hint = did_you_mean(name, [*TOOLS])
            errors.append(f"No installed extension has the tool {name!r}. {hint}".rstrip())
        except UserError as exc:
            errors.append(str(exc))
    return ExtensionFunctions(tuple(functions), tuple(errors))


@dataclass(frozen=True)
class RunToolSettings:
    """The directories, permissions and secrets of a run's tools.

    Attributes:
        session: The session's directory.
        kept: Directory for outputs that are too long for a model.
        readable: Files and directories that all agents may read.
        secrets: Values that processes must not inherit.
        mask: Removes secrets from the files that tools write.
        writable: Context paths that the presenter may write to.
        has_protected_paths: Whether the team file protects some of these paths.
        project: The user's project directory, if agents work in it.
        keep: See `SnapshotFiles`; None makes no snapshots.
    """

    session: Path
    kept: Path
    readable: Sequence[Path]
    secrets: Sequence[str]
    mask: Mask = field(default_factory=Mask)
    writable: Sequence[WritablePath] = ()
    has_protected_paths: bool = False
    project: WritablePath | None = None
    keep: SnapshotFiles | None = None


class RunTools:
    """The tools of one run. An async context manager, used on the event loop.

    Args:
        places: The directories, permissions and secrets of the tools.
        functions: Notebook functions for all agents, from this or another process.
        notice: Called with each notice for the user, which is one sentence.
        ask: Asks the user to approve a call.
        wake: Called from any thread when a running tool has written output.
        of_extensions: Returns the tools that extensions add to an agent with a configuration.
    """

    def __init__(
        self,
        settings: RunToolSettings,
        functions: Sequence[Callable[..., Any] | OfferedFunction],
        notice: Callable[[str], None],
        ask: Ask,
        wake: Callable[[], None],
        of_extensions: Callable[[ToolKeys], Iterable[Tool]] = lambda keys: (),
    ) -> None:
        self._of_extensions = of_extensions
        self._environment = settings
        self._functions = functions
        self._notice = notice
        self._ask = ask
        self._wake = wake
        self._new_output: dict[str, list[str]] = {}
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

    def ends(self) -> Iterable[ProcessExitChecked]:
        """Return how the processes ended. Call this after the block."""
        return self._servers.ends()

    def call_at_end(self, end: Callable[[], Awaitable[None]]) -> None:
        """Register a function to call at the run's end, before the tools opened so far are closed.

        Args:
            end: The function. It must not raise and must return soon.
        """
        self._ends.push_async_callback(end)

    async def announce(self, agents: Iterable[tuple[str, ToolKeys]]) -> None:
        """Show notices about missing tools and unsandboxed commands.

        Args:
            agents: The id and configuration of each agent of the run.
        """
        agent_ids = tuple(agents)
        protects = self._environment.has_protected_paths

        def look() -> list[str]:
            return list(tool_notices(agent_ids, has_protected_paths=protects))

        if not _remove_leftovers_once.cache_info().currsize:
            await to_thread.run_sync(_remove_leftovers_once, abandon_on_cancel=True)
        if any(keys.enable_mcp_command_line or keys.extension_tools for _, keys in agent_ids):
            texts = await to_thread.run_sync(look, abandon_on_cancel=True)
        else:  # no check of the machine is needed
            texts = look()
        for text in texts:
            self._notice(text)

    async def open(
        self, agent: str, workspace: Path, keys: ToolKeys, extra_tools: Sequence[Tool] = ()
    ) -> AgentTools:
        """Return an agent's tools. Starts them on the first call for the agent.

        Args:
            agent: The agent's id. All calls for an id must pass the same workspace and keys.
            workspace: The agent's directory.
            keys: The agent's configuration.
            extra_tools: Additional tools, to which the configuration's rules apply as well.
        """
        async with self._opening.setdefault(agent, anyio.Lock()):
            if agent not in self._tools:
                self._tools[agent] = await self._open(agent, workspace, keys, extra_tools)
        return self._tools[agent]

    async def _open(
        self, agent: str, workspace: Path, keys: ToolKeys, extra_tools: Sequence[Tool]
    ) -> AgentTools:
        context = self._context(agent, workspace)
        # Only rules need the real path. It is resolved once, before an agent could create a link
        # there.
        real = await to_thread.run_sync(workspace.resolve) if keys.rules is not None else workspace
        policy = Policy(keys, real, partial(self._ask, agent))
        with_snapshots = partial(self._with_snapshots, context)

        def take(tools: Iterable[Tool]) -> tuple[Tool, ...]:
            return policy.take(map(with_snapshots, tools))

        tools = [tool_for_function(function, context) for function in self._functions]
        if keys.extension_tools:
            added = await to_thread.run_sync(extension_functions, keys)
            tools += [tool_for_function(function, context) for function in added.found]
        tools += [*extra_tools, *self._of_extensions(keys)]
        if keys.enable_mcp_command_line:
            tools += await to_thread.run_sync(self._command_tools, context, keys)
        if keys.searches_web and "web_search" not in {tool.name for tool in tools}:
            tools.append(await to_thread.run_sync(search_tool))
        if keys.data_store:
            tools += AgentStore(DataStore.of(context), context.mask).tools()
        taken_tools = list(take(tools))
        if keys.custom_tools:
            custom_tools = await self._custom.tools(context, keys.custom_tools, keys.takes)
            taken_tools += map(policy.guarded, map(with_snapshots, custom_tools))
        if keys.mcp_servers:
            served = await self._servers.tools(context, keys.mcp_servers, keys.takes)
            taken_tools += map(policy.guarded, map(with_snapshots, served))
        taken_tools = [*self._without_duplicates(agent, taken_tools)]
        withheld = withheld_reason(keys, "enable_image_generation", "image_generation")
        environment = ToolEnvironment(context, policy.check, self._snapshotter(context))
        agent_tools = AgentTools(
            taken_tools, take, context.access, keeps_images=not withheld, place=environment
        )
        if keys.chosen_tools and not (taken_tools or any(map(keys.takes, FILE_TOOLS))):
            names = ", ".join(keys.chosen_tools)
            self._notice(f"{agent}: `tool_choice` contains no tool that the agent has: {names}.")
        return agent_tools

    def _without_duplicates(self, agent: str, tools: Iterable[Tool]) -> Iterator[Tool]:
        """Yield the tools without those that repeat a name."""
        names: set[str] = set()
        for tool in tools:
            if tool.name in names:
                self._notice(f"{agent}: two tools are named {tool.name!r}; the second is left out.")
            else:
                names.add(tool.name)
                yield tool

    def _snapshotter(
        self, context: ToolContext
    ) -> Callable[[Sequence[str] | None], AbstractAsyncContextManager[None]] | None:
        keep = self._environment.keep
        if keep is None:
            return None
        return lambda paths: keep(context.workspace, context.agent, paths, context.own)

    def _with_snapshots(self, context: ToolContext, tool: Tool) -> Tool:
        """Return a tool that snapshots the files that a call may change."""
        keep = self._environment.keep
        if keep is None or tool.name in _READ_ONLY or not tool.knows_workspace:
            return tool

        def around(args: dict[str, Any]) -> AbstractAsyncContextManager[None]:
            call = current_call()
            paths = [args["path"]] if tool.name in FILE_TOOLS else None
            return keep(context.workspace, f"{call.agent} {call.id}", paths, context.own)

        return tool.within(around)

    def _command_tools(self, context: ToolContext, keys: ToolKeys) -> list[Tool]:
        """Return an agent's shell and Python tools if they are enabled. Blocks."""
        sandbox = Sandbox(context, keys)
        line = command_line(
            keys,
            is_confined=sandbox.confinement.is_confined,
            has_protected_paths=self._environment.has_protected_paths,
        )
        if not line.has_shell or sandbox.confinement.is_refused:
            return []
        guard = _guard(line.rules, [*readable_directories(), *context.readable])
        shell, cells = Shell(sandbox, guard=guard), PythonCells(sandbox)
        self._ends.push_async_callback(cells.close)
        return [*shell.tools(), *(cells.tools() if line.has_python else [])]

    def _context(self, agent: str, workspace: Path) -> ToolContext:
        settings = self._environment
        # Called agents have their own workspaces.
        is_project = settings.project is not None and workspace == settings.project.path
        return ToolContext(
            agent=agent,
            workspace=workspace,
            readable=settings.readable,
            session=settings.session,
            kept=settings.kept,
            secrets=settings.secrets,
            tell=partial(self._emit_notice, agent),
            mask=settings.mask,
            access=WriteAccess(settings.writable),
            project=settings.project if is_project else None,
        )

    def _emit_notice(self, agent: str, text: str) -> None:
        # In a recipe, the call names the step, not only the agent.
        self._new_output.setdefault(current_call().agent or agent, []).append(text)
        self._wake()

    def take_told(self) -> dict[str, str]:
        """Return the latest output of running tools since the last call of this method.

        Returns:
            The output by agent id or step address.
        """
        tails = {}
        for agent, pieces in tuple(self._new_output.items()):
            if count := len(pieces):  # a thread may add more at the same time
                tails[agent] = last_chars("".join(pieces[:count]), MAX_UPDATE_CHARS)
                del pieces[:count]
        return tails


_remove_leftovers_once = cache(
    remove_leftovers
)  # once per process, because it searches the temporary directory


def _guard(rules: CommandRules, paths: Iterable[Path]) -> CommandGuard | None:
    if rules.is_open:
        return None
    return CommandGuard(rules, find_programs(rules, paths) if rules.blocked else {})
