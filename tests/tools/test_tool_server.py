"""The MCP server for external agents, used by a real client over HTTP."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any

import anyio
import httpx2
import pytest

from nb_agents.extensions.external_agents.tool_server import ToolAddress, ToolServer
from tests.kit.tools import Tool, ToolError
from tests.team_kit import WAIT_S

pytestmark = pytest.mark.anyio

who: ContextVar[str] = ContextVar("who", default="nobody")


@asynccontextmanager
async def client_of(address: ToolAddress) -> AsyncIterator[Any]:
    from tests.kit.mcp import connect, http_transport

    async with connect(http_transport(address.url, address.headers, WAIT_S)) as client:
        yield client


async def name() -> str:
    """Return the id of the calling agent."""
    return who.get()


async def fail() -> str:
    """Fail."""
    raise ToolError("there is nothing to do")


def offers(*functions: Callable[..., Any]) -> Callable[[], list[Tool]]:
    return lambda: [Tool(function) for function in functions]


def text(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


async def test_an_agent_lists_and_calls_its_tools() -> None:
    async with ToolServer() as server, client_of(await server.offer(offers(name))) as client:
        (listed,) = (await client.list_tools())["tools"]
        assert listed["name"] == "name"
        assert listed["description"] == "Return the id of the calling agent."
        assert listed["inputSchema"]["type"] == "object"
        assert text(await client.call_tool("name", {})) == "nobody"


async def test_calls_run_in_the_context_of_the_offer() -> None:
    async with ToolServer() as server:
        who.set("ada")
        address = await server.offer(offers(name))
        who.set("somebody else")
        async with client_of(address) as client:
            assert text(await client.call_tool("name", {})) == "ada"


async def test_failures_and_unknown_tools_are_reported_to_the_agent() -> None:
    async with ToolServer() as server, client_of(await server.offer(offers(fail))) as client:
        failed = await client.call_tool("fail", {})
        assert failed["isError"] and text(failed) == "Error: there is nothing to do"
        unknown = await client.call_tool("vote", {})
        assert unknown["isError"] and text(unknown) == "Error: no tool 'vote'. Your tools: fail."


async def test_tools_may_change_while_the_agent_works() -> None:
    tools: list[Tool] = []
    async with ToolServer() as server, client_of(await server.offer(lambda: tools)) as client:
        assert (await client.list_tools())["tools"] == []
        tools.append(Tool(name))
        assert text(await client.call_tool("name", {})) == "nobody"


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer x"}])
async def test_requests_without_the_token_are_refused(headers: dict[str, str]) -> None:
    async with ToolServer() as server, httpx2.AsyncClient(headers=headers) as client:
        address = await server.offer(offers(name))
        assert (await client.post(address.url, json={"jsonrpc": "2.0"})).status_code == 401
        assert address.token not in repr(address)


async def test_the_end_of_the_run_cancels_calls_in_flight() -> None:
    began, ended = anyio.Event(), anyio.Event()

    async def hang() -> str:
        """Hang."""
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return ""

    async with anyio.create_task_group() as group:
        async with ToolServer() as server:
            address = await server.offer(offers(hang))
            group.start_soon(_call, address, "hang")
            await began.wait()
        await ended.wait()
        group.cancel_scope.cancel()


async def _call(address: ToolAddress, tool: str) -> None:
    with suppress(Exception):  # the server has ended
        async with client_of(address) as client:
            await client.call_tool(tool, {})


async def test_server_without_an_offer_opens_no_port() -> None:
    async with ToolServer() as server:
        assert server._server is None


async def test_next_server_works_after_an_immediate_stop() -> None:
    for _ in range(3):
        with anyio.CancelScope() as scope:
            async with ToolServer() as server, client_of(await server.offer(offers(name))) as one:
                assert text(await one.call_tool("name", {})) == "nobody"
                scope.cancel()
                await anyio.sleep_forever()
