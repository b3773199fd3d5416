"""Size limits of a server's responses, and the end of its replies.

`limit` is a hook of the HTTP client, so that no SDK ever sees more, whichever it is and however it
buffers. Decoded bytes count, as a small compressed body may stand for a large one. The events of a
stream are handed on whole, because an SDK may join their pieces at the cost of their square.

A reply ends with its last event. Its connection, which may stay open after that, is finished by
`finishing` and not by the SDK that reads the reply, so that nobody waits for it to have the reply.

Not to be imported before a run needs it: it takes httpx2 along.
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
from nb_agents.models.reading import rest_s

MAX_REPLY_BYTES = 32 * 2**20
"""One reply with all its frames: 100,000 tokens of 330 bytes each."""
MAX_EVENT_BYTES = 512 * 2**10
"""One event of a stream: most hold a word, some a whole tool call."""
MAX_IMAGE_EVENT_BYTES = 16 * 2**20
"""One event where a model may make images: it may hold a whole one, as base64."""
MAX_EVENT_LINES = 1000
"""Lines of one event; providers send two."""
MAX_EVENT_VALUES = 10_000
"""Commas and brackets in the JSON of one event: each value in it costs an SDK some microseconds."""
MAX_ERROR_BYTES = 64 * 2**10
"""The body of an HTTP error: a sentence or two."""

_AT_ONCE_BYTES = 16 * 2**10
"""Of small events: what an SDK works through before a stop can take effect."""
_AT_ONCE_PIECES = 32
"""Pieces of a body, which may be a byte each and have arrived all together."""

_LARGE_EVENT_BYTES = 16 * 2**10
"""Smaller ones hold fewer values than are allowed anyway, or nearly so."""

DRAIN_S = 0.5
"""How long to wait for the end of a body after the last event of a reply."""

_END = re.compile(
    rb"^(?:data: ?\[DONE\]|event: ?(?:message_stop|response\.(?:completed|incomplete|failed)))\r?$",
    re.MULTILINE,
)
"""The last event of a reply by OpenAI or Anthropic. One by Google ends with its body."""

_streams = 0
"""Bodies that are read now. All of them are on the one loop."""

_JSON_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BLANK_LINE = re.compile(rb"\n\r?\n|\r\r")


_event_bytes: ContextVar[int] = ContextVar("largest event of a call", default=MAX_EVENT_BYTES)
_opened: ContextVar[list[_LimitedStream] | None] = ContextVar("streams of a call", default=None)


@asynccontextmanager
async def finishing() -> AsyncIterator[None]:
    """Close the responses that came within the block.

    SDKs leave that of a whole reply open (see `_LimitedStream.aclose`), and Google's leaves its
    readers of a response open when there is an error in the stream: they would be closed when they
    are collected, all at once and in each other's way, which asyncio logs with a traceback; and
    until then the connection would stay taken.
    """
    opened: list[_LimitedStream] = []
    token = _opened.set(opened)
    try:
        yield
    finally:
        _opened.reset(token)
        for stream in opened:
            await stream.finish()


def expecting_images(are_expected: bool) -> AbstractContextManager[None]:
    """Raise the size limit of a reply's events within the block, if images are expected."""
    return within(_event_bytes, MAX_IMAGE_EVENT_BYTES if are_expected else MAX_EVENT_BYTES)


async def limit(response: httpx2.Response) -> None:
    """Apply the limits to a response whose body has not been read yet.

    Reading it raises `ReplyTooLongError` where it exceeds one.
    """
    response.stream = stream = _LimitedStream(response)
    if (opened := _opened.get()) is not None:
        opened.append(stream)
    # What that stream gives is decoded.
    response.headers.pop("Content-Encoding", None)


class _LimitedStream(httpx2.AsyncByteStream):
    """A response's decoded body, as far as the limits allow it."""

    def __init__(self, response: httpx2.Response) -> None:
        self._source = httpx2.Response(
            response.status_code, headers=response.headers, stream=response.stream
        )
        self._max_event_bytes = _event_bytes.get()
        self._is_finished_elsewhere = _opened.get() is not None
        self._has_ended = False
        body = self._error() if response.status_code >= 400 else self._events()
        self._body = cast(AsyncGeneratorType[bytes, None], body)

    # One iterator for all: besides its reader, an SDK drains what comes after the last event. No
    # generator, which each of those would close, also while another reads from it.
    def __aiter__(self) -> _LimitedStream:
        return self

    async def __anext__(self) -> bytes:
        if self._has_ended and self._is_finished_elsewhere:
            raise StopAsyncIteration
        return await anext(self._body)

    async def aclose(self) -> None:
        """Close the connection, unless the reply is whole and `finishing` will do so."""
        if not (self._has_ended and self._is_finished_elsewhere):
            await self._close()

    async def finish(self) -> None:
        """Read what follows the reply, so that its connection can be used again, and close."""
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
                    raise ReplyTooLongError("Its error text", MAX_ERROR_BYTES, "bytes", status)
                yield piece

    async def _events(self) -> AsyncGenerator[bytes]:
        size = count = 0
        events = EventBuffer(self._max_event_bytes)
        async with aclosing(self._unhurried()) as pieces:
            async for piece in pieces:
                size, count = size + len(piece), count + 1
                if size > MAX_REPLY_BYTES:
                    raise ReplyTooLongError("The reply", MAX_REPLY_BYTES, "bytes")
                if count % _AT_ONCE_PIECES == 0:
                    await checkpoint()
                for number, portion in enumerate(events.add(piece)):
                    if number:
                        await checkpoint()
                    self._has_ended = self._has_ended or _END.search(portion) is not None
                    yield portion
        if rest := events.rest:
            yield rest

    async def _unhurried(self) -> AsyncGenerator[bytes]:
        """Read the body, with a pause after each chunk that had to be waited for."""
        global _streams
        _streams += 1
        try:
            opened = asked = current_time()
            async with aclosing(self._source.aiter_bytes()) as pieces:
                async for piece in pieces:
                    came = current_time()
                    yield piece
                    pause_s = rest_s(_streams, came - opened, came - asked)
                    if pause_s and not self._has_ended:
                        await sleep(pause_s)
                    asked = current_time()
        finally:
            _streams -= 1


class EventBuffer:
    """Joins the chunks of a stream to whole events, which end in a blank line.

    Args:
        max_bytes: Of one event.
    """

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._open = bytearray()
        self._open_lines = 0

    @property
    def rest(self) -> bytes:
        """What follows the last whole event."""
        return bytes(self._open)

    def add(self, piece: bytes) -> list[bytes]:
        """Add a chunk; return the events that it completes, small ones joined.

        Raises:
            ReplyTooLongError: An event is too long, complete or not.
        """
        data = self._open
        # A blank line may have begun in the piece before.
        seen = max(0, len(data) - 2)
        data += piece
        portions: list[bytes] = []
        begin = end = 0
        for blank in _BLANK_LINE.finditer(data, seen):
            _check_event(data, end, blank.end(), self._max_bytes)
            if blank.end() - begin > _AT_ONCE_BYTES and end > begin:
                portions.append(bytes(data[begin:end]))
                begin = end
            end = blank.end()
        if end > begin:
            portions.append(bytes(data[begin:end]))
        del data[:end]
        # Counted piece by piece: an event of many small ones would cost its square.
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


def _check(unit: str, found: int, limit: int) -> None:
    if found > limit:
        raise ReplyTooLongError("One event of the reply", limit, unit)


def _lines(data: bytes | bytearray, start: int = 0, end: int | None = None) -> int:
    return max(data.count(b"\n", start, end), data.count(b"\r", start, end))
