"""A team whose providers refuse, hang or are down for a while, at real servers of four formats."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.options import Retry
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import events, finish

PROVIDERS = ("refusing", "hanging", "down", "up")
Servers = dict[str, ModelServer]


@pytest.fixture
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(ModelServer()) for name in PROVIDERS}


def _start(root: Path, servers: Servers, kind: str, **keys: str) -> nb_agents.Run:
    agents = [
        {"id": name, "backend": server.backend(kind, model=name, **keys)}
        for name, server in servers.items()
    ]
    team = nb_agents.TeamSpec.model_validate(
        {"agents": agents, "wait_for_quota": 3600, "orchestrator": {"skip_voting": True}}
    )
    retry = Retry(0, delay=0.3, max_silence=1.0)
    return nb_agents.start("t", team, options=RunOptions(session_root=root, retry=retry))


def _answer(name: str) -> Reply:
    return Reply(tool_calls=(ToolCall("new_answer", {"content": f"The answer of {name}."}),))


@pytest.mark.parametrize("kind", ["openai", "responses", "claude", "gemini"])
def test_each_agent_answers_once_its_provider_recovers(
    tmp_path: Path, servers: Servers, kind: str
) -> None:
    text = "Quota exceeded. Please try again in 2s."
    troubles = {
        "refusing": [Reply(status=429, error=text)],
        "hanging": [Reply(hang_after=0)],
        "down": [Reply(status=503, error="down")] * 3,
        "up": [],
    }
    for name, replies in troubles.items():
        servers[name].script(name, *replies, _answer(name))
    run = _start(tmp_path, servers, kind)
    wait_until(lambda: run.view.agents["up"].answers)
    finish(run)
    assert run.status == "completed"
    assert events(run, ev.AgentFailed) == []
    waits = {(e.agent, e.waits_for) for e in events(run, ev.ModelFailed)}
    assert waits == {("refusing", "quota"), ("hanging", "server"), ("down", "server")}
    for name, replies in troubles.items():
        assert servers[name].requests[len(replies)].model == name
        assert run.view.agents[name].answers, name
    [refused] = [e for e in events(run, ev.ModelFailed) if e.agent == "refusing"]
    asked = [e.at for e in events(run, ev.ModelStarted) if e.agent == "refusing"]
    assert refused.retry_at is not None
    assert asked[1] >= refused.retry_at >= asked[0] + 2


@pytest.mark.parametrize("now", [False, True])
def test_stop_ends_all_waits(tmp_path: Path, servers: Servers, now: bool) -> None:
    servers["refusing"].script("refusing", Reply(status=429, headers={"Retry-After": "3000"}))
    servers["hanging"].script("hanging", Reply(hang_after=0))
    servers["down"].script("down", Reply(status=503, headers={"Retry-After": "3000"}))
    servers["up"].script("up", _answer("up"))
    run = _start(tmp_path, servers, "openai")
    agents = run.view.agents
    wait_until(lambda: all(run.view.agents[name].wait for name in agents if name != "up"))
    run.stop(now=now)
    finish(run)
    assert run.status == "cancelled"
    assert events(run, ev.AgentFailed) == []
    assert [server.open_count for server in servers.values()] == [0, 0, 0, 0]


def test_flex_calls_carry_their_tier_and_wait_for_capacity(tmp_path: Path) -> None:
    """OpenAI refuses flex calls with 429 while it lacks capacity, and does not charge for them."""
    with ModelServer() as server:
        server.script("m", Reply(status=429, error="Resource unavailable."), _answer("m"))
        run = finish(_start(tmp_path, {"m": server}, "openai", service_tier="flex"))
        assert run.status == "completed"
        [failed] = events(run, ev.ModelFailed)
        assert failed.waits_for == "quota"
        assert [request.body["service_tier"] for request in server.requests[:2]] == ["flex"] * 2
