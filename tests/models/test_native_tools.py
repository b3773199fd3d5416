"""Provider tools: how they are requested, reported and sent back in the next request."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.events import ToolFinished, ToolStarted
from tests.kit.sessions import TurnPaths, read_journal
from tests.kit.teams import report_on
from tests.kit.tools import NATIVE_KEYS
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.models.test_settings import ask, team_of
from tests.team_kit import WAIT_S

SEARCH, RUN, DRAW = "web_search", "code_execution", "image_generation"
SENT = {
    ("claude", SEARCH): ("name", "web_search"),
    ("claude", RUN): ("name", "code_execution"),
    ("gemini", SEARCH): ("googleSearch", {}),
    ("gemini", RUN): ("codeExecution", {}),
    ("openai responses", SEARCH): ("type", "web_search"),
    ("openai responses", RUN): ("type", "code_interpreter"),
    ("openai responses", DRAW): ("type", "image_generation"),
}
"""What stands among a request's tools."""


@pytest.fixture
def strict() -> Iterator[ModelServer]:
    done = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),))
    with ModelServer(done, strict=True) as server:
        yield server


@pytest.mark.parametrize(
    "kind, key",
    [(kind, key) for kind, tool in SENT for key, named in NATIVE_KEYS.items() if named == tool],
)
def test_provider_tool_is_requested_in_the_providers_format(
    kind: str, key: str, strict: ModelServer
) -> None:
    model = {"gemini": "gemini-3-pro", "claude": "claude-opus-5"}.get(kind, "gpt-5")
    team = team_of(kind, strict, model=model, **{key: True})
    anyio.run(ask, team)
    name, value = SENT[kind, NATIVE_KEYS[key]]
    assert value in [tool.get(name) for tool in strict.requests[0].body["tools"]]
    assert not any(line.startswith("No ") for line in report_on(team).lines)


def without(key: str, **backend: Any) -> str:
    """Return a check's notice on a provider tool that the agent does not get."""
    base = {"type": "claude", "model": "m", "api_key": "k", key: True}
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": {**base, **backend}}]})
    assert not team.agents[0].backend.native_tools
    [line] = [line for line in report_on(team).lines if line.startswith("No ")]
    return line


@pytest.mark.parametrize(
    "backend, why",
    [
        ({"type": "grok"}, "grok has none"),
        ({"type": "openai", "base_url": "http://127.0.0.1:1/v1"}, "write `api: responses`"),
        ({"type": "openai", "api": "chat"}, "write `api: responses`"),
        ({"type": "openrouter", "base_url": "http://127.0.0.1:1/v1"}, "openrouter has none"),
        ({"type": "gemini", "model": "gemini-2.5-pro"}, "Gemini 3 and later have"),
    ],
)
def test_missing_provider_tool_is_reported_and_withheld(backend: dict[str, Any], why: str) -> None:
    assert why in without("enable_code_interpreter", **backend)


@pytest.mark.parametrize(
    "backend, why",
    [
        ({"exclude_tools": ["web_search"]}, "list of tools excludes it"),
        ({"allowed_tools": ["read_file"]}, "list of tools excludes it"),
        ({"tool_policy": [{"match": "*", "action": "ask"}]}, "`tool_policy` can't be enforced"),
        ({"permissions": {"role": "researcher"}}, "`permissions` can't be enforced"),
        ({"permissions": {"rules": {"deny": ["read_url(*)"]}}}, "`permissions` can't be enforced"),
    ],
)
def test_unrestrictable_provider_tool_is_reported_and_withheld(
    backend: dict[str, Any], why: str
) -> None:
    assert why in without("enable_web_search", **backend)


def test_denied_commands_withhold_the_providers_code_execution() -> None:
    denied = {"permissions": {"rules": {"deny": ["command(*)"]}}}
    assert "`permissions` can't be enforced" in without("enable_code_interpreter", **denied)


def test_openai_uses_the_responses_api_for_provider_tools() -> None:
    backend = {"type": "openai", "model": "gpt-5", "api_key": "k", "enable_web_search": True}
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
    assert team.agents[0].backend.wire_format == "openai responses"
    assert team.agents[0].backend.native_tools == (SEARCH,)


def test_costs_outside_max_cost_are_reported() -> None:
    backend = {"type": "claude", "model": "m", "api_key": "k", "enable_web_search": True}
    agents = [{"id": "ann", "backend": backend}]
    team = TeamSpec.model_validate({"agents": agents, "orchestrator": {"max_cost": 1}})
    assert any("`max_cost` includes tokens, but not" in line for line in report_on(team).lines)


FOUND = {
    "type": "web_search_result",
    "title": "Deep Thought",
    "url": "https://example.org/42",
    "encrypted_content": "c2VhbGVk",
    "page_age": None,
}


def searched() -> Iterator[bytes]:
    """An Anthropic reply with a search, its results and a call of our tool."""
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": SEARCH, "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]}
    query = {"type": "input_json_delta", "partial_json": '{"query": "the answer"}'}
    yield _frame("message_start", message=_message())
    yield _frame("content_block_start", index=0, content_block=call)
    yield _frame("content_block_delta", index=0, delta=query)
    yield _frame("content_block_stop", index=0)
    yield _frame("content_block_start", index=1, content_block=found)
    yield _frame("content_block_stop", index=1)
    ours = {"type": "tool_use", "id": "toolu_1", "name": "list_files", "input": {}}
    yield _frame("content_block_start", index=2, content_block=ours)
    yield _frame("content_block_stop", index=2)
    ending = {"stop_reason": "tool_use", "stop_sequence": None}
    yield _frame("message_delta", delta=ending, usage={"output_tokens": 9})
    yield _frame("message_stop")


def _message() -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 1}
    head = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
    return {**head, "stop_reason": None, "stop_sequence": None, "usage": usage}


def _frame(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def test_search_is_reported_and_sent_again_after_a_resume(tmp_path: Path) -> None:
    answer = Reply(tool_calls=(ToolCall("new_answer", {"content": "42"}),))
    options = RunOptions(session_root=tmp_path)
    with ModelServer(answer) as server:
        server.script("m", Reply(body=searched), Reply("hm", hang_after=0), answer)
        team = team_of("claude", server, enable_web_search=True)
        run = nb_agents.start("What is the answer?", team, "s", options=options)
        wait_until(lambda: len(server.requests) == 2, WAIT_S)
        assert [tool.tool for tool in run.view.tools] == [SEARCH, "list_files"]
        run.stop(True)
        run.wait(WAIT_S, raise_on_stop=False)
        assert nb_agents.resume("s", team, options=options).wait(WAIT_S) == "42"
        _, cut, again = server.requests
    blocks = [b for m in again.messages for b in m["content"] if isinstance(b, dict)]
    assert [b["input"] for b in blocks if b["type"] == "server_tool_use"] == [
        {"query": "the answer"}
    ]
    [found] = [b for b in blocks if b["type"] == "web_search_tool_result"]
    assert found["content"][0]["encrypted_content"] == FOUND["encrypted_content"]
    assert again.messages == cut.messages
    events = read_journal(TurnPaths(run.path).journal).events
    started = next(e for e in events if isinstance(e, ToolStarted))
    finished = next(e for e in events if isinstance(e, ToolFinished))
    assert started.tool == finished.tool == SEARCH
    assert (started.summary, finished.outcome) == ("the answer", "ok")
    assert "example.org/42" in finished.result
