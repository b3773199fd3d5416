"""Serve tools by MCP, for agents that we don't run as model loops.

One HTTP server in this process for each agent, on 127.0.0.1. A request without the agent's token is
refused. The token is a secret: it gives access to the agent's tools while the agent works.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import anyio
from anyio import to_thread

from nb_agents.tools.base import Tool, Toolbox

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

CLOSE_S = 2.0
"""Seconds for the server to close its connections; calls in flight get half of it."""

_NAME = "team"
"""The server's name, which agents use as a prefix of its tools' names."""


@dataclass(frozen=True)
class ToolAddress:
    """The address and token of an agent's tools.

    Attributes:
        url: The address of the MCP server, of streamable HTTP.
        token: The agent's token, sent as ``Authorization: Bearer TOKEN``.
    """

    url: str
    token: str = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of each request."""
        return {"Authorization": f"Bearer {self.token}"}


class ToolServer:
    """An MCP server for one agent; it starts when the agent's tools are offered."""

    def __init__(self) -> None:
        self._tasks: TaskGroup = anyio.create_task_group()
        self._server: Any = None
        self._manager: Any = None
        self._hosting = anyio.CancelScope()
        self._serving = anyio.CancelScope(shield=True)
        self._ended = anyio.Event()
        self._key = b""

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._manager = None
        self._hosting.cancel()
        if self._server is not None:
            # Not forced, which would leave open connections unanswered.
            self._server.should_exit = True
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self._ended.wait()
            self._serving.cancel()
        self._tasks.cancel_scope.cancel()
        # The block's exception is kept from the group, which would wrap it.
        await self._tasks.__aexit__(None, None, None)

    async def offer(self, tools: Callable[[], Sequence[Tool]]) -> ToolAddress:
        """Offer tools to the agent, once; they are called in the context of the caller.

        Args:
            tools: Returns the agent's current tools.

        Returns:
            The address of the tools.
        """
        listening = socket.create_server(("127.0.0.1", 0))
        self._server = await to_thread.run_sync(_http_server, self._answer)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        address = ToolAddress(url, secrets.token_urlsafe(32))
        self._key = address.headers["Authorization"].encode()
        self._tasks.start_soon(self._serve, listening)
        await self._tasks.start(self._host, tools)
        return address

    async def _serve(self, listening: socket.socket) -> None:
        # A stop does not cut it: `__aexit__` ends it.
        with listening, self._serving:
            try:
                await self._server.serve(sockets=[listening])
            finally:
                # Else the loop would go on watching a closed socket, and be deaf to the next one
                # that gets its number.
                for each in self._server.servers:
                    each.close()
                self._ended.set()

    async def _host(
        self,
        tools: Callable[[], Sequence[Tool]],
        *,
        task_status: Any = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        from nb_agents.tools.mcp_sdk import session_manager

        context = copy_context()

        async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            # A request runs in a context of the server's.
            called = _called(tools(), name, arguments)
            return await asyncio.create_task(called, context=context.copy())

        manager = session_manager(_NAME, lambda: [*map(_described, tools())], call)
        with self._hosting:
            async with manager.run():
                self._manager = manager
                task_status.started()
                await anyio.sleep_forever()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if self._manager is not None and secrets.compare_digest(given, self._key):
            await self._manager.handle_request(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})


def _described(tool: Tool) -> dict[str, Any]:
    definition = tool.definition
    return {
        "name": tool.name,
        "description": definition.description or "",
        "inputSchema": {"type": "object", **definition.parameters_json_schema},
    }


async def _called(tools: Sequence[Tool], name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await Toolbox(tools).call(name, arguments)
    return {"content": [{"type": "text", "text": str(result)}], "isError": result.is_error}


def _http_server(app: Any) -> Any:
    """Return an HTTP server that installs no signal handlers."""
    import uvicorn

    class Quiet(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        app,
        interface="asgi3",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    return Quiet(config)
