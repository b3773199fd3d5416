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
from tests.kit.runs import live_turns
from tests.kit.teams import prices_of
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.processes import ROOT
from tests.team_kit import WAIT_S, events, finish
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
