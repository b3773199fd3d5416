"""Sorts the pieces of tool calls that OpenAI-compatible servers stream.

OpenAI numbers the calls of a reply, and sends a call's id and name once, with its first piece.
Others leave the number out or send the same one for all calls, repeat id and name in each piece, or
make new ids as they go. What they agree on decides here: a call has one name, and its arguments are
one JSON object. `StreamedCalls` is pure, and the cost of a piece grows with its length alone.

Source: https://github.com/ollama/ollama/issues/15457 (one index for all calls) and 7881 (no index);
https://github.com/InternLM/lmdeploy/issues/3412 (vLLM's and SGLang's, side by side);
https://github.com/ggml-org/llama.cpp/issues/13774 (names repeated);
https://github.com/vercel/ai/pull/14760 and 16507 (names late, and empty);
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
"""Characters of a call's id; OpenAI refuses longer ones."""


class CallPiece(NamedTuple):
    """A piece of one call.

    Attributes:
        call: The call's number in its reply, from 0.
        id: The call's id; with its first piece that has one.
        name: What is added to its tool's name.
        args: What is added to its arguments, as JSON text.
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
        """Whether its arguments have begun and are not all there."""
        return self.has_args and not self.is_whole

    def add_words(self, text: str) -> bool:
        """Add arguments that are plainly within a text of them; return whether they are."""
        if not (self._is_in_string and text) or '"' in text or "\\" in text:
            return False
        self._is_escaped = False
        self._args.append(text)
        return True

    def add(self, text: str) -> str:
        """Add arguments as far as they are this call's; return those that follow its object."""
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
    """The tool calls of one reply, as their pieces arrive.

    Args:
        names: The tools that were offered.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._count = 0
        self._last: _StreamedCall | None = None
        self._by_index: dict[int, _StreamedCall] = {}
        self._by_id: dict[str, _StreamedCall] = {}

    def is_more(self, index: int | None, args: Any) -> bool:
        """Add a piece of arguments if it is plainly more of the last call, as most are.

        Args:
            index: The call's number as the server has it, which must be ours.
            args: A part of the arguments' JSON.
        """
        call = self._last
        if call is None or call.number != index or self._by_index.get(index) is not call:
            return False
        return isinstance(args, str) and call.add_words(args)

    def sort(self, index: int | None, id: Any, name: Any, args: Any) -> Iterator[CallPiece]:
        """Yield the pieces of calls in one piece of a stream.

        Args:
            index: The call's number as the server has it, or None.
            id: The call's id as the server has it; empty counts as none.
            name: The tool's name, or a part of it; likewise.
            args: A part of the arguments' JSON, or the arguments themselves.
        """
        id, name = str(id or ""), str(name or "")
        text = args if isinstance(args, str) else json.dumps(args) if args else ""
        is_told = False
        call = self._find(index, id, name)
        if call is None or self._is_another(call, id, name):
            call = self._begin(index, id, name)
            new = (call.id, name or None)
        else:
            new = self._learn(call, id, name)
        if not call.has_args and text.strip() == "{}":
            text = ""  # means none, or that they are to come
        while text:
            if call.is_whole and text.lstrip().startswith("{"):
                if text.strip() == call.args.strip():
                    break  # the whole once more, as some servers end a call
                call = self._begin(index, "" if id == call.id else id, call.name)
                new = (call.id, call.name or None)
            rest = call.add(text)
            yield CallPiece(call.number, *new, text.removesuffix(rest))
            new, text, is_told = (None, None), rest, True
        if not is_told:
            yield CallPiece(call.number, *new)

    def _find(self, index: int | None, id: str, name: str) -> _StreamedCall | None:
        """Return the call that a piece seems to belong to."""
        if index is not None and index in self._by_index:
            return self._by_index[index]
        if id in self._by_id and (index is None or not name):
            return self._by_id[id]
        last = self._last
        is_more = index is None or not (id or name or last is None or last.is_whole)
        return last if is_more else None

    def _is_another(self, call: _StreamedCall, id: str, name: str) -> bool:
        """Return whether a piece that came under a call's number begins one of its own."""
        if name and call.name and name != call.name and not self._continues(call, name):
            return True
        return bool(id and call.id and id != call.id and name and not call.is_open)

    def _continues(self, call: _StreamedCall, name: str) -> bool:
        whole = call.name + name
        return not call.has_args and any(known.startswith(whole) for known in self._names)

    def _begin(self, index: int | None, id: str, name: str) -> _StreamedCall:
        call = self._last = _StreamedCall(self._count, id or None, name)
        self._count += 1
        if index is not None:
            self._by_index[index] = call
        if id:
            self._by_id[id] = call
        return call

    def _learn(self, call: _StreamedCall, id: str, name: str) -> tuple[str | None, str | None]:
        """Add an id and a name to a call; return the parts that are new to it."""
        self._last = call
        more = "" if name == call.name else name
        call.name += more
        new_id = id if id and not call.id else None
        if new_id:
            call.id = new_id
            self._by_id.setdefault(new_id, call)
        return new_id, more or None


@cache
def sorting_calls(kind: Any) -> Callable[..., OpenAIChatModel]:
    """Return a subclass of one of pydantic-ai's chat models that sorts the pieces of tool calls.

    Args:
        kind: The class of the model.
    """

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
                made = piece.function
                name, args = (made.name, made.arguments) if made else (None, None)
                if not (name or piece.id) and self._calls.is_more(piece.index, args):
                    yield piece
                    continue
                for part in self._calls.sort(piece.index, piece.id, name, args):
                    function = ChoiceDeltaToolCallFunction(name=part.name, arguments=part.args)
                    known = {"index": part.call, "id": part.id, "function": function}
                    yield piece.model_copy(update=known)

    return SortingStream


def with_own_ids(response: ModelResponse, messages: Sequence[ModelMessage]) -> ModelResponse:
    """Return a reply in which no tool call has the id of another one, which strict servers refuse.

    Args:
        response: The reply.
        messages: The conversation before it.
    """
    if not response.tool_calls:
        return response
    taken = {
        call.tool_call_id
        for message in messages
        if message.kind == "response"
        for call in message.tool_calls
    }
    parts: list[Any] = []
    for part in response.parts:
        if part.part_kind == "tool-call":
            id = _free_id(part.tool_call_id, taken)
            taken.add(id)
            part = part if id == part.tool_call_id else replace(part, tool_call_id=id)
        parts.append(part)
    return replace(response, parts=parts)


def _free_id(id: str, taken: Collection[str]) -> str:
    free, number = id, 1
    while free in taken:
        number += 1
        ending = f"_{number}"
        free = id[: MAX_ID - len(ending)] + ending
    return free
