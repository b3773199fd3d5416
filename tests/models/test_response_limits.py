"""Size limits of responses: hostile or broken servers cause an error and use little memory."""

import json
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.errors import ReplyTooLongError
from nb_agents.models import response_limits as limits
from nb_agents.models.response_limits import EventBuffer
from tests.canaries import KEY
from tests.kit.models import backend_for, http_client, reading
from tests.model_server import ModelServer, Reply, ToolCall
from tests.processes import run
from tests.team_kit import finish

KINDS = {"openai": "vllm", "responses": "responses", "anthropic": "claude", "google": "gemini"}
MAX_GROWTH_MB = 50


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


# Server responses ------------------------------------------------------------------------------


def _forever(piece: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter(lambda: piece, b"")


def _bomb(content: bytes) -> Iterator[bytes]:
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    while True:
        yield packed.compress(content)


def _chunk(protocol: str, text: str) -> bytes:
    """Return an event with one word, in a protocol's format."""
    delta = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "choices": [delta]}
    parts = {"index": 0, "content": {"role": "model", "parts": [{"text": text}]}}
    block = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}
    word = {"type": "response.output_text.delta", "delta": text, "item_id": "i"}
    word |= {"content_index": 0, "output_index": 0, "sequence_number": 1, "logprobs": []}
    google = {"candidates": [parts]}
    events = {"openai": chunk, "google": google, "anthropic": block, "responses": word}
    event = events[protocol]
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _many_calls(count: int) -> Reply:
    return Reply(tool_calls=tuple(ToolCall("f", {"n": n}) for n in range(count)))


GZIP = {"Content-Encoding": "gzip"}
MB = 2**20


def _attacks(protocol: str) -> dict[str, tuple[Reply, str]]:
    """Oversized replies, each with the limit that its error names."""
    spoken = protocol if protocol in ("openai", "responses") else "openai"
    return {
        "a-line-without-end": (Reply(body=_forever(b"x" * 65536)), "524288 bytes"),
        "a-gzip-bomb": (Reply(body=lambda: _bomb(b"\0" * 16 * MB), headers=GZIP), "524288 bytes"),
        "an-error-of-400-MB": (Reply(status=400, body=lambda: [b"e" * MB] * 400), "65536 bytes"),
        "a-chunk-of-30-MB": (
            Reply(body=lambda: [_chunk(protocol, "w" * 30 * MB)]),
            "524288 bytes",
        ),
        "10000-tool-calls": (_many_calls(10_000), "256 tool calls"),
        "an-event-of-100000-values": (
            Reply(body=lambda: [b'data: {"a": [' + b"{}," * 100_000 + b"{}]}\n\n"]),
            "10000 values",
        ),
        "an-event-of-10000-lines": (Reply(body=_forever(b":\n" * 10_000)), "1000 lines"),
        "a-word-a-million-times": (
            Reply(body=_forever(_chunk(spoken, "w" * 10_000))),
            "500000 characters" if spoken == protocol else "33554432 bytes",
        ),
    }


PLAY = """
import json, resource, sys
import nb_agents
from nb_agents import RunOptions, TeamSpec

def play(model):
    backend = {**json.loads(sys.argv[1]), "model": model}
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
    run = nb_agents.start("t", team, options=RunOptions(session_root=sys.argv[2]))
    run.wait(200, raise_on_stop=False)
    return run

def used_mb():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)

assert play("friendly").result == "done"
for name in sys.argv[3:]:
    before = used_mb()
    run = play(name)
    told = {"status": run.status, "error": run.view.agents["ann"].error}
    print(json.dumps({"name": name, "grown_mb": used_mb() - before, **told}))
"""


@pytest.mark.parametrize("protocol", KINDS)
def test_oversized_reply_is_an_error_and_uses_little_memory(
    tmp_path: Path, server: ModelServer, protocol: str
) -> None:
    attacks = _attacks(protocol)
    server.script("friendly", Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),)))
    for name, (reply, _) in attacks.items():
        server.script(name, reply)
    backend = server.backend(KINDS[protocol], api_key=KEY)
    command = [sys.executable, "-c", PLAY, json.dumps(backend), str(tmp_path), *attacks]
    played = run(command)
    assert played.returncode == 0, played.stderr
    told = [json.loads(line) for line in played.stdout.splitlines()]
    assert [each["name"] for each in told] == list(attacks)
    for each in told:
        named = f"exceeded the limit of {attacks[each['name']][1]} and was cut off."
        assert named in each["error"], each
        assert each["status"] == "failed"
        assert each["grown_mb"] < MAX_GROWTH_MB, each
    # None of these errors is retried.
    assert server.count() == len(attacks) + 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=_forever(b"data: {}\n\n" * 5000)),
        Reply(body=_forever(b":\n\n" * 20_000)),
        Reply(body=_forever(b"x")),
        Reply(body=lambda: _bomb(b"data: {}\n\n" * MB), headers=GZIP),
    ],
    ids=["empty events", "comments", "bytes", "packed events"],
)
def test_fast_stream_can_be_stopped_immediately(
    tmp_path: Path, server: ModelServer, reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_REPLY_BYTES", sys.maxsize)  # only the stop ends it
    server.script("m", reply)
    backend = {"type": "vllm", "model": "m", "base_url": server.url}
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
    run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path))
    server.wait_open(1)
    run.stop(now=True)
    finish(run)
    assert (run.status, run.view.agents["ann"].outcome) == ("cancelled", "killed")
    assert server.endings() == ["client"]


# Events -------------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from([b"data: x", b"\n", b"\r", b"\r\n", b"\n\n", b"event: y"])),
    st.data(),
)
def test_chunks_are_joined_into_events_without_loss(
    parts: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    events, portions = EventBuffer(), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        portions += events.add(whole[start:end])
    assert b"".join(portions) + events.rest == whole
    assert all(p.endswith((b"\n\n", b"\r\r", b"\n\r\n")) for p in portions)
    assert b"\n\n" not in events.rest


def test_small_events_are_batched_and_large_ones_are_whole() -> None:
    small, large = b"data: x\n\n" * 4000, b"data: " + b"x" * 50_000 + b"\n\n"
    portions = EventBuffer().add(small + large + small)
    assert b"".join(portions) == small + large + small
    assert large in portions
    assert max(len(p) for p in portions if p != large) <= 16 * 2**10


def test_event_limit_is_exact() -> None:
    longest = b"x" * (limits.MAX_EVENT_BYTES - 2) + b"\n\n"
    assert EventBuffer().add(longest) == [longest]
    with pytest.raises(ReplyTooLongError, match="524288 bytes"):
        EventBuffer().add(b"x" + longest)


def test_commas_and_brackets_in_strings_are_not_counted() -> None:
    text = json.dumps('{"a": [1, 2], "quoted \\": {,,,,'[:-1] + "\\" + '"' + ",[{" * 50_000)
    event = b'data: {"text": ' + text.encode() + b"}\n\n"
    assert EventBuffer().add(event) == [event]


@pytest.mark.anyio
@pytest.mark.parametrize("coding", ["identity", "gzip", "deflate"])
async def test_reply_within_the_limits_is_unchanged(server: ModelServer, coding: str) -> None:
    said = b"data: one\n\ndata: two\r\n\r\nno end"
    packed = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    sent = said if coding == "identity" else packed.compress(said) + packed.flush()
    pieces = [sent[n : n + 1] for n in range(len(sent))]
    server.script("m", Reply(body=lambda: pieces, headers={"Content-Encoding": coding}))
    async with http_client() as client:
        asked: dict[str, Any] = {"model": "m", "stream": True}
        got = await client.post(f"{server.url}/chat/completions", json=asked)
    assert got.content == said


@pytest.mark.anyio
@pytest.mark.parametrize("kind", KINDS.values())
async def test_connection_is_reused_after_a_complete_reply(server: ModelServer, kind: str) -> None:
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    ports = set()

    async def note(response: httpx2.Response) -> None:
        ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))

    server.default = Reply("one two three", words_per_second=20)
    spec = {"id": "a", "backend": {**server.backend(kind), "model": "m"}}
    [agent] = TeamSpec.model_validate({"agents": [spec]}).agents
    async with http_client() as client:
        client.event_hooks["response"].append(note)
        backend = backend_for(agent, lambda: client)
        for _ in range(3):
            asked = [ModelRequest(parts=[UserPromptPart("hi")])]
            async with backend.stream(asked, []) as stream:
                async for _ in stream:
                    pass
    assert (server.count(), len(ports)) == (3, 1)


# Read interval ------------------------------------------------------------------------


class Clock:
    """A server that sends a word every 20 ms, with a fake clock that advances only in waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.rests: list[tuple[float, float]] = []
        monkeypatch.setattr(limits, "current_time", lambda: self.now)
        monkeypatch.setattr(limits, "sleep", self._rest)

    async def _rest(self, seconds: float) -> None:
        self.rests.append((self.now, seconds))
        self.now += seconds

    async def words(self, count: int, began: float = 0.0) -> AsyncIterator[bytes]:
        for number in range(count):
            self.now = max(self.now, began + 0.02 * (number + 1))
            yield b"data: %d\n\n" % number


async def _read(source: AsyncIterator[bytes]) -> bytes:
    stream = httpx2.Response(200, stream=Streamed(source))
    await limits.limit(stream)
    return b"".join([piece async for piece in stream.aiter_bytes()])


class Streamed(httpx2.AsyncByteStream):
    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._source


@pytest.mark.anyio
@pytest.mark.parametrize("others", [0, 1, 3, 19])
async def test_many_streams_are_read_in_batches_while_a_cell_runs(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(reading, "_is_cell_running", True)
    monkeypatch.setattr(limits, "_streams", others)
    words = b"".join([piece async for piece in clock.words(100)])
    clock.now = 0
    assert await _read(clock.words(100)) == words
    assert limits._streams == others
    assert {seconds for _, seconds in clock.rests} == (
        {(others + 1) / reading.READS_PER_S} if others else set()
    )
    assert all(began >= 0.5 for began, _ in clock.rests)


@given(st.integers(1, 2000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_pause_is_limited_and_zero_without_need(
    streams: int, open_s: float, waited_s: float
) -> None:
    assert reading.rest_s(streams, open_s, waited_s) == 0
    reading.set_cell_running(True)
    try:
        assert 0 <= reading.rest_s(streams, open_s, waited_s) <= reading.MAX_REST_S
        assert reading.rest_s(streams, open_s, 0.0) == 0
        assert reading.rest_s(streams, 0.1, waited_s) == 0
        assert reading.rest_s(1, open_s, waited_s) == 0
        with reading.cell_waits():
            assert reading.rest_s(streams, open_s, waited_s) == 0
        assert reading.rest_s(25, 1, 1) == reading.MAX_REST_S
    finally:
        reading.set_cell_running(False)
