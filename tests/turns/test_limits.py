"""Automatic stops: the orchestrator timeout and the budget."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nb_agents import RunCancelled, RunFailed
from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.options import CancelPolicy
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from nb_agents.turns import limits
from tests.kit.agents import prompts
from tests.kit.cards import card_bundle, panel_state, text
from tests.kit.runs import Budget, Run, StopRequest, attach, unpriced, usage_of_task, used_up
from tests.kit.views import AgentView, RunView
from tests.model_server import wait_until
from tests.team_kit import events, finish, metadata, outcome, outcomes, prompt, start_by_rules

# Longer than a busy machine needs to begin the calls that it is to cut.
LIMIT_S = 1.5
READ = Turn(calls=(Call("list_files"),))


@pytest.fixture
def gate() -> Gate:
    return Gate()


def _out_of_time(
    root: Path, gate: Gate, on_timeout: str = "cancel", policy: CancelPolicy | None = None
) -> Run:
    """A run at its time limit: a is writing its answer, and b is waiting for a tool."""
    a = ScriptedModel(Answer("A's", gate=gate), Vote("agent1"), Turn(text="done"))
    b = ScriptedModel(Turn(text="b ", gate=gate, calls=READ.calls), Answer("B's"), Vote("agent1"))
    timeouts = {"orchestrator_timeout_seconds": LIMIT_S, "on_timeout": on_timeout}
    run = start_by_rules(root, {"a": a, "b": b}, timeouts, policy)
    gate.wait_reached(2)
    wait_until(lambda: run.view.notices or run.view.stop)
    gate.open()
    return finish(run)


@pytest.mark.parametrize("grace_s, given_s", [(30, LIMIT_S), (1.0, 1.0)])
def test_grace_time_at_the_limit_is_at_most_the_limit(
    tmp_path: Path, gate: Gate, grace_s: float, given_s: float
) -> None:
    a = ScriptedModel(Turn(text="words ", gate=gate))
    timeouts = {"orchestrator_timeout_seconds": LIMIT_S}
    run = start_by_rules(tmp_path, {"a": a}, timeouts, CancelPolicy(grace_timeout_s=grace_s))
    said: list[str] = []
    run.subscribe(lambda view: said.extend(panel_state(view, "r", 0)["notices"]))
    finish(run)
    asked, cut = events(run, ev.StopRequested)
    assert (asked.grace_s, cut.level) == (given_s, "immediate")
    assert cut.at - asked.at < given_s + 10
    until = time.strftime("%H:%M:%S", time.localtime(asked.at + given_s))
    cut_then = f"waiting for a until {until}, then interrupts the rest. Everything is saved."
    assert f"Time limit of {LIMIT_S} s reached: {cut_then}" in said


def test_without_a_grace_time_open_calls_finish_at_the_limit(tmp_path: Path, gate: Gate) -> None:
    a = ScriptedModel(Answer("A's", gate=gate))
    timeouts = {"orchestrator_timeout_seconds": LIMIT_S}
    run = start_by_rules(tmp_path, {"a": a}, timeouts, CancelPolicy(grace_timeout_s=None))
    wait_until(lambda: run.view.stop)
    assert (
        text.waits_for(run.view)
        == f"Time limit of {LIMIT_S} s reached: waiting for a. Everything is saved."
    )
    gate.open()
    assert finish(run).view.agents["a"].answer == "A's"


def test_open_calls_finish_and_are_saved_at_the_limit(tmp_path: Path, gate: Gate) -> None:
    run = _out_of_time(tmp_path, gate)
    assert isinstance(outcome(run), RunCancelled)
    assert (run.view.state, run.state) == ("timed out", "timed out")
    known = metadata(run)
    assert (known["status"], known["reason"], known["run_status"]) == (
        "incomplete",
        "timeout",
        "cancelled",
    )
    assert run.view.agents["a"].answer == "A's"
    assert outcomes(run)["b"] == "stopped"
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["cancelled"]


def test_work_that_outlasts_the_grace_time_is_cut(tmp_path: Path) -> None:
    a = ScriptedModel(Turn(text="on and on ", hang=True))
    timeouts = {"orchestrator_timeout_seconds": LIMIT_S}
    policy = CancelPolicy(grace_timeout_s=0.05)
    run = finish(start_by_rules(tmp_path, {"a": a}, timeouts, policy))
    assert (run.state, outcomes(run)) == ("timed out", {"a": "killed"})
    assert run.view.agents["a"].partial == "on and on "


def test_timeout_that_fails_the_run_preserves_all_results(tmp_path: Path, gate: Gate) -> None:
    told: list[object] = []
    run = _out_of_time(tmp_path, gate, "fail", CancelPolicy(after_cancel=told.append))
    error = outcome(run)
    assert isinstance(error, RunFailed)
    assert "time limit of 1.5 s reached" in str(error)
    assert (run.status, metadata(run)["reason"]) == ("failed", "timeout")
    assert run.view.agents["a"].answer == "A's"
    assert "A's" in (run.path / "answer.txt").read_text()
    assert (run.state, len(told)) == ("timed out", 1)
    for kind in ("text/plain", "text/html"):
        card = card_bundle(run.view, str(run.path))[kind]
        assert "Timed out (time limit of 1.5 s reached)" in card and "A&#39;s" in card.replace(
            "'", "&#39;"
        )
        assert "No agent gave" not in card and "no agent gave" not in card


def test_timeout_can_be_only_a_warning(tmp_path: Path, gate: Gate) -> None:
    run = _out_of_time(tmp_path, gate, "continue")
    assert run.status == "completed"
    assert run.view.notices[0] == limits.GOING_ON.format(limit=1.5)
    assert run.view.stop is None


def _says(word: object) -> Callable[[StopRequest], object]:
    return lambda request: word if request.source == "timeout" else None


async def _says_later(request: StopRequest) -> str:
    return "continue"


@pytest.mark.parametrize(
    ("configured", "hook", "status"),
    [
        ("cancel", _says("fail"), "failed"),
        ("fail", _says("cancel"), "cancelled"),
        ("cancel", _says("continue"), "completed"),
        ("cancel", _says_later, "completed"),
        ("continue", _says(None), "completed"),
        ("fail", _says("nonsense"), "failed"),
        ("fail", lambda request: 1 / 0, "failed"),
    ],
)
def test_hook_takes_precedence_over_the_file_at_a_timeout(
    tmp_path: Path, gate: Gate, configured: str, hook: Any, status: str
) -> None:
    policy = CancelPolicy(on_timeout=hook)
    assert _out_of_time(tmp_path, gate, configured, policy).status == status


def test_vetoed_timeout_does_not_stop_the_run(tmp_path: Path) -> None:
    asked = Gate()

    async def veto(request: StopRequest) -> bool:
        asked.open()
        return False

    a = ScriptedModel(Answer("A's", gate=asked))
    policy = CancelPolicy(before_cancel=veto)
    run = start_by_rules(tmp_path, {"a": a}, {"orchestrator_timeout_seconds": LIMIT_S}, policy)
    assert finish(run).result == "A's"
    assert (run.state, run.view.notices) == ("complete", ())


def test_agents_are_asked_to_finish_near_the_limit(tmp_path: Path, gate: Gate) -> None:
    read = Turn(text="x ", gate=gate, calls=READ.calls)
    a = ScriptedModel(read, READ, Answer("A's"))
    timeouts = {"orchestrator_timeout_seconds": 0.05, "on_timeout": "continue"}
    run = start_by_rules(tmp_path, {"a": a}, timeouts)
    wait_until(lambda: run.view.notices)
    gate.open()
    finish(run)
    assert prompt(a, 2).count(prompts.WRAP_UP) == 1


def test_time_limit_of_a_live_run_can_be_raised_and_lowered(tmp_path: Path, gate: Gate) -> None:
    a = ScriptedModel(Turn(text="words ", gate=gate))
    run = start_by_rules(tmp_path, {"a": a}, {"orchestrator_timeout_seconds": LIMIT_S})
    assert run.set_time_limit(3600)
    gate.wait_reached(1)
    wait_until(lambda: time.time() - run.view.started_at > LIMIT_S + 0.2)
    assert run.view.stop is None and run.view.timeout_s == 3600
    with pytest.raises(UserError, match="Use a number above 0"):
        run.set_time_limit(0)
    assert attach(run.path).set_time_limit(LIMIT_S), "it has passed already"
    wait_until(lambda: run.view.stop)
    gate.open()
    finish(run)
    assert run.view.stop is not None and run.view.stop.source == "timeout"
    assert [event.timeout_s for event in events(run, ev.TimeLimitChanged)] == [3600, LIMIT_S]
    assert not run.set_time_limit(5)


def test_debug_log_shows_progress(tmp_path: Path) -> None:
    a = ScriptedModel(Answer("A's"), Vote("agent1"), Turn(text="done"))
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    run = finish(start_by_rules(tmp_path, {"a": a, "b": b}, debug=True))
    log = (run.path / "debug.log").read_text()
    lines = re.findall(r"\[INFO\] (.*)", log)
    assert lines[:2] == [
        "Orchestrator timeout configured: 1800 seconds",
        "Starting coordination...",
    ]
    rounds = [line for line in lines if line.startswith("Round ")]
    assert rounds[0].startswith("Round 1 complete (elapsed: ")
    assert all(re.fullmatch(r"Round \d+ complete \(elapsed: \d+s / 1800s\)", r) for r in rounds)
    assert [int(r.split()[1]) for r in rounds] == list(range(1, run.view.round + 1))


def _spent(tokens: int, cost: float | None) -> RunView:
    half = AgentView("a", "m1", input_tokens=tokens, cost=cost)
    return RunView(agents={"a": half, "b": AgentView("b", "m2", output_tokens=1, cost=0.5)})


@pytest.mark.parametrize(
    ("tokens", "cost", "budget", "reason"),
    [
        (9**9, 9.0, {}, ""),
        (98, 0.0, {"max_tokens": 100}, ""),
        (99, 0.0, {"max_tokens": 100}, "100 of 100 tokens used"),
        (0, 0.4, {"max_cost": 1.0}, ""),
        (0, 0.75, {"max_cost": 1.0}, "$1.25 of $1 used"),
        (0, None, {"max_cost": 1.0}, ""),
        (0, None, {"max_cost": 0.5}, "$0.5 of $0.5 used"),
    ],
)
def test_each_budget_limits_the_run(
    tokens: int, cost: float | None, budget: dict[str, Any], reason: str
) -> None:
    assert used_up(usage_of_task(_spent(tokens, cost)), Budget(**budget)) == reason


def test_models_without_a_price_are_named() -> None:
    assert unpriced(_spent(0, None)) == ("m1",)
    assert unpriced(_spent(0, 0.0)) == ()


def test_spent_budget_stops_the_run_gracefully_without_new_calls(tmp_path: Path) -> None:
    a = ScriptedModel(READ, Answer("A's"))
    run = finish(start_by_rules(tmp_path, {"a": a}, max_tokens=1))
    assert (run.status, len(a.requests), run.receipt.source) == ("cancelled", 1, "budget")
    assert re.fullmatch(r"[\d,]+ of 1 token used", run.receipt.reason)
    assert text.stopped_by(run.view).startswith("Stopped by the budget")


def test_answer_that_exhausts_the_budget_is_kept(tmp_path: Path) -> None:
    a = ScriptedModel(Answer("a's"))
    run = finish(start_by_rules(tmp_path, {"a": a}, max_tokens=1))
    assert run.view.agents["a"].answer == "a's"
    assert len(a.requests) == 1


@pytest.mark.parametrize("agrees", [True, False])
def test_a_hook_may_veto_a_budgets_stop_once(tmp_path: Path, agrees: bool) -> None:
    asked: list[str] = []

    def hook(request: StopRequest) -> bool:
        asked.append(request.source)
        return agrees

    a = ScriptedModel(READ, *[READ] * 5, Answer("A's"))
    policy = CancelPolicy(before_cancel=hook)
    run = finish(start_by_rules(tmp_path, {"a": a}, policy=policy, max_tokens=1))
    assert asked == ["budget"]
    assert run.status == ("cancelled" if agrees else "completed")


def test_unknown_price_is_reported_once(tmp_path: Path) -> None:
    a = ScriptedModel(READ, Answer("A's"))
    run = finish(start_by_rules(tmp_path, {"a": a}, max_cost=0.01))
    assert run.status == "completed"
    assert len(run.view.notices) == 1
    assert "Its cost does not count towards max_cost" in run.view.notices[0]
