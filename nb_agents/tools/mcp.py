"""Tools of MCP servers.

A run has one `McpServers`. Each server has one owner task, which connects, waits and disconnects;
agents only ever await a call, and a stop cancels only the call: a client of the `mcp` package that
is cancelled twice while it closes hangs for ever. A server that ended, or that says nothing more
after a stopped call, is replaced at the next call. No call is sent twice: it may have happened.

What a server says is untrusted: names get the alphabet of the providers, texts are cut, and a
server's own tokens are taken out of what it answers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel
from anyio import CancelScope, Event, create_task_group, move_on_after, to_thread
from pydantic import SecretStr

from nb_agents.config.document import expand, unset_variable
from nb_agents.config.tools import McpServerSpec
from nb_agents.tools.base import Tool, ToolError
from nb_agents.tools.context import ToolContext
from nb_agents.tools.mcp_stdio import LastWords, stdio_streams
from nb_agents.tools.process import clean_env, is_secret_name

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from mcp import Client
    from mcp.shared.exceptions import MCPError
    from mcp_types import CallToolResult, ContentBlock
    from mcp_types import Tool as ServerTool

__all__ = [
    "CALL_TIMEOUT_S",
    "CLOSE_TIMEOUT_S",
    "MAX_DESCRIPTION_CHARS",
    "MAX_SCHEMA_CHARS",
    "MAX_TOOLS",
    "McpServers",
    "PROBE_TIMEOUT_S",
    "START_TIMEOUT_S",
    "tool_name",
]

logger = logging.getLogger("nb_agents")

START_TIMEOUT_S = 30.0
"""What a server gets to start and list its tools; `npx` may first download it."""

CALL_TIMEOUT_S = 600.0
"""What one call may take."""

PROBE_TIMEOUT_S = 5.0
"""What a server gets to show that it is alive after a call that was stopped."""

CLOSE_TIMEOUT_S = 3.0
"""What saying goodbye to an HTTP server may take."""

MAX_TOOLS = 128
"""Tools that are taken of one server; OpenAI takes no more in all."""

MAX_DESCRIPTION_CHARS = 1024
"""OpenAI's limit."""

MAX_SCHEMA_CHARS = 20_000
"""A tool whose arguments take more to describe is left out."""

_MAX_NAME_CHARS = 64
_MAX_PAGES = 50
_MIN_SECRET_CHARS = 6
"""Shorter values ("true", "8000") are no secrets."""
_MAX_WHY_CHARS = 500
_HTTP_TIMEOUT_S = 30.0
_REFERENCE = re.compile(r"\$\{(\w+)\}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


class McpServers:
    """The MCP servers of a run: all of them end with the block.

    Args:
        tell: Is given each notice: a server that did not start, a tool that is left out.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: set[str] = set()
        self._servers: dict[_Endpoint, _Server] = {}
        self._tasks: TaskGroup = create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
            # The group is not told what the block raised: it would wrap it.
            await self._tasks.__aexit__(None, None, None)

    async def tools(
        self, context: ToolContext, specs: Iterable[McpServerSpec], exclude: Sequence[str] = ()
    ) -> list[Tool]:
        """Give an agent its servers' tools; servers that are not running are started, all at once.

        Args:
            context: The agent's.
            specs: Its servers. Equal ones, of any agents, are one.
            exclude: Names of tools that it does not get, their own or their full ones.

        Returns:
            The tools, by their full names. A server that does not start has none.
        """
        await to_thread.run_sync(_load_library)
        started = [(spec, self._server(spec, context)) for spec in specs]
        async with create_task_group() as group:
            for _, server in started:
                if server:
                    group.start_soon(server.settle)
        found: dict[str, Tool] = {}
        for spec, server in started:
            for tool in self._tools_of(spec, server, exclude) if server else ():
                if tool.name in found:
                    self._note(f"Two tools are named {tool.name!r}; the second is left out.")
                found.setdefault(tool.name, tool)
        return list(found.values())

    def _server(self, spec: McpServerSpec, context: ToolContext) -> _Server | None:
        try:
            endpoint = _endpoint(spec, context)
        except ValueError as exc:
            self._note(f"MCP server {spec.name!r} can't be started: {exc}")
            return None
        if endpoint not in self._servers:
            self._servers[endpoint] = _Server(endpoint, self._tasks, context.secrets)
        return self._servers[endpoint]

    def _tools_of(
        self, spec: McpServerSpec, server: _Server, exclude: Sequence[str]
    ) -> Iterable[Tool]:
        if server.fault:
            self._note(
                f"MCP server {spec.name!r} did not start, so its tools are missing: {server.fault}"
            )
            return
        if len(server.tools) > MAX_TOOLS:
            self._note(f"MCP server {spec.name!r}: its first {MAX_TOOLS} tools are taken, no more.")
        for listed in server.tools[:MAX_TOOLS]:
            name = tool_name(spec.name, listed.name)
            if not spec.takes(listed.name, name) or {listed.name, name} & set(exclude):
                continue
            if len(json.dumps(listed.input_schema)) > MAX_SCHEMA_CHARS:
                self._note(f"Tool {name!r} is left out: its schema is too long.")
            else:
                yield _as_tool(name, listed, server)

    def _note(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)


def tool_name(server: str, tool: str) -> str:
    """Name a server's tool as MassGen does, in the alphabet and length that providers take.

    Args:
        server: The server's name.
        tool: The tool's own name.

    Returns:
        The name; of one that is too long the end is a hash of it.

    Example:
        >>> tool_name("brave", "web.search")
        'mcp__brave__web_search'
    """
    full = f"mcp__{server}__{tool}"
    name = _NOT_IN_NAMES.sub("_", full)
    if len(name) <= _MAX_NAME_CHARS:
        return name
    return f"{name[: _MAX_NAME_CHARS - 9]}_{hashlib.sha256(full.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class _Endpoint:
    """What a server is, with every variable expanded: equal ones are one server."""

    argv: tuple[str, ...] = field(repr=False)
    cwd: Path
    env: tuple[tuple[str, str], ...] = field(repr=False)
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    def without_secrets(self, text: str) -> str:
        """Take its own tokens out of what it said."""
        for secret in self.secrets:
            text = text.replace(secret, "[key]")
        return text


def _endpoint(spec: McpServerSpec, context: ToolContext) -> _Endpoint:
    """Expand a server's spec.

    Raises:
        ValueError: A variable is not set.
    """

    def full(text: str) -> str:
        text = expand(text.replace("${cwd}", str(context.workspace)))
        if name := unset_variable(text):
            raise ValueError(f"{name} is not set. Set it in the environment before starting.")
        return text

    env = {name: full(_revealed(value)) for name, value in spec.env.items()}
    headers = {name: full(_revealed(value)) for name, value in spec.headers.items()}
    if spec.authorization:
        given = full(_revealed(spec.authorization))
        headers["Authorization"] = given if " " in given else f"Bearer {given}"
    written = (*spec.command, *spec.args, spec.url, *map(_revealed, spec.env.values()))
    return _Endpoint(
        argv=tuple(map(full, (*spec.command, *spec.args))),
        cwd=Path(full(spec.cwd)).expanduser() if spec.cwd else Path.cwd(),
        env=tuple(env.items()),
        url=full(spec.url),
        headers=tuple(headers.items()),
        secrets=_secrets(written, env, headers),
    )


def _revealed(value: SecretStr) -> str:
    return value.get_secret_value()


def _secrets(
    written: Iterable[str], env: Mapping[str, str], headers: Mapping[str, str]
) -> tuple[str, ...]:
    """Collect what a server was told in confidence, the longest first: one may hold another."""
    names = {name for text in written for name in _REFERENCE.findall(text)}
    found = {os.environ.get(name, "") for name in names if is_secret_name(name)}
    found |= {value for name, value in env.items() if is_secret_name(name)}
    found |= {value.removeprefix("Bearer ") for value in headers.values()}
    kept = (secret for secret in found if len(secret) >= _MIN_SECRET_CHARS)
    return tuple(sorted(kept, key=lambda secret: (-len(secret), secret)))


class _Server:
    """A server, through all its lives: it is started again when it is called and has ended.

    Args:
        endpoint: What it is.
        tasks: Where its owner task runs.
        secrets: Values that it must not inherit.
    """

    def __init__(self, endpoint: _Endpoint, tasks: TaskGroup, secrets: Sequence[str]) -> None:
        self._endpoint = endpoint
        self._tasks = tasks
        self._secrets = secrets
        self._life: _Life | None = None
        self._lives: list[_Life] = []
        self._is_closed = False

    @property
    def fault(self) -> str:
        """Why it did not start, or ""."""
        return self._endpoint.without_secrets(self._life.fault) if self._life else ""

    @property
    def tools(self) -> Sequence[ServerTool]:
        """Its tools."""
        return self._life.tools if self._life else ()

    def close(self) -> None:
        """Ask it to end, for good."""
        self._is_closed = True
        if self._life:
            self._life.close()

    async def wait_ended(self) -> None:
        """Wait until nothing of it is left."""
        for life in self._lives:
            await life.ended.wait()

    async def settle(self) -> _Life:
        """Wait until it runs, or could not be started; start it when it has ended."""
        if self._is_closed:
            raise ToolError("the run is over")
        if self._life is None or self._life.is_over:
            before, self._life = self._life, _Life(self._endpoint, self._secrets)
            self._lives.append(self._life)
            self._tasks.start_soon(self._life.run, before)
        life = self._life
        await life.settled.wait()
        return life

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Call a tool of it.

        Raises:
            ToolError: It failed, or the server did.
        """
        life = await self.settle()
        if life.is_doubted and not await life.is_alive():
            life.close()
            life = await self.settle()
        if life.fault:
            raise ToolError(f"the server can't be started: {self.fault}")
        try:
            return self._endpoint.without_secrets(await life.call(tool, arguments))
        except ToolError as exc:
            raise ToolError(self._endpoint.without_secrets(str(exc))) from None


class _Life:
    """One life of a server, from its start to its end.

    Args:
        endpoint: The server.
        secrets: Values that it must not inherit.

    Attributes:
        settled: Set when it runs, or could not be started.
        ended: Set when nothing of it is left.
        is_over: Whether it ends or has ended.
        is_doubted: Whether a call was given up, so that it may hang.
        fault: Why it could not be started, or "".
        tools: What it offers.
    """

    def __init__(self, endpoint: _Endpoint, secrets: Sequence[str]) -> None:
        self._endpoint = endpoint
        self._secrets = secrets
        self._scope = CancelScope(shield=True)
        self._closing = Event()
        self.ended = Event()
        self._words = LastWords()
        self._client: Client | None = None
        self._calls = 0
        self.settled = Event()
        self.is_over = False
        self.is_doubted = False
        self.fault = ""
        self.tools: Sequence[ServerTool] = ()

    def close(self) -> None:
        """Ask it to end: in good order when it runs, at once when it is only starting."""
        self._end()
        if not self.settled.is_set():
            self._scope.cancel()

    def _end(self) -> None:
        self.is_over = True
        self._closing.set()

    async def run(self, before: _Life | None) -> None:
        """Own the server: start it, wait until it is time to end, end it.

        Args:
            before: Its last life, which must be over first.
        """
        try:
            with self._scope:
                if before is not None:
                    await before.ended.wait()
                self._scope.deadline = anyio.current_time() + START_TIMEOUT_S
                await self._live()
            if not self.settled.is_set() and not self._closing.is_set():
                self._explain(f"it said nothing within {START_TIMEOUT_S:.0f} s")
        # What a transport raises is its own affair: an OSError, an HTTP library's, or a group.
        except Exception as exc:
            logger.debug("MCP server failed: %r", self._endpoint, exc_info=True)
            if not self.settled.is_set():
                self._explain(_reason(exc))
        finally:
            self._end()
            if not self.settled.is_set():
                self.fault = self.fault or "it was stopped"
            self.settled.set()
            self.ended.set()

    async def _live(self) -> None:
        async with _client(self._transport()) as client:
            self.tools = await _listed(client)
            self._client = client
            self._scope.deadline = inf
            self.settled.set()
            await self._closing.wait()
            self._scope.deadline = anyio.current_time() + CLOSE_TIMEOUT_S

    def _transport(self) -> AbstractAsyncContextManager[Any]:
        point = self._endpoint
        if point.url:
            return _http_streams(point.url, dict(point.headers))
        return stdio_streams(
            point.argv,
            cwd=point.cwd,
            env=clean_env(dict(point.env), self._secrets),
            words=self._words,
            on_end=self._end,
        )

    def _explain(self, what: str) -> None:
        words = str(self._words)
        self.fault = f"{what}. It wrote: {words}" if words else what

    async def is_alive(self) -> bool:
        """Whether it answers at all; a server that another call keeps busy is not asked."""
        if self._calls or self._client is None:
            return True
        from mcp.shared.exceptions import MCPError

        with move_on_after(PROBE_TIMEOUT_S):
            try:
                await self._client.list_tools()
            except MCPError as exc:  # an answer too
                return not _is_lost(exc)
            else:
                self.is_doubted = False
                return True
        return False

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Call a tool.

        Raises:
            ToolError: It failed, or the server did.
        """
        from mcp.shared.exceptions import MCPError

        assert self._client is not None
        self._calls += 1
        try:
            result = await self._client.call_tool(
                tool, arguments, read_timeout_seconds=CALL_TIMEOUT_S
            )
        except anyio.get_cancelled_exc_class():
            self.is_doubted = True
            raise
        except MCPError as exc:
            raise ToolError(self._why(exc)) from None
        except (RuntimeError, ValueError) as exc:  # it is not of the protocol, or of its own schema
            raise ToolError(f"the server's answer can't be used: {exc}"[:_MAX_WHY_CHARS]) from None
        finally:
            self._calls -= 1
        return _text(result)

    def _why(self, exc: MCPError) -> str:
        if _is_late(exc):
            self.is_doubted = True
            return f"it did not answer within {CALL_TIMEOUT_S:.0f} s and was told to give up"
        if self.is_over or _is_lost(exc):
            self.close()
            return (
                "its server ended during the call, which may have taken effect or not. The next "
                "call starts it again"
            )
        return exc.error.message


def _load_library() -> None:
    """Import `mcp`: half a second, hence in a thread and not with the package."""
    import jsonschema  # type: ignore[import-untyped]  # noqa: F401 - mcp does, at its first call
    import mcp  # noqa: F401

    # Without any handler Python prints warnings into whatever cell happens to run.
    logging.getLogger("mcp").addHandler(logging.NullHandler())


def _client(transport: AbstractAsyncContextManager[Any]) -> Client:
    from mcp import Client

    # Without the cache each listing asks the server.
    return Client(transport, cache=None)


@asynccontextmanager
async def _http_streams(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    # A call may be silent for as long as it lasts; `CALL_TIMEOUT_S` ends it.
    timeout = httpx2.Timeout(_HTTP_TIMEOUT_S, read=None)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


async def _listed(client: Client) -> Sequence[ServerTool]:
    found: list[ServerTool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor or len(found) > MAX_TOOLS:
            break
    return found


def _as_tool(name: str, listed: ServerTool, server: _Server) -> Tool:
    from pydantic_ai.tools import ToolDefinition

    async def call(arguments: dict[str, Any]) -> str:
        return await server.call(listed.name, arguments)

    description = (listed.description or listed.title or listed.name).strip()
    if len(description) > MAX_DESCRIPTION_CHARS:
        description = f"{description[: MAX_DESCRIPTION_CHARS - 1]}…"
    definition = ToolDefinition(
        name=name,
        description=description,
        parameters_json_schema={"properties": {}, **listed.input_schema, "type": "object"},
    )
    return Tool.from_definition(definition, call)


def _text(result: CallToolResult) -> str:
    """Say a result in words.

    Raises:
        ToolError: It is an error.
    """
    text = "\n".join(map(_part, result.content))
    if not text and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    if result.is_error:
        raise ToolError(text or "the tool failed and did not say why")
    return text or "(nothing)"


def _part(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}, {block.mime_type}, {len(block.data) * 3 // 4} bytes: not shown]"
        case "resource_link":
            return f"[resource {block.name}: {block.uri}]"
        case "resource":
            held = block.resource
            text = getattr(held, "text", None)
            return f"[resource {held.uri}]" + (": not shown" if text is None else f"\n{text}")


def _is_lost(exc: MCPError) -> bool:
    """Whether the server is gone: the wire is cut, or it has forgotten the session."""
    from mcp_types import CONNECTION_CLOSED

    return exc.error.code == CONNECTION_CLOSED or exc.error.message == "Session terminated"


def _is_late(exc: MCPError) -> bool:
    from mcp_types import REQUEST_TIMEOUT

    return exc.error.code == REQUEST_TIMEOUT


def _reason(exc: BaseException) -> str:
    """Name the first cause in a group: task groups wrap what a transport raises."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return str(exc) or type(exc).__name__
