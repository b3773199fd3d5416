"""Turns that wait for a provider: its quota comes back, or its server answers again."""

import time
from pathlib import Path
from typing import Any

import anyio
import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.options import Retry, Timeout
from tests.kit.agents import StopScope
from tests.kit.cards import agent_row, panel_state
from tests.kit.runs import AgentStopped, CancellationStatus, CancelToken
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import events, finish

DONE = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),))
OTHER = Reply(tool_calls=(ToolCall("new_answer", {"content": "something else entirely"}),))


def _quota(seconds: float) -> Reply:
    return Reply(status=429, headers={"Retry-After": str(seconds)}, error="Out of quota.")


def _start(root: Path, server: ModelServer, *models: str, **options: Any) -> nb_agents.Run:
    agents = [
        {"id": model, "backend": server.backend("openai", model=model)}
        for model in models or ("m",)
    ]
    team = nb_agents.TeamSpec.model_validate(
        {
            "agents": agents,
            "wait_for_quota": options.pop("limit", 3600),
            "orchestrator": {"skip_voting": True},
        }
    )
    options = {"retry": Retry(0, delay=0.05), **options}
    return nb_agents.start("t", team, options=RunOptions(session_root=root, **options))


def _waiting(run: nb_agents.Run) -> None:
    wait_until(lambda: run.view.wait)


def test_turn_waits_until_the_quota_is_back(tmp_path: Path, server: ModelServer) -> None:
    server.script("m", _quota(1), DONE)
    run = _start(tmp_path, server)
    _waiting(run)
    [failed] = events(run, ev.ModelFailed)
    assert (failed.waits_for, failed.wait_limit_s) == ("quota", 3600)
    assert failed.retry_at is not None and failed.retry_at > failed.at
    finish(run)
    assert (run.status, server.count()) == ("completed", 2)
    second = events(run, ev.ModelStarted)[1]
    assert second.at >= failed.retry_at
    assert second.call == failed.call
    assert run.view.agents["m"].wait is None


def test_waiting_is_shown_with_its_end(tmp_path: Path, server: ModelServer) -> None:
    server.script("m", _quota(3000))
    run = _start(tmp_path, server)
    _waiting(run)
    wait = run.view.wait
    assert wait is not None
    clock = time.strftime("%H:%M", time.localtime(wait.until))
    assert wait.describe(wait.until).startswith(f"waiting for quota until {clock}")
    assert wait.describe(0).endswith(time.strftime(" on %Y-%m-%d", time.localtime(wait.until)))
    assert "waiting for quota until" in run.progress.message
    now = time.time()
    row = agent_row(run.view.agents["m"], run.view, now)
    assert row["chip"] == panel_state(run.view, run.id, now)["chip"] == wait.describe(now)
    assert (row["tone"], "Out of quota." in row["says"]) == ("ing", True)
    run.stop()
    finish(run)
    assert run.view.wait is None


@pytest.mark.parametrize("seconds", [3601, 10**9])
def test_longer_wait_than_the_limit_fails_immediately(
    tmp_path: Path, server: ModelServer, seconds: int
) -> None:
    server.script("m", _quota(seconds))
    run = finish(_start(tmp_path, server))
    assert (run.status, server.count()) == ("failed", 1)


@pytest.mark.parametrize(
    ("limit", "advice"),
    [
        (3600, "It asks to wait 9,000 s, but `wait_for_quota` allows only 3,600 s."),
        (0, "It asks to wait 9,000 s. To allow that, set `wait_for_quota`."),
    ],
)
def test_error_of_a_longer_wait_names_the_limit(
    tmp_path: Path, server: ModelServer, limit: float, advice: str
) -> None:
    server.script("m", _quota(9000))
    assert advice in finish(_start(tmp_path, server, limit=limit)).view.agents["m"].error


def test_error_of_a_call_that_waits_gives_no_advice(tmp_path: Path, server: ModelServer) -> None:
    server.script("m", _quota(3000))
    run = _start(tmp_path, server)
    _waiting(run)
    [failed] = events(run, ev.ModelFailed)
    run.stop(now=True)
    finish(run)
    assert "It asks to wait 3,000 s." in failed.error and "wait_for_quota" not in failed.error


def test_without_a_limit_a_call_fails_after_its_retries(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("m", _quota(3000))
    run = finish(_start(tmp_path, server, limit=0))
    assert (run.status, server.count()) == ("failed", 1)


def test_option_overrides_the_team_file(tmp_path: Path, server: ModelServer) -> None:
    server.script("m", _quota(3000))
    assert finish(_start(tmp_path, server, wait_for_quota=0)).status == "failed"


def test_refused_retry_does_not_wait(tmp_path: Path, server: ModelServer) -> None:
    server.script("m", _quota(3000))
    retry = Retry(0, should_retry=lambda error: False)
    assert finish(_start(tmp_path, server, retry=retry)).status == "failed"


@pytest.mark.parametrize("now", [False, True])
def test_stop_ends_the_wait_and_a_resume_asks_again(
    tmp_path: Path, server: ModelServer, now: bool
) -> None:
    server.script("m", _quota(3000), DONE)
    run = _start(tmp_path, server)
    _waiting(run)
    run.stop(now=now)
    finish(run)
    assert (run.status, server.count()) == ("cancelled", 1)
    again = finish(run.resume())
    assert (again.status, server.count()) == ("completed", 2)


def test_paused_turn_asks_only_after_the_pause(tmp_path: Path, server: ModelServer) -> None:
    server.script("m", _quota(1), DONE)
    run = _start(tmp_path, server)
    _waiting(run)
    run.pause()
    wait = run.view.agents["m"].wait
    assert wait is not None
    wait_until(lambda: time.time() > wait.until + 0.3)
    assert server.count() == 1
    run.resume()
    assert finish(run).status == "completed"


def test_waiting_does_not_count_towards_the_time_limit(tmp_path: Path, server: ModelServer) -> None:
    server.script("m", _quota(3), DONE)
    run = finish(_start(tmp_path, server, timeout=Timeout(seconds=2)))
    assert run.status == "completed"


def test_other_agents_continue_while_one_waits(tmp_path: Path, server: ModelServer) -> None:
    server.script("down", Reply(status=529, error="overloaded"), OTHER)
    server.script("up", DONE)
    run = _start(tmp_path, server, "down", "up", retry=Retry(0, delay=1.0))
    wait_until(lambda: run.view.agents["up"].answers)
    finish(run)
    [failed] = events(run, ev.ModelFailed)
    assert (failed.agent, failed.waits_for) == ("down", "server")
    assert run.status == "completed"
    assert run.view.agents["down"].answers, run.view.agents["down"].error


def test_wait_ends_on_time_although_the_machine_was_suspended() -> None:
    times = iter([1000.0, 1001.0, 90_000.0])

    async def main() -> None:
        with StopScope(CancelToken("t")) as scope:
            await scope.sleep_until(50_000.0, lambda: next(times))

    anyio.run(main)
    assert next(times, None) is None


def test_stop_before_the_wait_ends_it() -> None:
    async def main() -> None:
        token = CancelToken("t")
        with StopScope(token) as scope:
            token.request(CancellationStatus.REQUESTED, "api")
            await scope.sleep_until(time.time() + 3600)

    with pytest.raises(AgentStopped):
        anyio.run(main)
