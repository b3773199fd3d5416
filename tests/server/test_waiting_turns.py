"""The server resumes turns whose provider accepts calls again, if its configuration allows it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from tests.kit.runs import live_turns
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.server.conftest import jupyter_server
from tests.team_kit import kill_writers

TEAM = """
agents:
  - id: a
    backend: {{type: vllm, model: m, base_url: "{url}", api_key: k}}
retry: {{attempts: 0}}
wait_for_quota: 600
"""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def test_server_resumes_a_waiting_turn_if_allowed(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "sessions"
    done = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),))
    server.script("m", Reply(status=429, headers={"Retry-After": "5"}), done)
    (tmp_path / "team.yaml").write_text(TEAM.format(url=server.url))
    options = RunOptions(session_root=root, detach=True)
    run = nb_agents.start("t", tmp_path / "team.yaml", "waits", options=options)
    wait_until(lambda: run.view.wait)
    kill_writers(root)
    wait_until(lambda: not live_turns(root=root))
    wait = run.view.agents["a"].wait
    assert wait is not None
    wait_until(lambda: time.time() > wait.until)
    assert server.count() == 1
    monkeypatch.setenv("NB_AGENTS_SESSIONS", str(root))
    home = tmp_path / "home"
    home.mkdir()
    with jupyter_server(home, "--NbAgents.wait_for_quota=True") as jupyter:
        answer = root / "waits" / "turn_2" / "answer.txt"
        wait_until(answer.exists, 200, "the answer", lambda: jupyter.log[-3000:])
    assert server.count() == 2
