"""Tests of stops: grace time, user hooks, timeouts, and the exception for the waiter."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError

from nb_agents import RunCancelled
from nb_agents import events as ev
from nb_agents.options import CancelPolicy
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, Vote
from tests.kit.runs import StopRequest, StopResult
from tests.kit.views import Receipt
from tests.model_server import wait_until
from tests.team_kit import events, finish, metadata, outcome, outcomes, start

PRESENTED = Turn(text="presented")
# Longer than a busy machine needs to begin the calls that it is to end.
LIMIT_S = 1.5


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_the_grace_time_makes_a_graceful_stop_immediate(tmp_path: Path) -> None:
    model = ScriptedModel(Turn(text="on and on ", hang=True))
    run = start(tmp_path, CancelPolicy(grace_timeout_s=0.05), a=model)
    wait_until(lambda: model.open_streams)
    run.stop(reason="slowly")
    finish(run)
    levels = [(e.level, e.reason, e.grace_s) for e in events(run, ev.StopRequested)]
    assert levels == [
        ("requested", "slowly", 0.05),
        ("immediate", "the grace time is over", None),
    ]
    assert outcomes(run) == {"a": "killed"}


def test_grace_time_applies_to_an_agent_stopped_alone(tmp_path: Path) -> None:
    b = ScriptedModel(Answer("B's"), Vote("agent2"), PRESENTED)
    a = ScriptedModel(Turn(text="on ", hang=True))
    run = start(tmp_path, CancelPolicy(grace_timeout_s=0.05), a=a, b=b)
    wait_until(lambda: a.open_streams)
    run.stop(agent="a")
    finish(run)
    assert outcomes(run) == {"a": "killed", "b": "finished"}


def test_no_grace_time_never_escalates(tmp_path: Path, gate: Gate) -> None:
    policy = CancelPolicy(grace_timeout_s=None)
    run = start(tmp_path, policy, a=ScriptedModel(Answer("A's", gate=gate)))
    gate.wait_reached()
    run.stop()
    gate.open()
    finish(run)
    assert run.result == "A's"
    assert [e.grace_s for e in events(run, ev.StopRequested)] == [None]


def test_a_hook_may_veto_a_graceful_stop_but_never_an_immediate_one(
    tmp_path: Path, gate: Gate
) -> None:
    asked: list[StopRequest] = []

    def veto(request: StopRequest) -> bool:
        asked.append(request)
        return False

    policy = CancelPolicy(before_cancel=veto)
    run = start(tmp_path, policy, a=ScriptedModel(Turn(text="x ", gate=gate)))
    gate.wait_reached()
    assert run.stop(reason="please") == StopResult(False, "vetoed")
    assert run.status == "in-progress"
    assert run.stop(now=True) == StopResult(True, "stopping-now")
    finish(run)
    assert [(r.source, r.reason) for r in asked] == [("api", "please")]
    assert events(run, ev.StopRequested)[0].level == "immediate"


def _raises(request: StopRequest) -> bool:
    raise RuntimeError("hook trouble")


def _exits(request: StopRequest) -> bool:
    raise SystemExit(1)


async def _raises_late(request: StopRequest) -> bool:
    raise RuntimeError("hook trouble")


async def _agrees(request: StopRequest) -> bool:
    return True


async def _vetoes(request: StopRequest) -> bool:
    return False


@pytest.mark.parametrize(
    ("hook", "notice", "is_stopped"),
    [
        (_raises, "_raises failed: RuntimeError: hook trouble", True),
        (_raises_late, "_raises_late failed: RuntimeError: hook trouble", True),
        (_exits, "_exits failed: SystemExit: 1", True),
        (_agrees, "", True),
        (_vetoes, "", False),
    ],
)
def test_failing_hook_is_reported_and_the_stop_continues(
    tmp_path: Path, gate: Gate, hook: Any, notice: str, is_stopped: bool
) -> None:
    run = start(tmp_path, CancelPolicy(before_cancel=hook), a=ScriptedModel(Turn(gate=gate)))
    gate.wait_reached()
    assert run.stop().changed is is_stopped
    run.stop(now=True)
    finish(run)
    assert any(notice in e.text for e in events(run, ev.Noticed)) or not notice


def test_hooks_that_hang_are_cut_after_their_time(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    forever = Gate()

    async def hang(_: object) -> None:
        await forever.wait()

    policy = CancelPolicy(before_cancel=hang, after_cancel=hang, hook_timeout_s=0.05)
    run = start(tmp_path, policy, a=ScriptedModel(Turn(text="x ", gate=gate)))
    gate.wait_reached()
    assert run.stop().changed
    run.stop(now=True)
    finish(run)
    assert caplog.text.count("hang took longer than 0.05 s") == 2
    assert [n for n in run.view.notices if "hang took longer than 0.05 s" in n]


@pytest.mark.parametrize("how", ["graceful", "immediate", "early", "timeout", "grace"])
def test_after_cancel_runs_once_after_saving(tmp_path: Path, gate: Gate, how: str) -> None:
    told: list[tuple[Receipt, str]] = []

    def after(receipt: Receipt) -> None:
        told.append((receipt, (Path(receipt.path) / "metadata.json").read_text()))

    policy = CancelPolicy(after_cancel=after, grace_timeout_s=0.05 if how == "grace" else 30)
    models = {"a": ScriptedModel(Turn(text="x ", gate=gate)), "b": ScriptedModel(Turn(gate=gate))}
    run = start(tmp_path, policy, timeout=LIMIT_S if how == "timeout" else None, **models)
    if how != "early":
        gate.wait_reached(2)
    if how != "timeout":
        run.stop(now=how == "immediate")
    if how == "timeout":
        wait_until(lambda: run.view.stop)
    if how != "grace":
        gate.open()
    finish(run)
    assert len(told) == 1
    receipt, saved = told[0]
    assert receipt.status == ("timed out" if how == "timeout" else "stopped")
    assert '"status": "incomplete"' in saved and '"run_status": "cancelled"' in saved


def test_after_cancel_does_not_run_for_a_run_that_was_not_stopped(tmp_path: Path) -> None:
    told: list[object] = []
    policy = CancelPolicy(after_cancel=told.append)
    finish(start(tmp_path, policy, a=ScriptedModel(Answer("A's"))))
    finish(start(tmp_path, policy, a=ScriptedModel(Turn(error=ModelHTTPError(401, "m")))))
    assert told == []


def test_failing_after_cancel_is_reported_and_waiters_return(tmp_path: Path) -> None:
    for hook in (_raises, _exits):
        run = start(tmp_path, CancelPolicy(after_cancel=hook), a=ScriptedModel(Turn(hang=True)))
        run.stop(now=True)
        finish(run)
        assert any("failed" in notice for notice in run.view.notices)


def test_timeout_is_a_stop_with_source_timeout(tmp_path: Path, gate: Gate) -> None:
    a = ScriptedModel(Answer("A's", gate=gate), Vote("agent1"))
    run = start(tmp_path, a=a, b=ScriptedModel(Turn(text="b ", gate=gate)), timeout=LIMIT_S)
    wait_until(lambda: run.view.stop)
    gate.open()
    finish(run)
    error = outcome(run)
    assert isinstance(error, RunCancelled)
    assert error.receipt.source == "timeout"
    assert error.receipt.reason == f"time limit of {LIMIT_S} s reached"
    assert metadata(run)["reason"] == "timeout"
    assert run.view.agents["a"].answer == "A's"


def test_run_cancelled_has_the_partial_results_and_pickles(tmp_path: Path, gate: Gate) -> None:
    a = ScriptedModel(Answer("A's"), Turn(text="later ", gate=gate))
    b = ScriptedModel(Turn(text="words of b ", gate=gate))
    run = start(tmp_path, a=a, b=b)
    gate.wait_reached(2)
    run.stop(now=True, reason="enough")
    error = outcome(finish(run))
    assert isinstance(error, RunCancelled)
    again = pickle.loads(pickle.dumps(error))
    for each in (error, again):
        assert each.partial_answers == {"a": "A's", "b": "words of b "}
        assert each.receipt == run.receipt
        assert each.path == run.path
        assert str(run.path) in str(each)
