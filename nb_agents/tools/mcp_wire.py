"""Filters the messages of an MCP server before the `mcp` package reads them.

Only responses to nb_agents's requests pass. A server may send anything, but the package starts a
task for each request and notification, refuses a whole list of tools if one is invalid, and
validates results with the server's schemas, which may take forever. So this module:

- drops notifications;
- refuses requests one by one, and does not read on until the server has read the refusal;
- reduces a list of tools to the fields that are used, so that it passes the package's checks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

MAX_TOOLS = 1000
"""Maximum number of tools from one server; models may accept fewer."""

_FIELDS = "nb_agents/kept"
_NO_OBJECT = {"type": "null"}
"""Replaces an invalid schema, so that `nb_agents.tools.gate` reports the tool."""


@asynccontextmanager
async def answers_only(
    transport: AbstractAsyncContextManager[Any],
) -> AsyncIterator[tuple[Any, Any]]:
    """Wrap a transport so that only responses can be read from it.

    Args:
        transport: Yields the streams to read from and to write to.
    """
    async with transport as (read, write, *_):
        yield _Answers(read, write), write


class _Answers:
    """A stream that skips all messages except responses."""

    def __init__(self, read: Any, write: Any) -> None:
        self._read = read
        self._write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read, name)

    async def __aenter__(self) -> Self:
        await self._read.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._read.__aexit__(*exc)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while True:
            if await self._is_answer(message := await self._read.__anext__()):
                return message

    async def receive(self) -> Any:
        """Wait for the next response and return it."""
        while True:
            if await self._is_answer(message := await self._read.receive()):
                return message

    async def _is_answer(self, message: Any) -> bool:
        from nb_agents.tools.mcp_sdk import message_body, ping_response, refusal_response

        if isinstance(message, Exception):
            return True
        body = message_body(message)
        if (method := getattr(body, "method", None)) is not None:
            if (id := getattr(body, "id", None)) is not None:
                await self._write.send(
                    ping_response(id) if method == "ping" else refusal_response(id)
                )
            return False
        if isinstance(result := getattr(body, "result", None), dict) and "tools" in result:
            body.result = _listing(result)
        return True


def _listing(result: dict[str, Any]) -> dict[str, Any]:
    """Return a list of tools that passes the package's checks, with the data for `listed_tools`."""
    tools = result["tools"] if isinstance(result["tools"], list) else []
    reduced = [_tool(each) for each in tools[: MAX_TOOLS + 1] if _has_name(each)]
    return {**result, "tools": reduced}


def _has_name(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("name"), str)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("inputSchema")
    fields = {key: tool[key] for key in ("title", "description") if isinstance(tool.get(key), str)}
    hints = tool.get("annotations")
    fields["annotations"] = hints if isinstance(hints, dict) else {}
    fields["inputSchema"] = {} if schema is None else schema
    if not isinstance(fields["inputSchema"], dict):
        fields["inputSchema"] = _NO_OBJECT
    sent = {"type": "object", "properties": _with_headers(fields["inputSchema"])}
    return {"name": tool["name"], "inputSchema": sent, "_meta": {_FIELDS: fields}}


def _with_headers(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a schema with arguments that the package also sends as headers."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {
        key: each
        for key, each in properties.items()
        if isinstance(each, dict) and "x-mcp-header" in str(each)
    }


def listed_tools(page: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the tools of a page with their name, title, description, annotations and schema.

    Args:
        page: The list that the package returned, as MCP's JSON.
    """
    for tool in page["tools"]:
        yield {"name": tool["name"], **tool["_meta"][_FIELDS]}
