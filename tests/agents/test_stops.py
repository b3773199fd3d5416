"""Tests of stops at each point of a team's work: what ends, and what is saved."""

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError

from nb_agents import RunCancelled, RunFailed, checkpoint
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.kit.runs import Run, StopResult, drivers
from tests.model_server import wait_until
from tests.team_kit import (
    events,
    finish,
    give_tools,
    loop_held,
    metadata,
    outcome,
    outcomes,
    start,
)

PRESENTED = Turn(text="presented")


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_graceful_stop_records_the_answer_in_flight(tmp_path: Path, gate: Gate) -> None:
    a = ScriptedModel(Answer("A's", gate=gate), Vote("agent1"))
    b = ScriptedModel(Answer("B's", gate=gate), Vote("agent1"))
    run = start(tmp_path, a=a, b=b)
    gate.wait_reached(2)
    assert run.stop(reason="enough") == StopResult(True, "stopping")
    gate.open()
    finish(run)
    assert run.status == "cancelled"
    assert {k: v.answer for k, v in run.view.agents.items()} == {"a": "A's", "b": "B's"}
    assert (len(a.requests), len(b.requests)) == (1, 1)
    assert (run.receipt.source, run.receipt.reason) == ("api", "enough")
    assert metadata(run)["status"] == "incomplete"


def test_a_graceful_stop_records_the_vote_in_flight(tmp_path: Path, gate: Gate) -> None:
    a = ScriptedModel(Answer("A's"), Vote("agent1", gate=gate))
    b = ScriptedModel(Answer("B's"), Vote("agent1", gate=gate))
    run = start(tmp_path, a=a, b=b)
    # An agent that voted over one answer only comes to the gate again.
    wait_until(lambda: {e.agent: e.seen for e in _open_rounds(run)} == _seen_by("a", "b"))
    gate.wait_reached(2)
    run.stop()
    gate.open()
    finish(run)
    assert run.status == "cancelled"
    assert run.view.votes == {"a": 2}
    assert events(run, ev.PresentationStarted) == []
    assert outcomes(run) == {"a": "finished", "b": "finished"}


def test_a_graceful_stop_answers_tool_calls_that_never_ran_as_cancelled(
    tmp_path: Path, gate: Gate
) -> None:
    write = Call("write_file", {"path": "n.md", "content": "x"})
    model = ScriptedModel(Turn(text="so ", gate=gate, calls=(write, write)))
    run = start(tmp_path, a=model, b=ScriptedModel(Answer("B's", gate=gate)))
    gate.wait_reached(2)
    run.stop()
    gate.open()
    finish(run)
    assert events(run, ev.ToolStarted) == []
    ended = events(run, ev.ToolFinished)
    assert [e.outcome for e in ended] == ["cancelled", "cancelled"]
    assert "before this call began" in ended[0].result
    assert [each for _, each in run.receipt.tools] == ["never started", "never started"]
    assert not (run.path / "workspaces" / "a" / "n.md").exists()
    assert outcomes(run)["a"] == "stopped"


def test_immediate_stop_closes_streams_and_saves_the_text(tmp_path: Path, gate: Gate) -> None:
    a = ScriptedModel(Turn(text="one two three ", gate=gate))
    b = ScriptedModel(Turn(text="uno dos ", gate=gate))
    run = start(tmp_path, a=a, b=b)
    gate.wait_reached(2)
    assert run.stop(now=True) == StopResult(True, "stopping-now")
    finish(run)
    assert (a.open_streams, b.open_streams) == (0, 0)
    assert run.view.agents["a"].partial == "one two three "
    words = [e.text for e in events(run, ev.TextStreamed) if e.agent == "b"]
    assert "".join(words) == "uno dos "
    assert {e.agent for e in events(run, ev.ModelCut)} == {"a", "b"}
    assert outcomes(run) == {"a": "killed", "b": "killed"}
    assert (run.path / "answer.txt").read_text().endswith("one two three ")


def test_immediate_stop_saves_a_partially_written_answer(tmp_path: Path) -> None:
    long = " ".join(f"word{n}" for n in range(500))
    model = ScriptedModel(Answer(long, delay_s=0.05))  # it takes far longer than the test
    run = start(tmp_path, a=model, b=ScriptedModel(Turn(hang=True)))
    wait_until(lambda: "word3" in run.view.agents["a"].partial)
    run.stop(now=True)
    finish(run)
    kept = run.view.agents["a"].partial
    assert kept and long.startswith(kept)


def test_stop_before_the_first_await_makes_no_request(tmp_path: Path) -> None:
    for now in (False, True):
        model = ScriptedModel(Answer("A's"))
        with loop_held():
            run = start(tmp_path, a=model, b=model)
            run.stop(now=now)
        finish(run)
        assert (run.status, model.requests) == ("cancelled", [])
        assert set(outcomes(run).values()) == {"never started"}


def test_stop_before_the_work_starts_makes_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop of the run or of one agent works while the backends are imported."""
    from tests.kit.agents import runner_for as real

    for agent in (None, "b"):
        here: list[Run] = []

        def slow(spec: Any, client: Any, team: Any, agent: Any = agent, here: Any = here) -> Any:
            wait_until(lambda: here)
            here[0].stop(agent=agent)
            return real(spec, client, team)

        monkeypatch.setattr(drivers, "runner_for", slow)
        a = ScriptedModel(Answer("A's"), Vote("agent1"), PRESENTED)
        b = ScriptedModel(Answer("B's"))
        run = start(tmp_path, a=a, b=b)
        here.append(run)
        finish(run)
        assert b.requests == []
        assert outcomes(run)["b"] == "never started"
        assert run.status == ("completed" if agent else "cancelled")


def test_a_graceful_stop_lets_the_presenter_finish(tmp_path: Path, gate: Gate) -> None:
    run = _presenting(tmp_path, gate)
    run.stop()
    gate.open()
    finish(run)
    assert (run.status, run.result) == ("completed", "half and half")
    assert outcome(run) == "half and half"


def test_immediate_stop_of_the_presenter_names_the_winner(tmp_path: Path, gate: Gate) -> None:
    run = _presenting(tmp_path, gate)
    run.stop(now=True)
    finish(run)
    assert run.status == "cancelled"
    known = metadata(run)
    assert (known["phase"], known["winning_agent"], known["status"]) == (
        "presenting",
        "a",
        "incomplete",
    )
    assert run.view.agents["a"].partial == "half "
    assert run.view.agents["a"].answer == "A's"


def test_stopping_the_presenter_alone_leaves_its_stored_answer(tmp_path: Path, gate: Gate) -> None:
    run = _presenting(tmp_path, gate)
    run.stop(now=True, agent="a")
    finish(run)
    assert (run.status, run.result) == ("completed", "A's")
    assert outcomes(run)["a"] == "killed"


def test_a_graceful_stop_lets_a_running_tool_finish(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_tools(monkeypatch, _waiting(gate))
    model = ScriptedModel(Turn(calls=(Call("work"), Call("work"))))
    run = start(tmp_path, a=model)
    gate.wait_reached()
    run.stop()
    gate.open()
    finish(run)
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["ok", "cancelled"]
    assert (gate.reached, len(model.requests)) == (1, 1)
    assert run.receipt.tools == (("a: work", "finished"), ("a: work", "never started"))


def test_immediate_stop_interrupts_a_running_tool_and_cancels_the_rest(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_tools(monkeypatch, _waiting(gate))
    run = start(tmp_path, a=ScriptedModel(Turn(calls=(Call("work"), Call("work")))))
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["cut", "cancelled"]
    assert outcomes(run) == {"a": "killed"}


def test_immediate_stop_preserves_an_answer_while_other_tools_run(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_tools(monkeypatch, _waiting(gate))
    both = Turn(calls=(Call("work"), *Answer("A's").calls))
    run = start(tmp_path, a=ScriptedModel(both), b=ScriptedModel(Turn(hang=True)))
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    assert run.status == "cancelled"
    assert run.view.agents["a"].answer == "A's"
    assert outcomes(run)["a"] == "killed"


def test_stop_between_tools_of_a_response_starts_no_other_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: list[Run] = []
    ran: list[str] = []

    async def first() -> str:
        """Stop the run."""
        ran.append("first")
        wait_until(lambda: here)
        here[0].stop()
        return "stopped"

    async def second() -> str:
        """Never run."""
        ran.append("second")
        return ""

    give_tools(monkeypatch, first, second)
    run = start(tmp_path, a=ScriptedModel(Turn(calls=(Call("first"), Call("second")))))
    here.append(run)
    finish(run)
    assert ran == ["first"]
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["ok", "cancelled"]


def test_tool_that_stops_itself_counts_as_cut(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def heedful() -> str:
        """Look for a stop after each step."""
        await gate.wait()
        checkpoint()
        return "all steps done"

    give_tools(monkeypatch, heedful)
    run = start(tmp_path, a=ScriptedModel(Turn(calls=(Call("heedful"), Call("heedful")))))
    gate.wait_reached()
    run.stop()
    gate.open()
    finish(run)
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["cut", "cancelled"]
    assert outcomes(run) == {"a": "stopped"}


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("odd")])
def test_exception_in_a_tool_fails_only_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    async def bad() -> str:
        """Go wrong."""
        raise error

    give_tools(monkeypatch, bad)
    run = finish(start(tmp_path, a=ScriptedModel(Turn(calls=(Call("bad"),)), Answer("A's"))))
    assert run.result == "A's"
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["error"]


def test_second_stop_is_immediate_and_a_third_has_no_effect(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, a=ScriptedModel(Turn(text="x ", gate=gate)))
    gate.wait_reached()
    assert run.stop(reason="first") == StopResult(True, "stopping")
    assert run.stop(reason="again") == StopResult(False, "stopping")
    assert run.stop(now=True, reason="harder") == StopResult(True, "stopping-now")
    assert run.stop(now=True).changed is False
    finish(run)
    assert run.stop() == StopResult(False, "finished")
    assert [(e.level, e.reason) for e in events(run, ev.StopRequested)] == [
        ("requested", "first"),
        ("immediate", "harder"),
    ]
    assert (run.receipt.reason, run.view.stop and run.view.stop.level) == ("first", "immediate")


def test_stop_of_a_finished_run_has_no_effect(tmp_path: Path) -> None:
    run = finish(start(tmp_path, a=ScriptedModel(Answer("A's"))))
    before = metadata(run)
    assert run.stop(now=True) == StopResult(False, "finished")
    assert (run.status, metadata(run)) == ("completed", before)


@pytest.mark.parametrize("now", [False, True])
def test_other_agents_finish_after_one_is_stopped(tmp_path: Path, gate: Gate, now: bool) -> None:
    tool_call = Call("write_file", {"path": "x", "content": "y"})
    a = ScriptedModel(Turn(text="slow ", gate=gate, calls=(tool_call,)))
    b = ScriptedModel(Answer("B's"), Vote("agent2"), PRESENTED)
    c = ScriptedModel(Answer("C's"), Vote("agent2"), PRESENTED)
    run = start(tmp_path, a=a, b=b, c=c)
    gate.wait_reached()
    assert run.stop(agent="a", now=now).changed
    gate.open()
    finish(run)
    assert (run.status, run.result) == ("completed", "presented")
    assert outcomes(run) == {"a": "killed" if now else "stopped", "b": "finished", "c": "finished"}
    assert run.view.stop is None
    assert len(a.requests) == 1


def test_stopping_every_agent_stops_the_run(tmp_path: Path, gate: Gate) -> None:
    waiting = Turn(text="x ", gate=gate)
    run = start(tmp_path, a=ScriptedModel(waiting), b=ScriptedModel(waiting))
    gate.wait_reached(2)
    for agent in ("a", "b"):
        run.stop(agent=agent, now=True, reason="no good")
    finish(run)
    assert isinstance(outcome(run), RunCancelled)
    assert metadata(run)["reason"] == "cancelled"


def test_run_fails_if_agents_failed_and_one_was_stopped(tmp_path: Path, gate: Gate) -> None:
    refused = ScriptedModel(Turn(error=ModelHTTPError(401, "m")))
    run = start(tmp_path, a=ScriptedModel(Turn(text="x ", gate=gate)), b=refused)
    gate.wait_reached()
    run.stop(agent="a", now=True)
    assert isinstance(outcome(finish(run)), RunFailed)


def test_stop_ends_the_wait_before_a_retry(tmp_path: Path) -> None:
    error = ModelHTTPError(429, "m", headers={"retry-after": "60"})
    model = ScriptedModel(Turn(error=error))
    run = start(tmp_path, a=model)
    wait_until(lambda: events(run, ev.ModelFailed))
    run.stop()
    finish(run)  # long before those 60 s
    assert len(model.requests) == 1
    assert events(run, ev.ModelFailed)[0].retry_in_s == 60
    assert outcomes(run) == {"a": "stopped"}


def _presenting(root: Path, gate: Gate) -> Run:
    """Start a run in which the winner, a, waits at a gate during its presentation."""
    last = Turn(text="half ", gate=gate, calls=Answer("half and half").calls)
    a = ScriptedModel(Answer("A's"), Vote("agent1"), last)
    run = start(root, a=a, b=ScriptedModel(Turn(error=ModelHTTPError(401, "m"))))
    gate.wait_reached()
    assert run.view.phase == "presenting"
    return run


def _waiting(gate: Gate) -> Any:
    async def work() -> str:
        """Take time."""
        await gate.wait()
        return "done"

    return work


def _open_rounds(run: Run) -> list[Any]:
    return list({e.agent: e for e in events(run, ev.RoundStarted)}.values())


def _seen_by(*agents: str) -> dict[str, dict[str, int]]:
    return {agent: dict.fromkeys(agents, 1) for agent in agents}
