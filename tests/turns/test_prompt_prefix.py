"""Later requests repeat earlier ones byte by byte, so that the provider's cache is used.

Also after a stop, in a new process; and the thoughts that a provider signed come back as they were.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.team_kit import events, finish, read_line, script

KINDS: dict[str, dict[str, Any]] = {
    "openai": {"model": "gpt-5-mini"},
    "responses": {"model": "gpt-5-mini"},
    "claude": {"model": "claude-opus-4-6", "thinking": {"type": "adaptive"}},
    "gemini": {"model": "gemini-3-pro-preview"},
}
REPLIES = (
    Reply("First I look.", (ToolCall("list_files"),), thoughts="What is there?"),
    Reply("", (ToolCall("write_file", {"path": "n.md", "content": "a note"}),), thoughts="So."),
    Reply("", (ToolCall("read_file", {"path": "n.md"}),), thoughts="Is it there?"),
    Reply("Good.", (ToolCall("new_answer", {"content": "done"}),)),
)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(strict=True) as running:
        yield running


def backend(kind: str, server: ModelServer) -> dict[str, Any]:
    return server.backend(kind, **KINDS[kind])


def unmarked(value: Any) -> Any:
    """A value without the marks for the cache, which move on with the conversation."""
    if isinstance(value, dict):
        return {k: unmarked(each) for k, each in value.items() if k != "cache_control"}
    return [unmarked(each) for each in value] if isinstance(value, list) else value


def blocks(request: Request) -> list[str]:
    """Return a prompt as a provider reads it: tools, system prompt and conversation."""
    body = unmarked(request.body)
    names = ("system", "systemInstruction", "instructions")
    read = [body.get("tools"), *(body.get(name) for name in names)]
    for message in unmarked(request.messages):
        inner = message.get("content") or message.get("parts")
        pieces = inner if isinstance(inner, list) else [message]
        read += [[message.get("role"), piece] for piece in pieces]
    return [json.dumps(each) for each in read]


def assert_each_goes_on(requests: list[Request]) -> None:
    for before, after in zip(requests, requests[1:], strict=False):
        sent, again = blocks(before), blocks(after)
        assert again[: len(sent)] == sent
        assert len(again) > len(sent)


def signatures(request: Request) -> list[str]:
    """Return the entries of a request that stand for the thoughts of earlier replies."""
    found = []
    for block in blocks(request):
        piece = json.loads(block)
        piece = piece[1] if isinstance(piece, list) and len(piece) == 2 else piece
        if isinstance(piece, dict):
            names = ("signature", "encrypted_content", "thoughtSignature", "thought_signature")
            found += [piece[name] for name in names if piece.get(name)]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_each_request_of_a_round_begins_with_the_previous_one(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    server.default = Reply("?")
    server.script(KINDS[kind]["model"], *REPLIES)
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend(kind, server)}]})
    run = finish(nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path)))
    assert run.result == "done", run.view.agents["ann"].error
    assert server.count() == 4
    assert_each_goes_on(server.requests)


@pytest.mark.parametrize("kind", KINDS)
def test_message_between_calls_leaves_earlier_requests_unchanged(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    look, cut = ToolCall("list_files"), ToolCall("write_file", None)
    server.script(
        KINDS[kind]["model"],
        Reply("I look.", (look, look), thoughts="What is there?"),
        Reply("Hm."),
        Reply("I write.", (look, cut), stop_after=99),
        Reply("", (ToolCall("new_answer", {"content": ""}),)),
        Reply("", (ToolCall("new_answer", {"content": "Ann's"}),)),
        Reply("", (ToolCall("vote", {"agent_id": "agent2", "reason": "good"}),)),
    )
    voted = Reply(tool_calls=(ToolCall("vote", {"agent_id": "agent2", "reason": "good"}),))
    server.script("b", Reply(tool_calls=(ToolCall("new_answer", {"content": "Ben's"}),)), voted)
    server.hold(0, KINDS[kind]["model"])
    team = {
        "agents": [
            {"id": "ann", "backend": backend(kind, server)},
            {"id": "ben", "backend": server.backend("vllm", model="b")},
        ]
    }
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("the task", TeamSpec.model_validate(team), options=options)
    wait_until(lambda: run.view.agents["ben"].answers, what="Ben's answer")
    server.release()
    assert finish(run).status == "completed", run.view.agents["ann"].error
    ann = [request for request in server.requests if request.model == KINDS[kind]["model"]]
    first = ann[:5]
    assert_each_goes_on(first)
    assert all("Time left" in request.prompt for request in first[1:])
    assert "was cut off" in first[3].prompt


SCRIPT = """
import sys, nb_agents
if sys.stdin.readline().strip() == "begin":
    run = nb_agents.start("the task", "team.yaml", "s")
else:
    run = nb_agents.resume("s")
run.wait(200, raise_on_stop=False)
print(run.status, flush=True)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_round_sends_the_same_bytes_in_a_new_process(
    tmp_path: Path, server: ModelServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, "k")
    team = {"agents": [{"id": "ann", "backend": backend(kind, server)}]}
    (tmp_path / "team.yaml").write_text(json.dumps(team))
    first, second, third, last = REPLIES
    server.script(KINDS[kind]["model"], first, second, Reply(hang_after=0), third, last)
    with script(SCRIPT, tmp_path) as process:
        tell(process, "begin")
        server.wait_until(lambda: server.count() == 3, what="the third request")
    server.wait_closed()
    with script(SCRIPT, tmp_path) as process:
        tell(process, "resume")
        assert read_line(process) == "completed\n"
    *early, cut, again, end = server.requests
    assert blocks(again) == blocks(cut)
    assert_each_goes_on([*early, cut, end])
    if kind != "openai":
        assert len(signatures(again)) == 2 and len(signatures(end)) == 3
        assert signatures(end)[:2] == signatures(again)


def tell(process: Any, word: str) -> None:
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def test_rounds_share_the_system_prompt_all_tools_and_the_vote_tool(
    tmp_path: Path, server: ModelServer
) -> None:
    def play(request: Request) -> Reply:
        if "vote" in request.tool_names:
            return Reply(tool_calls=(ToolCall("vote", {"agent_id": "agent1", "reason": "good"}),))
        return Reply(tool_calls=(ToolCall("new_answer", {"content": f"n{request.number}"}),))

    server.default = play
    agents = [{"id": name, "backend": {**backend("claude", server)}} for name in ("ann", "ben")]
    team = TeamSpec.model_validate({"agents": agents})
    run = finish(nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path)))
    assert run.status == "completed"
    assert len(events(run, ev.RoundStarted)) >= 4
    *rounds, presentation = server.requests
    assert len(rounds) >= 4 and "vote" not in presentation.tool_names
    shared = [[t for t in blocks_of_tools(r) if '"vote"' not in t] for r in rounds]
    assert all(each == shared[0] for each in shared)
    votes = [t for r in rounds for t in blocks_of_tools(r) if '"vote"' in t]
    assert len({*votes}) == 1 and '["agent1", "agent2"]' in votes[0]
    assert len({json.dumps(unmarked(r.body["system"])) for r in rounds}) == 1


def blocks_of_tools(request: Request) -> list[str]:
    return [json.dumps(unmarked(tool)) for tool in request.body["tools"]]


def test_anthropic_caching_is_requested_for_tools_system_prompt_and_conversation(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("claude-opus-4-6", *REPLIES)
    team = {"agents": [{"id": "ann", "backend": backend("claude", server)}]}
    options = RunOptions(session_root=tmp_path)
    finish(nb_agents.start("the task", TeamSpec.model_validate(team), options=options))
    for request in server.requests:
        body = request.body
        assert "cache_control" in body["tools"][-1]
        assert "cache_control" in body["system"][-1]
        assert "cache_control" in body["messages"][-1]["content"][-1]
