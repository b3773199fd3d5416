"""The connection to an MCP server that is a program: JSON lines over its stdin and stdout.

A server is a program that a person chose in their file: it runs with their rights and their home,
neither sandboxed nor limited, but with the variables of an agent's process and those of its `env`.

The `mcp` package has such a transport. This one runs the server below our supervisor, so that
nothing of it survives: neither what the server started, nor the server when this process is killed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio import CancelScope, create_task_group, move_on_after

from nb_agents.process.command import OpenCommand, open_command
from nb_agents.process.lines import LastWords, read_chunk, read_lines, write_all
from nb_agents.service_loops import ServiceLoop

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

EXIT_GRACE_S = 1.0
"""Seconds for a server to exit after its stdin is closed; then it gets TERM, then KILL."""

_FLUSH_S = 0.5
_CLOSED = (anyio.BrokenResourceError, anyio.ClosedResourceError)


@asynccontextmanager
async def stdio_streams(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    words: LastWords,
    on_start: Callable[[OpenCommand], None],
    on_end: Callable[[], None],
) -> AsyncIterator[
    tuple[
        MemoryObjectReceiveStream[SessionMessage | Exception],
        MemoryObjectSendStream[SessionMessage],
    ]
]:
    """Start a server; when the block is left, all of it has ended.

    Args:
        argv: The server.
        cwd: Its working directory.
        env: Its whole environment.
        words: Collects what it writes to stderr.
        on_start: Called with its command.
        on_end: Called when it has closed its stdout or its stdin.

    Yields:
        The two streams that an `mcp` client takes.

    Raises:
        OSError: ``cwd`` can't be entered.
        ValueError: An argument can't be passed.
    """
    from mcp.shared.message import SessionMessage

    to_us, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, from_us = anyio.create_memory_object_stream[SessionMessage](0)
    speaking = CancelScope()
    async with open_command(argv, cwd=cwd, env=env) as server, create_task_group() as tasks:
        on_start(server)
        tasks.start_soon(_listen, server.stdout, to_us, on_end)
        tasks.start_soon(_speak, server.stdin, from_us, speaking, on_end)
        tasks.start_soon(_overhear, server.stderr, words)
        try:
            yield read, write
        finally:
            with CancelScope(shield=True):
                read.close()
                write.close()
                await _say_goodbye(server, speaking)
            tasks.cancel_scope.cancel()


async def _say_goodbye(server: OpenCommand, speaking: CancelScope) -> None:
    """Wait until pending output is read, close its stdin, and wait for it to exit."""
    speaking.deadline = anyio.current_time() + _FLUSH_S
    with move_on_after(_FLUSH_S + EXIT_GRACE_S):
        await server.wait()


async def _listen(
    stdout: FileIO,
    to_us: MemoryObjectSendStream[SessionMessage | Exception],
    on_end: Callable[[], None],
) -> None:
    with to_us:
        async for line in read_lines(stdout):
            # Reads to the end: a program whose output is not read can't write its last words, or
            # exit.
            with ServiceLoop.MCP.item(), suppress(*_CLOSED):
                if (message := _parsed(line)) is not None:
                    await to_us.send(message)
        on_end()


def _parsed(line: bytes) -> SessionMessage | None:
    """Return a line's message; None for other lines: many servers print a greeting."""
    from nb_agents.tools.mcp_sdk import read_message

    try:
        return read_message(line)
    except ValueError:
        return None


async def _speak(
    stdin: FileIO,
    from_us: MemoryObjectReceiveStream[SessionMessage],
    scope: CancelScope,
    on_end: Callable[[], None],
) -> None:
    from nb_agents.tools.mcp_sdk import message_json

    with stdin, from_us, scope:
        try:
            async for sent in from_us:
                await write_all(stdin, message_json(sent) + b"\n")
        except BrokenPipeError:
            on_end()


async def _overhear(stderr: FileIO, words: LastWords) -> None:
    while data := await read_chunk(stderr):
        with ServiceLoop.MCP.item():
            words.add(data)
