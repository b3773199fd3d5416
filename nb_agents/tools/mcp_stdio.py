"""The stdio transport of MCP servers: JSON lines over a program's stdin and stdout.

The user chose the server in the team file. It runs with the user's permissions and home directory,
without a sandbox or limits. Its environment is that of an agent's process, plus its `env`.

The `mcp` package has such a transport too. This one runs the server under nb_agents's supervisor,
which ends all processes that the server started, and the server itself if this process is killed.
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
from nb_agents.process.lines import OutputTail, read_chunk, read_lines, write_all
from nb_agents.service_loops import ServiceLoop

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

EXIT_GRACE_S = 1.0
"""Seconds for a server to exit after its stdin is closed, before SIGTERM and SIGKILL."""

_FLUSH_S = 0.5
_CLOSED = (anyio.BrokenResourceError, anyio.ClosedResourceError)


@asynccontextmanager
async def stdio_streams(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    words: OutputTail,
    on_start: Callable[[OpenCommand], None],
    on_end: Callable[[], None],
) -> AsyncIterator[
    tuple[
        MemoryObjectReceiveStream[SessionMessage | Exception],
        MemoryObjectSendStream[SessionMessage],
    ]
]:
    """Start a server. All of its processes have ended when the block is exited.

    Args:
        argv: The server's command.
        cwd: The server's working directory.
        env: The server's whole environment.
        words: Collects the server's stderr.
        on_start: Called with the started command.
        on_end: Called when the server has closed its stdout or stdin.

    Yields:
        The two streams for an `mcp` client.

    Raises:
        OSError: ``cwd`` can't be entered.
        ValueError: An argument can't be passed to a process.
    """
    from mcp.shared.message import SessionMessage

    to_us, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, from_us = anyio.create_memory_object_stream[SessionMessage](0)
    writing = CancelScope()
    async with open_command(argv, cwd=cwd, env=env) as server, create_task_group() as tasks:
        on_start(server)
        tasks.start_soon(_read_messages, server.stdout, to_us, on_end)
        tasks.start_soon(_write_messages, server.stdin, from_us, writing, on_end)
        tasks.start_soon(_collect_errors, server.stderr, words)
        try:
            yield read, write
        finally:
            with CancelScope(shield=True):
                read.close()
                write.close()
                await _shut_down(server, writing)
            tasks.cancel_scope.cancel()


async def _shut_down(server: OpenCommand, writing: CancelScope) -> None:
    """Send the pending messages, close the server's stdin, and wait for it to exit."""
    writing.deadline = anyio.current_time() + _FLUSH_S
    with move_on_after(_FLUSH_S + EXIT_GRACE_S):
        await server.wait()


async def _read_messages(
    stdout: FileIO,
    to_us: MemoryObjectSendStream[SessionMessage | Exception],
    on_end: Callable[[], None],
) -> None:
    with to_us:
        async for line in read_lines(stdout):
            # Reads to the end, because a program with unread output may block and not exit.
            with ServiceLoop.MCP.item(), suppress(*_CLOSED):
                if (message := _parsed(line)) is not None:
                    await to_us.send(message)
        on_end()


def _parsed(line: bytes) -> SessionMessage | None:
    """Parse a line. Returns None for other text, such as the greeting that many servers print."""
    from nb_agents.tools.mcp_sdk import read_message

    try:
        return read_message(line)
    except ValueError:
        return None


async def _write_messages(
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


async def _collect_errors(stderr: FileIO, words: OutputTail) -> None:
    while data := await read_chunk(stderr):
        with ServiceLoop.MCP.item():
            words.add(data)
