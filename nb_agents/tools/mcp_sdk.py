"""The `mcp` package, in either of its major versions.

Jupyter AI and others want ``mcp<2``, and one environment has one `mcp`. What it returns is read as
the protocol's own JSON, which is the same in both. `IS_V1` decides the rest: 1.x has no `Client`,
its HTTP transport takes an httpx client, and it leaves it to us to tell a server that a call was
cancelled. Imported late: the package takes half a second.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from typing import Any, cast

import anyio
import mcp
import mcp.types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared import exceptions
from mcp.shared.message import SessionMessage

from nb_agents.config.programs import TEAM

_types: Any = mcp.types  # other classes in each version

IS_V1 = version("mcp").startswith("1.")

McpError: type[Exception] = exceptions.McpError if IS_V1 else exceptions.MCPError  # type: ignore[attr-defined]
"""An error that the server answered; its ``error`` has a code and a message."""

CONNECTION_CLOSED = -32000
"""The code of an error that the client makes itself when the wire is cut."""

_GOODBYE_S = 1.0
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError)


@asynccontextmanager
async def connect(transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[McpConnection]:
    """Connect to a server.

    Args:
        transport: Yields the streams to read from and to write to.
    """
    if not IS_V1:
        # Without the cache each listing asks the server.
        async with mcp.Client(transport, cache=None) as client:
            yield McpConnection(client, client.server_info)
        return
    async with transport as (read, write, *_), mcp.ClientSession(read, write) as session:
        told: Any = await session.initialize()
        v1 = _ClientV1(session, told.serverInfo)
        try:
            yield v1
        finally:
            v1.end()


class McpConnection:
    """A connected client; what it returns is the protocol's JSON.

    Args:
        session: The library's client.
        about: What it knows of the server.

    Attributes:
        server: What the server calls itself.
    """

    def __init__(self, session: Any, about: Any) -> None:
        self._session = session
        self.server: str = about.name if about else ""

    async def list_tools(self, cursor: str | None = None) -> dict[str, Any]:
        """Return a page of tools, each with ``name`` and ``inputSchema``, and ``nextCursor``."""
        return _dumped(await self._session.list_tools(cursor=cursor))

    async def call_tool(
        self, name: str, arguments: dict[str, Any], key: str = ""
    ) -> dict[str, Any]:
        """Call a tool; a cancelled call is reported to the server.

        Args:
            name: The tool's name.
            arguments: What it is given.
            key: By which a team of ours knows the call.
        """
        return _dumped(await self._session.call_tool(name, arguments, **_meta(key)))


class _ClientV1(McpConnection):
    """A session of 1.x that reports cancelled calls to the server, and its end to open calls."""

    def __init__(self, session: Any, about: Any) -> None:
        super().__init__(session, about)
        self._open: set[anyio.CancelScope] = set()
        self._is_over = False

    def end(self) -> None:
        """End the calls that are open, and refuse others."""
        self._is_over = True
        for scope in tuple(self._open):
            scope.cancel()

    async def list_tools(self, cursor: str | None = None) -> dict[str, Any]:
        params = _types.PaginatedRequestParams(cursor=cursor)
        return _dumped(await self._send(self._session.list_tools, params=params))

    async def call_tool(
        self, name: str, arguments: dict[str, Any], key: str = ""
    ) -> dict[str, Any]:
        # The id that the call will get: `send_request` counts before it first awaits.
        number = self._session._request_id
        try:
            return _dumped(await self._send(self._session.call_tool, name, arguments, **_meta(key)))
        except anyio.get_cancelled_exc_class():
            # A server that is gone needs no report.
            with anyio.move_on_after(_GOODBYE_S, shield=True), suppress(*_GONE):
                await self._session.send_notification(_cancelled(number))
            raise

    async def _send(self, send: Callable[..., Awaitable[Any]], *args: Any, **named: Any) -> Any:
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                if not self._is_over:
                    return await send(*args, **named)
            except _GONE:
                pass
            finally:
                self._open.discard(scope)
        raise McpError(_types.ErrorData(code=CONNECTION_CLOSED, message="Connection closed"))


def _meta(key: str) -> dict[str, Any]:
    return {"meta": {TEAM: key}} if key else {}


def key_of(context: Any) -> str:
    """Return the key that a client gave a call; "" if it gave none.

    Args:
        context: The call's context, of the library.
    """
    meta = context.request_context.meta
    given = (meta.model_extra if IS_V1 and meta else meta) or {}
    return str(given.get(TEAM, ""))


def _cancelled(number: int) -> Any:
    params = _types.CancelledNotificationParams(requestId=number, reason="cancelled")
    return _types.ClientNotification(
        _types.CancelledNotification(method="notifications/cancelled", params=params)
    )


def _dumped(result: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", result.model_dump(mode="json", by_alias=True, exclude_none=True))


@asynccontextmanager
async def http_transport(
    url: str, headers: dict[str, str], timeout_s: float
) -> AsyncIterator[tuple[Any, Any]]:
    """Connect to a server by streamable HTTP.

    Args:
        url: The server's address.
        headers: Headers of each request.
        timeout_s: Limit of each step but reading, as a call may be silent for as long as it lasts.
    """
    if IS_V1:
        import httpx as http
    else:
        import httpx2 as http  # type: ignore[no-redef]
    from nb_agents.models.network import refuse_network

    refuse_network()
    timeout = http.Timeout(timeout_s, read=None)
    async with (
        http.AsyncClient(headers=headers, timeout=timeout) as client,
        streamable_http_client(url, http_client=client) as (read, write, *_),  # type: ignore[arg-type]
    ):
        yield read, write


def session_manager(
    name: str,
    list_tools: Callable[[], list[dict[str, Any]]],
    call_tool: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]],
) -> Any:
    """Return a server of tools over streamable HTTP, which takes requests within its ``run``.

    Args:
        name: The server's name.
        list_tools: Returns the current tools, in the protocol's JSON.
        call_tool: Returns the result of a call, in the protocol's JSON.
    """
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    def listed() -> Any:
        return _types.ListToolsResult.model_validate({"tools": list_tools()})

    async def result(params: Any) -> Any:
        made = await call_tool(params.name, dict(params.arguments or {}))
        return _types.CallToolResult.model_validate(made)

    if IS_V1:
        server: Any = Server(name)

        async def on_list(_: Any) -> Any:
            return _types.ServerResult(listed())

        async def on_call(request: Any) -> Any:
            return _types.ServerResult(await result(request.params))

        server.request_handlers[_types.ListToolsRequest] = on_list
        server.request_handlers[_types.CallToolRequest] = on_call
    else:

        async def on_list_tools(context: Any, params: Any) -> Any:
            return listed()

        async def on_call_tool(context: Any, params: Any) -> Any:
            return await result(params)

        server = Server(name, on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    return StreamableHTTPSessionManager(server, json_response=True, stateless=True)


def tool_server(name: str) -> tuple[Any, Any]:
    """Return a server to which functions are added as tools, and the type of a call's context.

    Args:
        name: The server's name, and the package's whose version it tells its clients.
    """
    if IS_V1:
        old: Any = import_module("mcp.server.fastmcp")
        server = old.FastMCP(name, log_level="WARNING")
        server._mcp_server.version = version(name)
        return server, old.Context
    from mcp.server.mcpserver import Context as NewContext
    from mcp.server.mcpserver import MCPServer

    return MCPServer(name, version=version(name), log_level="WARNING"), NewContext


def read_message(line: bytes) -> SessionMessage:
    """Return the message in a line of JSON.

    Raises:
        ValueError: The line is not a message.
    """
    if IS_V1:
        return SessionMessage(_types.JSONRPCMessage.model_validate_json(line))
    from mcp_types import jsonrpc_message_adapter

    return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))


def message_json(sent: SessionMessage) -> bytes:
    """Return a message as a line of JSON, without its line break."""
    return sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
