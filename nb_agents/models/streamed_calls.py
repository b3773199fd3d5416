"""Assembles tool calls from the chunks that OpenAI-compatible servers stream.

OpenAI numbers the calls of a reply, and sends a call's id and name once, in its first chunk. Other
servers omit the number or use the same one for all calls, repeat the id and name in each chunk, or
send a new id with each chunk. All agree that a call has one name and that its arguments are one
JSON object, so chunks are assigned to calls on that basis. `StreamedCalls` is pure, and the time
for a chunk is linear in its length.

Source: https://github.com/ollama/ollama/issues/15457 (one index for all calls) and 7881 (no index);
https://github.com/InternLM/lmdeploy/issues/3412 (vLLM and SGLang compared);
https://github.com/ggml-org/llama.cpp/issues/13774 (repeated names);
https://github.com/vercel/ai/pull/14760 and 16507 (late and empty names);
https://github.com/open-webui/open-webui/pull/22235 (several objects as one call's arguments).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models.openai import OpenAIChatModel

_MARK = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)

MAX_ID = 40
"""Maximum length of a call's id. OpenAI rejects longer ones."""


class CallPiece(NamedTuple):
    """A chunk of a tool call.

    Attributes:
        call: The call's number in its reply, starting at 0.
        id: The call's id. It is set only in the first chunk that has one.
        name: Text to append to the tool's name.
        args: JSON text to append to the arguments.
    """

    call: int
    id: str | None = None
    name: str | None = None
    args: str | None = None


class _StreamedCall:
    def __init__(self, number: int, id: str | None, name: str) -> None:
        self.number = number
        self.id = id
        self.name = name
        self.is_whole = False
        self._args: list[str] = []
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    @property
    def args(self) -> str:
        return "".join(self._args)

    @property
    def has_args(self) -> bool:
        return bool(self._args)

    @property
    def is_open(self) -> bool:
        """Whether the call's arguments have started and are incomplete."""
        return self.has_args and not self.is_whole

    def add_string_content(self, text: str) -> bool:
        """Add a chunk of arguments if it is clearly inside a JSON string. Returns whether it is."""
        if not (self._is_in_string and text) or '"' in text or "\\" in text:
            return False
        self._is_escaped = False
        self._args.append(text)
        return True

    def add(self, text: str) -> str:
        """Add arguments up to the end of this call's JSON object. Returns the rest."""
        end = len(text) if self.is_whole else self._end_of_object(text)
        self._args.append(text[:end])
        return text[end:]

    def _end_of_object(self, text: str) -> int:
        start, self._is_escaped = int(self._is_escaped), False
        for mark in _MARK.finditer(text, start):
            char = mark[0]
            if char == '"':
                self._is_in_string = not self._is_in_string
            elif self._is_in_string:
                self._is_escaped = char == "\\"
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_whole = True
                    return mark.end()
        return len(text)


class StreamedCalls:
    """Assembles the tool calls of a reply from streamed chunks.

    Args:
        names: The names of the offered tools.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._count = 0
        self._last: _StreamedCall | None = None
        self._by_index: dict[int, _StreamedCall] = {}
        self._by_id: dict[str, _StreamedCall] = {}

    def is_more(self, index: int | None, args: Any) -> bool:
        """Add a chunk if it clearly continues the last call, as most do. Returns whether it does.

        Args:
            index: The call's index from the server. It must be that of the last call.
            args: A part of the arguments' JSON.
        """
        call = self._last
        if call is None or call.number != index or self._by_index.get(index) is not call:
            return False
        return isinstance(args, str) and call.add_string_content(args)

    def sort(self, index: int | None, id: Any, name: Any, args: Any) -> Iterator[CallPiece]:
        """Assign a chunk of the stream to calls, and yield the chunk of each call.

        Args:
            index: The call's index from the server, or None.
            id: The call's id from the server. None or empty if the server sends none.
            name: The tool's name or a part of it. None or empty if the server sends none.
            args: A part of the arguments' JSON, or the parsed arguments.
        """
        id, name = str(id or ""), str(name or "")
        text = args if isinstance(args, str) else json.dumps(args) if args else ""
        is_yielded = False
        call = self._find(index, id, name)
        if call is None or self._is_another(call, id, name):
            call = self._start_call(index, id, name)
            new = (call.id, name or None)
        else:
            new = self._update(call, id, name)
        if not call.has_args and text.strip() == "{}":
            text = ""  # no arguments, or a placeholder for later ones
        while text:
            if call.is_whole and text.lstrip().startswith("{"):
                if text.strip() == call.args.strip():
                    break  # some servers repeat all arguments at the end of a call
                call = self._start_call(index, "" if id == call.id else id, call.name)
                new = (call.id, call.name or None)
            rest = call.add(text)
            yield CallPiece(call.number, *new, text.removesuffix(rest))
            new, text, is_yielded = (None, None), rest, True
        if not is_yielded:
            yield CallPiece(call.number, *new)

    def _find(self, index: int | None, id: str, name: str) -> _StreamedCall | None:
        """Return the call that a chunk probably belongs to, or None."""
        if index is not None and index in self._by_index:
            return self._by_index[index]
        if id in self._by_id and (index is None or not name):
            return self._by_id[id]
        last = self._last
        is_more = index is None or not (id or name or last is None or last.is_whole)
        return last if is_more else None

    def _is_another(self, call: _StreamedCall, id: str, name: str) -> bool:
        """Return whether a chunk starts a new call, although it has the number of another one."""
        if name and call.name and name != call.name and not self._continues(call, name):
            return True
        return bool(id and call.id and id != call.id and name and not call.is_open)

    def _continues(self, call: _StreamedCall, name: str) -> bool:
        whole = call.name + name
        return not call.has_args and any(known_name.startswith(whole) for known_name in self._names)

    def _start_call(self, index: int | None, id: str, name: str) -> _StreamedCall:
        call = self._last = _StreamedCall(self._count, id or None, name)
        self._count += 1
        if index is not None:
            self._by_index[index] = call
        if id:
            self._by_id[id] = call
        return call

    def _update(self, call: _StreamedCall, id: str, name: str) -> tuple[str | None, str | None]:
        """Add an id and a name to a call. Returns the parts that are new."""
        self._last = call
        more = "" if name == call.name else name
        call.name += more
        new_id = id if id and not call.id else None
        if new_id:
            call.id = new_id
            self._by_id.setdefault(new_id, call)
        return new_id, more or None


@cache
def with_sorted_calls(kind: Any) -> Callable[..., OpenAIChatModel]:
    """Return a subclass of a pydantic-ai chat model class that uses `StreamedCalls`."""

    class Sorting(kind):  # type: ignore[misc]
        @property
        def _streamed_response_cls(self) -> Any:
            return _sorting_stream(super()._streamed_response_cls)

    return Sorting


@cache
def _sorting_stream(kind: Any) -> Any:
    from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCallFunction

    class SortingStream(kind):  # type: ignore[misc]
        _calls: StreamedCalls | None = None

        def _map_tool_call_delta(self, choice: Any) -> Any:
            if choice.delta.tool_calls:
                choice.delta.tool_calls = [*self._sorted(choice.delta.tool_calls)]
            return super()._map_tool_call_delta(choice)

        def _sorted(self, pieces: Sequence[Any]) -> Iterator[Any]:
            if self._calls is None:
                offered = self.model_request_parameters
                tools = (*offered.function_tools, *offered.output_tools)
                self._calls = StreamedCalls({tool.name for tool in tools})
            for piece in pieces:
                delta = piece.function
                name, args = (delta.name, delta.arguments) if delta else (None, None)
                if not (name or piece.id) and self._calls.is_more(piece.index, args):
                    yield piece
                    continue
                for part in self._calls.sort(piece.index, piece.id, name, args):
                    function = ChoiceDeltaToolCallFunction(name=part.name, arguments=part.args)
                    update = {"index": part.call, "id": part.id, "function": function}
                    yield piece.model_copy(update=update)

    return SortingStream


def with_unique_ids(response: ModelResponse, messages: Sequence[ModelMessage]) -> ModelResponse:
    """Return a reply with tool call ids that are unique in the conversation.

    Strict servers reject duplicate ids.

    Args:
        response: The reply.
        messages: The conversation before the reply.
    """
    if not response.tool_calls:
        return response
    used_ids = {
        call.tool_call_id
        for message in messages
        if message.kind == "response"
        for call in message.tool_calls
    }
    parts: list[Any] = []
    for part in response.parts:
        if part.part_kind == "tool-call":
            id = _unused_id(part.tool_call_id, used_ids)
            used_ids.add(id)
            part = part if id == part.tool_call_id else replace(part, tool_call_id=id)
        parts.append(part)
    return replace(response, parts=parts)


def _unused_id(id: str, used_ids: Collection[str]) -> str:
    candidate, number = id, 1
    while candidate in used_ids:
        number += 1
        suffix = f"_{number}"
        candidate = id[: MAX_ID - len(suffix)] + suffix
    return candidate
