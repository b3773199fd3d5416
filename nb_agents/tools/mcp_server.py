"""An MCP server: from its start, through its calls, to its end.

Each has one owner task, which connects, waits and disconnects. Agents only await calls, and a stop
cancels only the call, if its answer does not arrive within a moment: a client of the `mcp` package
that is cancelled twice while it closes hangs for ever. A server that ended, or that stays silent
after a cancelled call, is replaced at the next call. No call is sent twice, because it may have
happened.
"""

from __future__ import annotations

import asyncio
import json
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
from nb_agents.config.programs import TEAM
from nb_agents.errors import said_by
from nb_agents.events import EndChecked
from nb_agents.masking import Mask
from nb_agents.process.command import OpenCommand
from nb_agents.process.environment import agent_env
from nb_agents.process.lines import LastWords
from nb_agents.tools.base import ToolError
from nb_agents.tools.mcp_stdio import stdio_streams

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from nb_agents.tools.mcp_sdk import McpConnection

logger = logging.getLogger("nb_agents")

START_TIMEOUT_S = 30.0
"""Seconds for a server to start and list its tools; `npx` may first download it."""

CALL_TIMEOUT_S = 600.0
"""Time limit of a call, seconds, unless the server's spec sets one."""

ANSWER_S = 1.0
"""Seconds for a server to answer a call after an immediate stop, before the call is cancelled."""

PROBE_TIMEOUT_S = 5.0
"""Seconds for a server to answer a ping after a cancelled call."""

CLOSE_TIMEOUT_S = 3.0
"""Seconds to disconnect from an HTTP server."""

TOLD = "It was told that its call is cancelled. Whether its work has ended, it does not say."

MAX_TOOLS = 128
"""Limit of tools from one server; OpenAI accepts no more in all."""

_MAX_PAGES = 50
_MAX_WHY_CHARS = 500
_HTTP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Endpoint:
    """A server's address, with every variable expanded: equal endpoints are one server.

    Attributes:
        argv: The program of a stdio server with its arguments.
        cwd: Its working directory.
        env: Additional environment variables.
        url: The address of an HTTP server; "" for a program.
        headers: Sent with each request.
        mask: Removes the server's own secrets from its answers.
    """

    argv: tuple[str, ...] = field(repr=False)
    cwd: Path
    env: tuple[tuple[str, str], ...] = field(repr=False)
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    mask: Mask = field(repr=False, compare=False)


class Server:
    """A server, which is started again if it has ended when it is called.

    Args:
        name: What people call it.
        endpoint: Its address.
        tasks: Where its owner task runs.
        secrets: Values that it must not inherit.
    """

    def __init__(
        self, name: str, endpoint: Endpoint, tasks: TaskGroup, secrets: Sequence[str]
    ) -> None:
        self._name = name
        self._endpoint = endpoint
        self._tasks = tasks
        self._secrets = secrets
        self._life: _Life | None = None
        self._lives: list[_Life] = []
        self._is_closed = False

    @property
    def fault(self) -> str:
        """Why it did not start, or ""."""
        return self._endpoint.mask.text(self._life.fault) if self._life else ""

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """Its tools, in the protocol's JSON."""
        return self._life.tools if self._life else ()

    def close(self) -> None:
        """Shut the server down for good."""
        self._is_closed = True
        if self._life:
            self._life.close()

    async def wait_ended(self) -> None:
        """Wait until it has ended completely."""
        for life in self._lives:
            await life.ended.wait()

    def end(self) -> EndChecked | None:
        """Return what is known of its end, once it was waited for; None where nothing is to end."""
        what = f"MCP server {self._name}"
        programs = [life.program for life in self._lives if life.program is not None]
        ends = [EndChecked.of_processes(what, program.is_gone) for program in programs]
        if any(life.is_doubted and life.program is None for life in self._lives):
            ends.append(EndChecked(what=what, is_confirmed=False, how=TOLD))
        return min(ends, key=lambda end: end.is_confirmed, default=None)

    async def settle(self) -> _Life:
        """Wait until it runs or has failed to start; start it if it has ended."""
        if self._is_closed:
            raise ToolError("the run is over")
        if self._life is None or self._life.is_over:
            before, self._life = self._life, _Life(self._endpoint, self._secrets)
            self._lives.append(self._life)
            self._tasks.start_soon(self._life.run, before)
        life = self._life
        await life.settled.wait()
        return life

    async def call(
        self, tool: str, arguments: dict[str, Any], timeout_s: float | None = None
    ) -> str:
        """Call a tool of it.

        Args:
            tool: Its own name.
            arguments: The model's.
            timeout_s: Time limit of the call, seconds; None means `CALL_TIMEOUT_S`.

        Returns:
            The result as text, without the server's own tokens.

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
            limit_s = timeout_s or CALL_TIMEOUT_S
            return self._endpoint.mask.text(await life.call(tool, arguments, limit_s))
        except ToolError as exc:
            raise ToolError(self._endpoint.mask.text(str(exc))) from None


class _Life:
    """A connection to a server, from its start to its end.

    Args:
        endpoint: The server.
        secrets: Values that it must not inherit.

    Attributes:
        settled: Set when it runs, or has failed to start.
        ended: Set when it has ended completely.
        program: Its command, once it was started; None over HTTP.
        is_over: Whether it ends or has ended.
        is_doubted: Whether a call was cancelled, so that it may hang.
        fault: Why it could not be started, or "".
        tools: Its tools, in the protocol's JSON.
    """

    def __init__(self, endpoint: Endpoint, secrets: Sequence[str]) -> None:
        self._endpoint = endpoint
        self._secrets = secrets
        self._scope = CancelScope(shield=True)
        self._closing = Event()
        self.ended = Event()
        self._words = LastWords()
        self._client: McpConnection | None = None
        self._calls = 0
        self.settled = Event()
        self.program: OpenCommand | None = None
        self.is_over = False
        self.is_doubted = False
        self.fault = ""
        self.tools: Sequence[dict[str, Any]] = ()

    def _begin(self, program: OpenCommand) -> None:
        self.program = program

    def close(self) -> None:
        """Shut the server down: gracefully when it runs, at once while it starts."""
        self._end()
        if not self.settled.is_set():
            self._scope.cancel()

    def _end(self) -> None:
        self.is_over = True
        self._closing.set()

    async def run(self, before: _Life | None) -> None:
        """Start the server, wait until it should end, and end it.

        Args:
            before: Its previous connection, which must end first.
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
                self._explain(f"{said_by(exc)}{self._by_proxy()}")
        finally:
            self._end()
            if not self.settled.is_set():
                self.fault = self.fault or "it was stopped"
            self.settled.set()
            self.ended.set()

    async def _live(self) -> None:
        from nb_agents.tools.mcp_sdk import connect

        async with connect(self._transport()) as client:
            self.tools = await _listed(client)
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
            on_start=self._begin,
            on_end=self._end,
        )

    def _by_proxy(self) -> str:
        from nb_agents.models.network import proxy_of

        url = self._endpoint.url
        proxy = proxy_of(url) if url else None
        return f", by the {proxy}" if proxy else ""

    def _explain(self, what: str) -> None:
        words = str(self._words)
        self.fault = f"{what}. It wrote: {words}" if words else what

    async def is_alive(self) -> bool:
        """Return whether the server answers a ping; True while another call keeps it busy."""
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
        """Call a tool; a call that takes too long is cancelled as at a stop.

        Raises:
            ToolError: It failed, or the server did, or it took too long.
        """
        self._calls += 1
        try:
            with move_on_after(limit_s):
                return await self._call(tool, arguments)
        finally:
            self._calls -= 1
        raise ToolError(
            f"it did not answer within {limit_s:g} s and was cancelled; the call may or may not "
            "have taken effect"
        )

    async def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        from nb_agents.tools.mcp_sdk import McpError

        client = self._client
        assert client is not None
        key = secrets.token_hex(8) if client.server == TEAM else ""
        # A task of its own, which a stop does not cancel at once.
        asked = asyncio.create_task(client.call_tool(tool, arguments, key))
        unsubscribe = _at_graceful_stop(partial(client.call_tool, "stop", {"run": key}), key)
        try:
            await asyncio.wait([asked])
        except anyio.get_cancelled_exc_class():
            # A team of ours is told at once: it keeps all that it has.
            with move_on_after(0 if key else ANSWER_S, shield=True):
                await asyncio.wait([asked])
            if asked.cancel():
                self.is_doubted = True
                with CancelScope(shield=True):
                    await asyncio.wait([asked])
                raise
        finally:
            unsubscribe()
        try:
            return _text(asked.result())
        except McpError as exc:
            raise ToolError(self._why(exc)) from None
        except (RuntimeError, ValueError) as exc:  # it is not of the protocol, or of its own schema
            raise ToolError(f"the server's answer can't be used: {exc}"[:_MAX_WHY_CHARS]) from None

    def _why(self, exc: Any) -> str:
        if self.is_over or _is_lost(exc):
            self.close()
            return (
                "its server ended during the call, which may or may not have taken effect. The "
                "next call starts it again"
            )
        return str(exc.error.message)


def _at_graceful_stop(ask: Callable[[], Awaitable[object]], key: str) -> Callable[[], None]:
    """Pass a graceful stop on to a team of ours, whose call then ends with what it has.

    Args:
        ask: Asks it.
        key: The call's; "" where the server is no team.

    Returns:
        A function that ends this.
    """
    token, loop = current_token(), asyncio.get_running_loop()
    if token is None or not key:
        return lambda: None
    asking: list[asyncio.Task[None]] = []

    async def asked() -> None:
        with suppress(Exception):  # the call itself tells what is wrong with the server
            await ask()

    def hear(request: StopRequest) -> None:
        if request.level == CancellationStatus.REQUESTED:
            loop.call_soon_threadsafe(lambda: asking.append(loop.create_task(asked())))

    return token.on_request(hear)


async def _listed(client: McpConnection) -> Sequence[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor)
        found += page["tools"]
        cursor = page.get("nextCursor")
        if not cursor or len(found) > MAX_TOOLS:
            break
    return found


def _text(result: dict[str, Any]) -> str:
    """Return a result as text.

    Raises:
        ToolError: The result is an error.
    """
    text = "\n".join(map(_part, result.get("content", ())))
    if not text and result.get("structuredContent") is not None:
        text = json.dumps(result["structuredContent"], ensure_ascii=False)
    if result.get("isError"):
        raise ToolError(text or "the tool failed and did not say why")
    return text or "(nothing)"


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
    """Return whether the server is gone: the connection is closed, or the session unknown."""
    from nb_agents.tools.mcp_sdk import CONNECTION_CLOSED

    error = exc.error
    return bool(error.code == CONNECTION_CLOSED or error.message == "Session terminated")
