"""Tests of replies that Anthropic pauses: they are continued up to a limit, even after a stop."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from tests.kit.agents import MAX_PAUSES
from tests.model_server import ModelServer, Reply, Request, ToolCall
from tests.team_kit import events, finish

MODEL = "claude-opus-4-6"
PAUSED = Reply("I search.", finish="pause_turn")
FOUND = Reply("Found it.", (ToolCall("list_files", id="toolu_1"),))
DONE = Reply("", (ToolCall("new_answer", {"content": "done"}),))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(DONE, strict=True) as running:
        yield running


def team_of(server: ModelServer) -> TeamSpec:
    backend = server.backend("claude", model=MODEL, enable_web_search=True)
    return TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})


def said(message: dict[str, Any]) -> list[str]:
    return [block.get("text") or block["type"] for block in message["content"]]


def test_paused_reply_is_sent_back_unchanged_and_joined(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script(MODEL, PAUSED, PAUSED, FOUND, DONE)
    options = RunOptions(session_root=tmp_path)
    run = finish(nb_agents.start("the task", team_of(server), options=options))
    assert run.result == "done"
    first, second, third, last = [request.messages for request in server.requests]
    assert second[:-1] == third[:-1] and said(first[-1])[-1:] == said(second[-2])[-1:]
    assert (second[-1]["role"], said(second[-1])) == ("assistant", ["I search."])
    assert said(third[-1]) == ["I search."] * 2
    assert [message["role"] for message in last] == ["user", "assistant", "user"]
    assert said(last[1]) == ["I search."] * 2 + ["Found it.", "tool_use"]
    assert [each.attempt for each in events(run, ev.ModelStarted)] == [1] * 4
    assert not events(run, ev.TurnRejected, ev.ReplyCut)


def test_stop_during_a_paused_reply_loses_and_repeats_nothing(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script(MODEL, PAUSED, Reply(hang_after=0), FOUND, DONE)
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("the task", team_of(server), options=options)
    server.wait_until(lambda: server.count() == 2, what="the second request")
    run.stop(now=True)
    finish(run)
    again = finish(nb_agents.resume(run.session, team_of(server), options=options))
    assert again.result == "done"
    _, cut, sent, last = [request.messages for request in server.requests]
    assert sent == cut
    assert said(last[1]) == ["I search.", "Found it.", "tool_use"]


def test_user_message_during_a_paused_reply_is_read_afterwards(
    tmp_path: Path, server: ModelServer
) -> None:
    was_said = Event()

    def play(request: Request) -> Reply:
        was_said.wait(200)
        return (PAUSED, FOUND, DONE)[request.number]

    server.default = play
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("the task", team_of(server), options=options)
    server.wait_until(lambda: server.count() == 1, what="the request")
    run.say("Be quick.")
    was_said.set()
    finish(run)
    _, paused, last = server.requests
    assert "Be quick." not in paused.prompt and "Be quick." in last.prompt


def test_agent_fails_after_too_many_pauses(tmp_path: Path, server: ModelServer) -> None:
    server.default = PAUSED
    options = RunOptions(session_root=tmp_path)
    run = finish(nb_agents.start("the task", team_of(server), options=options))
    assert run.status == "failed"
    assert f"It paused {MAX_PAUSES + 1} times in one reply." in run.view.agents["ann"].error
    assert server.count() == MAX_PAUSES + 1
