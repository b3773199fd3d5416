"""A local HTTP server that simulates the model providers.

It supports the streaming protocols of OpenAI (chat completions, responses), Anthropic and Google
over real sockets, and the batch APIs of OpenAI and Anthropic (`tests.model_batches`). Tests see
what a provider would see: the requests, their tools, and when and by whom each stream was closed.
Faults (errors, lost connections, silence, garbage) are fields of a `Reply`.

    with ModelServer() as server:
        server.script("gpt-test", Reply(text="one two three"), Reply(status=500))
        provider = OpenAIProvider(base_url=server.url, api_key="k")
        model = OpenAIChatModel("gpt-test", provider=provider)

A **chunk** is a unit that a reader of the stream sees arrive: one word of text, or some characters
of a tool's arguments. Frames without content (roles, block starts) are sent with the next chunk and
not counted.

The server runs in a daemon thread with its own asyncio loop and listens only on 127.0.0.1. Its wait
methods block the calling thread; in an async test, run them with `anyio.to_thread.run_sync`.
To run it as a separate process, see `python -m tests.model_server --help`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import dataclasses
import itertools
import json
import random
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Literal, NamedTuple

from tests import strict_bodies
from tests.model_batches import Batches
from tests.strict_order import order_fault

__all__ = [
    "ModelServer",
    "Reply",
    "ReplySource",
    "Request",
    "ToolCall",
    "free_port",
    "wait_until",
    "words_of",
]

Protocol = Literal["openai", "responses", "anthropic", "google"]

_ARGUMENT_CHUNK = (
    8  # characters of tool arguments per chunk: few, so that each call has several chunks
)
_POLL_S = 0.02


def wait_until(
    predicate: Callable[[], object],
    timeout_s: float = 200,
    what: str = "the condition",
    seen: Callable[[], object] | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> Any:
    """Poll a predicate until it is true, and return its value.

    Args:
        predicate: Called repeatedly from the calling thread.
        timeout_s: Time limit in seconds.
        what: The awaited condition, for the error message.
        seen: Returns the current state for the error message; by default the last value.
        pause: Waits between two calls for at most this many seconds.

    Raises:
        TimeoutError: The time limit is over. The message has the condition and the state.
    """
    deadline = time.monotonic() + timeout_s
    while not (answer := predicate()):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            shown = seen() if seen else answer
            raise TimeoutError(f"Waited {timeout_s} s for {what}; saw {shown!r}.")
        pause(min(_POLL_S, remaining))
    return answer


def free_port() -> int:
    """Return a free port for a server that is started soon.

    It is outside the range for outgoing connections and reserved among the processes of tests, so
    that no other process uses it before the server does.
    """
    while True:
        port = random.randrange(10_000, 32_000)  # outgoing connections use ports from 32,768
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            _note(port)
            return port


def _note(port: int) -> None:
    """Reserve a port among the processes of tests until this process ends, or raise OSError."""
    if sys.platform == "linux":  # has abstract socket names, which are not files
        with socket.socket(socket.AF_UNIX) as name:
            name.bind(f"\0port-of-tests-{port}")
            name.detach()  # open until the end


@dataclass(frozen=True)
class ToolCall:
    """A tool call of a reply. Without `id` the server generates one (Google sends none).

    If `args` is None, the call starts and its arguments never arrive.
    """

    name: str
    args: dict[str, Any] | None = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True)
class Reply:
    """The server's reply to a request.

    Attributes:
        text: The text, streamed word by word.
        tool_calls: Tool calls after the text, with arguments in chunks (Google sends them whole).
        words_per_second: Chunks per second; None means as fast as the client reads.
        delay_s: Seconds before the response headers.
        first_token_delay_s: Seconds between the headers and the first chunk.
        status: The HTTP status. Any other than 200 sends an error body instead of a stream.
        headers: Additional response headers, such as `{"Retry-After": "1"}`.
        finish: The finish reason, such as "SAFETY"; by default the protocol's normal one.
        stop_after: Number of chunks after which the reply ends as at a token limit.
        refusal: Text of a refusal instead of `text`; OpenAI only.
        error: The error message. With status 200, an error frame follows the chunks.
        drop_after: Number of chunks after which the connection is closed; 0 means before the
            headers.
        hang_after: Number of chunks after which the server sends nothing more; 0 means not even
            the headers.
        malformed: Whether frames are invalid JSON.
        lingers: Whether the connection stays open after the last frame.
        endless: Whether the text repeats until the client disconnects.
        body: Returns the raw body, possibly infinite, that is sent instead of all frames.
        input_tokens: Reported usage; by default the number of words in the prompt.
        output_tokens: Reported usage; by default the number of chunks sent.
        thoughts: Signed thoughts, streamed word by word before the text (OpenAI: responses only).
        image: A generated PNG that precedes everything else; OpenAI's responses and Google only.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    words_per_second: float | None = None
    delay_s: float = 0
    first_token_delay_s: float = 0
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    finish: str = ""
    stop_after: int | None = None
    refusal: str = ""
    error: str = ""
    drop_after: int | None = None
    hang_after: int | None = None
    malformed: bool = False
    lingers: bool = False
    endless: bool = False
    body: Callable[[], Iterable[bytes]] | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    thoughts: str = ""
    image: bytes = b""


@dataclass
class Request:
    """A model request that the server received.

    Times are `time.monotonic()`, which all processes of a machine share.

    Attributes:
        number: Number of the request, starting at 0.
        closed_at: Time at which the response ended or the client disconnected.
        closed_by: "client" if the client disconnected before the response ended, else "server".
    """

    number: int
    protocol: Protocol
    model: str
    body: dict[str, Any]
    headers: dict[str, str]
    opened_at: float
    closed_at: float | None = None
    closed_by: Literal["client", "server"] | None = None
    chunks_sent: int = 0

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation in this protocol's format."""
        name = {"google": "contents", "responses": "input"}.get(self.protocol, "messages")
        return list(self.body.get(name, []))

    @property
    def tool_names(self) -> list[str]:
        """Names of the tools offered to the model."""
        tools = self.body.get("tools") or []
        if self.protocol == "openai":
            return [tool["function"]["name"] for tool in tools]
        if self.protocol in ("anthropic", "responses"):
            return [tool.get("name") or tool["type"] for tool in tools]
        declared = (t.get("functionDeclarations") or [] for t in tools)
        return [each["name"] for each in itertools.chain.from_iterable(declared)]

    @property
    def prompt(self) -> str:
        """All texts that the model would read, including the system prompt, one per line."""
        names = ("system", "systemInstruction", "instructions")
        system = next((self.body[name] for name in names if self.body.get(name)), "")
        return "\n".join(_strings([system, self.messages]))


ReplySource = Reply | Callable[[Request], Reply]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in ("role", "type", "id", "tool_call_id", "tool_use_id"):
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


# --- the protocols --------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """The content of a chunk: a word, or part of the arguments of tool call number `call`.

    `call` is -1 for text and `THOUGHT` for thoughts.
    """

    text: str
    call: int = -1
    is_first: bool = False
    is_last: bool = False


THOUGHT = -2


def words_of(text: str) -> list[str]:
    """Return the chunks of a text: words with the surrounding space."""
    return re.findall(r"\s*\S+\s*$|\s*\S+|\s+", text)


def _pieces(reply: Reply) -> Iterator[_Piece]:
    text = (reply.text or "more") + " " if reply.endless else reply.text
    yield from (_Piece(word, THOUGHT) for word in words_of(reply.thoughts))
    words = [_Piece(word) for word in words_of(text)]
    if reply.endless:
        yield from itertools.cycle(words)
    yield from words
    for index, call in enumerate(reply.tool_calls):
        text = "" if call.args is None else json.dumps(call.args)
        starts = range(0, max(1, len(text)), _ARGUMENT_CHUNK)
        for at in starts:
            part = text[at : at + _ARGUMENT_CHUNK]
            yield _Piece(part, index, is_first=at == 0, is_last=at == starts[-1])


class _Wire:
    """Formats the frames of a response. Each subclass implements a provider's protocol."""

    call_prefix = "call"
    reasons = ("stop", "tool_calls", "length")
    malformed_frame = b"data: {not json\n\n"

    def __init__(self, request: Request, reply: Reply) -> None:
        self.request = request
        self.reply = reply
        self.response_id = f"response-{request.number}"
        self.input_tokens = reply.input_tokens
        if self.input_tokens is None:
            self.input_tokens = max(1, len(request.prompt.split()))

    @property
    def output_tokens(self) -> int:
        given = self.reply.output_tokens
        return self.request.chunks_sent if given is None else given

    @property
    def tier(self) -> dict[str, Any]:
        """The service tier of the reply, if the request has one, as OpenAI reports it."""
        body = self.request.body
        return {"service_tier": body["service_tier"]} if "service_tier" in body else {}

    @property
    def reason(self) -> str:
        """The finish reason."""
        if self.reply.finish:
            return self.reply.finish
        stop, tools, limit = self.reasons
        if self.reply.stop_after is not None:
            return limit
        return tools if self.reply.tool_calls else stop

    @property
    def signature(self) -> str:
        """The signature that the client must send back with the thoughts."""
        return f"signed-{self.request.number}-{self.reply.thoughts}"

    def call_id(self, index: int) -> str:
        return (
            self.reply.tool_calls[index].id or f"{self.call_prefix}_{self.request.number}_{index}"
        )

    def chunk(self, piece: _Piece) -> bytes:
        """Return the frames of a chunk. Empty if they are sent with the next one."""
        raise NotImplementedError

    def end(self) -> bytes:
        raise NotImplementedError

    def whole(self) -> dict[str, Any]:
        """Return the body of a response that is not streamed, after its chunks."""
        raise NotImplementedError

    def error_frame(self, message: str) -> bytes:
        return _data(self.error_body(500, message))

    @staticmethod
    def error_body(status: int, message: str) -> dict[str, Any]:
        raise NotImplementedError


def _data(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


class _OpenAIWire(_Wire):
    _has_role = False

    def _frame(self, **fields: Any) -> bytes:
        head = {"id": self.response_id, "object": "chat.completion.chunk", "created": 0}
        return _data({**head, "model": self.request.model, **self.tier, **fields})

    def _choice(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return self._frame(choices=[choice])

    def chunk(self, piece: _Piece) -> bytes:
        if piece.call == THOUGHT:
            return b""
        role = {} if self._has_role else {"role": "assistant"}
        self._has_role = True
        if piece.call < 0:
            return self._choice({**role, "content": piece.text})
        call: dict[str, Any] = {"index": piece.call, "function": {"arguments": piece.text}}
        if piece.is_first:
            name = self.reply.tool_calls[piece.call].name
            call |= {"id": self.call_id(piece.call), "type": "function"}
            call["function"] |= {"name": name}
        return self._choice({**role, "tool_calls": [call]})

    def end(self) -> bytes:
        frames = self._choice({"refusal": self.reply.refusal}) if self.reply.refusal else b""
        frames += self._choice({}, self.reason)
        if (self.request.body.get("stream_options") or {}).get("include_usage"):
            given = {"prompt_tokens": self.input_tokens, "completion_tokens": self.output_tokens}
            total = (self.input_tokens or 0) + self.output_tokens
            frames += self._frame(choices=[], usage={**given, "total_tokens": total})
        return frames + b"data: [DONE]\n\n"

    @staticmethod
    def error_body(status: int, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": "error", "param": None, "code": str(status)}}


class _ResponsesWire(_Wire):
    """OpenAI's Responses API: a reply is a list of items with events for their start and end."""

    reasons = ("", "", "max_output_tokens")
    _open_for: int | None = None  # as in `_AnthropicWire`
    _sequence = -1

    def __init__(self, request: Request, reply: Reply) -> None:
        super().__init__(request, reply)
        self._items: list[dict[str, Any]] = []

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        frame = {"type": kind, "sequence_number": self._sequence, **fields}
        return f"event: {kind}\n".encode() + _data(frame)

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        head = {"id": self.response_id, "object": "response", "created_at": 0, "status": status}
        given = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        whole = {**head, **given, "model": self.request.model, "output": self._items}
        return {**whole, **self.tier, **fields}

    def _open(self, index: int) -> bytes:
        frames = b"" if self._items else self._begin()
        number = f"{self.request.number}_{len(self._items)}"
        item: dict[str, Any] = {"id": f"msg_{number}", "type": "message", "role": "assistant"}
        item |= {"status": "in_progress", "content": []}
        if index == THOUGHT:
            item = {"id": f"rs_{number}", "type": "reasoning", "summary": []}
        if index >= 0:
            item = {"id": f"fc_{number}", "type": "function_call", "arguments": ""}
            item |= {"name": self.reply.tool_calls[index].name, "call_id": self.call_id(index)}
        frames += self._close()
        self._items.append(item)
        self._open_for = index
        return frames + self._event("response.output_item.added", item=item, **self._place)

    def _begin(self) -> bytes:
        frames = self._event("response.created", **self._whole())
        if not self.reply.image:
            return frames
        item = {"id": f"ig_{self.request.number}", "type": "image_generation_call"}
        self._items.append(item | {"status": "in_progress", "result": None})
        frames += self._event("response.output_item.added", item=self._items[-1], **self._place)
        made = {"status": "generating", "output_format": "png"}
        self._items[-1] = item | made | {"result": base64.b64encode(self.reply.image).decode()}
        return frames + self._event(
            "response.output_item.done", item=self._items[-1], **self._place
        )

    def _whole(self, status: str = "in_progress", **fields: Any) -> dict[str, Any]:
        return {"response": self._response(status, **fields)}

    @property
    def _place(self) -> dict[str, int]:
        return {"output_index": len(self._items) - 1}

    def _close(self) -> bytes:
        if self._open_for is None:
            return b""
        item, is_thought = self._items[-1], self._open_for == THOUGHT
        self._open_for = None
        # Clients that don't let OpenAI store replies must request the encrypted thoughts.
        is_requested = "reasoning.encrypted_content" in self.request.body.get("include", [])
        if is_thought and is_requested:
            item["encrypted_content"] = self.signature
        return self._event("response.output_item.done", item=item, **self._place)

    def chunk(self, piece: _Piece) -> bytes:
        frames = b"" if self._open_for == piece.call else self._open(piece.call)
        item = self._items[-1]
        where = {"item_id": item["id"], "delta": piece.text, **self._place}
        if piece.call == THOUGHT:
            if not item["summary"]:
                item["summary"].append({"type": "summary_text", "text": ""})
            item["summary"][0]["text"] += piece.text
            return frames + self._event(
                "response.reasoning_summary_text.delta", summary_index=0, **where
            )
        if piece.call >= 0:
            item["arguments"] += piece.text
            return frames + self._event("response.function_call_arguments.delta", **where)
        if not item["content"]:
            item["content"].append({"type": "output_text", "text": "", "annotations": []})
        item["content"][0]["text"] += piece.text
        return frames + self._event(
            "response.output_text.delta", content_index=0, logprobs=[], **where
        )

    def _refuse(self) -> bytes:
        frames = self._open(-1)
        part = {"type": "refusal", "refusal": self.reply.refusal}
        self._items[-1]["content"].append(part)
        where = {"item_id": self._items[-1]["id"], "content_index": 0, **self._place}
        frames += self._event("response.refusal.delta", delta=self.reply.refusal, **where)
        return frames + self._event("response.refusal.done", refusal=self.reply.refusal, **where)

    def end(self) -> bytes:
        frames = self._refuse() if self.reply.refusal else b""
        if not self._items:
            frames += self._begin()
        frames += self._close()
        given = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        total = (self.input_tokens or 0) + self.output_tokens
        usage: dict[str, Any] = {**given, "total_tokens": total}
        usage["input_tokens_details"] = {"cached_tokens": 0}
        usage["output_tokens_details"] = {"reasoning_tokens": 0}
        if not self.reason:
            return frames + self._event(
                "response.completed", **self._whole("completed", usage=usage)
            )
        why = {"reason": self.reason}
        whole = self._whole("incomplete", usage=usage, incomplete_details=why)
        return frames + self._event("response.incomplete", **whole)

    def whole(self) -> dict[str, Any]:
        last = self.end().rstrip().rpartition(b"data: ")[2]
        return dict(json.loads(last)["response"])

    def error_frame(self, message: str) -> bytes:
        return self._event("error", code="server_error", message=message, param=None)

    @staticmethod
    def error_body(status: int, message: str) -> dict[str, Any]:
        return _OpenAIWire.error_body(status, message)


class _AnthropicWire(_Wire):
    call_prefix = "toolu"
    reasons = ("end_turn", "tool_use", "max_tokens")
    malformed_frame = (
        b"event: content_block_delta\n" + _Wire.malformed_frame
    )  # unnamed ones are ignored
    _block = -1
    _open_for: int | None = None  # the tool call whose block is open; -1 = text; None = no block

    @staticmethod
    def _event(kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\n".encode() + _data({"type": kind, **fields})

    def _start(self) -> bytes:
        message: dict[str, Any] = {
            "id": self.response_id,
            "type": "message",
            "role": "assistant",
            "model": self.request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self.input_tokens, "output_tokens": 0},
        }
        return self._event("message_start", message=message)

    def _close_block(self) -> bytes:
        if self._open_for is None:
            return b""
        frames = self._delta(type="signature_delta", signature=self.signature)
        frames = frames if self._open_for == THOUGHT else b""
        self._open_for = None
        return frames + self._event("content_block_stop", index=self._block)

    def _delta(self, **delta: str) -> bytes:
        return self._event("content_block_delta", index=self._block, delta=delta)

    def _open_block(self, index: int) -> bytes:
        frames = self._start() if self._block < 0 else self._close_block()
        self._block += 1
        self._open_for = index
        block: dict[str, Any] = {"type": "text", "text": ""}
        if index == THOUGHT:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        if index >= 0:
            name = self.reply.tool_calls[index].name
            block = {"type": "tool_use", "id": self.call_id(index), "name": name, "input": {}}
        return frames + self._event("content_block_start", index=self._block, content_block=block)

    def chunk(self, piece: _Piece) -> bytes:
        frames = b"" if self._open_for == piece.call else self._open_block(piece.call)
        delta = {"type": "text_delta", "text": piece.text}
        if piece.call == THOUGHT:
            delta = {"type": "thinking_delta", "thinking": piece.text}
        if piece.call >= 0:
            delta = {"type": "input_json_delta", "partial_json": piece.text}
        return frames + self._delta(**delta)

    def end(self) -> bytes:
        frames = self._start() if self._block < 0 else self._close_block()
        delta = {"stop_reason": self.reason, "stop_sequence": None}
        frames += self._event(
            "message_delta", delta=delta, usage={"output_tokens": self.output_tokens}
        )
        return frames + self._event("message_stop")

    def whole(self) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if self.reply.text:
            content.append({"type": "text", "text": self.reply.text})
        for index, call in enumerate(self.reply.tool_calls):
            use = {"type": "tool_use", "id": self.call_id(index), "name": call.name}
            content.append({**use, "input": call.args})
        usage = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        head = {"id": self.response_id, "type": "message", "role": "assistant"}
        end = {"stop_reason": self.reason, "stop_sequence": None, "usage": usage}
        return {**head, "model": self.request.model, "content": content, **end}

    def error_frame(self, message: str) -> bytes:
        return b"event: error\n" + super().error_frame(message)

    @staticmethod
    def error_body(status: int, message: str) -> dict[str, Any]:
        kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
        kinds |= {429: "rate_limit_error", 529: "overloaded_error"}
        return {
            "type": "error",
            "error": {"type": kinds.get(status, "api_error"), "message": message},
        }


class _GoogleWire(_Wire):
    reasons = ("STOP", "STOP", "MAX_TOKENS")

    def __init__(self, request: Request, reply: Reply) -> None:
        super().__init__(request, reply)
        self._image = reply.image

    def _frame(self, parts: list[dict[str, Any]], finish: str | None = None) -> bytes:
        candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
        if finish:
            candidate["finishReason"] = finish
        usage = {"promptTokenCount": self.input_tokens, "candidatesTokenCount": self.output_tokens}
        usage["totalTokenCount"] = (self.input_tokens or 0) + self.output_tokens
        head = {"responseId": self.response_id, "modelVersion": self.request.model}
        return _data({**head, "candidates": [candidate], "usageMetadata": usage})

    def chunk(self, piece: _Piece) -> bytes:
        image, self._image = self._image, b""
        if not image:
            return self._chunk(piece)
        data = base64.b64encode(image).decode()
        picture = self._frame([{"inlineData": {"mimeType": "image/png", "data": data}}])
        return picture + self._chunk(piece)

    def _chunk(self, piece: _Piece) -> bytes:
        if piece.call == THOUGHT:
            return self._frame([{"text": piece.text, "thought": True}])
        if piece.call < 0:
            return self._frame([{"text": piece.text}])
        if not piece.is_last:
            return b""  # the Gemini API sends a call in one frame
        call = self.reply.tool_calls[piece.call]
        function_call: dict[str, Any] = {"name": call.name}
        if call.args is not None:
            function_call["args"] = call.args
        if call.id:
            function_call["id"] = call.id
        signature = base64.b64encode(self.signature.encode()).decode()
        signed = {"thoughtSignature": signature} if self.reply.thoughts else {}
        return self._frame([{"functionCall": function_call, **signed}])

    def end(self) -> bytes:
        return self._frame([], self.reason)

    @staticmethod
    def error_body(status: int, message: str) -> dict[str, Any]:
        kinds = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}
        kinds |= {404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
        name = kinds.get(status, "INTERNAL")
        return {"error": {"code": status, "message": message, "status": name}}


_WIRES: dict[Protocol, type[_Wire]] = {
    "openai": _OpenAIWire,
    "responses": _ResponsesWire,
    "anthropic": _AnthropicWire,
    "google": _GoogleWire,
}
_GOOGLE_PATH = re.compile(r"/models/(?P<model>.+):streamGenerateContent(\?|$)")


def _route(target: str, body: dict[str, Any]) -> tuple[Protocol, str] | None:
    path = target.partition("?")[0]
    if path.endswith("/chat/completions") and body.get("stream"):
        return "openai", str(body.get("model", ""))
    if path.endswith("/responses") and body.get("stream"):
        return "responses", str(body.get("model", ""))
    if path.endswith("/v1/messages") and body.get("stream"):
        return "anthropic", str(body.get("model", ""))
    if match := _GOOGLE_PATH.search(target):
        return "google", match["model"]
    return None


# --- HTTP -----------------------------------------------------------------------------------------


class _Head(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]


class _Reader(asyncio.StreamReader):
    """Detects a disconnected client without reading, which would lose its next request."""

    def __init__(self) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.peer_is_gone = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.peer_is_gone.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.peer_is_gone.set()


async def _read_request(reader: asyncio.StreamReader) -> tuple[_Head, bytes] | None:
    """Read a request; None if the client closed the connection after the previous one."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return _Head(method, target, headers), body


def _with_key(reply: Reply, request: Request) -> Reply:
    """Repeat the API key in a header and in the error message, as careless servers do."""
    names = ("authorization", "api-key", "x-api-key", "x-goog-api-key")
    key = next((request.headers[name] for name in names if name in request.headers), "")
    error = reply.error
    if error or reply.status != 200:
        message = error or f"The model server was told to answer {reply.status}."
        error = f"{message} Your key is {key}."
    return dataclasses.replace(reply, headers={"X-Your-Key": key, **reply.headers}, error=error)


def _response_head(status: int, headers: Mapping[str, str]) -> bytes:
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _json_response(status: int, payload: Any, headers: Mapping[str, str] | None = None) -> bytes:
    body = json.dumps(payload).encode() + b"\n"
    length = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    return _response_head(status, {**length, **(headers or {})}) + body


def _http_chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class _Dropped(Exception):
    """Raised to drop the connection as the reply demands."""


# --- the server -----------------------------------------------------------------------------------


class _Script:
    def __init__(self, replies: tuple[ReplySource, ...], repeats: bool) -> None:
        self._replies = list(replies)
        self._repeats = repeats

    def next(self) -> ReplySource | None:
        if not self._replies:
            return None
        if self._repeats and len(self._replies) == 1:
            return self._replies[0]
        return self._replies.pop(0)


class ModelServer:
    """The server and its interface for tests. Use it as a context manager.

    Attributes:
        default: The reply for models without a script; can be set at any time.
        strict: Whether requests are checked by `tests.strict_bodies`, except keys in `besides`.
        order_faults: Requests that were rejected for the order of their messages by
            `tests.strict_order`. If there are any, leaving the context raises an error.
        batches: The batches that were sent.
        base: The server's origin, which is the base URL for Anthropic and Google.
    """

    def __init__(
        self,
        default: ReplySource = Reply(text="Hello from the model."),
        port: int = 0,
        *,
        strict: bool = False,
        besides: frozenset[str] = frozenset(),
        checks_order: bool = True,
    ) -> None:
        self.default = default
        self.strict = strict
        self.besides = besides
        self.order_faults: list[str] = []
        self._checks_order = checks_order
        self._paused: set[str] = set()
        self.batches = Batches(self._run_in_batch)
        self.base = ""
        self._port = port
        self._scripts: dict[str, _Script] = {}
        self._requests: list[Request] = []
        self._open = 0
        self._peak_open = 0
        self._version = 0
        # Protects the state that the server's thread changes and tests read.
        self._changed = threading.Condition()
        self._holds: dict[str | None, int] = {}
        self._gate = asyncio.Event()
        self._stopping = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # Life

    def __enter__(self) -> ModelServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if kind is None and self.order_faults:
            raise AssertionError(f"Messages out of order: {self.order_faults}")

    def start(self) -> None:
        """Start the server and return when it listens."""
        ready: Future[str] = Future()
        if self.strict:
            strict_bodies.load()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="model-server", daemon=True
        )
        self._thread.start()
        self.base = ready.result(200)

    def stop(self) -> None:
        """Close all connections and end the thread. It may be called repeatedly."""
        if self._loop is None or self._thread is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(200)

    @property
    def url(self) -> str:
        """The base URL for OpenAI clients."""
        return f"{self.base}/v1"

    def backend(self, kind: str, **keys: Any) -> dict[str, Any]:
        """Return the `backend` section of a team file for this server.

        Args:
            kind: The backend type, or "responses" for OpenAI's Responses API.
            keys: Further keys of the section.
        """
        root = kind in ("claude", "gemini", "azure_openai")
        type_of = {"type": "openai", "api": "responses"} if kind == "responses" else {"type": kind}
        return {**type_of, "base_url": self.base if root else self.url, "api_key": "k", **keys}

    # Replies

    def script(self, model: str, *replies: ReplySource, once: bool = False) -> None:
        """Reply to requests for this model with these replies, in order.

        Args:
            model: The model's name in requests. A second script replaces the first.
            replies: Replies or callables that get the request. Callables run on the server's loop
                and must not block.
            once: Whether `default` follows the last reply, instead of repetitions of that one.
        """
        self._scripts[model] = _Script(replies, repeats=not once)

    def hold(self, after: int = 1, model: str | None = None) -> None:
        """Pause all current and future streams after `after` chunks.

        Paused streams do not end. Streams that have sent more pause before their next chunk. A
        second call with a higher number lets them continue up to that number. With `model`, only
        that model's streams are affected, and this overrides a hold on all streams.
        """
        self._on_loop(lambda: self._set_hold(model, after))

    def release(self, model: str | None = None) -> None:
        """Continue paused streams: those of this model, or all if it is None."""
        self._on_loop(lambda: self._set_hold(model, None))

    # Observations

    @property
    def requests(self) -> list[Request]:
        """Copies of all requests, oldest first."""
        with self._changed:
            return [dataclasses.replace(request) for request in self._requests]

    @property
    def open_count(self) -> int:
        """The number of requests that are waiting for a reply or streaming."""
        return self._open

    def count(self, model: str | None = None) -> int:
        """Return the number of requests for this model or, with None, for all."""
        with self._changed:
            return sum(model in (None, request.model) for request in self._requests)

    def stats(self) -> dict[str, Any]:
        """Return counters since the server's start, as `GET /stats` does."""
        requests = self.requests
        return {
            "requests": len(requests),
            "open": self._open,
            "peak_open": self._peak_open,
            "chunks_sent": sum(request.chunks_sent for request in requests),
            "closed_by_client": sum(request.closed_by == "client" for request in requests),
        }

    def wait_until(
        self,
        predicate: Callable[[], object],
        timeout_s: float = 200,
        what: str = "the server's state",
    ) -> Any:
        """Wait until a predicate is true. It is called whenever the server's state changes."""
        return wait_until(predicate, timeout_s, what, seen=self._summary, pause=self._pause)

    def wait_open(self, count: int, timeout_s: float = 200) -> None:
        """Wait until at least this many streams are open at the same time."""
        self.wait_until(lambda: self._open >= count, timeout_s, f"{count} open streams")

    def wait_chunks(self, count: int, model: str | None = None, timeout_s: float = 200) -> None:
        """Wait until a stream (of this model) is open and all have sent `count` chunks."""

        def arrived() -> bool:
            mine = [r for r in self.requests if r.closed_at is None and model in (None, r.model)]
            return bool(mine) and all(request.chunks_sent >= count for request in mine)

        self.wait_until(arrived, timeout_s, f"{count} chunks on every open stream")

    def wait_closed(self, timeout_s: float = 200) -> None:
        """Wait until no stream is open. It returns immediately before the first request."""
        self.wait_until(lambda: self._open == 0, timeout_s, "all streams to be closed")

    def endings(self) -> list[str | None]:
        """Wait until no stream is open, and return who closed each of them."""
        self.wait_closed()
        return [request.closed_by for request in self.requests]

    def _summary(self) -> list[str]:
        """Return one line for each of the last requests, for error messages."""
        shown = self.requests[-20:]
        return [f"{r.model}: {r.chunks_sent} chunks, closed by {r.closed_by}" for r in shown]

    def _pause(self, seconds: float) -> None:
        with self._changed:
            version = self._version
            self._changed.wait_for(lambda: self._version != version, seconds)

    # On the loop thread

    def _on_loop(self, action: Callable[[], None]) -> None:
        """Run an action on the loop and wait until it is done."""
        if self._loop is None:
            raise RuntimeError("The model server isn't running. Use it in a `with` block.")
        if threading.current_thread() is self._thread:
            return action()

        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(200)

    def _set_hold(self, model: str | None, after: int | None) -> None:
        if after is not None:
            self._holds[model] = after
        elif model is None:
            self._holds.clear()
        else:
            self._holds.pop(model, None)
        self._gate.set()  # each stream checks again whether it is paused
        self._gate = asyncio.Event()

    async def _serve(self, ready: Future[str]) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            server = await self._loop.create_server(
                self._protocol, "127.0.0.1", self._port, backlog=1024
            )
        except OSError as exc:
            return ready.set_exception(exc)
        ready.set_result(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await self._stopping.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await server.wait_closed()

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(_Reader(), self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, _Reader)
        task = asyncio.create_task(self._converse(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _converse(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        """Reply to the requests of a connection, one after another."""
        try:
            while (got := await _read_request(reader)) and await self._answer(*got, reader, writer):
                pass
        except asyncio.CancelledError:  # the server stops without waiting for slow readers
            writer.transport.abort()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(
        self, head: _Head, raw: bytes, reader: _Reader, writer: asyncio.StreamWriter
    ) -> bool:
        """Reply to a request. Return whether the connection can serve another one."""
        try:
            body = json.loads(raw or b"{}")
        except ValueError:
            body = {}
        route = _route(head.target, body)
        if route is None:
            other = self._other(head, raw)
            writer.write(other)
            return bool(other)
        request = self._open_request(*route, body, head.headers)
        is_client = False
        response = asyncio.ensure_future(self._respond(request, writer))
        gone = asyncio.ensure_future(reader.peer_is_gone.wait())
        try:
            await asyncio.wait({response, gone}, return_when=asyncio.FIRST_COMPLETED)
            is_client = not response.done() or isinstance(response.exception(), ConnectionError)
        finally:
            response.cancel()
            gone.cancel()
            await asyncio.gather(response, gone, return_exceptions=True)
            self._close_request(request, is_client)
        return not response.cancelled() and response.exception() is None

    def _other(self, head: _Head, raw: bytes) -> bytes:
        """Return the response to another request; empty to close the connection."""
        if (answer := self.batches.answer(head.method, head.target, raw, self.base)) is not None:
            status, body = answer
            if isinstance(body, list):
                lines = "".join(f"{json.dumps(each)}\n" for each in body).encode()
                length = {"Content-Type": "application/jsonl", "Content-Length": str(len(lines))}
                return _response_head(status, length) + lines
            return _json_response(status, body) if status else b""
        if head.method == "GET" and head.target.startswith("/stats"):
            return _json_response(200, self.stats())
        message = f"{head.method} {head.target}: the model server only streams model responses."
        return _json_response(404, {"error": {"message": message}})

    def _run_in_batch(self, protocol: Protocol, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Run a request of a batch, and return the status and body of its reply."""
        request = self._open_request(protocol, str(body.get("model", "")), body, {})
        reply = self._refusal(request) or self._choose(request)
        wire = _WIRES[protocol](request, reply)
        if reply.status == 200:
            for piece in _pieces(reply):
                wire.chunk(piece)
                request.chunks_sent += 1
            result = wire.whole()
        else:
            result = wire.error_body(reply.status, reply.error)
        self._close_request(request, by_client=False)
        return reply.status, result

    def _open_request(
        self, protocol: Protocol, model: str, body: dict[str, Any], headers: dict[str, str]
    ) -> Request:
        with self._changed:
            number, now = len(self._requests), time.monotonic()
            request = Request(number, protocol, model, body, headers, now)
            self._requests.append(request)
            self._open += 1
            self._peak_open = max(self._peak_open, self._open)
            self._notify()
        return request

    def _close_request(self, request: Request, by_client: bool) -> None:
        with self._changed:
            request.closed_at = time.monotonic()
            request.closed_by = "client" if by_client else "server"
            self._open -= 1
            self._notify()

    def _notify(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def _choose(self, request: Request) -> Reply:
        script = self._scripts.get(request.model)
        source = (script.next() if script else None) or self.default
        if isinstance(source, Reply):
            return source
        try:
            return source(request)
        except Exception as exc:  # a mistake in the test, which its author sees in the reply
            return Reply(status=500, error=f"The reply function failed: {exc!r}")

    def _refusal(self, request: Request) -> Reply | None:
        fault = ""
        if self._checks_order:
            has_paused = request.model in self._paused
            fault = order_fault(request.protocol, request.body, is_paused=has_paused)
        if fault:
            self.order_faults.append(f"{request.model}: {fault}")
        elif self.strict:
            fault = strict_bodies.fault_of(request.protocol, request.body, self.besides)
        return Reply(status=400, error=fault) if fault else None

    async def _respond(self, request: Request, writer: asyncio.StreamWriter) -> None:
        reply = _with_key(self._refusal(request) or self._choose(request), request)
        if reply.finish == "pause_turn":
            self._paused.add(request.model)
        wire = _WIRES[request.protocol](request, reply)
        await asyncio.sleep(reply.delay_s)
        await self._fault_at(reply, 0)
        if reply.body is not None:
            await self._send_body(reply, reply.body(), writer)
        elif reply.status != 200:
            error = wire.error_body(reply.status, reply.error)
            writer.write(_json_response(reply.status, error, reply.headers))
        else:
            await self._stream(request, reply, wire, writer)
        await writer.drain()

    async def _send_body(
        self, reply: Reply, pieces: Iterable[bytes], writer: asyncio.StreamWriter
    ) -> None:
        kind = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        writer.write(_response_head(reply.status, {**kind, **reply.headers}))
        for piece in pieces:
            writer.write(_http_chunk(piece))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    async def _fault_at(self, reply: Reply, chunks: int) -> None:
        if reply.hang_after == chunks:
            await asyncio.Event().wait()
        if reply.drop_after == chunks:
            raise _Dropped

    async def _stream(
        self, request: Request, reply: Reply, wire: _Wire, writer: asyncio.StreamWriter
    ) -> None:
        kind = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        writer.write(_response_head(200, {**kind, **reply.headers}))
        await writer.drain()
        await asyncio.sleep(reply.first_token_delay_s)
        started = time.monotonic()
        for data in filter(None, map(wire.chunk, _pieces(reply))):
            if request.chunks_sent == reply.stop_after:
                break
            await self._until_free(request)
            await self._pace(reply, started, request.chunks_sent)
            writer.write(_http_chunk(wire.malformed_frame if reply.malformed else data))
            await writer.drain()
            self._count_chunk(request)
            await self._fault_at(reply, request.chunks_sent)
        await self._until_free(request)
        last = wire.error_frame(reply.error) if reply.error else wire.end()
        writer.write(_http_chunk(last))
        if reply.lingers:
            await writer.drain()
            await asyncio.Event().wait()
        writer.write(b"0\r\n\r\n")

    def _count_chunk(self, request: Request) -> None:
        with self._changed:
            request.chunks_sent += 1
            self._notify()

    async def _until_free(self, request: Request) -> None:
        while request.chunks_sent >= self._holds.get(request.model, self._holds.get(None, 1 << 60)):
            await self._gate.wait()

    @staticmethod
    async def _pace(reply: Reply, started: float, sent: int) -> None:
        """Wait until this chunk is due, counted from the start so that delays don't accumulate."""
        if reply.words_per_second is None:
            return await asyncio.sleep(0)  # let other streams continue
        await asyncio.sleep(max(0, started + sent / reply.words_per_second - time.monotonic()))


# --- a separate process -------------------------------------------------------------------------


def _parse(args: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.model_server", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--port", type=int, default=0, help="0 = any free port")
    parser.add_argument("--text", default="", help="the reply; default: --words words")
    parser.add_argument("--words", type=int, default=50)
    parser.add_argument("--words-per-second", type=float, default=None)
    parser.add_argument("--delay", type=float, default=0, help="seconds before the headers")
    parser.add_argument("--first-token-delay", type=float, default=0, help="seconds after them")
    parser.add_argument("--endless", action="store_true")
    return parser.parse_args(args)


def main(args: list[str] | None = None) -> None:
    """Serve one reply until SIGTERM or SIGINT. The first line of output is the URL."""
    options = _parse(args)
    reply = Reply(
        text=options.text or " ".join(f"word{n}" for n in range(options.words)),
        words_per_second=options.words_per_second,
        delay_s=options.delay,
        first_token_delay_s=options.first_token_delay,
        endless=options.endless,
    )
    stop_requested = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop_requested.set())
    with ModelServer(default=reply, port=options.port) as server:
        print(server.url, flush=True)
        stop_requested.wait()


if __name__ == "__main__":
    main()
