"""The tests' model server in a separate process, so that it does not slow down the client."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until

__all__ = ["TOKEN_CHARS", "BenchServer"]

TOKEN_CHARS = 8
"""The model server sends a tool's arguments in chunks of so many characters: one is a token."""

_LONG_ANSWER = "lengthy " * 100_000
"""No benchmark reads to its end."""


class BenchServer:
    """Every model writes a long `new_answer`, the way an agent's words arrive."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)

    def __enter__(self) -> BenchServer:
        self._process.start()
        self.url: str = self._pipe.recv()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.join()

    def set_pace(self, words_per_second: float | None) -> None:
        """Let each stream to come send so many tokens a second; None is all that it can."""
        self._ask("set_pace", words_per_second)

    def set_endless(self, words_per_second: float, input_tokens: int) -> None:
        """Let each later reply be endless text of one token per chunk.

        Args:
            words_per_second: Chunks per second.
            input_tokens: The number of tokens to report for a prompt.
        """
        self._ask("set_endless", words_per_second, input_tokens)

    def chunks_sent(self) -> int:
        """Return the number of chunks in all replies so far."""
        sent: int = self._ask("chunks_sent")
        return sent

    def wait_streaming(self, streams: int, tokens: int = 5) -> None:
        """Wait until so many streams are open, and each has sent so many tokens."""
        self._ask("wait_streaming", streams, tokens)

    def last_close(self) -> float:
        """Wait until no stream is open, and give when the last one closed (`time.monotonic`)."""
        closed: float = self._ask("last_close")
        return closed

    def _ask(self, *question: Any) -> Any:
        self._pipe.send(question)
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _serve(pipe: Connection) -> None:
    with ModelServer() as server:
        actions: dict[str, Callable[..., Any]] = {
            "set_pace": lambda pace: _set_pace(server, pace),
            "set_endless": lambda pace, tokens: _set_endless(server, pace, tokens),
            "chunks_sent": lambda: sum(each.chunks_sent for each in server.requests),
            "wait_streaming": lambda count, tokens: _wait_streaming(server, count, tokens),
            "last_close": lambda: _last_close(server),
        }
        _set_pace(server, None)
        pipe.send(server.url)
        while True:
            name, *args = pipe.recv()
            try:
                pipe.send(actions[name](*args))
            except Exception as exc:
                pipe.send(exc)


def _set_pace(server: ModelServer, words_per_second: float | None) -> None:
    answer = ToolCall("new_answer", {"content": _LONG_ANSWER})
    reply = Reply(tool_calls=(answer,), words_per_second=words_per_second)
    server.default = lambda request: replace(reply, first_token_delay_s=_offset_s(request))


def _set_endless(server: ModelServer, words_per_second: float, input_tokens: int) -> None:
    reply = Reply("say", endless=True, words_per_second=words_per_second, input_tokens=input_tokens)
    server.default = lambda request: replace(reply, first_token_delay_s=_offset_s(request))


def _offset_s(request: Request) -> float:
    """Keep streams out of step: the tokens of different providers don't come at one moment."""
    return request.number * 7 % 50 / 1000


# Asked at intervals: the server's own waits wake at every token, which would slow it.


def _wait_streaming(server: ModelServer, count: int, tokens: int) -> None:
    def are_streaming() -> bool:
        live = [r for r in server.requests if r.closed_at is None]
        return len(live) >= count and all(r.chunks_sent >= tokens for r in live)

    wait_until(are_streaming, 60, f"{count} streams", pause=lambda _: time.sleep(0.05))


def _last_close(server: ModelServer) -> float:
    wait_until(lambda: not server.open_count, 60, "all streams to close")
    return max(r.closed_at or 0 for r in server.requests)
