"""Serves an agent's tools over MCP, for external agents.

Each agent has its own HTTP server in this process, on 127.0.0.1. A request without the agent's
token is refused. The token is a secret: it gives access to the agent's tools while the agent is
working.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio
from anyio import to_thread

from nb_agents.events import ToolImage
from nb_agents.models.tool_images import read_image
from nb_agents.tools.base import Tool, Toolbox

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

CLOSE_S = 2.0
"""Seconds for the server to close its connections. Calls in flight get half of this time."""

_NAME = "team"
"""The server's name, which agents use as a prefix of the tools' names."""


@dataclass(frozen=True)
class ToolAddress:
    """The address and token of an agent's tools.

    Attributes:
        url: The address of the MCP server (streamable HTTP).
        token: The agent's token, sent as ``Authorization: Bearer TOKEN``.
    """

    url: str
    token: str = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of each request."""
        return {"Authorization": f"Bearer {self.token}"}


class ToolServer:
    """An MCP server for one agent. An async context manager; `offer` starts the server.

    Args:
        session: The session's directory, with the images in results. None means that results have
            no images.
    """

    def __init__(self, session: Path | None = None) -> None:
        self._session = session
        self._tasks: TaskGroup = anyio.create_task_group()
        self._server: Any = None
        self._manager: Any = None
        self._hosting = anyio.CancelScope()
        self._serving = anyio.CancelScope(shield=True)
        self._end_event = anyio.Event()
        self._key = b""

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._manager = None
        self._hosting.cancel()
        if self._server is not None:
            # A forced exit would leave open requests without a response.
            self._server.should_exit = True
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self._end_event.wait()
            self._serving.cancel()
        self._tasks.cancel_scope.cancel()
        # The group would wrap the block's exception, so it is not passed on.
        await self._tasks.__aexit__(None, None, None)

    async def offer(self, tools: Callable[[], Sequence[Tool]]) -> ToolAddress:
        """Start the server and return its address. Can be called only once.

        Args:
            tools: Returns the agent's current tools. They are called in the context of the caller
                of `offer`.
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
        # A stop does not cancel the server; `__aexit__` ends it.
        with listening, self._serving:
            try:
                await self._server.serve(sockets=[listening])
            finally:
                # Otherwise the loop would continue to watch the closed socket and miss events of
                # the next socket with the same descriptor.
                for each in self._server.servers:
                    each.close()
                self._end_event.set()

    async def _host(
        self,
        tools: Callable[[], Sequence[Tool]],
        *,
        task_status: Any = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        from nb_agents.tools.mcp_sdk import session_manager

        context = copy_context()

        async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            # A request runs in the server's context.
            result = _call_result(tools(), name, arguments, self._session)
            return await asyncio.create_task(result, context=context.copy())

        manager = session_manager(_NAME, lambda: [*map(_tool_json, tools())], call)
        with self._hosting:
            async with manager.run():
                self._manager = manager
                task_status.started()
                await anyio.sleep_forever()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        authorization = dict(scope.get("headers", ())).get(b"authorization", b"")
        if self._manager is not None and secrets.compare_digest(authorization, self._key):
            await self._manager.handle_request(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})


def _tool_json(tool: Tool) -> dict[str, Any]:
    definition = tool.definition
    return {
        "name": tool.name,
        "description": definition.description or "",
        "inputSchema": {"type": "object", **definition.parameters_json_schema},
    }


async def _call_result(
    tools: Sequence[Tool], name: str, arguments: dict[str, Any], session: Path | None
) -> dict[str, Any]:
    result = await Toolbox(tools).call(name, arguments)
    content = [{"type": "text", "text": str(result)}]
    if result.images and session is not None:
        content += await to_thread.run_sync(_image_blocks, session, result.images)
    return {"content": content, "isError": result.is_error}


def _image_blocks(session: Path, images: Sequence[ToolImage]) -> list[dict[str, str]]:
    """Return images as blocks of an MCP result."""
    read = [(each, read_image(session, each)) for each in images]
    return [
        {"type": "image", "data": b64encode(data).decode(), "mimeType": image.media_type}
        for image, data in read
        if data is not None
    ]


def _http_server(app: Any) -> Any:
    """Create an HTTP server that installs no signal handlers."""
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
