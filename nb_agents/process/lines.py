"""Lines over the pipes of a program that runs: read with a limit, written whole.

For programs that speak JSON-RPC over stdin and stdout: MCP servers, and agents.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from io import FileIO

import anyio

MAX_LINE_BYTES = 32_000_000
"""Limit of a line; a program that sends a longer one counts as broken."""

_CHUNK = 65_536
_SHOWN = 500
"""Characters of a line of its last words."""


class LastWords:
    """The end of what a program wrote to stderr: why it could not start."""

    _LIMIT = 2_000

    def __init__(self) -> None:
        self._kept = b""

    def add(self, data: bytes) -> None:
        """Add a chunk of the program's output."""
        self._kept = (self._kept + data)[-self._LIMIT :]

    def __str__(self) -> str:
        lines = self._kept.decode("utf-8", errors="replace").strip().splitlines()
        return " / ".join(line.strip()[-_SHOWN:] for line in lines[-3:])


async def read_lines(pipe: FileIO) -> AsyncIterator[bytes]:
    """Yield the lines of a pipe until it is closed, or a line is too long.

    Args:
        pipe: A pipe that does not block.
    """
    rest = bytearray()
    while data := await read_chunk(pipe):
        first, *others = data.split(b"\n")
        rest += first
        for start in others:
            yield bytes(rest)
            rest = bytearray(start)
        if len(rest) > MAX_LINE_BYTES:
            return


async def read_chunk(pipe: FileIO) -> bytes:
    """Return what has arrived, waiting for it; empty at the end."""
    await anyio.wait_readable(pipe)
    return pipe.read(_CHUNK) or b""


async def write_all(pipe: FileIO, data: bytes) -> None:
    """Write to a pipe that does not block.

    Raises:
        BrokenPipeError: Nobody reads it any more.
    """
    left = memoryview(data)
    while left:
        await anyio.wait_writable(pipe)
        left = left[pipe.write(left[:_CHUNK]) or 0 :]
