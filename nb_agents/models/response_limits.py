"""Limits the size of server responses, and detects the end of replies.

`limit` is a hook of the HTTP client, so it applies before any SDK reads or buffers a response. It
counts decoded bytes, because a small compressed body can be large after decoding. SDKs receive only
complete events, because some of them need quadratic time to join chunks.

A reply ends with its last event, but the connection may stay open. `closing_responses` closes it
later, so that nobody has to wait for it.

Import this module only when a run needs it, because it imports httpx2.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import (
    AbstractContextManager,
    aclosing,
    asynccontextmanager,
    suppress,
)
from contextvars import ContextVar
from types import AsyncGeneratorType
from typing import cast

import httpx2
from anyio import CancelScope, current_time, move_on_after, sleep
from anyio.lowlevel import checkpoint

from nb_agents.context import within
from nb_agents.errors import ReplyTooLongError
from nb_agents.models.expected_files import is_file
from nb_agents.models.reading import rest_s

MAX_REPLY_BYTES = 32 * 2**20
"""Maximum size of a reply including its framing: 100,000 tokens of 330 bytes each."""
MAX_FILE_BYTES = 256 * 2**20
"""Maximum size of a file with a batch's results: Anthropic's limit for a batch's requests."""
MAX_EVENT_BYTES = 512 * 2**10
"""Maximum size of an event. Most events contain one token, some a whole tool call."""
MAX_IMAGE_EVENT_BYTES = 16 * 2**20
"""Maximum size of an event that may contain an image as base64."""
MAX_EVENT_LINES = 1000
"""Maximum number of lines in an event. Providers send two."""
MAX_EVENT_VALUES = 10_000
"""Maximum number of commas and brackets in an event. SDKs need microseconds for each value."""
MAX_ERROR_BYTES = 64 * 2**10
"""Maximum size of an HTTP error's body, which usually has one or two sentences."""

_BATCH_BYTES = 16 * 2**10
"""Size up to which small events are joined. A stop takes effect after an SDK has processed them."""
_BATCH_PIECES = 32
"""Number of chunks that are read before a stop can take effect. A chunk may be a single byte."""

_LARGE_EVENT_BYTES = 16 * 2**10
"""Smaller events are not checked for `MAX_EVENT_VALUES`, because they can hardly exceed it."""

DRAIN_S = 0.5
"""Seconds to wait for the end of the body after a reply's last event."""

_END = re.compile(
    rb"^(?:data: ?\[DONE\]|event: ?(?:message_stop|response\.(?:completed|incomplete|failed)))\r?$",
    re.MULTILINE,
)
"""Matches the last event of a reply from OpenAI or Anthropic.

Google's replies end with the body.
"""

_streams = 0
"""Number of response bodies that are being read, all on the same loop."""

_JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BLANK_LINE = re.compile(rb"\n\r?\n|\r\r")


_event_bytes: ContextVar[int] = ContextVar("largest event of a call", default=MAX_EVENT_BYTES)
_open_streams: ContextVar[list[_LimitedStream] | None] = ContextVar(
    "streams of a call", default=None
)


@asynccontextmanager
async def closing_responses() -> AsyncIterator[None]:
    """Close the responses that are opened in the ``async with`` block.

    `_LimitedStream.aclose` leaves the response open if the reply is complete. Google's SDK does not
    close its readers after an error in the stream. Garbage collection would close them late and log
    tracebacks.
    """
    opened: list[_LimitedStream] = []
    token = _open_streams.set(opened)
    try:
        yield
    finally:
        _open_streams.reset(token)
        for stream in opened:
            await stream.finish()


def expecting_images(are_expected: bool) -> AbstractContextManager[None]:
    """Increase the size limit of events in a ``with`` block if images are expected."""
    return within(_event_bytes, MAX_IMAGE_EVENT_BYTES if are_expected else MAX_EVENT_BYTES)


async def limit(response: httpx2.Response) -> None:
    """Apply the limits to a response before its body is read.

    Reading the body raises `ReplyTooLongError` if it exceeds a limit.
    """
    response.stream = stream = _LimitedStream(response)
    if (opened := _open_streams.get()) is not None:
        opened.append(stream)
    # The new stream is already decoded.
    response.headers.pop("Content-Encoding", None)


class _LimitedStream(httpx2.AsyncByteStream):
    """The decoded body of a response, with the limits applied."""

    def __init__(self, response: httpx2.Response) -> None:
        self._source = httpx2.Response(
            response.status_code, headers=response.headers, stream=response.stream
        )
        self._max_event_bytes = _event_bytes.get()
        self._is_finished_elsewhere = _open_streams.get() is not None
        self._has_ended = False
        content = self._file() if is_file.get() else self._events()
        body = self._error() if response.status_code >= 400 else content
        self._body = cast(AsyncGeneratorType[bytes, None], body)

    # An SDK may iterate twice: to read the reply and to drain the rest. The first iteration would
    # close a generator, possibly while the second one reads from it.
    def __aiter__(self) -> _LimitedStream:
        return self

    async def __anext__(self) -> bytes:
        if self._has_ended and self._is_finished_elsewhere:
            raise StopAsyncIteration
        return await anext(self._body)

    async def aclose(self) -> None:
        """Close the connection, unless `closing_responses` closes it after a whole reply."""
        if not (self._has_ended and self._is_finished_elsewhere):
            await self._close()

    async def finish(self) -> None:
        """Read the rest of the body, so that the connection can be reused, and close it."""
        try:
            if self._has_ended and not self._source.is_closed:
                with suppress(httpx2.HTTPError, ReplyTooLongError), move_on_after(DRAIN_S):
                    async for _ in self._body:
                        pass
        finally:
            with CancelScope(shield=True):
                await self._close()

    async def _close(self) -> None:
        await self._source.aclose()
        if not self._body.ag_running:
            await self._body.aclose()

    async def _error(self) -> AsyncGenerator[bytes]:
        size = 0
        async with aclosing(self._source.aiter_bytes()) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > MAX_ERROR_BYTES:
                    status = self._source.status_code
                    raise ReplyTooLongError("The error text", MAX_ERROR_BYTES, "bytes", status)
                yield piece

    async def _file(self) -> AsyncGenerator[bytes]:
        size = 0
        async with aclosing(self._source.aiter_bytes()) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > MAX_FILE_BYTES:
                    raise ReplyTooLongError("The file", MAX_FILE_BYTES, "bytes")
                yield piece

    async def _events(self) -> AsyncGenerator[bytes]:
        size = count = 0
        events = EventBuffer(self._max_event_bytes)
        async with aclosing(self._paced_chunks()) as pieces:
            async for piece in pieces:
                size, count = size + len(piece), count + 1
                if size > MAX_REPLY_BYTES:
                    raise ReplyTooLongError("The reply", MAX_REPLY_BYTES, "bytes")
                if count % _BATCH_PIECES == 0:
                    await checkpoint()
                for number, portion in enumerate(events.add(piece)):
                    if number:
                        await checkpoint()
                    self._has_ended = self._has_ended or _END.search(portion) is not None
                    yield portion
        if rest := events.rest:
            yield rest

    async def _paced_chunks(self) -> AsyncGenerator[bytes]:
        """Yield the chunks of the body, with pauses while a cell is running (see `rest_s`)."""
        global _streams
        _streams += 1
        try:
            opened = requested = current_time()
            async with aclosing(self._source.aiter_bytes()) as pieces:
                async for piece in pieces:
                    arrived = current_time()
                    yield piece
                    pause_s = rest_s(_streams, arrived - opened, arrived - requested)
                    if pause_s and not self._has_ended:
                        await sleep(pause_s)
                    requested = current_time()
        finally:
            _streams -= 1


class EventBuffer:
    """Joins the chunks of a stream into complete events, which end with a blank line.

    Args:
        max_bytes: The maximum size of an event.
    """

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._open = bytearray()
        self._open_lines = 0

    @property
    def rest(self) -> bytes:
        """The bytes after the last complete event."""
        return bytes(self._open)

    def add(self, piece: bytes) -> list[bytes]:
        """Add a chunk and return the events that it completes. Small events are joined.

        Raises:
            ReplyTooLongError: A complete or incomplete event exceeds a limit.
        """
        data = self._open
        # A blank line may begin in the previous chunk.
        search_from = max(0, len(data) - 2)
        data += piece
        portions: list[bytes] = []
        begin = end = 0
        for blank in _BLANK_LINE.finditer(data, search_from):
            _check_event(data, end, blank.end(), self._max_bytes)
            if blank.end() - begin > _BATCH_BYTES and end > begin:
                portions.append(bytes(data[begin:end]))
                begin = end
            end = blank.end()
        if end > begin:
            portions.append(bytes(data[begin:end]))
        del data[:end]
        # Counted per chunk, because counting the whole event each time needs quadratic time.
        self._open_lines = _lines(data) if end else self._open_lines + _lines(piece)
        _check("bytes", len(data), self._max_bytes)
        _check("lines", self._open_lines, MAX_EVENT_LINES)
        return portions


def _check_event(data: bytearray, begin: int, end: int, max_bytes: int) -> None:
    size = end - begin
    _check("bytes", size, max_bytes)
    if size > MAX_EVENT_LINES:
        _check("lines", _lines(data, begin, end), MAX_EVENT_LINES)
    if size > _LARGE_EVENT_BYTES:
        bare = _JSON_STRING.sub(b"", data[begin:end])
        _check("values", sum(map(bare.count, (b",", b"[", b"{"))), MAX_EVENT_VALUES)


def _check(unit: str, size: int, limit: int) -> None:
    if size > limit:
        raise ReplyTooLongError("One event of the reply", limit, unit)


def _lines(data: bytes | bytearray, start: int = 0, end: int | None = None) -> int:
    return max(data.count(b"\n", start, end), data.count(b"\r", start, end))
