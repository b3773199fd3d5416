"""The life cycle of an MCP server: start, calls and shutdown.

Each server has one owner task, which connects, waits and disconnects. Agents only await calls. An
immediate stop cancels a call if its answer does not arrive within a second, but never the owner
task: a client of the `mcp` package that is cancelled twice while it closes hangs forever. A server
that ended, or does not respond after a cancelled call, is restarted on the next call. No call is
sent twice, because it may have taken effect.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio import CancelScope, Event, move_on_after

from nb_agents.cancel import CancellationStatus, StopRequest, current_token
from nb_agents.config.mcp_servers import TEAM
from nb_agents.errors import error_message
from nb_agents.events import ProcessExitChecked
from nb_agents.json_text import json_text
from nb_agents.masking import Mask
from nb_agents.models.network import proxy_of
from nb_agents.process.command import OpenCommand
from nb_agents.process.environment import agent_env
from nb_agents.process.lines import OutputTail
from nb_agents.tools.base import ToolError
from nb_agents.tools.mcp_stdio import stdio_streams
from nb_agents.tools.mcp_wire import MAX_TOOLS, answers_only, listed_tools

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from nb_agents.tools.mcp_sdk import McpConnection

logger = logging.getLogger("nb_agents")

START_TIMEOUT_S = 30.0
"""Seconds for a server to start and list its tools; `npx` may first download it."""

CALL_TIMEOUT_S = 600.0
"""Time limit of a call in seconds, unless the server's spec sets one."""

ANSWER_S = 1.0
"""Seconds for a server to answer a call after an immediate stop, before the call is cancelled."""

PROBE_TIMEOUT_S = 5.0
"""Seconds for a server to answer a ping after a cancelled call."""

CLOSE_TIMEOUT_S = 3.0
"""Seconds to disconnect from an HTTP server."""

CANCELLED_NOTE = (
    "The server was notified that its call is cancelled. It does not report whether its work ended."
)

_MAX_PAGES = 50
_MAX_WHY_CHARS = 500
_HTTP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Endpoint:
    """The command or address of a server, with all variables expanded.

    Equal endpoints share one server.

    Attributes:
        argv: The command of a stdio server.
        cwd: The command's working directory.
        env: Additional environment variables of the command.
        url: The address of an HTTP server, or "" for a stdio server.
        headers: Headers of each HTTP request.
        mask: Removes the server's own secrets from its answers.
    """

    argv: tuple[str, ...] = field(repr=False)
    cwd: Path
    env: tuple[tuple[str, str], ...] = field(repr=False)
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    mask: Mask = field(repr=False, compare=False)


class Server:
    """An MCP server. A call restarts it if it has ended.

    Args:
        name: The name in the team file.
        endpoint: The server's command or address.
        tasks: The task group for its owner task.
        secrets: Values that the server must not inherit.
    """

    def __init__(
        self, name: str, endpoint: Endpoint, tasks: TaskGroup, secrets: Sequence[str]
    ) -> None:
        self._name = name
        self._endpoint = endpoint
        self._tasks = tasks
        self._secrets = secrets
        self._connection: _Connection | None = None
        self._connections: list[_Connection] = []
        self._is_closed = False

    @property
    def fault(self) -> str:
        """Why the server did not start, or ""."""
        return self._endpoint.mask.text(self._connection.fault) if self._connection else ""

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """The server's tools as MCP's JSON."""
        return self._connection.tools if self._connection else ()

    def close(self) -> None:
        """Shut the server down. Later calls don't restart it."""
        self._is_closed = True
        if self._connection:
            self._connection.close()

    async def wait_ended(self) -> None:
        """Wait until the server and its connections have ended completely."""
        for each in self._connections:
            await each.ended.wait()

    def end(self) -> ProcessExitChecked | None:
        """Return how the server ended, or None if nothing had to end. Call `wait_ended` first."""
        label = f"MCP server {self._name}"
        programs = [each.program for each in self._connections if each.program is not None]
        ends = [ProcessExitChecked.of_processes(label, program.is_gone) for program in programs]
        if any(each.is_doubted and each.program is None for each in self._connections):
            ends.append(ProcessExitChecked(what=label, is_confirmed=False, how=CANCELLED_NOTE))
        return min(ends, key=lambda end: end.is_confirmed, default=None)

    async def settle(self) -> _Connection:
        """Wait until the server runs or has failed to start. Starts it if necessary."""
        if self._is_closed:
            raise ToolError("the run is over")
        if self._connection is None or self._connection.is_over:
            before, self._connection = self._connection, _Connection(self._endpoint, self._secrets)
            self._connections.append(self._connection)
            self._tasks.start_soon(self._connection.run, before)
        connection = self._connection
        await connection.settled.wait()
        return connection

    async def call(
        self, tool: str, arguments: dict[str, Any], timeout_s: float | None = None
    ) -> str:
        """Call a tool of the server.

        Args:
            tool: The tool's own name.
            arguments: The model's arguments.
            timeout_s: Time limit of the call in seconds. None means `CALL_TIMEOUT_S`.

        Returns:
            The result as text, without the server's own tokens.

        Raises:
            ToolError: The tool failed, or the server can't be started or has ended.
        """
        connection = await self.settle()
        if connection.is_doubted and not await connection.is_alive():
            connection.close()
            connection = await self.settle()
        if connection.fault:
            raise ToolError(f"the server can't be started: {self.fault}")
        try:
            limit_s = timeout_s or CALL_TIMEOUT_S
            return self._endpoint.mask.text(await connection.call(tool, arguments, limit_s))
        except ToolError as exc:
            raise ToolError(self._endpoint.mask.text(str(exc))) from None


class _Connection:
    """One connection to a server, from start to end.

    Args:
        endpoint: The server's command or address.
        secrets: Values that the server must not inherit.

    Attributes:
        settled: Set when the server is running or has failed to start.
        ended: Set when the connection has ended completely.
        program: The server's process once it is started. None over HTTP.
        is_over: Whether the connection is ending or has ended.
        is_doubted: Whether the server may be hanging, because a call was cancelled.
        fault: Why the server could not be started, or "".
        tools: The server's tools as MCP's JSON.
    """

    def __init__(self, endpoint: Endpoint, secrets: Sequence[str]) -> None:
        self._endpoint = endpoint
        self._secrets = secrets
        self._scope = CancelScope(shield=True)
        self._closing = Event()
        self.ended = Event()
        self._words = OutputTail()
        self._client: McpConnection | None = None
        self._calls = 0
        self.settled = Event()
        self.program: OpenCommand | None = None
        self.is_over = False
        self.is_doubted = False
        self.fault = ""
        self.tools: Sequence[dict[str, Any]] = ()

    def _connect(self, program: OpenCommand) -> None:
        self.program = program

    def close(self) -> None:
        """Shut the server down: gracefully if it is running, immediately while it is starting."""
        self._end()
        if not self.settled.is_set():
            self._scope.cancel()

    def _end(self) -> None:
        self.is_over = True
        self._closing.set()

    async def run(self, before: _Connection | None) -> None:
        """Start the server, wait for `close`, and end the server.

        Args:
            before: The previous connection, which must end first.
        """
        try:
            with self._scope:
                if before is not None:
                    await before.ended.wait()
                self._scope.deadline = anyio.current_time() + START_TIMEOUT_S
                await self._live()
            if not self.settled.is_set() and not self._closing.is_set():
                self._explain(f"it did not respond within {START_TIMEOUT_S:.0f} s")
        # A transport may raise an OSError, exceptions of an HTTP library, or a group.
        except Exception as exc:
            logger.debug("MCP server failed: %r", self._endpoint, exc_info=True)
            if not self.settled.is_set():
                self._explain(f"{error_message(exc)}{self._by_proxy()}")
        finally:
            self._end()
            if not self.settled.is_set():
                self.fault = self.fault or "it was stopped"
            self.settled.set()
            self.ended.set()

    async def _live(self) -> None:
        from nb_agents.tools.mcp_sdk import connect

        async with connect(answers_only(self._transport())) as client:
            self.tools = await _list_tools(client)
            self._client = client
            self._scope.deadline = inf
            self.settled.set()
            await self._closing.wait()
            self._scope.deadline = anyio.current_time() + CLOSE_TIMEOUT_S

    def _transport(self) -> AbstractAsyncContextManager[Any]:
        from nb_agents.tools.mcp_sdk import http_transport

        point = self._endpoint
        if point.url:
            return http_transport(point.url, dict(point.headers), _HTTP_TIMEOUT_S)
        return stdio_streams(
            point.argv,
            cwd=point.cwd,
            env=agent_env(dict(point.env), secrets=self._secrets),
            words=self._words,
            on_start=self._connect,
            on_end=self._end,
        )

    def _by_proxy(self) -> str:
        url = self._endpoint.url
        proxy = proxy_of(url) if url else None
        return f", through the {proxy}" if proxy else ""

    def _explain(self, problem: str) -> None:
        words = str(self._words)
        self.fault = f"{problem}. It wrote: {words}" if words else problem

    async def is_alive(self) -> bool:
        """Return whether the server answers a ping. True while another call keeps it busy."""
        if self._calls or self._client is None:
            return True
        from nb_agents.tools.mcp_sdk import McpError

        with move_on_after(PROBE_TIMEOUT_S):
            try:
                await self._client.list_tools()
            except McpError as exc:  # an answer too
                return not _is_lost(exc)
            else:
                self.is_doubted = False
                return True
        return False

    async def call(self, tool: str, arguments: dict[str, Any], limit_s: float) -> str:
        """Call a tool, and cancel the call after `limit_s` seconds.

        Raises:
            ToolError: The tool or the server failed, or the call took too long.
        """
        self._calls += 1
        try:
            with move_on_after(limit_s):
                return await self._call(tool, arguments)
        finally:
            self._calls -= 1
        raise ToolError(
            f"the tool did not answer within {limit_s:g} s and the call was cancelled. It may or "
            f"may not have taken effect"
        )

    async def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        from nb_agents.tools.mcp_sdk import McpError

        client = self._client
        assert client is not None
        key = secrets.token_hex(8) if client.server == TEAM else ""
        # A separate task, which a stop does not cancel immediately.
        answer = asyncio.create_task(client.call_tool(tool, arguments, key))
        unsubscribe = _at_graceful_stop(partial(client.call_tool, "stop", {"run": key}), key)
        try:
            await asyncio.wait([answer])
        except anyio.get_cancelled_exc_class():
            # An nb_agents team is cancelled immediately, because it saves all of its work.
            with move_on_after(0 if key else ANSWER_S, shield=True):
                await asyncio.wait([answer])
            if answer.cancel():
                self.is_doubted = True
                with CancelScope(shield=True):
                    await asyncio.wait([answer])
                raise
        finally:
            unsubscribe()
        try:
            return _text(answer.result())
        except McpError as exc:
            raise ToolError(self._failure_reason(exc)) from None
        except (RuntimeError, ValueError) as exc:  # violates the protocol or the tool's schema
            raise ToolError(f"the server's answer is invalid: {exc}"[:_MAX_WHY_CHARS]) from None

    def _failure_reason(self, exc: Any) -> str:
        if self.is_over or _is_lost(exc):
            self.close()
            return (
                "the tool's server ended during the call. The call may or may not have taken "
                "effect. "
                "The next call restarts the server"
            )
        return str(exc.error.message)


def _at_graceful_stop(ask: Callable[[], Awaitable[object]], key: str) -> Callable[[], None]:
    """Pass a graceful stop on to an nb_agents team, which then ends the call with a partial result.

    Args:
        ask: Sends the stop to the team.
        key: The key of the call, or "" if the server is not a team.

    Returns:
        A function that ends the subscription.
    """
    token, loop = current_token(), asyncio.get_running_loop()
    if token is None or not key:
        return lambda: None
    asking: list[asyncio.Task[None]] = []

    async def send_stop() -> None:
        with suppress(Exception):  # the call itself reports problems of the server
            await ask()

    def on_stop(request: StopRequest) -> None:
        if request.level == CancellationStatus.REQUESTED:
            loop.call_soon_threadsafe(lambda: asking.append(loop.create_task(send_stop())))

    return token.on_request(on_stop)


async def _list_tools(client: McpConnection) -> Sequence[dict[str, Any]]:
    tools: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor)
        tools += listed_tools(page)
        cursor = page.get("nextCursor")
        if not cursor or len(tools) > MAX_TOOLS:
            break
    return tools


def _text(result: dict[str, Any]) -> str:
    """Convert a result to text. Raises ToolError if it is an error."""
    text = "\n".join(map(_part, result.get("content", ())))
    if not text and result.get("structuredContent") is not None:
        text = json_text(result["structuredContent"])
    if result.get("isError"):
        raise ToolError(text or "the tool failed and gave no reason")
    return text or "(the tool returned nothing)"


def _part(block: dict[str, Any]) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image" | "audio" as kind, "mimeType": mime, "data": data}:
            return f"[{kind}, {mime}, {len(data) * 3 // 4} bytes: not shown]"
        case {"type": "resource_link", "name": name, "uri": uri}:
            return f"[resource {name}: {uri}]"
        case {"type": "resource", "resource": {"uri": uri, "text": text}}:
            return f"[resource {uri}]\n{text}"
        case {"type": "resource", "resource": {"uri": uri}}:
            return f"[resource {uri}]: not shown"
    return f"[{block.get('type')}: not shown]"


def _is_lost(exc: Any) -> bool:
    """Return whether the server has ended: its connection is closed or its session unknown."""
    from nb_agents.tools.mcp_sdk import CONNECTION_CLOSED

    error = exc.error
    return bool(error.code == CONNECTION_CLOSED or error.message == "Session terminated")
