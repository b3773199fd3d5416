"""The transport to an external agent's process, for the library of the Agent Client Protocol.

The library gets answers and permission requests. Updates are handled here, in order and before
anything is awaited. Lines that are not messages, malformed messages and requests for unsupported
methods are handled here too, because they would make the library log or fail.
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
from nb_agents.process.lines import OutputTail, read_chunk, read_lines, write_all
from nb_agents.service_loops import ServiceLoop
from nb_agents.unicode import json_text, well_formed

PERMISSION = "session/request_permission"

MAX_OPEN = 20
"""Maximum number of pending permission requests. Further requests are dropped."""

_NO_METHOD = {"code": -32601, "message": "Method not found"}


class AcpLink:
    """A transport of the protocol's library over the pipes of a process.

    Args:
        program: The process.
        on_update: Called with the params of each update.

    Attributes:
        words: The end of the process's stderr, and of its stdout lines that are not messages.
        ended: Set when the process has closed its output.
    """

    def __init__(
        self, program: OpenCommand, on_update: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        self.words = OutputTail()
        self.ended = anyio.Event()
        self._program = program
        self._on_update = on_update
        self._partial_line = bytearray()
        self._lines = read_lines(program.stdout, self._partial_line)
        self._writing = anyio.Lock()
        self._open = 0

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message for the library, or None at the end of the output."""
        async for line in self._lines:
            with ServiceLoop.PROGRAMS.item():
                message = _read(line)
                if message is None:
                    self.words.add(line + b"\n")
                if message is not None and await self._is_for_library(message):
                    return message
        self.ended.set()
        return None

    def printed(self, mask: Callable[[str], str]) -> str:
        """Return the last output that was not a protocol message, including an unfinished line.

        Args:
            mask: Hides secrets in text.
        """
        unfinished = (
            b"" if self._partial_line.lstrip().startswith(b"{") else bytes(self._partial_line)
        )
        return self.words.text(mask, unfinished)

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
        """Write a message. It is dropped if the process no longer reads."""
        if "method" not in message and message.get("error") is not _NO_METHOD:
            self._open -= 1
        data = json_text(message).encode() + b"\n"
        with suppress(OSError, ValueError):
            async with self._writing:
                await write_all(self._program.stdin, data)

    async def close(self) -> None:
        """Do nothing, because the pipes are closed with the process."""

    async def overhear(self) -> None:
        """Read stderr until it ends, so that the process never blocks on it."""
        while data := await read_chunk(self._program.stderr):
            with ServiceLoop.PROGRAMS.item():
                self.words.add(data)


class _LinkReader(asyncio.StreamReader):
    """A stream of the link's lines, for versions of the library before 0.12."""

    def __init__(self, link: AcpLink) -> None:
        super().__init__()
        self._link = link

    async def readuntil(self, separator: object = b"\n") -> bytes:
        message = await self._link.receive()
        if message is None:
            raise asyncio.IncompleteReadError(b"", None)
        return json_text(message).encode() + b"\n"


class _LinkWriter:
    """Writes messages, for versions of the library before 0.12."""

    def __init__(self, link: AcpLink) -> None:
        self.send, self.close = link.send, link.close


class _NoTransport(asyncio.Transport):
    """A dummy transport for the `StreamWriter` that the library requires before version 0.12."""

    def is_closing(self) -> bool:
        return True


def connect(client: Any, link: AcpLink) -> Any:
    """Return the library's connection to an external agent.

    Args:
        client: Answers the agent's requests.
        link: The transport.
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
    parameters = inspect.signature(function).parameters
    return {name for name, each in parameters.items() if each.default is each.empty}


def _read(line: bytes) -> dict[str, Any] | None:
    """Parse a line. Returns None if it is not a message, because some programs print greetings."""
    try:
        message = well_formed(json.loads(line))
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _is_answer(message: dict[str, Any]) -> bool:
    error = message.get("error")
    if error is None:
        return "result" in message
    is_error = isinstance(error, dict) and isinstance(error.get("code"), int)
    return is_error and isinstance(error.get("message"), str)
