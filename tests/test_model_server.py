"""The model server: dialects, scripted faults, and closed streams."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from tests import model_server
from tests.model_server import ModelServer, Reply, Request, ToolCall, free_port, wait_until

PROTOCOLS = ("openai", "anthropic", "google")
TOOL = ToolDefinition(
    name="vote",
    description="Vote for an answer.",
    parameters_json_schema={"type": "object", "properties": {"agent": {"type": "string"}}},
)
PROMPT: list[ModelMessage] = [
    ModelRequest.user_text_prompt("say something", instructions="be brief")
]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@asynccontextmanager
async def model_of(server: ModelServer, protocol: str) -> AsyncIterator[Model]:
    """A pydantic-ai model that talks to the server, without the SDK's own retries."""
    async with httpx2.AsyncClient(timeout=120) as client:
        if protocol == "openai":
            from pydantic_ai.models.openai import OpenAIChatModel
            from pydantic_ai.providers.openai import OpenAIProvider

            openai = OpenAIProvider(base_url=server.url, api_key="k", http_client=client)
            openai.client.max_retries = 0
            yield OpenAIChatModel("m", provider=openai)
        elif protocol == "anthropic":
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            anthropic = AnthropicProvider(base_url=server.base, api_key="k", http_client=client)
            anthropic.client.max_retries = 0
            yield AnthropicModel("m", provider=anthropic)
        else:
            from pydantic_ai.models.google import GoogleModel
            from pydantic_ai.providers.google import GoogleProvider

            google = GoogleProvider(base_url=server.base, api_key="k", http_client=client)
            yield GoogleModel("m", provider=google)


def ask(server: ModelServer, protocol: str) -> tuple[ModelResponse, int]:
    """Stream one response to its end. Return it and the number of its events."""

    async def stream() -> tuple[ModelResponse, int]:
        offered = ModelRequestParameters(function_tools=[TOOL])
        async with (
            model_of(server, protocol) as model,
            model_request_stream(model, PROMPT, model_request_parameters=offered) as response,
        ):
            events = [event async for event in response]
            return response.get(), len(events)

    return asyncio.run(stream())


def raw_stream(server: ModelServer, model: str = "m") -> socket.socket:
    """Open an OpenAI stream on a bare socket."""
    body = json.dumps({"model": model, "stream": True, "messages": []}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    client = socket.create_connection(server.base.removeprefix("http://").split(":"))  # type: ignore
    client.sendall(head.encode() + body)
    return client


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_text_arrives_word_by_word_with_usage(server: ModelServer, protocol: str) -> None:
    server.script("m", Reply(text="one two  three\nfour", input_tokens=7))
    response, events = ask(server, protocol)
    assert response.text == "one two  three\nfour"
    assert events >= 4
    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 4)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tool_calls_follow_the_text(server: ModelServer, protocol: str) -> None:
    calls = (
        ToolCall("vote", {"agent": "agent_1", "reason": "it is best"}, "id-1"),
        ToolCall("vote"),
    )
    server.script("m", Reply(text="I vote.", tool_calls=calls))
    response, events = ask(server, protocol)
    assert response.text == "I vote."
    assert [call.args_as_dict() for call in response.tool_calls] == [calls[0].args, {}]
    assert response.tool_calls[0].tool_call_id == "id-1"
    assert response.tool_calls[1].tool_call_id not in ("", "id-1")
    assert events >= (5 if protocol == "google" else 8)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_are_recorded(server: ModelServer, protocol: str) -> None:
    ask(server, protocol)
    assert server.endings() == ["server"]
    (request,) = server.requests
    assert (request.protocol, request.model, request.tool_names) == (protocol, "m", ["vote"])
    assert "say something" in request.prompt and "be brief" in request.prompt
    assert request.closed_at and request.closed_at >= request.opened_at
    assert request.chunks_sent == 4


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
def test_error_statuses_reach_the_caller(server: ModelServer, protocol: str, status: int) -> None:
    server.script("m", Reply(status=status, headers={"Retry-After": "3"}, error="no more"))
    with pytest.raises(ModelHTTPError, match="no more") as caught:
        ask(server, protocol)
    assert caught.value.status_code == status
    assert server.count("m") == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "reply",
    [
        Reply(text="a b c", drop_after=0),
        Reply(text="a b c", drop_after=2),
        Reply(text="a b c", malformed=True),
        Reply(text="a b c", error="overloaded"),
    ],
    ids=["drop before headers", "drop mid-stream", "malformed", "error frame"],
)
def test_broken_streams_raise(server: ModelServer, protocol: str, reply: Reply) -> None:
    server.script("m", reply)
    with pytest.raises(ModelAPIError):
        ask(server, protocol)
    server.wait_closed()
    if reply.drop_after is not None:
        assert (server.requests[0].chunks_sent, server.requests[0].closed_by) == (
            reply.drop_after,
            "server",
        )


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("after", [0, 2])
def test_hanging_stream_is_open_until_the_client_disconnects(
    server: ModelServer, protocol: str, after: int
) -> None:
    server.script("m", Reply(text="a b c", hang_after=after))

    async def listen() -> None:
        async with (
            model_of(server, protocol) as model,
            model_request_stream(model, PROMPT) as response,
        ):
            async for _ in response:
                pass

    async def leave_the_silence() -> None:
        task = asyncio.create_task(listen())
        await asyncio.to_thread(server.wait_chunks, after)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave_the_silence())
    server.wait_closed()
    assert (server.requests[0].chunks_sent, server.requests[0].closed_by) == (after, "client")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_disconnect_from_an_endless_stream_is_detected(server: ModelServer, protocol: str) -> None:
    server.script("m", Reply(text="on and on", endless=True, words_per_second=200))

    async def leave_early() -> None:
        async with (
            model_of(server, protocol) as model,
            model_request_stream(model, PROMPT) as response,
        ):
            async for _ in response:
                if server.requests[0].chunks_sent > 8:
                    return

    asyncio.run(leave_early())
    assert server.endings() == ["client"]


@pytest.mark.parametrize(
    "reply",
    [Reply(hang_after=0), Reply(text="a b", hang_after=1), Reply(text="a b", words_per_second=0.1)],
    ids=["no headers", "mid-stream", "between chunks"],
)
def test_disconnect_is_detected_while_nothing_is_sent(server: ModelServer, reply: Reply) -> None:
    server.script("m", reply)
    client = raw_stream(server)
    server.wait_open(1)
    if reply.hang_after != 0:
        server.wait_chunks(1)
    sent = server.requests[0].chunks_sent
    client.close()
    assert server.endings() == ["client"]
    assert server.requests[0].chunks_sent == sent  # not only when the next one could not be sent


def test_hold_pauses_streams_at_a_chunk_and_release_lets_them_end(server: ModelServer) -> None:
    server.script("m", Reply(text="a b c d"))
    server.hold(after=2)
    with raw_stream(server) as client, raw_stream(server, "other") as other:
        server.wait_open(2)
        server.wait_chunks(2)
        server.hold(after=3, model="m")
        server.wait_chunks(3, model="m")
        assert [r.chunks_sent for r in sorted(server.requests, key=lambda r: r.model)] == [3, 2]
        server.release()
        assert server.endings() == ["server", "server"]
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
        assert other.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")


def test_scripts_are_served_in_order_and_the_last_repeats(server: ModelServer) -> None:
    def count(request: Request) -> Reply:
        return Reply(text=f"{request.model} {request.number}")

    server.script("m", Reply(text="first"), count)
    assert [ask(server, "openai")[0].text for _ in range(3)] == ["first", "m 1", "m 2"]
    server.script("m", Reply(text="last"), once=True)
    server.default = Reply(text="default")
    assert [ask(server, "openai")[0].text for _ in range(2)] == ["last", "default"]


def test_a_failing_reply_function_answers_500(server: ModelServer) -> None:
    server.script("m", lambda request: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(ModelHTTPError, match="ZeroDivisionError"):
        ask(server, "openai")


def test_delays_and_speed_are_respected(server: ModelServer) -> None:
    server.script(
        "m", Reply(text="a b c d e", words_per_second=50, delay_s=0.1, first_token_delay_s=0.1)
    )
    ask(server, "openai")
    (request,) = server.requests
    assert request.closed_at
    assert 0.28 <= request.closed_at - request.opened_at < 2


def test_hundred_concurrent_streams(server: ModelServer) -> None:
    server.script("m", Reply(text="a b c d"))
    server.hold()

    async def many() -> set[str]:
        async with model_of(server, "openai") as model, asyncio.TaskGroup() as group:

            async def one() -> str:
                async with model_request_stream(model, PROMPT) as response:
                    _ = [event async for event in response]
                    return response.get().text or ""

            tasks = [group.create_task(one()) for _ in range(100)]
            await asyncio.to_thread(server.wait_open, 100)
            await asyncio.to_thread(server.release)
        return {task.result() for task in tasks}

    assert asyncio.run(many()) == {"a b c d"}
    server.wait_closed()
    assert server.stats() == {
        "requests": 100,
        "open": 0,
        "peak_open": 100,
        "chunks_sent": 400,
        "closed_by_client": 0,
    }


def test_connections_are_reused(server: ModelServer) -> None:
    body = json.dumps({"model": "m", "stream": True, "messages": []}).encode()
    with httpx2.Client() as client:
        for _ in range(200):
            assert b"[DONE]" in client.post(f"{server.url}/chat/completions", content=body).content
        pool = client._transport._pool  # type: ignore[attr-defined]
        assert len(pool.connections) == 1


def test_other_requests_get_an_explanation(server: ModelServer) -> None:
    answer = httpx2.post(f"{server.url}/chat/completions", content=b"{not json")
    assert (answer.status_code, server.count()) == (404, 0)
    assert "only streams" in answer.text


def test_stopping_the_server_closes_its_streams() -> None:
    with ModelServer() as server:
        server.script("m", Reply(hang_after=0), Reply(text="x" * 100, endless=True))
        with raw_stream(server), raw_stream(server):
            server.wait_open(2)
            server.stop()
    assert server.endings() == ["server", "server"]
    assert server.open_count == 0


def test_timeout_of_a_wait_describes_the_state(server: ModelServer) -> None:
    ask(server, "openai")
    with pytest.raises(TimeoutError, match=r"Waited 0.05 s for 3 open streams; saw .*m: 4 chunks"):
        server.wait_open(3, timeout_s=0.05)
    with pytest.raises(TimeoutError, match="for a miracle; saw 0"):
        wait_until(lambda: 0, 0.01, "a miracle")


def test_server_runs_as_a_separate_process() -> None:
    command = [sys.executable, "-m", "tests.model_server", "--port", "0", "--text", "hi there"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", url)
        body = json.dumps({"model": "m", "stream": True, "messages": []}).encode()
        with urllib.request.urlopen(f"{url}/chat/completions", body) as answer:
            assert b" there" in answer.read()
        with urllib.request.urlopen(url.removesuffix("/v1") + "/stats") as answer:
            assert json.load(answer)["chunks_sent"] == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(200) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="a socket with a name that is no file")
def test_free_port_is_not_returned_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    found = free_port(), free_port()
    drawn, draw = iter(found), model_server.random.randrange
    monkeypatch.setattr(
        model_server.random, "randrange", lambda *limits: next(drawn, None) or draw(*limits)
    )
    assert free_port() not in found
