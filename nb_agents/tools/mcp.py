"""Tools of MCP servers.

A run has one `McpServers`; agents with equal specs share a server.

What a server sends is untrusted: names are reduced to the characters that providers accept, texts
are cut, and a server's own tokens are removed from its answers.
"""

from __future__ import annotations

import hashlib
import json
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
from nb_agents.config.tools import takes_all
from nb_agents.events import EndChecked
from nb_agents.masking import Mask
from nb_agents.tools.base import Tool, ToolContext, ToolDefinition
from nb_agents.tools.mcp_server import MAX_TOOLS, Endpoint, Server

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

Takes = Callable[..., bool]

MAX_DESCRIPTION_CHARS = 1024
"""OpenAI's limit."""

MAX_SCHEMA_CHARS = 20_000
"""Limit of a tool's schema, characters; a tool with a longer one is left out."""

_MAX_NAME_CHARS = 64
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


class McpServers:
    """The MCP servers of a run, an async context manager; all servers end with the block.

    Args:
        tell: Called with each notice: a server that did not start, a tool that is left out.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: set[str] = set()
        self._servers: dict[Endpoint, Server] = {}
        self._tasks: TaskGroup = create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.close()
        try:
            # Each ends within a few seconds. Only then is the group left, with nothing to wait for:
            # else a stop would come up here and hide what the block raised.
            with CancelScope(shield=True):
                for server in self._servers.values():
                    await server.wait_ended()
                await anyio.lowlevel.checkpoint()
        finally:
            # The block's exception is kept from the group, which would wrap it.
            await self._tasks.__aexit__(None, None, None)

    def ends(self) -> Iterator[EndChecked]:
        """Yield what is known of the ends of its servers, once the block was left."""
        yield from filter(None, (server.end() for server in self._servers.values()))

    async def tools(
        self, context: ToolContext, specs: Iterable[McpServerSpec], takes: Takes = takes_all
    ) -> list[Tool]:
        """Return the tools of an agent's servers, starting those that are not running concurrently.

        Args:
            context: The agent's tool context.
            specs: Its servers; agents with equal specs share a server.
            takes: Returns whether it gets a tool of a server, by its names.

        Returns:
            The tools, by their full names. A server that does not start has none.
        """
        await to_thread.run_sync(_load_library)
        started = [(spec, self._server(spec, context)) for spec in specs if not spec.fault]
        async with create_task_group() as group:
            for _, server in started:
                if server:
                    group.start_soon(server.settle)
        found: dict[str, Tool] = {}
        for spec, server in started:
            for tool in self._tools_of(spec, server, takes) if server else ():
                if tool.name in found:
                    self._note(f"Two tools are named {tool.name!r}; the second is left out.")
                found.setdefault(tool.name, tool)
        return list(found.values())

    def _server(self, spec: McpServerSpec, context: ToolContext) -> Server | None:
        try:
            endpoint = _endpoint(spec, context.workspace)
        except ValueError as exc:
            self._note(_not_started(context.agent, spec, exc))
            return None
        # Variables may have changed since the run began.
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
            self._note(f"MCP server {spec.name!r}: its first {MAX_TOOLS} tools are taken, no more.")
        for listed in server.tools[:MAX_TOOLS]:
            name = tool_name(spec.name, listed["name"])
            if not takes(listed["name"], name, server=spec):
                continue
            if len(json.dumps(listed["inputSchema"])) > MAX_SCHEMA_CHARS:
                self._note(f"Tool {name!r} is left out: its schema is too long.")
            else:
                yield _as_tool(name, listed, server, spec.call_timeout_s)

    def _note(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)


def without_variables(agent: str, specs: Iterable[McpServerSpec], workspace: Path) -> Iterator[str]:
    """Yield a notice for each server that needs a variable that is not set; starts none.

    Args:
        agent: The agent's id.
        specs: The servers.
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
    """Return a tool's name as MassGen builds it, in the alphabet and length that providers accept.

    Args:
        server: The server's name.
        tool: The tool's own name.

    Returns:
        The name; a name that is too long is cut and ends in its hash.

    Example:
        >>> tool_name("brave", "web.search")
        'mcp__brave__web_search'
    """
    full = f"mcp__{server}__{tool}"
    name = _NOT_IN_NAMES.sub("_", full)
    if len(name) <= _MAX_NAME_CHARS:
        return name
    return f"{name[: _MAX_NAME_CHARS - 9]}_{hashlib.sha256(full.encode()).hexdigest()[:8]}"


def _as_tool(name: str, listed: dict[str, Any], server: Server, timeout_s: float | None) -> Tool:
    async def call(arguments: dict[str, Any]) -> str:
        return await server.call(listed["name"], arguments, timeout_s)

    description = (listed.get("description") or listed.get("title") or listed["name"]).strip()
    if len(description) > MAX_DESCRIPTION_CHARS:
        description = f"{description[: MAX_DESCRIPTION_CHARS - 1]}…"
    definition = ToolDefinition(
        name=name,
        description=description,
        parameters_json_schema={"properties": {}, **listed["inputSchema"], "type": "object"},
    )
    return Tool.from_definition(definition, call, is_repeatable=_is_repeatable(listed))


def _is_repeatable(listed: Mapping[str, Any]) -> bool:
    """Return whether the server says that a second call has no effect beyond the first's."""
    hints = listed.get("annotations") or {}
    return bool(hints.get("readOnlyHint") or hints.get("idempotentHint"))


def _endpoint(spec: McpServerSpec, workspace: Path) -> Endpoint:
    """Expand a server's spec.

    Raises:
        ValueError: A variable is not set.
    """

    def full(text: str) -> str:
        text = expand(text.replace("${cwd}", str(workspace)))
        if name := unset_variable(text):
            raise ValueError(f"{name} is not set. Set it in the environment before starting.")
        return text

    env = {name: full(_revealed(value)) for name, value in spec.env.items()}
    headers = {name: full(_revealed(value)) for name, value in spec.headers.items()}
    if spec.authorization:
        given = full(_revealed(spec.authorization))
        headers["Authorization"] = given if " " in given else f"Bearer {given}"
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
    """Import `mcp`: half a second, hence in a thread and not with the package."""
    import jsonschema  # type: ignore[import-untyped]  # noqa: F401 - mcp does, at its first call

    import nb_agents.tools.mcp_sdk  # noqa: F401

    # Without any handler Python prints warnings into whatever cell happens to run.
    logging.getLogger("mcp").addHandler(logging.NullHandler())
