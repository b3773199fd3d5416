"""Gates: their prompts, decisions and timeouts, and their state after a stop."""

import signal
from itertools import groupby
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import CancellationRequestedError, UserError
from nb_agents.options import ApprovalConfig
from nb_agents.testing import scripted_team
from tests.kit.runs import Run, preview
from tests.kit.sessions import load_session
from tests.kit.teams import TeamSpec
from tests.model_server import wait_until
from tests.recipes.live import (
    Echo,
    begin,
    hold,
    let_go,
    ran,
    resume,
    wait_for_gate,
    wait_held,
    write,
)
from tests.team_kit import WAIT_S, events, finish, read_line, script

GATED = """
context: {{what: paint}}
stages:
- name: plan
  steps:
  - {{id: make, type: bash, command: "echo blue", output: colour}}
  approval: {{required: true, prompt: "Buy {{{{colour}}}} {{{{what}}}}?"{more}}}
- name: buy
  steps:
  - {{id: pay, type: bash, command: "echo {{{{_approval_message}}}}", output: said}}
"""


def gated(root: Path, more: str = "") -> Run:
    """Write a recipe with a gate between two stages."""
    return begin(write(root, GATED.format(more=f", {more}" if more else "")))


def test_approval_message_reaches_later_steps(tmp_path: Path) -> None:
    run = gated(tmp_path)
    assert wait_for_gate(run) == ["plan"]
    (gate,) = run.view.gates.values()
    assert (gate.prompt, gate.timeout_s, gate.default) == ("Buy blue paint?", 0, "deny")
    assert run.receipt.steps == (
        ("plan/make", "finished"),
        ("plan", "stopped"),
        ("buy/pay", "never started"),
    )
    run.approve("the matt one", by="ann")
    finish(run)
    assert run.result == {"colour": "blue", "said": "the matt one"}
    (given,) = run.view.approvals
    assert (given.address, given.approved, given.message, given.by) == (
        "plan",
        True,
        "the matt one",
        "ann",
    )
    assert run.receipt.steps == (("plan/make", "finished"), ("buy/pay", "finished"))


def test_status_shows_that_a_run_waits(tmp_path: Path) -> None:
    seen: list[str] = []
    run = gated(tmp_path)
    run.subscribe(lambda view: seen.append(view.status))
    wait_for_gate(run)
    wait_until(lambda: "awaiting" in seen, WAIT_S, "the news")
    run.approve()
    finish(run)
    assert [status for status, _ in groupby(seen)][-3:] == ["awaiting", "in-progress", "completed"]


def test_gate_can_be_decided_as_soon_as_it_is_shown(tmp_path: Path) -> None:
    """The decision may arrive before the task of the gate runs."""
    for number in range(5):
        run = gated(tmp_path / str(number))
        while not run.view.gates:
            pass
        run.approve()
        assert finish(run).status == "completed"


def test_timeout_approves(tmp_path: Path) -> None:
    run = finish(gated(tmp_path, "timeout: 0.05, default: approve"))
    assert run.status == "completed"
    assert [(a.approved, a.by, a.message) for a in run.view.approvals] == [(True, "timeout", "")]


def test_timeout_denies(tmp_path: Path) -> None:
    run = finish(gated(tmp_path, "timeout: 0.05"))
    assert run.status == "cancelled"
    assert [(a.approved, a.by) for a in run.view.approvals] == [(False, "timeout")]
    assert run.view.stop is not None
    assert run.view.stop.source == "approval"


def test_timeout_does_not_override_a_decision(tmp_path: Path) -> None:
    run = gated(tmp_path, "timeout: 60, default: approve")
    wait_for_gate(run)
    run.deny("too dear", by="ann")
    finish(run)
    assert [(a.approved, a.by) for a in run.view.approvals] == [(False, "ann")]


def test_denial_stops_the_run_and_a_resume_asks_again(tmp_path: Path) -> None:
    run = gated(tmp_path)
    wait_for_gate(run)
    run.deny("too dear", by="ann")
    finish(run)
    with pytest.raises(CancellationRequestedError) as stopped:
        run.wait(0)
    assert stopped.value.current_step == "plan"
    assert stopped.value.receipt.source == "approval"
    assert stopped.value.receipt.reason == "the gate of 'plan' was denied by ann: too dear"
    assert not stopped.value.is_immediate
    assert ran(run) == ["plan/make"]
    assert str(preview("s", session_root=tmp_path / "sessions")) == (
        "Resumes turn 1: 1 finished step and 0 finished model calls are kept. "
        "Runs again: nothing. Asks again: the gate of plan."
    )
    second = resume(run)
    wait_for_gate(second)
    second.deny()
    finish(second)
    third = resume(second)
    wait_for_gate(third)
    third.approve("now")
    finish(third)
    assert third.result == {"colour": "blue", "said": "now"}
    assert (ran(second), ran(third)) == ([], ["buy/pay"])


@pytest.mark.parametrize("now", [False, True])
def test_stop_ends_the_wait_and_a_resume_asks_again(tmp_path: Path, now: bool) -> None:
    run = gated(tmp_path)
    wait_for_gate(run)
    run.stop(now=now)
    finish(run)
    assert run.status == "cancelled"
    assert run.view.approvals == ()
    again = resume(run)
    wait_for_gate(again)
    again.approve("yes")
    assert finish(again).result == {"colour": "blue", "said": "yes"}


def test_approved_gate_is_not_asked_again(tmp_path: Path) -> None:
    body = GATED.format(more="").replace("echo {{_approval_message}}", hold("pay"))
    run = begin(write(tmp_path, body))
    wait_for_gate(run)
    run.approve("yes")
    wait_held(run, "pay")
    run.stop(now=True)
    let_go(finish(run), "pay")
    again = finish(resume(run))
    assert again.status == "completed"
    assert events(again, ev.ApprovalAsked) == []


def test_gate_that_is_not_open_cannot_be_decided(tmp_path: Path) -> None:
    run = gated(tmp_path)
    wait_for_gate(run)
    run.approve()
    finish(run)
    with pytest.raises(UserError, match="is not waiting for an approval; it is complete"):
        run.deny()
    assert [a.approved for a in run.view.approvals] == [True]


def test_waiting_for_the_decision(tmp_path: Path) -> None:
    run = gated(tmp_path)
    wait_for_gate(run)
    with pytest.raises(TimeoutError):
        run.wait_for_approval(timeout=0.01)
    run.approve("fine", by="ann")
    finish(run)
    with pytest.raises(UserError, match="ended without a decision"):
        run.wait_for_approval(timeout=WAIT_S)


def test_waiting_for_a_decision_by_timeout(tmp_path: Path) -> None:
    run = gated(tmp_path, "timeout: 0.5, default: approve")
    given = run.wait_for_approval(timeout=WAIT_S)
    assert (given.address, given.approved, given.by) == ("plan", True, "timeout")
    finish(run)


def test_stage_conditions_approve_automatically(tmp_path: Path) -> None:
    body = GATED.format(more="").replace(
        "- name: buy", "  auto_approve_if: [\"{{colour}} == 'blue'\"]\n- name: buy"
    )
    run = finish(begin(write(tmp_path, body)))
    assert run.status == "completed"
    assert [(a.approved, a.by) for a in run.view.approvals] == [(True, "auto_approve_if")]


# Two gates ---------------------------------------------------------------------------------------

TWO = """
context: {who: [ann, ben]}
steps:
- {id: ask, type: recipe, foreach: "{{who}}", as: name, parallel: 2, collect: said,
   recipe: gated.yaml, context: {name: "{{name}}"}}
"""
ONE = """
context: {name: ""}
stages:
- name: wait
  approval: {required: true, prompt: "Is {{name}} there?"}
  steps:
  - {id: greet, type: bash, command: "echo hello {{name}}"}
- name: note
  steps:
  - {id: note, type: bash, command: "echo {{name}} {{_approval_message}}", output: note}
"""


def two(root: Path) -> Run:
    """Write a recipe with two parallel sub-recipes, each with a gate."""
    write(root, ONE, "gated")
    run = begin(write(root, TWO))
    wait_for_gate(run, 2)
    return run


def test_older_of_two_open_gates_is_decided_first(tmp_path: Path) -> None:
    run = two(tmp_path)
    asked = [(e.step, e.prompt) for e in events(run, ev.ApprovalAsked)]
    assert sorted(asked) == [
        ("ask[0]/wait", "Is ann there?"),
        ("ask[1]/wait", "Is ben there?"),
    ]
    run.approve("first")
    assert list(run.view.gates) == [asked[1][0]]
    assert run.status == "awaiting"
    run.approve("second")
    finish(run)
    messages = dict(zip([step for step, _ in asked], ["first", "second"], strict=True))
    assert run.result == {
        "said": [
            {"note": f"ann {messages['ask[0]/wait']}"},
            {"note": f"ben {messages['ask[1]/wait']}"},
        ]
    }


def test_denial_of_one_gate_closes_the_other(tmp_path: Path) -> None:
    run = two(tmp_path)
    first, second = run.view.gates
    run.approve("in")
    run.deny()
    finish(run)
    assert (run.status, run.receipt.source) == ("cancelled", "approval")
    again = resume(run)
    assert wait_for_gate(again) == [second]
    again.approve("in, too")
    finish(again)
    assert again.status == "completed"
    assert [e.step for e in events(again, ev.ApprovalGiven)] == [second]
    greeted = [*ran(run), *ran(again)]
    assert len(greeted) == len(set(greeted)) == 4
    assert first != second


# Killed ------------------------------------------------------------------------------------------

ASK_AND_DIE = """
import os, signal, sys
from pathlib import Path
from tests.recipes.live import begin, wait_for_gate
run = begin(Path(sys.argv[0]).with_name("main.yaml"))
wait_for_gate(run)
print("asked", flush=True)
run.wait()
"""


def test_open_gate_survives_a_killed_process(tmp_path: Path) -> None:
    write(tmp_path, GATED.format(more=""))
    with script(ASK_AND_DIE, tmp_path) as process:
        assert read_line(process) == "asked\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    root = tmp_path / "sessions"
    turn = load_session(root / "s").turns[-1]
    assert turn.state == "stopped"
    assert list(turn.view.gates) == ["plan"]
    assert "Asks again: the gate of plan." in str(preview("s", session_root=root))
    team = scripted_team(None, worker=Echo())
    again = nb_agents.resume("s", team, options=RunOptions(session_root=root))
    assert wait_for_gate(again) == ["plan"]
    again.approve("still")
    assert finish(again).result == {"colour": "blue", "said": "still"}


# Approvers and defaults ---------------------------------------------------------------------------

BY_TWO = ApprovalConfig(approvers=("ann", "ben", "cyd"), required_approvals=2)


def governed(root: Path, approval: ApprovalConfig, more: str = "") -> Run:
    """Start a recipe with a gate in a run with these approval settings."""
    path = write(root, GATED.format(more=f", {more}" if more else ""))
    team = scripted_team(None, worker=Echo())
    return nb_agents.start(
        recipe=path,
        config=team,
        session="s",
        options=RunOptions(approval=approval, session_root=root / "sessions"),
    )


def test_required_number_of_listed_approvers_must_approve(tmp_path: Path) -> None:
    run = governed(tmp_path, BY_TWO)
    wait_for_gate(run)
    for decide in (run.approve, run.deny):
        with pytest.raises(
            UserError, match="'eve' is not an approver of this run. Approvers: ann, ben"
        ):
            decide("mine", by="eve")
    run.approve("the matt one", by="ann")
    run.approve("the matt one", by="ann")  # again: she counts once
    assert (run.status, list(run.view.gates)) == ("awaiting", ["plan"])
    assert run.view.notices[-1] == "plan: 1 of 2 approvals (ann)."
    run.approve("and tape", by="cyd")
    finish(run)
    assert run.result == {"colour": "blue", "said": "the matt one; and tape"}
    assert [(a.approved, a.by) for a in run.view.approvals] == [(True, "ann, cyd")]


def test_one_denial_is_enough(tmp_path: Path) -> None:
    run = governed(tmp_path, BY_TWO)
    wait_for_gate(run)
    run.approve(by="ann")
    run.deny("too dear", by="ben")
    finish(run)
    assert (run.status, run.receipt.source) == ("cancelled", "approval")
    assert [(a.approved, a.by) for a in run.view.approvals] == [(False, "ben")]


def test_approvals_are_counted_per_gate(tmp_path: Path) -> None:
    write(tmp_path, ONE, "gated")
    run = begin(write(tmp_path, TWO), approval=BY_TWO)
    first, second = wait_for_gate(run, 2)
    run.decide(True, by="ann", gate=first)
    run.decide(True, by="ben", gate=second)
    assert set(run.view.gates) == {first, second}
    run.decide(True, by="cyd", gate=second)
    assert list(run.view.gates) == [first]
    run.decide(True, by="ben", gate=first)
    assert finish(run).status == "completed"


def test_partial_approvals_are_dropped_by_a_stop(tmp_path: Path) -> None:
    run = governed(tmp_path, BY_TWO)
    wait_for_gate(run)
    run.approve(by="ann")
    run.stop()
    finish(run)
    again = resume(run)
    wait_for_gate(again)
    again.approve(by="ben")
    assert list(again.view.gates) == ["plan"]
    again.approve(by="ann")
    assert finish(again).status == "completed"


@pytest.mark.parametrize("auto, status", [(True, "completed"), (False, "cancelled")])
def test_runs_timeout_applies_to_a_gate_without_one(
    tmp_path: Path, auto: bool, status: str
) -> None:
    config = ApprovalConfig(timeout=0.05, auto_approve_on_timeout=auto, approvers=("ann",))
    run = finish(governed(tmp_path, config))
    assert run.status == status
    assert [(a.approved, a.by) for a in run.view.approvals] == [(auto, "timeout")]
    [asked] = events(run, ev.ApprovalAsked)
    assert (asked.timeout_s, asked.default) == (0.05, "approve" if auto else "deny")


def test_gate_is_shown_with_its_timeout(tmp_path: Path) -> None:
    run = governed(tmp_path, ApprovalConfig(timeout=90, auto_approve_on_timeout=True))
    wait_for_gate(run)
    (gate,) = run.view.gates.values()
    assert (gate.timeout_s, gate.default) == (90, "approve")
    run.deny()
    finish(run)


def test_gates_own_timeout_takes_precedence(tmp_path: Path) -> None:
    config = ApprovalConfig(timeout=900, auto_approve_on_timeout=True)
    run = finish(governed(tmp_path, config, "timeout: 0.05"))
    assert [(a.approved, a.by) for a in run.view.approvals] == [(False, "timeout")]


def test_team_file_sets_approvals_for_its_recipes(tmp_path: Path) -> None:
    team = TeamSpec.model_validate(
        {
            "agents": [{"id": "worker", "backend": {"type": "demo"}}],
            "approval": {"approvers": ["ann"], "timeout": 60, "auto_approve_on_timeout": True},
        }
    )
    run = nb_agents.start(
        recipe=write(tmp_path, GATED.format(more="")),
        config=team,
        options=RunOptions(session_root=tmp_path),
    )
    wait_for_gate(run)
    (gate,) = run.view.gates.values()
    assert (gate.timeout_s, gate.default) == (60, "approve")
    with pytest.raises(UserError, match="'eve' is not an approver"):
        run.approve(by="eve")
    run.approve(by="ann")
    assert finish(run).status == "completed"
