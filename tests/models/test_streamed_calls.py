"""Tool calls as OpenAI-compatible servers stream them: each is executed exactly once."""

import json
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, UserPromptPart
from pydantic_ai.tools import ToolDefinition

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.models.streamed_calls import StreamedCalls, with_unique_ids
from tests.kit.models import SharedClient, backend_for
from tests.model_server import ModelServer, Reply, ToolCall
from tests.team_kit import finish

pytestmark = pytest.mark.anyio

ONE = '{"text": "one {\\"a\\": 1}"}'
TWO = '{"text": "two"}'
BOTH = [("query", ONE), ("query", TWO)]
GONE = object()


def piece(index: Any = GONE, id: Any = GONE, name: Any = GONE, args: Any = GONE) -> dict[str, Any]:
    """Return an element of `delta.tool_calls` with only these keys."""
    function = {"name": name, "arguments": args}
    function = {key: each for key, each in function.items() if each is not GONE}
    whole = {"index": index, "id": id, "type": "function", "function": function}
    return {key: each for key, each in whole.items() if each is not GONE}


def cut(args: str) -> list[str]:
    return [args[at : at + 7] for at in range(0, len(args), 7)]


def streamed(
    index: Any, id: Any, name: Any, args: str, every: dict[str, Any] | None = None
) -> list[list[dict[str, Any]]]:
    """Return the chunks of a call, with numbers and the keys that later chunks repeat."""
    rest = [[piece(index, **(every or {}), args=part)] for part in cut(args)]
    return [[piece(index, id, name, "")], *rest]


SHAPES: dict[str, tuple[list[list[dict[str, Any]]], list[tuple[str, str]]]] = {
    "OpenAI: numbered": (
        [*streamed(0, "a", "query", ONE), *streamed(1, "b", "query", TWO)],
        BOTH,
    ),
    "numbers with a gap, from 1": (
        [*streamed(1, "a", "query", ONE), *streamed(7, "b", "query", TWO)],
        BOTH,
    ),
    "both calls in one piece of the stream": (
        [[piece(0, "a", "query", ONE), piece(1, "b", "query", TWO)]],
        BOTH,
    ),
    "pieces of both calls in turn": (
        [
            [piece(0, "a", "query", ""), piece(1, "b", "query", "")],
            *[
                [piece(0, args=x)] + [piece(1, args=y)]
                for x, y in zip_longest(cut(ONE), cut(TWO), fillvalue="")
            ],
        ],
        BOTH,
    ),  # fmt: skip
    "Ollama: all numbered 0, whole": (
        [[piece(0, "a", "query", ONE)], [piece(0, "b", "query", TWO)]],
        BOTH,
    ),
    "Ollama: all numbered 0, in one piece of the stream": (
        [[piece(0, "a", "query", ONE), piece(0, "b", "look", TWO)]],
        [("query", ONE), ("look", TWO)],
    ),
    "vLLM: all numbered 0, streamed, then empty ids": (
        [*streamed(0, "a", "query", ONE, {"id": ""}), *streamed(0, "b", "query", TWO, {"id": ""})],
        BOTH,
    ),
    "SGLang: all numbered 0, ids repeated": (
        [
            *streamed(0, "0", "query", ONE, {"id": "0"}),
            *streamed(0, "1", "query", TWO, {"id": "1"}),
        ],
        BOTH,
    ),
    "Gemini: no numbers": (
        [[piece(id="a", name="query", args=ONE)], [piece(id="b", name="query", args=TWO)]],
        BOTH,
    ),
    "a proxy of Gemini: no numbers, streamed, then empty ids": (
        [
            *streamed(GONE, "a", "query", ONE, {"id": ""}),
            *streamed(GONE, "b", "look", TWO, {"id": ""}),
        ],
        [("query", ONE), ("look", TWO)],
    ),
    "numbers that are null": (
        [*streamed(None, "a", "query", ONE), *streamed(None, "b", "query", TWO)],
        BOTH,
    ),
    "no numbers and no ids": (
        [[piece(name="query", args=ONE)], [piece(name="query", args=TWO)]],
        BOTH,
    ),
    "llama-cpp-python: id and name repeated": (
        streamed(0, "a", "query", ONE, {"id": "a", "name": "query"}),
        [("query", ONE)],
    ),
    "id and name repeated, two calls": (
        [
            *streamed(0, "a", "query", ONE, {"id": "a", "name": "query"}),
            *streamed(1, "b", "query", TWO, {"id": "b", "name": "query"}),
        ],
        BOTH,
    ),
    "id and name repeated, two calls, all numbered 0": (
        [
            *streamed(0, "a", "query", ONE, {"id": "a", "name": "query"}),
            *streamed(0, "b", "query", TWO, {"id": "b", "name": "query"}),
        ],
        BOTH,
    ),
    "llama.cpp: names repeated, without ids": (
        streamed(0, "a", "query", ONE, {"name": "query"}),
        [("query", ONE)],
    ),
    "an id of its own for each piece": (
        [
            [piece(0, f"id{n}", "query" if n == 0 else None, part)]
            for n, part in enumerate(cut(ONE))
        ],
        [("query", ONE)],
    ),
    "a name after the arguments": (
        [[piece(0, "a", args=ONE)], [piece(0, name="query", args="")]],
        [("query", ONE)],
    ),
    "a name after the arguments, two calls": (
        [
            [piece(0, "a", args=ONE)],
            [piece(0, name="query")],
            [piece(1, "b", args=TWO)],
            [piece(1, name="look")],
        ],
        [("query", ONE), ("look", TWO)],
    ),
    "Command A: a name that is empty at first": (
        [[piece(0, "a", "", "")], [piece(0, name="query", args=ONE)]],
        [("query", ONE)],
    ),
    "names that are empty later": (
        streamed(0, "a", "query", ONE, {"name": ""}),
        [("query", ONE)],
    ),
    "a name in parts": (
        [[piece(0, "a", "que", "")], [piece(0, name="ry", args="")], [piece(0, args=ONE)]],
        [("query", ONE)],
    ),
    "an id that comes late": (
        [[piece(0, name="query", args="")], [piece(0, "a", args=ONE)]],
        [("query", ONE)],
    ),
    "arguments as an object": (
        [[piece(0, "a", "query", {"text": "two"})], [piece(0, "b", "query", {"text": "three"})]],
        [("query", TWO), ("query", '{"text": "three"}')],
    ),
    "no arguments": ([[piece(0, "a", "look")]], [("look", "{}")]),
    "arguments that are null": ([[piece(0, "a", "look", None)]], [("look", "{}")]),
    "arguments that are empty": ([[piece(0, "a", "look", "")]], [("look", "{}")]),
    "two calls without arguments, all numbered 0": (
        [[piece(0, "a", "look", "{}")], [piece(0, "b", "query", "")]],
        [("look", "{}"), ("query", "{}")],
    ),
    "an empty object before the arguments": (
        [[piece(0, "a", "query", "{}")], *[[piece(0, args=part)] for part in cut(ONE)]],
        [("query", ONE)],
    ),
    "the arguments once more at the end": (
        [*streamed(0, "a", "query", ONE), [piece(0, "a", "query", ONE)]],
        [("query", ONE)],
    ),
    "GPT behind a gateway: two objects as the arguments of one call": (
        [[piece(0, "a", "query", "")], [piece(0, args=ONE)], [piece(0, name="", args=TWO)]],
        BOTH,
    ),
    "two objects in one piece": ([[piece(0, "a", "query", ONE + TWO)]], BOTH),
    "two calls with one id": (
        [*streamed(0, "a", "query", ONE), *streamed(1, "a", "query", TWO)],
        BOTH,
    ),
    "two calls with one id and one number": (
        [[piece(0, "a", "query", ONE)], [piece(0, "a", "query", TWO)]],
        BOTH,
    ),
    "two tools with one id and one number": (
        [[piece(0, "a", "query", ONE)], [piece(0, "a", "look", ONE)]],
        [("query", ONE), ("look", ONE)],
    ),
    "a number of its own for each piece": (
        [[piece(0, "a", "query", "")], *[[piece(n, args=p)] for n, p in enumerate(cut(ONE), 1)]],
        [("query", ONE)],
    ),
}


def frames(deltas: Iterable[list[dict[str, Any]]], finish: str | None) -> Iterator[bytes]:
    head = {"id": "r", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    for calls in deltas:
        choice = {"index": 0, "delta": {"tool_calls": calls}, "finish_reason": None}
        yield b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"
    if finish:
        end = {"index": 0, "delta": {}, "finish_reason": finish}
        yield b"data: " + json.dumps({**head, "choices": [end]}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


async def read(shape: list[list[dict[str, Any]]], finish: str | None) -> ModelResponse:
    """Return the reply that a backend builds from a stream."""
    reply = Reply(body=lambda: frames(shape, finish))
    tools = [ToolDefinition(name=name) for name in ("query", "look")]
    with ModelServer(default=reply) as server:
        client = SharedClient()
        spec = TeamSpec.model_validate(
            {"agents": [{"id": "a", "backend": server.backend("openai", model="m")}]}
        )
        backend = backend_for(spec.agents[0], client.get)
        try:
            async with backend.stream([ModelRequest(parts=[UserPromptPart("go")])], tools) as got:
                async for _ in got:
                    pass
                return got.get()
        finally:
            await client.aclose()


@pytest.mark.parametrize("finish", ["tool_calls", "stop", None])
async def test_streamed_calls_of_any_shape_arrive_once(finish: str | None) -> None:
    wrong = {}
    for name, (shape, expected) in SHAPES.items():
        response = with_unique_ids(await read(shape, finish), [])
        calls = [(call.tool_name, json.dumps(call.args_as_dict())) for call in response.tool_calls]
        ids = [call.tool_call_id for call in response.tool_calls]
        if calls != expected or len({*ids}) < len(ids) or not all(ids):
            wrong[name] = (calls, ids)
    assert not wrong


@given(data=st.data())
def test_calls_split_anywhere_arrive_whole(data: st.DataObject) -> None:
    values = st.recursive(
        st.none() | st.integers() | st.text(max_size=6),
        lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each),
        max_leaves=6,
    )
    arguments = st.dictionaries(st.text(max_size=4), values, min_size=1, max_size=3)
    given = data.draw(st.lists(arguments, min_size=1, max_size=3, unique_by=json.dumps))
    repeats = data.draw(st.booleans())
    calls = StreamedCalls(["query"])
    got: dict[int, str] = {}
    names: dict[int, str] = {}
    for number, args in enumerate(given):
        text, at = json.dumps(args), 0
        while at < len(text):
            size = data.draw(st.integers(1, 9))
            known = (f"id{number}", "query") if repeats or at == 0 else ("", None)
            piece = text[at : at + size]
            if not known[0] and calls.is_more(0, piece):
                got[0] += piece
                at += size
                continue
            for part in calls.sort(0, *known, piece):
                got[part.call] = got.get(part.call, "") + (part.args or "")
                names[part.call] = names.get(part.call, "") + (part.name or "")
            at += size
    assert [json.loads(text) for text in got.values()] == given
    assert {*names.values()} == {"query"}


@pytest.mark.parametrize(
    "name", ["Ollama: all numbered 0, whole", "two calls with one id", "Gemini: no numbers"]
)
def test_both_calls_run_and_a_strict_server_accepts_them(tmp_path: Path, name: str) -> None:
    shape, _ = SHAPES[name]
    asked = []

    @nb_agents.tool
    def query(text: str) -> str:
        """Return a result."""
        asked.append(text)
        return f"result {len(asked)}"

    answer = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),))
    called = Reply(body=lambda: frames(shape, "tool_calls"))
    with ModelServer() as server:
        # Each reply has the same ids, as with servers that count from 0.
        server.script("m", called, called, answer)
        backend = server.backend("openai", model="m")
        team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
        run = finish(
            nb_agents.start("t", team, tools=[query], options=RunOptions(session_root=tmp_path))
        )
        sent = server.requests[-1].messages
    assert run.result == "done"
    assert asked == ['one {"a": 1}', "two"] * 2
    made = [call["id"] for each in sent for call in each.get("tool_calls") or ()]
    told = [each["tool_call_id"] for each in sent if each["role"] == "tool"]
    assert made == told
    assert len({*made}) == 4


def test_unique_id_respects_the_maximum_length() -> None:
    response = ModelResponse(parts=[ToolCallPart("query", "{}", "x" * 40) for _ in range(12)])
    ids = [call.tool_call_id for call in with_unique_ids(response, []).tool_calls]
    assert len({*ids}) == 12
    assert max(map(len, ids)) == 40
