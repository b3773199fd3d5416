"""Tools of MCP servers.

A run has one `McpServers`; agents with equal specs share a server.

Data from a server is untrusted: names are reduced to the characters that providers accept, text is
truncated, and a server's own tokens are removed from its answers. `nb_agents.tools.gate` decides
whether a tool can be offered.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel
from anyio import CancelScope, create_task_group, to_thread
from pydantic import SecretStr

from nb_agents.config.document import expand, unset_variable
from nb_agents.config.mcp_servers import McpServerSpec
from nb_agents.config.secrets import secrets_of_server
from nb_agents.config.tools import allows_any_tool
from nb_agents.events import ProcessExitChecked
from nb_agents.masking import Mask
from nb_agents.models.tool_rules import MAX_DESCRIPTION_CHARS
from nb_agents.tools.base import Tool, ToolContext, ToolDefinition
from nb_agents.tools.mcp_server import Endpoint, Server
from nb_agents.tools.mcp_wire import MAX_TOOLS
from nb_agents.tools.tool_schemas import short_hash

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

Takes = Callable[..., bool]

_MAX_NAME_CHARS = 64
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


class McpServers:
    """The MCP servers of a run. An async context manager that ends all servers.

    Args:
        tell: Called with each notice, such as that a server did not start.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._emit_notice = tell
        self._reported: set[str] = set()
        self._servers: dict[Endpoint, Server] = {}
        self._tasks: TaskGroup = create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.close()
        try:
            # Each server ends within a few seconds. The group is exited only then, when there is
            # nothing to wait for. Otherwise a stop could be raised here and hide the block's
            # exception.
            with CancelScope(shield=True):
                for server in self._servers.values():
                    await server.wait_ended()
                await anyio.lowlevel.checkpoint()
        finally:
            # The group would wrap the block's exception, so it is not passed on.
            await self._tasks.__aexit__(None, None, None)

    def ends(self) -> Iterator[ProcessExitChecked]:
        """Yield how the servers ended. Call this after the block."""
        yield from filter(None, (server.end() for server in self._servers.values()))

    async def tools(
        self, context: ToolContext, specs: Iterable[McpServerSpec], takes: Takes = allows_any_tool
    ) -> list[Tool]:
        """Return the tools of an agent's servers. Starts servers that are not running.

        Args:
            context: The agent's tool context.
            specs: The agent's servers. Agents with equal specs share a server.
            takes: Called with the names of a tool and its server. Returns whether the agent may
                have it.

        Returns:
            The tools under their full names. A server that did not start has no tools.
        """
        await to_thread.run_sync(_load_library)
        started = [(spec, self._server(spec, context)) for spec in specs if not spec.fault]
        async with create_task_group() as group:
            for _, server in started:
                if server:
                    group.start_soon(server.settle)
        return [
            tool
            for spec, server in started
            if server is not None
            for tool in self._tools_of(spec, server, takes)
        ]

    def _server(self, spec: McpServerSpec, context: ToolContext) -> Server | None:
        try:
            endpoint = _endpoint(spec, context.workspace)
        except ValueError as exc:
            self._note(_not_started(context.agent, spec, exc))
            return None
        # Environment variables may have changed since the run started.
        context.mask.add(secrets_of_server(spec))
        if endpoint not in self._servers:
            self._servers[endpoint] = Server(spec.name, endpoint, self._tasks, context.secrets)
        return self._servers[endpoint]

    def _tools_of(self, spec: McpServerSpec, server: Server, takes: Takes) -> Iterable[Tool]:
        if server.fault:
            self._note(
                f"MCP server {spec.name!r} did not start, so its tools are missing: {server.fault}"
            )
            return
        if len(server.tools) > MAX_TOOLS:
            self._note(
                f"MCP server {spec.name!r} has more than {MAX_TOOLS} tools; the rest are left out."
            )
        for tool_data in server.tools[:MAX_TOOLS]:
            names = (
                tool_name(spec.name, tool_data["name"]),
                plain_name(spec.name, tool_data["name"]),
            )
            if takes(tool_data["name"], *names, server=spec):
                yield _as_tool(*names, tool_data, server, spec.call_timeout_s)

    def _note(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._emit_notice(text)


def missing_variable_notices(
    agent: str, specs: Iterable[McpServerSpec], workspace: Path
) -> Iterator[str]:
    """Yield a notice for each server that needs an environment variable that is not set.

    Args:
        agent: The agent's id.
        workspace: The value of ``${cwd}``.
    """
    for spec in specs:
        try:
            _endpoint(spec, workspace)
        except ValueError as exc:
            yield _not_started(agent, spec, exc)


def _not_started(agent: str, spec: McpServerSpec, why: ValueError) -> str:
    return f"MCP server {spec.name!r} of {agent} can't be started: {why}"


def tool_name(server: str, tool: str) -> str:
    """Return the name of a tool for models, which is unique among all MCP tools.

    It depends only on the two names, so a resumed run creates the same name.

    Args:
        server: The server's name.
        tool: The tool's own name.

    Returns:
        MassGen's name for the tool, with a hash if another tool could have the same name.

    Example:
        >>> tool_name("brave", "search")
        'mcp__brave__search'
        >>> tool_name("brave", "web.search")
        'mcp__brave__web_search_ea6a2727'
    """
    plain = plain_name(server, tool)
    is_unambiguous = "__" not in server and not server.endswith("_")
    if is_unambiguous and not _NOT_IN_NAMES.search(server + tool):
        return plain
    return _with_hash(plain, f"{len(server)} {server} {tool}")


def plain_name(server: str, tool: str) -> str:
    """Return MassGen's name for a tool, reduced to characters and a length that providers accept.

    Several tools may have the same name. The rules of a team file may use it.

    Args:
        server: The server's name.
        tool: The tool's own name.

    Returns:
        The name. If it is too long, it is truncated and ends in a hash.

    Example:
        >>> plain_name("brave", "web.search")
        'mcp__brave__web_search'
    """
    full = f"mcp__{server}__{tool}"
    name = _NOT_IN_NAMES.sub("_", full)
    return name if len(name) <= _MAX_NAME_CHARS else _with_hash(name, full)


def _with_hash(name: str, text: str) -> str:
    return f"{name[: _MAX_NAME_CHARS - 9]}_{short_hash(text)}"


def _as_tool(
    name: str, plain: str, tool_data: dict[str, Any], server: Server, timeout_s: float | None
) -> Tool:
    async def call(arguments: dict[str, Any]) -> str:
        return await server.call(tool_data["name"], arguments, timeout_s)

    description = (
        tool_data.get("description") or tool_data.get("title") or tool_data["name"]
    ).strip()
    if len(description) > MAX_DESCRIPTION_CHARS:
        description = f"{description[: MAX_DESCRIPTION_CHARS - 1]}…"
    definition = ToolDefinition(
        name=name,
        description=description,
        parameters_json_schema=tool_data["inputSchema"],
        other_name="" if plain == name else plain,
        is_foreign=True,
    )
    return Tool.from_definition(definition, call, is_repeatable=_is_repeatable(tool_data))


def _is_repeatable(tool_data: Mapping[str, Any]) -> bool:
    """Return whether the server marks the tool as read-only or idempotent."""
    hints = tool_data.get("annotations") or {}
    return bool(hints.get("readOnlyHint") or hints.get("idempotentHint"))


def _endpoint(spec: McpServerSpec, workspace: Path) -> Endpoint:
    """Expand the variables of a server's spec. Raises ValueError if one is not set."""

    def full(text: str) -> str:
        text = expand(text.replace("${cwd}", str(workspace)))
        if name := unset_variable(text):
            raise ValueError(f"{name} is not set. Set it in the environment before starting.")
        return text

    env = {name: full(_revealed(value)) for name, value in spec.env.items()}
    headers = {name: full(_revealed(value)) for name, value in spec.headers.items()}
    if spec.authorization:
        token = full(_revealed(spec.authorization))
        headers["Authorization"] = token if " " in token else f"Bearer {token}"
    return Endpoint(
        argv=tuple(map(full, (*spec.command, *spec.args))),
        cwd=Path(full(spec.cwd)).expanduser(),
        env=tuple(env.items()),
        url=full(spec.url),
        headers=tuple(headers.items()),
        mask=Mask(secrets_of_server(spec, named=True)),
    )


def _revealed(value: SecretStr) -> str:
    return value.get_secret_value()


def _load_library() -> None:
    """Import `mcp`, which takes half a second. Call this in a worker thread."""
    import nb_agents.tools.mcp_sdk  # noqa: F401

    # Without a handler, Python would print warnings into the running cell.
    logging.getLogger("mcp").addHandler(logging.NullHandler())
