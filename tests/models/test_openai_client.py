"""The patched OpenAI client: it sends and returns the same as the SDK's, with less work."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, BadRequestError, omit
from openai.resources.chat.completions import completions as chat_completions
from openai.resources.responses import responses as openai_responses
from openai.types.chat import ChatCompletionChunk

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.models.openai_client import _send_unchanged, patch_client
from tests.model_server import ModelServer, Reply, ToolCall
from tests.team_kit import finish

words = st.text(max_size=8)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)


def either(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate mostly valid values of a type, and sometimes arbitrary ones."""
    return st.integers(0, 29).flatmap(lambda dice: right if dice else anything)


def record(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate objects with possibly invalid, missing and additional fields."""
    known = st.fixed_dictionaries({name: either(field) for name, field in fields.items()})
    more = either(st.just({})).filter(lambda drawn: isinstance(drawn, dict))
    return st.builds(
        lambda more, own, gone: {k: v for k, v in {**more, **own}.items() if k != gone},
        more,
        known,
        st.sampled_from([*fields, *[""] * 30]),
    )


call = record(
    index=st.integers(0, 3),
    id=words,
    type=st.just("function"),
    function=record(name=words, arguments=words),
)
delta = record(
    role=st.sampled_from(["assistant", "tool"]),
    content=words | st.none(),
    tool_calls=st.lists(call, max_size=2) | st.none(),
    reasoning_content=words,
)
choice = record(
    index=st.integers(0, 3),
    delta=delta,
    finish_reason=st.sampled_from([None, "stop", "length", "tool_calls"]),
)
usage = record(
    prompt_tokens=st.integers(0, 99),
    completion_tokens=st.integers(0, 99),
    total_tokens=st.integers(0, 99),
    prompt_tokens_details=record(cached_tokens=st.integers(0, 9)),
)
chunk = record(
    id=words,
    object=st.just("chat.completion.chunk"),
    created=st.integers(0, 2**31),
    model=words,
    choices=st.lists(choice, max_size=2),
    usage=usage | st.none(),
    service_tier=st.sampled_from([None, "default", "flex"]),
)


@pytest.fixture(scope="module")
def clients() -> tuple[Any, Any]:
    """Return the SDK's client and a patched one."""
    ours = AsyncOpenAI(api_key="k")
    patch_client(ours)
    return AsyncOpenAI(api_key="k"), ours


@given(sent=chunk)
def test_patched_client_parses_chunks_like_the_sdk(clients: tuple[Any, Any], sent: Any) -> None:
    data = json.loads(json.dumps(sent))
    its, ours = (
        client._process_response_data(data=data, cast_to=ChatCompletionChunk, response=None)
        for client in clients
    )
    assert repr(ours) == repr(its)  # compares the types of values, too
    ours, its = (made.model_dump(exclude_unset=True, warnings=False) for made in (ours, its))
    assert ours == its


@pytest.mark.parametrize("kind", ["openai", "azure_openai", "vllm"])
def test_pydantic_parses_the_chunks_of_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    made = list[Any]()
    validate = ChatCompletionChunk.model_validate
    monkeypatch.setattr(
        ChatCompletionChunk,
        "model_validate",
        lambda data, **how: made.append(data) or validate(data, **how),
    )
    answer = ToolCall("new_answer", {"content": "three words here"})
    with ModelServer(default=Reply("So:", (answer,))) as server:
        url = server.base if kind == "azure_openai" else server.url
        backend = {"type": kind, "model": "m", "base_url": url, "api_key": "k"}
        team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
        run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    assert run.result == "three words here"
    assert "So:" in str(made)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=9,
)
function = st.fixed_dictionaries({"name": words, "arguments": words, "parameters": plain})
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": words | plain},
    optional={
        "tool_calls": st.lists(
            st.fixed_dictionaries({"id": words, "type": words, "function": function}), max_size=2
        ),
        "tool_call_id": words,
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]),
        "output": words,
    },
)
messages = st.lists(message | plain, max_size=4)
tools = st.lists(st.fixed_dictionaries({"type": words, "function": function}) | plain, max_size=2)


@given(said=messages, offered=tools | st.none(), extra=st.dictionaries(words, plain, max_size=2))
def test_patched_client_sends_the_same_bytes_as_the_sdk(
    said: list[Any], offered: list[Any] | None, extra: dict[str, Any]
) -> None:
    more: dict[str, Any] = {"model": "m", "extra_body": extra or None}
    more |= {} if offered is None else {"tools": offered}
    assert sent_by(lambda client: client.chat.completions.create(messages=said, **more)) == 1
    assert sent_by(lambda client: client.responses.create(input=said, **more)) == 1


def sent_by(ask: Callable[[AsyncOpenAI], Awaitable[Any]]) -> int:
    """Send requests with the SDK's client, our client and its copy; count different bodies."""
    bodies = set[bytes]()

    def note(request: httpx2.Request) -> httpx2.Response:
        bodies.add(request.content)
        return httpx2.Response(400, json={})

    async def ask_all() -> None:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(note)) as http:
            its, ours = (AsyncOpenAI(api_key="k", http_client=http) for _ in range(2))
            patch_client(ours)
            for client in (its, ours, ours.copy()):
                with pytest.raises(BadRequestError):
                    await ask(client)

    anyio.run(ask_all)
    return len(bodies)


@pytest.mark.parametrize("value", [b"\0", omit, Path("x"), range(2), {"x": omit}])
def test_other_values_than_plain_json_are_left_to_the_sdk(value: Any) -> None:
    sent = list[dict[str, Any]]()

    async def create(**given: Any) -> None:
        sent.append(given)

    for large in (value, [value], [{"role": "user", "content": value}]):
        anyio.run(partial(_send_unchanged(create), messages=large))
    assert [each["extra_body"] for each in sent] == [None] * 3
    assert sent[0]["messages"] is value


@pytest.mark.parametrize(
    ("kind", "module", "said"),
    [
        ("openai", chat_completions, "messages"),
        ("azure_openai", chat_completions, "messages"),
        ("responses", openai_responses, "input"),
    ],
)
def test_sdk_does_not_traverse_the_conversation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, module: Any, said: str
) -> None:
    gone_through = list[dict[str, Any]]()
    transform = module.async_maybe_transform
    monkeypatch.setattr(
        module,
        "async_maybe_transform",
        lambda data, kind: gone_through.append(data) or transform(data, kind),
    )
    answer = ToolCall("new_answer", {"content": "three words here"})
    with ModelServer(default=Reply("So:", (answer,))) as server:
        url = server.base if kind == "azure_openai" else server.url
        backend = {"type": kind, "model": "m", "base_url": url, "api_key": "k"}
        if kind == "responses":
            backend |= {"type": "openai", "api": "responses"}
        team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
        run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
        [request] = server.requests
    assert run.result == "three words here"
    assert "t" in request.prompt
    assert [(each[said], each["tools"]) for each in gone_through] == [((), ())]


def test_platform_is_determined_once_and_unchanged(
    clients: tuple[Any, Any],
) -> None:
    its, ours = clients
    assert (
        its._platform is None
    )  # the SDK still has this method and calls it before its first request
    assert ours._platform is not None
    assert ours.copy()._platform == ours._platform
    assert ours.platform_headers() == its.platform_headers()
