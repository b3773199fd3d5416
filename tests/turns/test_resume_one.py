"""An agent that was stopped individually is restarted. The others do not change."""

from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote, scripted_team
from tests.kit.runs import Run
from tests.kit.sessions import load_session
from tests.model_server import wait_until
from tests.team_kit import WAIT_S, events, finish, outcomes

PRESENTED = Turn(text="presented")


def stopped_b(root: Path, b: ScriptedModel, gate: Gate, *a: Turn) -> Run:
    """A run of "a" and "b", in which "b" was stopped at the gate and "a" has finished."""
    model = ScriptedModel(Answer("A's"), *a)
    team = scripted_team(None, a=model, b=b)
    run = nb_agents.start("the task", team, "s", options=RunOptions(session_root=root))
    gate.wait_reached()
    run.stop(now=True, agent="b")
    run.wait(WAIT_S, raise_on_stop=False)
    return run


def ended(run: Run) -> Run:
    run.wait(WAIT_S, raise_on_stop=False)
    return run


def test_agent_takes_part_again_after_the_others_have_finished(tmp_path: Path) -> None:
    gate = Gate()
    b = ScriptedModel(
        Turn(calls=(Call("list_files"),)), Turn(text="so far ", gate=gate), Answer("B's"),
        Vote("agent2"), PRESENTED,
    )  # fmt: skip
    run = stopped_b(tmp_path, b, gate, Vote("agent1"), PRESENTED, Vote("agent2"))
    assert (run.status, run.view.winner, run.result) == ("completed", "a", "presented")
    assert outcomes(run)["b"] == "killed"
    again = ended(run.resume(agent="b"))
    assert (again.turn, again.status) == (2, "completed")
    assert again.view.agents["b"].answers == ("B's",)
    assert again.view.agents["a"].answers == ("A's",)
    assert again.view.winner == "b"
    # What it had done stays done: its tool is not called again, its cut request is sent again.
    assert [e for e in events(again, ev.ToolStarted) if e.agent == "b"] == []


def test_finished_work_of_other_agents_is_not_repeated(tmp_path: Path) -> None:
    gate = Gate()
    b = ScriptedModel(Turn(text="so far ", gate=gate), Vote("agent1"))
    run = stopped_b(tmp_path, b, gate, Vote("agent1"), PRESENTED)
    again = ended(run.resume(agent="b"))
    begun = [e for e in events(again, ev.RoundStarted) if e.agent == "a"]
    assert len(begun) == 1  # it presents; its answer and its vote are there
    assert len(events(again, ev.PresentationStarted)) == 1
    assert again.view.agents["b"].vote is not None
    assert (again.status, again.result) == ("completed", "presented")
    assert [e.agent for e in events(again, ev.AnswerGiven)] == []


def test_agent_takes_part_again_after_a_later_stop_of_the_turn(tmp_path: Path) -> None:
    gate, other = Gate(), Gate()
    b = ScriptedModel(Turn(text="so far ", gate=gate), Answer("B's"), Vote("agent1"))
    a = ScriptedModel(Turn(text="hm ", gate=other), Answer("A's"), Vote("agent1"), PRESENTED)
    team = scripted_team(None, a=a, b=b)
    run = nb_agents.start("the task", team, "s", options=RunOptions(session_root=tmp_path))
    gate.wait_reached()
    other.wait_reached()
    run.stop(now=True, agent="b")
    wait_until(lambda: run.view.agents["b"].outcome is not None)
    run.stop(now=True)
    finish(run)
    without = ended(run.resume())
    assert without.view.agents["b"].calls == 1 and without.view.winner == "a"
    again = ended(without.resume(agent="b"))
    assert again.view.agents["b"].answers == ("B's",)


def test_turn_without_a_stopped_agent_keeps_its_text(tmp_path: Path) -> None:
    gate, other = Gate(), Gate()
    b = ScriptedModel(Turn(text="so far ", gate=gate))
    a = ScriptedModel(Turn(text="hm ", gate=other), Turn(text="hm ", gate=other), Answer("A's"))
    run = nb_agents.start(
        "t", scripted_team(None, a=a, b=b), "s", options=RunOptions(session_root=tmp_path)
    )
    gate.wait_reached()
    other.wait_reached()
    run.stop(now=True, agent="b")
    wait_until(lambda: run.view.agents["b"].outcome is not None)
    run.stop(now=True)
    finish(run)
    without = run.resume()
    other.wait_reached(2)
    assert without.view.agents["b"].phase == "stopped"
    without.stop(now=True)
    ended(without)
    assert outcomes(without) == {"a": "killed", "b": "killed"}
    assert "b was writing:\nso far" in load_session(without.path.parent).messages[-1].content
    again = without.resume()
    assert again.view.agents["b"].phase == "stopped"
    again.stop(now=True)
    ended(again)


def test_next_resume_restores_that_the_agent_takes_part_again(tmp_path: Path) -> None:
    gate, second = Gate(), Gate()
    b = ScriptedModel(
        Turn(text="so far ", gate=gate), Turn(text="and more ", gate=second), Answer("B's"),
        Vote("agent2"), PRESENTED,
    )  # fmt: skip
    run = stopped_b(tmp_path, b, gate, Vote("agent1"), PRESENTED, Vote("agent2"))
    again = run.resume(agent="b")
    second.wait_reached()
    again.stop(now=True)
    ended(again)
    assert (again.status, again.view.winner) == ("cancelled", "")
    last = ended(again.resume())
    assert last.view.agents["b"].answers == ("B's",)
    assert (last.status, last.view.winner) == ("completed", "b")


def test_resume_of_an_agent_that_was_not_stopped_individually_is_rejected(tmp_path: Path) -> None:
    gate = Gate()
    b = ScriptedModel(Turn(text="so far ", gate=gate))
    run = stopped_b(tmp_path, b, gate, Vote("agent1"), PRESENTED)
    with pytest.raises(UserError, match="'a' has not failed and was not stopped individually"):
        run.resume(agent="a")
    with pytest.raises(UserError, match="no agent 'c'. It has: a, b"):
        run.resume(agent="c")
    with pytest.raises(UserError, match="is complete"):
        run.resume()


def test_resume_of_an_agent_in_a_live_run_is_rejected(tmp_path: Path) -> None:
    gate, other = Gate(), Gate()
    b = ScriptedModel(Turn(text="so far ", gate=gate))
    a = ScriptedModel(Answer("A's", gate=other), Vote("agent1"), PRESENTED)
    run = nb_agents.start(
        "the task", scripted_team(None, a=a, b=b), "s", options=RunOptions(session_root=tmp_path)
    )
    gate.wait_reached()
    run.stop(now=True, agent="b")
    wait_until(lambda: run.view.agents["b"].outcome is not None)
    with pytest.raises(UserError, match="still running.*Wait until it ends"):
        run.resume(agent="b")
    other.open()
    finish(run)
