"""The line to a program that speaks the protocol, for the protocol's own library.

The library gets answers and requests for permission; updates are taken here, in their order and
before anything is awaited. It gets nothing that would make it log or fail: what is no message, what
is malformed, and what asks for things that we don't offer ends here.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio

from nb_agents.process.command import OpenCommand
from nb_agents.process.lines import LastWords, read_chunk, read_lines, write_all
from nb_agents.service_loops import ServiceLoop

PERMISSION = "session/request_permission"

MAX_OPEN = 20
"""Requests for permission that may wait at once; more are dropped until these are answered."""

_NO_METHOD = {"code": -32601, "message": "Method not found"}


class AcpLink:
    """A transport of the protocol's library over the pipes of a program.

    Args:
        program: The program.
        on_update: Called with the params of each update.

    Attributes:
        words: The end of what it wrote to stderr.
        ended: Set when it has closed its output.
    """

    def __init__(
        self, program: OpenCommand, on_update: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        self.words = LastWords()
        self.ended = anyio.Event()
        self._program = program
        self._on_update = on_update
        self._lines = read_lines(program.stdout)
        self._writing = anyio.Lock()
        self._open = 0

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message for the library; None at the end."""
        async for line in self._lines:
            with ServiceLoop.PROGRAMS.item():
                message = _read(line)
                if message is not None and await self._is_for_library(message):
                    return message
        self.ended.set()
        return None

    async def _is_for_library(self, message: dict[str, Any]) -> bool:
        method, id = message.get("method"), message.get("id")
        if method is None:
            return type(id) is int and _is_answer(message)
        if id is None:
            if method == "session/update" and isinstance(message.get("params"), dict):
                await self._on_update(message["params"])
            return False
        if not isinstance(id, int | str) or self._open >= MAX_OPEN:
            return False
        if method != PERMISSION:
            await self.send({"jsonrpc": "2.0", "id": id, "error": _NO_METHOD})
            return False
        self._open += 1
        return True

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message; one that nobody reads any more is dropped."""
        if "method" not in message and message.get("error") is not _NO_METHOD:
            self._open -= 1
        data = json.dumps(message, ensure_ascii=True).encode() + b"\n"
        with suppress(OSError, ValueError):
            async with self._writing:
                await write_all(self._program.stdin, data)

    async def close(self) -> None:
        """Do nothing: the pipes are closed with the program."""

    async def overhear(self) -> None:
        """Read what the program writes to stderr, so that it never waits for a reader."""
        while data := await read_chunk(self._program.stderr):
            with ServiceLoop.PROGRAMS.item():
                self.words.add(data)


class _LinkReader(asyncio.StreamReader):
    """The link as the stream of lines that the library reads before its version 0.12."""

    def __init__(self, link: AcpLink) -> None:
        super().__init__()
        self._link = link

    async def readuntil(self, separator: object = b"\n") -> bytes:
        message = await self._link.receive()
        if message is None:
            raise asyncio.IncompleteReadError(b"", None)
        return json.dumps(message).encode() + b"\n"


class _LinkWriter:
    """What writes the messages of that version."""

    def __init__(self, link: AcpLink) -> None:
        self.send, self.close = link.send, link.close


class _NoTransport(asyncio.Transport):
    """Stands where that version insists on a writer, which `_LinkWriter` replaces."""

    def is_closing(self) -> bool:
        return True


def connect(client: Any, link: AcpLink) -> Any:
    """Return the library's connection to a program.

    Args:
        client: Answers what the program asks.
        link: The line to it.
    """
    from acp import connect_to_agent

    more: dict[str, Any] = {"use_unstable_protocol": True}
    if "output_stream" in _required(connect_to_agent):
        lines, loop = _LinkReader(link), asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(lines)
        writer = asyncio.StreamWriter(_NoTransport(), protocol, None, loop)
        more["sender_factory"] = lambda writer, tasks: _LinkWriter(link)
        return connect_to_agent(client, writer, lines, **more)
    transport: Any = link
    return connect_to_agent(client, transport, **more)


def _required(function: Callable[..., Any]) -> set[str]:
    found = inspect.signature(function).parameters
    return {name for name, each in found.items() if each.default is each.empty}


def _read(line: bytes) -> dict[str, Any] | None:
    """Return a line's message; None for other lines: some programs print greetings."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _is_answer(message: dict[str, Any]) -> bool:
    error = message.get("error")
    if error is None:
        return "result" in message
    is_error = isinstance(error, dict) and isinstance(error.get("code"), int)
    return is_error and isinstance(error.get("message"), str)
