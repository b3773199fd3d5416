"""Plain functions that keep running in threads after a stop: notices and waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock
from time import sleep
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import RunCancelled
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.runs import Run
from tests.model_server import wait_until
from tests.team_kit import WAIT_S, finish, metadata
from tests.turns.test_tools import FINE, calls, results, start


def test_immediate_stop_does_not_wait_for_a_function_without_checks(tmp_path: Path) -> None:
    entered, let_go = Event(), Event()

    def block() -> str:
        entered.set()
        let_go.wait(60)
        return "late"

    run, _ = start(tmp_path, calls(Call("block", {})), tools=[block])
    assert entered.wait(WAIT_S)
    run.stop(now=True)
    with pytest.raises(RunCancelled) as caught:
        run.wait(WAIT_S)
    finish(run)
    for told in (caught.value.receipt, run.receipt):
        assert told.tools == (("a: block", "still running in its thread"),)
    when_cut = ["a: block", "still running in its thread when it was cut"]
    assert metadata(run)["receipt"]["tools"] == [when_cut]
    assert run.view.notices[-1].startswith("a: block was interrupted, but still runs in its thread")
    let_go.set()
    wait_until(lambda: run.receipt.tools == (("a: block", "killed"),), WAIT_S, "its end")
    assert results(run) == [""]


def test_immediate_stop_lets_a_plain_function_clean_up(tmp_path: Path) -> None:
    entered, steps = Event(), []

    def work() -> None:
        try:
            while True:
                entered.set()
                nb_agents.checkpoint()
        finally:
            sleep(0.2)
            steps.append("closed")

    run, _ = start(tmp_path, calls(Call("work", {})), tools=[work])
    assert entered.wait(WAIT_S)
    run.stop(now=True)
    with pytest.raises(RunCancelled):
        run.wait(WAIT_S)
    assert steps == ["closed"]
    assert run.receipt.tools == (("a: work", "killed"),)
    assert run.view.notices == ()


class Copies:
    """A function that waits for the test and counts its concurrent calls."""

    def __init__(self) -> None:
        self.begun, self.now, self.most = 0, 0, 0
        self.gates = [Event(), Event(), Event()]
        self._changed = Lock()

    def tool(self) -> Callable[[], str]:
        """Make the function; each call of it waits at its own gate."""

        @nb_agents.tool(repeatable=True)
        def block() -> str:
            with self._changed:
                number, self.begun, self.now = self.begun, self.begun + 1, self.now + 1
                self.most = max(self.most, self.now)
            self.gates[number].wait(60)
            with self._changed:
                self.now -= 1
            return f"copy {number}"

        return block


def left_in_thread(root: Path, copies: Copies, **keys: Any) -> tuple[Run, Any]:
    """Stop a run of "a" immediately in a function that keeps running."""
    function = copies.tool()
    run, _ = start(root, calls(Call("block", {})), Answer("done"), tools=[function], **keys)
    wait_until(lambda: copies.begun == 1, WAIT_S, "the function")
    run.stop(now=True)
    finish(run)
    return run, function


def test_after_a_resume_the_second_copy_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    copies = Copies()
    run, function = left_in_thread(tmp_path, copies)
    assert run.preview is not None and run.preview.tools_again == ("a: block",)
    again = run.resume(tools=[function])
    tail = "Waiting for block, which was started before the stop and is still running."
    wait_until(lambda: tail in again.view.agents["a"].tool_tail, WAIT_S, "what the panel says")
    assert copies.begun == 1
    copies.gates[0].set()
    wait_until(lambda: copies.begun == 2, WAIT_S, "the second copy")
    copies.gates[1].set()
    again.wait(WAIT_S, raise_on_stop=False)
    assert (again.status, copies.most) == ("completed", 1)
    assert results(again) == ["copy 1"]


@pytest.mark.parametrize("now", [False, True])
def test_waiting_second_copy_can_be_stopped(tmp_path: Path, now: bool) -> None:
    copies = Copies()
    run, function = left_in_thread(tmp_path, copies)
    again = run.resume(tools=[function])
    wait_until(lambda: again.view.agents["a"].tool_tail, WAIT_S, "the waiting")
    again.stop(now=now)
    again.wait(WAIT_S, raise_on_stop=False)
    assert (again.status, copies.begun) == ("cancelled", 1)
    for each in (run, again):
        assert each.receipt.tools == (("a: block", "still running in its thread"),)
    copies.gates[0].set()
    for gate in copies.gates:
        gate.set()
    last = again.resume(tools=[function])
    last.wait(WAIT_S, raise_on_stop=False)
    assert (last.status, copies.most, copies.begun) == ("completed", 1, 2)


def test_repeated_agent_call_waits_for_the_earlier_copy(tmp_path: Path) -> None:
    copies = Copies()
    function = copies.tool()
    helper = ScriptedModel(calls(Call("block")), calls(Call("block")), FINE)
    main = ScriptedModel(calls(Call("call_agent", {"name": "helper", "input": "?"})), Answer("a"))
    team = nb_agents.TeamSpec.model_validate(
        {
            "agents": [
                {"id": "a", "backend": {"type": "python", "instance": main, "can_call": "*"}}
            ],
            "callable_agents": [
                {"id": "helper", "backend": {"type": "python", "instance": helper}}
            ],
        }
    )
    run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path), tools=[function])
    wait_until(lambda: copies.begun == 1, WAIT_S, "the function")
    run.stop(now=True)
    finish(run)
    again = run.resume(tools=[function])
    child = "a/helper#1"
    wait_until(
        lambda: child in again.view.agents and again.view.agents[child].tool_tail, WAIT_S, child
    )
    assert copies.begun == 1
    for gate in copies.gates:
        gate.set()
    again.wait(WAIT_S, raise_on_stop=False)
    assert (again.status, copies.most) == ("completed", 1)


def test_other_agent_can_call_a_function_that_is_still_running(tmp_path: Path) -> None:
    copies = Copies()
    function = copies.tool()
    a = ScriptedModel(calls(Call("block")))
    held = Gate()
    b = ScriptedModel(Turn(gate=held, calls=(Call("block"),)), Answer("B's"))
    team = scripted_team(a=a, b=b)
    run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path), tools=[function])
    wait_until(lambda: copies.begun == 1, WAIT_S, "the function")
    run.stop(now=True, agent="a")
    wait_until(lambda: run.view.agents["a"].outcome, WAIT_S, "the end of a")
    held.open()
    wait_until(lambda: copies.begun == 2, WAIT_S, "the other's call")
    assert run.receipt.tools[0] == ("a: block", "still running in its thread")
    for gate in copies.gates:
        gate.set()
    finish(run)
    assert run.status == "completed"
