"""Adapter for the `mcp` package, versions 1 and 2.

Jupyter AI and other packages require ``mcp<2``, and an environment can contain only one version.
Results are read as the protocol's JSON, which is the same in both versions. Other differences
depend on `IS_V1`: version 1 has no `Client`, its HTTP transport takes an httpx client, and it does
not notify a server of a cancelled call. This module is imported late, because the package takes
half a second.
"""

from __future__ import annotations

import json
import re
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

from nb_agents.config.mcp_servers import TEAM
from nb_agents.models.network import check_network
from nb_agents.unicode import well_formed

_types: Any = mcp.types  # its classes differ between the versions

IS_V1 = version("mcp").startswith("1.")

McpError: type[Exception] = exceptions.McpError if IS_V1 else exceptions.MCPError  # type: ignore[attr-defined]
"""An error response from a server. Its ``error`` has a code and a message."""

CONNECTION_CLOSED = -32000
"""Error code that the client itself creates when the connection is lost."""

_METHOD_NOT_FOUND = -32601
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_GOODBYE_S = 1.0
_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError)


@asynccontextmanager
async def connect(transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[McpConnection]:
    """Connect to a server and yield the client.

    Args:
        transport: Yields the streams to read from and to write to.
    """
    if not IS_V1:
        # Without a cache, each listing is requested from the server.
        async with mcp.Client(transport, cache=None) as client:
            yield McpConnection(client, client.server_info)
        return
    async with transport as (read, write, *_), mcp.ClientSession(read, write) as session:
        initialized: Any = await session.initialize()
        v1 = _ClientV1(session, initialized.serverInfo)
        try:
            yield v1
        finally:
            v1.end()


class McpConnection:
    """A connected client, which returns the protocol's JSON.

    Args:
        session: The library's client.
        about: The library's information about the server, or None.

    Attributes:
        server: The name that the server reported.
    """

    def __init__(self, session: Any, about: Any) -> None:
        self._session = session
        self.server: str = about.name if about else ""

    async def list_tools(self, cursor: str | None = None) -> dict[str, Any]:
        """Return a page of tools (``name``, ``inputSchema``) and its ``nextCursor``."""
        return _dumped(await self._session.list_tools(cursor=cursor))

    async def call_tool(
        self, name: str, arguments: dict[str, Any], key: str = ""
    ) -> dict[str, Any]:
        """Call a tool. If the call is cancelled, the server is notified.

        Args:
            name: The tool's name.
            key: Identifies the call if the server is an nb_agents team; "" sends no key.
        """
        return _dumped(await self._session.call_tool(name, arguments, **_meta(key)))


class _ClientV1(McpConnection):
    """A client of version 1 that notifies the server of cancelled calls and can end open calls."""

    def __init__(self, session: Any, about: Any) -> None:
        super().__init__(session, about)
        self._open: set[anyio.CancelScope] = set()
        self._is_over = False

    def end(self) -> None:
        """End open calls and refuse new ones."""
        self._is_over = True
        for scope in tuple(self._open):
            scope.cancel()

    async def list_tools(self, cursor: str | None = None) -> dict[str, Any]:
        params = _types.PaginatedRequestParams(cursor=cursor)
        return _dumped(await self._send(self._session.list_tools, params=params))

    async def call_tool(
        self, name: str, arguments: dict[str, Any], key: str = ""
    ) -> dict[str, Any]:
        # The call will get this id, because `send_request` increments the counter before it first
        # awaits.
        number = self._session._request_id
        try:
            return _dumped(await self._send(self._session.call_tool, name, arguments, **_meta(key)))
        except anyio.get_cancelled_exc_class():
            # If the server has ended, no notification is needed.
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


def call_key(context: Any) -> str:
    """Return the key that the client sent with a call, or "".

    Args:
        context: The library's context of the call.
    """
    meta = context.request_context.meta
    fields = (meta.model_extra if IS_V1 and meta else meta) or {}
    return str(fields.get(TEAM, ""))


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
    """Connect to a server by streamable HTTP and yield the streams.

    Args:
        url: The server's address.
        headers: Headers of each request.
        timeout_s: Time limit for connecting and sending, in seconds. Reading has no limit, because
            a server may send nothing until a call is done.
    """
    if IS_V1:
        import httpx as http
    else:
        import httpx2 as http  # type: ignore[no-redef]

    check_network()
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
    """Return an MCP server for streamable HTTP, which handles requests while its ``run`` is open.

    Args:
        name: The server's name.
        list_tools: Returns the current tools as MCP's JSON.
        call_tool: Returns the result of a call as MCP's JSON.
    """
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    def connections() -> Any:
        return _types.ListToolsResult.model_validate({"tools": list_tools()})

    async def result(params: Any) -> Any:
        returned = await call_tool(params.name, dict(params.arguments or {}))
        return _types.CallToolResult.model_validate(returned)

    if IS_V1:
        server: Any = Server(name)

        async def on_list(_: Any) -> Any:
            return _types.ServerResult(connections())

        async def on_call(request: Any) -> Any:
            return _types.ServerResult(await result(request.params))

        server.request_handlers[_types.ListToolsRequest] = on_list
        server.request_handlers[_types.CallToolRequest] = on_call
    else:

        async def on_list_tools(context: Any, params: Any) -> Any:
            return connections()

        async def on_call_tool(context: Any, params: Any) -> Any:
            return await result(params)

        server = Server(name, on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    return StreamableHTTPSessionManager(server, json_response=True, stateless=True)


def tool_server(name: str) -> tuple[Any, Any]:
    """Return an MCP server to which functions can be added, and the type of call contexts.

    Args:
        name: The server's name. Clients are sent the version of the installed package of this name.
    """
    if IS_V1:
        old: Any = import_module("mcp.server.fastmcp")
        server = old.FastMCP(name, log_level="WARNING")
        server._mcp_server.version = version(name)
        return server, old.Context
    from mcp.server.mcpserver import Context as NewContext
    from mcp.server.mcpserver import MCPServer

    return MCPServer(name, version=version(name), log_level="WARNING"), NewContext


def message_body(message: SessionMessage) -> Any:
    """Return the body of a message: a request, notification, response or error."""
    body: Any = message.message
    return body.root if IS_V1 else body


def ping_response(id: Any) -> SessionMessage:
    """Return the response to a ping."""
    return _message({"jsonrpc": "2.0", "id": id, "result": {}})


def refusal_response(id: Any) -> SessionMessage:
    """Return the error response to a request that is not supported."""
    error = {"code": _METHOD_NOT_FOUND, "message": "Method not found"}
    return _message({"jsonrpc": "2.0", "id": id, "error": error})


def _message(body: dict[str, Any]) -> SessionMessage:
    return read_message(json.dumps(body).encode())


def read_message(line: bytes) -> SessionMessage:
    """Parse a line of JSON as a message.

    Raises:
        ValueError: The line is not a message.
    """
    try:
        return _read(line)
    except ValueError:
        if not _HALF_PAIR.search(line):
            raise
    # JavaScript writes a lone surrogate if text was cut inside a pair. It is replaced.
    try:
        return _read(json.dumps(well_formed(json.loads(line))).encode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read(line: bytes) -> SessionMessage:
    if IS_V1:
        return SessionMessage(_types.JSONRPCMessage.model_validate_json(line))
    from mcp_types import jsonrpc_message_adapter

    return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))


def message_json(sent: SessionMessage) -> bytes:
    """Return a message as JSON on one line, without a line break."""
    return sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
