"""Agents whose requests are sent in batches, at a server with the batch APIs of two providers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.options import Retry
from tests.kit.models import batching
from tests.kit.runs import find_run, live_turns, resume_due_turns
from tests.kit.teams import prices_of
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.processes import ROOT
from tests.team_kit import WAIT_S, events, finish, kill_writers
from tests.warm import WarmProcess

MODELS = {"openai": "gpt-5-mini", "claude": "claude-haiku-4-5"}
KINDS = list(MODELS)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    monkeypatch.setattr(batching, "MIN_POLL_S", 0.05)
    monkeypatch.setattr(batching, "QUIET_S", 0.5)
    with ModelServer() as running:
        for model in MODELS.values():
            running.script(model, _reply)
        yield running


def _reply(request: Request) -> Reply:
    answer = ToolCall("new_answer", {"content": f"Answer {request.prompt.split('Row ')[1][:3]}"})
    return Reply("So.", tool_calls=(answer,), input_tokens=1000, output_tokens=100)


def _team(kind: str, url: str, **keys: Any) -> TeamSpec:
    backend = {"type": kind, "model": MODELS[kind], "base_url": url, "api_key": "k", **keys}
    return TeamSpec.model_validate(
        {"agents": [{"id": "ann", "backend": {"batch": True, **backend}}]}
    )


def _url(kind: str, server: ModelServer) -> str:
    return str(server.backend(kind)["base_url"])


def sweep_of(root: str, kind: str, url: str, rows: int = 20) -> Any:
    team = _team(kind, url)
    table = [{"id": f"r{number:02}"} for number in range(rows)]
    options = RunOptions(session_root=Path(root))
    return nb_agents.map(table, "Row {{id}}.", team, name="rows", limit=4, options=options)


def waits(run: nb_agents.Run) -> str:
    return run.view.wait.describe(0) if run.view.wait else ""


def _start(root: Path, team: TeamSpec, **options: Any) -> nb_agents.Run:
    return nb_agents.start("Row r00.", team, options=RunOptions(session_root=root, **options))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_sweep_share_batches(tmp_path: Path, server: ModelServer, kind: str) -> None:
    sweep = sweep_of(str(tmp_path), kind, _url(kind, server))
    view = sweep.wait(WAIT_S)
    assert (view.completed, view.failed) == (20, 0)
    assert server.count() == 20
    assert len(server.batches.all) <= 5
    assert sum(len(batch.requests) for batch in server.batches.all) == 20
    answers = {record["id"]: record["answer"] for record in sweep.table()}
    assert answers == {f"r{number:02}": f"Answer r{number:02}" for number in range(20)}


CODE = """
import sys
from tests.turns.test_batches import sweep_of
sweep_of(*sys.argv[1:4], int(sys.argv[4])).wait()
"""


@pytest.mark.parametrize("kind", KINDS)
def test_killed_sweep_takes_the_results_of_its_batches(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    server.batches.are_held = True
    where = (str(tmp_path), kind, _url(kind, server))
    args = [*where, "5"]
    with WarmProcess([sys.executable, "-c", CODE, *args], cwd=ROOT, stdout=subprocess.PIPE) as code:
        wait_until(lambda: sum(len(batch.requests) for batch in server.batches.all) == 5, WAIT_S)
        wait_until(lambda: all(batch.polls for batch in server.batches.all), WAIT_S)
        code.kill()
    wait_until(lambda: not live_turns(root=tmp_path))
    count = len(server.batches.all)
    server.batches.are_held = False
    view = sweep_of(*where, 5).wait(WAIT_S)
    assert (view.completed, view.failed) == (5, 0)
    assert server.count() == 5
    assert len(server.batches.all) == count


@pytest.mark.parametrize("now", [False, True])
def test_stop_ends_the_wait_and_a_resume_takes_the_result(
    tmp_path: Path, server: ModelServer, now: bool
) -> None:
    server.batches.are_held = True
    run = _start(tmp_path, _team("openai", server.url))
    wait_until(lambda: server.batches.all and server.batches.all[0].polls, WAIT_S)
    wait_until(lambda: run.view.wait, WAIT_S)
    assert waits(run).startswith("in a batch, sent ")
    run.stop(now=now)
    finish(run)
    assert run.status == "cancelled"
    assert any("is still in a batch" in notice for notice in run.view.notices)
    server.batches.are_held = False
    resumed = finish(run.resume())
    assert resumed.result == "Answer r00"
    assert (server.count(), len(server.batches.all)) == (1, 1)


def test_request_that_was_not_sent_is_withdrawn_by_a_stop(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "QUIET_S", 3600.0)
    monkeypatch.setattr(batching, "MAX_COLLECT_S", 3600.0)
    run = _start(tmp_path, _team("claude", server.base))
    wait_until(lambda: run.view.wait, WAIT_S)
    assert waits(run) == "waiting to be sent in a batch"
    run.stop(now=True)
    finish(run)
    assert server.batches.all == []
    monkeypatch.setattr(batching, "QUIET_S", 0.0)
    assert finish(run.resume()).result == "Answer r00"
    assert server.count() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_batch_whose_id_was_lost_is_found(tmp_path: Path, server: ModelServer, kind: str) -> None:
    server.batches.drop_next = True
    run = finish(_start(tmp_path, _team(kind, _url(kind, server)), retry=Retry(2, delay=0.0)))
    assert run.result == "Answer r00"
    assert (server.count(), len(server.batches.all)) == (1, 1)
    assert len(events(run, ev.ModelFailed)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_expired_and_failed_requests_are_sent_again(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    server.batches.expire_next = 1
    server.script(MODELS[kind], Reply(status=500, error="Oops."), _reply)
    run = finish(_start(tmp_path, _team(kind, _url(kind, server)), retry=Retry(2, delay=0.0)))
    assert run.result == "Answer r00"
    expired, failed = events(run, ev.ModelFailed)
    assert "expired before the provider ran the request" in expired.error
    assert "Oops." in failed.error
    assert (server.count(), len(server.batches.all)) == (2, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_requests_in_batches_cost_half_as_much(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    costs, prices = [], []
    for batch in (False, True):
        api = {"api": "responses"} if kind == "openai" else {}
        team = _team(kind, _url(kind, server), batch=batch, **api)
        costs.append(finish(_start(tmp_path, team)).receipt.cost)
        price = prices_of(team.agents)[MODELS[kind]]
        assert price is not None
        prices.append(price)
    assert costs[0]
    assert costs[1] == pytest.approx(costs[0] / 2)
    assert prices[1] == pytest.approx([each / 2 for each in prices[0]])


@pytest.mark.parametrize(
    "keys", [{"type": "gemini"}, {"type": "grok"}, {"type": "openai", "api": "chat"}]
)
def test_backends_without_a_batch_api_are_refused(keys: dict[str, str]) -> None:
    agent = {"id": "ann", "backend": {"model": "m", "batch": True, **keys}}
    with pytest.raises(ValueError, match="works only with the batch APIs of type 'openai'"):
        TeamSpec.model_validate({"agents": [agent]})


def test_each_request_of_an_agent_has_its_own_batch(tmp_path: Path, server: ModelServer) -> None:
    write = ToolCall("write_file", {"path": "a.txt", "content": "written once"})
    server.script(MODELS["openai"], Reply(tool_calls=(write,)), _reply)
    run = finish(_start(tmp_path, _team("openai", server.url)))
    assert (run.status, run.result) == ("completed", "Answer r00")
    assert [len(batch.requests) for batch in server.batches.all] == [1, 1]
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["ok"]


def test_request_with_an_empty_reply_is_sent_again(tmp_path: Path, server: ModelServer) -> None:
    server.script(MODELS["openai"], Reply(), _reply)
    retry = Retry(1, delay=0.0)
    run = finish(_start(tmp_path, _team("openai", server.url), retry=retry))
    assert (run.result, len(server.batches.all)) == ("Answer r00", 2)


def _numbered(request: Request) -> Reply:
    """Return an answer that no other request gets."""
    answer = ToolCall("new_answer", {"content": f"Answer {request.number}"})
    return Reply(tool_calls=(answer,), input_tokens=10, output_tokens=1)


def _pair(server: ModelServer, keys: tuple[str, str] = ("k", "k"), **first: Any) -> TeamSpec:
    """Return a team of two agents that answer once each."""
    for model in MODELS.values():
        server.script(model, _numbered)
    backend = {"type": "openai", "model": MODELS["openai"], "base_url": server.url, "batch": True}
    agents = [
        {"id": name, "backend": {**backend, "api_key": key, **more}}
        for name, key, more in zip(("bob", "ann"), keys, (first, {}), strict=True)
    ]
    orchestrator = {"skip_voting": True, "skip_final_presentation": True}
    return TeamSpec.model_validate({"agents": agents, "orchestrator": orchestrator})


@pytest.mark.parametrize("keys", [("k1", "k2"), ("k", "k")])
def test_requests_with_different_keys_never_share_a_batch(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, str]
) -> None:
    # Long enough for both agents to start; all of their requests are sent together.
    monkeypatch.setattr(batching, "QUIET_S", 2.0)
    run = finish(_start(tmp_path, _pair(server, keys)))
    assert run.status == "completed"
    sizes = [len(batch.requests) for batch in server.batches.all]
    assert sizes == ([2] if keys[0] == keys[1] else [1, 1])
    assert server.count() == 2


def _answered(tmp_path: Path, server: ModelServer) -> nb_agents.Run:
    """Return a completed turn in which bob has answered while ann's request was in a batch."""
    server.batches.are_held = True
    server.hold(0, MODELS["claude"])
    claude = {"type": "claude", "model": MODELS["claude"], "base_url": server.base, "batch": False}
    run = _start(tmp_path, _pair(server, **claude))
    wait_until(lambda: server.batches.all and server.batches.all[0].polls, WAIT_S)
    server.release(MODELS["claude"])
    wait_until(lambda: events(run, ev.AnswerGiven), WAIT_S)
    server.batches.are_held = False
    finish(run)
    assert [e.agent for e in events(run, ev.AnswerGiven)] == ["bob", "ann"]
    assert (run.status, server.count(), len(server.batches.all)) == ("completed", 2, 1)
    return run


def test_rewind_and_forks_take_the_result_of_a_batch_that_was_sent_before_the_checkpoint(
    tmp_path: Path, server: ModelServer
) -> None:
    run = _answered(tmp_path, server)
    again = finish(run.rewind("bob's 1st answer"))
    assert (again.status, again.result) == ("completed", run.result)
    sweep = nb_agents.fork(run.path, "bob's 1st answer", times=2)
    assert sweep.wait(WAIT_S).completed == 2
    assert (server.count(), len(server.batches.all)) == (2, 1)


def test_rewind_to_before_a_batch_sends_the_request_again(
    tmp_path: Path, server: ModelServer
) -> None:
    run = _answered(tmp_path, server)
    assert finish(run.rewind("the start")).status == "completed"
    assert (server.count(), len(server.batches.all)) == (4, 2)


def test_resume_with_another_model_does_not_take_the_result_of_the_batch(
    tmp_path: Path, server: ModelServer
) -> None:
    server.batches.are_held = True
    run = _start(tmp_path, _team("openai", server.url))
    wait_until(lambda: server.batches.all and server.batches.all[0].polls, WAIT_S)
    run.stop(now=True)
    finish(run)
    server.batches.are_held = False
    resumed = finish(run.resume(_team("claude", server.base)))
    assert resumed.result == "Answer r00"
    assert [batch.kind for batch in server.batches.all] == ["responses", "anthropic"]
    assert [request.model for request in server.requests] == [MODELS["claude"]]


def test_killed_process_takes_up_its_batch_soon_and_pays_once(
    tmp_path: Path, server: ModelServer
) -> None:
    server.batches.are_held = True
    options = RunOptions(session_root=tmp_path, detach=True)
    run = nb_agents.start("Row r00.", _team("openai", server.url), "b", options=options)
    wait_until(lambda: server.batches.all and server.batches.all[0].polls, WAIT_S)
    wait_until(lambda: run.view.wait and run.view.wait.sent_at, WAIT_S)
    assert run.view.wait is not None and run.view.wait.sent_at is not None
    look_at = run.view.wait.sent_at + 900
    kill_writers(tmp_path)
    wait_until(lambda: not live_turns(root=tmp_path))
    assert [turn.resumed for turn in resume_due_turns(tmp_path, look_at - 1)] == [""]
    assert [turn.resumed for turn in resume_due_turns(tmp_path, look_at)] == ["b/2"]
    resumed = find_run("b/2", tmp_path)
    wait_until(lambda: resumed.view.wait, WAIT_S)
    assert resume_due_turns(tmp_path, look_at) == []  # it waits in its own process
    server.batches.are_held = False
    assert resumed.wait(WAIT_S) == "Answer r00"
    assert (server.count(), len(server.batches.all)) == (1, 1)
    assert [e.wait_for_quota for e in events(resumed, ev.TurnStarted)] == [None]
