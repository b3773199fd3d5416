"""OpenAI's Responses API: requests, stops and the journal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import events, finish

LOOK = Reply("I look.", (ToolCall("list_files"),), thoughts="What is there?")
DONE = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(strict=True) as running:
        yield running


def start(server: ModelServer, root: Path, *replies: Reply, **keys: Any) -> nb_agents.Run:
    server.script("gpt-5-mini", *replies)
    backend = server.backend("responses", model="gpt-5-mini", **keys)
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
    return nb_agents.start("t", team, options=RunOptions(session_root=root))


def test_openai_stores_nothing_and_returns_encrypted_reasoning(
    tmp_path: Path, server: ModelServer
) -> None:
    run = finish(start(server, tmp_path, LOOK, DONE))
    assert run.result == "done"
    for request in server.requests:
        assert request.protocol == "responses" and request.body["store"] is False
        assert "reasoning.encrypted_content" in request.body["include"]
        assert "previous_response_id" not in request.body


def test_storing_at_openai_can_be_enabled(tmp_path: Path, server: ModelServer) -> None:
    finish(start(server, tmp_path, DONE, store=True))
    assert server.requests[0].body["store"] is True


def test_journal_contains_reasoning_with_its_signature(tmp_path: Path, server: ModelServer) -> None:
    run = finish(start(server, tmp_path, LOOK, DONE))
    first, _ = events(run, ev.ModelFinished)
    (thought,) = (p for p in first.response["parts"] if p["part_kind"] == "thinking")
    assert thought["content"] == "What is there?"
    assert (thought["id"], thought["signature"]) == ("rs_0_0", "signed-0-What is there?")
    words = [e.text for e in events(run, ev.TextStreamed) if e.channel == "thinking"]
    assert "".join(words) == "What is there?"


def test_stop_closes_the_stream_and_keeps_the_text(tmp_path: Path, server: ModelServer) -> None:
    server.hold(after=3)
    run = start(server, tmp_path, Reply("one two three four five"))
    wait_until(lambda: "three" in run.view.agents["ann"].partial, what="three words")
    run.stop(now=True)
    finish(run)
    assert run.status == "cancelled" and server.endings() == ["client"]
    assert run.view.agents["ann"].partial == "one two three"


def test_graceful_stop_completes_the_current_answer(tmp_path: Path, server: ModelServer) -> None:
    server.hold(after=1)
    run = start(server, tmp_path, DONE)
    server.wait_chunks(1)
    run.stop()
    server.release()
    finish(run)
    assert run.view.agents["ann"].answer == "done" and server.endings() == ["server"]


def test_usage_is_counted(tmp_path: Path, server: ModelServer) -> None:
    done = Reply(tool_calls=DONE.tool_calls, input_tokens=1000, output_tokens=100)
    assert finish(start(server, tmp_path, done)).receipt.tokens == 1100
