"""Decisions in a panel apply to their gate only, and only once even if sent twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nb_agents.errors import UserError
from tests.kit.cells import handle_page_request
from tests.kit.runs import Run
from tests.model_server import wait_until
from tests.recipes.live import begin, over, wait_for_gate, write
from tests.team_kit import WAIT_S

BODY = """
stages:
- name: first
  steps: [{id: a, type: bash, command: echo a}]
  approval: {required: true, prompt: "One?"}
- name: second
  steps: [{id: b, type: bash, command: "echo {{_approval_message}}", output: b}]
  approval: {required: true, prompt: "Two?"}
"""


def ask(run: str, verb: str, message: str, message_id: str) -> str:
    """Send a decision for the first gate, and return the refusal or ""."""
    content = {"run": run, "gate": "first", "message": message, "id": message_id}
    return handle_page_request(verb, content).refusal


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = begin(write(tmp_path, BODY))
    assert wait_for_gate(run) == ["first"]
    yield run
    run.stop(now=True)
    over(run)


def test_decision_sent_twice_counts_once(run: Run) -> None:
    said = [ask(run.id, "approve", "go", "decision-1") for _ in range(2)]
    assert said == ["", ""]
    assert [(a.address, a.approved, a.message) for a in run.view.approvals] == [
        ("first", True, "go")
    ]


def test_decision_for_a_decided_gate_does_not_change_another(run: Run) -> None:
    run.approve("go")
    wait_until(lambda: list(run.view.gates) == ["second"], WAIT_S, "the second gate")
    refusal = ask(run.id, "deny", "late", "decision-2")
    assert refusal == f"Run {run.id} is not waiting at a gate 'first'; it is awaiting."
    assert list(run.view.gates) == ["second"]
    assert len(run.view.approvals) == 1


def test_gate_is_decided_by_its_address(run: Run) -> None:
    with pytest.raises(UserError, match="is not waiting at a gate 'second'"):
        run.decide(True, gate="second")
    run.decide(True, "use mmap", gate="first")
    wait_until(lambda: list(run.view.gates) == ["second"], WAIT_S, "the second gate")
    run.decide(True, gate="second")
    assert over(run).result == {"b": "use mmap"}


def test_decision_for_an_unknown_run_is_refused() -> None:
    assert "No run named 'r0'" in ask("r0", "approve", "", "decision-3")


def test_recipe_stopped_at_a_gate_shows_the_next_steps(run: Run) -> None:
    run.stop()
    assert over(run).view.next == ("first",)
