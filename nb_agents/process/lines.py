"""Reads and writes lines over the pipes of a running program.

Used for programs that speak JSON-RPC on stdin and stdout: MCP servers and external agents.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from io import FileIO

import anyio

from nb_agents.unicode import without_controls

MAX_LINE_BYTES = 32_000_000
"""Maximum size of a line. A program that sends a longer one is considered broken."""

_CHUNK = 65_536
_SHOWN = 500
"""Maximum number of characters of each line in `OutputTail.text`."""
_LINES = 3
_FIRST_WORD = re.compile(r"\A\S+")


class OutputTail:
    """The end of a program's output, which usually explains why it failed."""

    _LIMIT = 2_000

    def __init__(self) -> None:
        self._data = b""
        self._is_cut = False

    def add(self, data: bytes) -> None:
        """Add a chunk of the program's output."""
        self._is_cut |= len(self._data) + len(data) > self._LIMIT
        self._data = (self._data + data[-self._LIMIT :])[-self._LIMIT :]

    def text(self, mask: Callable[[str], str] = str, more: bytes = b"") -> str:
        """Return the last lines, joined into one, without control characters.

        Args:
            mask: Masks secrets in text.
            more: Additional output to append first.
        """
        whole = (self._data + more[-self._LIMIT :]).decode("utf-8", errors="replace")
        if self._is_cut:  # it may start with the end of a key, which would not be masked
            whole = _FIRST_WORD.sub("…", whole)
        lines = without_controls(mask(whole)).strip().splitlines()
        return " / ".join(line.strip()[-_SHOWN:] for line in lines[-_LINES:])

    def __str__(self) -> str:
        return self.text()


async def read_lines(pipe: FileIO, rest: bytearray | None = None) -> AsyncIterator[bytes]:
    """Yield the lines of a pipe until it is closed or a line is too long.

    Args:
        pipe: A non-blocking pipe.
        rest: A buffer for the incomplete last line, if the caller needs to see it.
    """
    rest = bytearray() if rest is None else rest
    while data := await read_chunk(pipe):
        first, *others = data.split(b"\n")
        rest += first
        for start in others:
            line = bytes(rest)
            rest[:] = start
            yield line
        if len(rest) > MAX_LINE_BYTES:
            return


async def read_chunk(pipe: FileIO) -> bytes:
    """Wait for data and return it. Returns b"" at the end of the pipe."""
    await anyio.wait_readable(pipe)
    return pipe.read(_CHUNK) or b""


async def write_all(pipe: FileIO, data: bytes) -> None:
    """Write all data to a non-blocking pipe.

    Raises:
        BrokenPipeError: The other end is closed.
    """
    remaining = memoryview(data)
    while remaining:
        await anyio.wait_writable(pipe)
        remaining = remaining[pipe.write(remaining[:_CHUNK]) or 0 :]
