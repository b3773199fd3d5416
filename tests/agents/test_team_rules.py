"""Tests of a team under each rule, with scripted models."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from pydantic_ai.messages import ModelMessage

from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote, scripted_team
from tests.kit.agents import (
    ModelRunner,
    PastRound,
    Round,
    Rules,
    StopScope,
    TeamContext,
    decisions,
    dump_messages,
    prompts,
    replay,
    voting,
)
from tests.kit.runs import CancelToken, Run
from tests.kit.tools import Toolbox
from tests.model_server import wait_until
from tests.team_kit import events, finish, give_tools, outcomes, prompt, start_by_rules

PRESENTED = Turn(text="presented")
# Longer than a busy machine needs to come to what is to be cut.
LIMIT_S = 1.5
WRITE = Turn(calls=(Call("write_file", {"path": "n.md", "content": "x"}),))


@pytest.fixture
def gate() -> Gate:
    return Gate()


def _why(run: Run, agent: str) -> list[str]:
    return [e.why for e in events(run, ev.TurnRejected) if e.agent == agent]


def test_an_agent_at_its_limit_is_only_asked_to_vote(tmp_path: Path) -> None:
    a = ScriptedModel(Answer("A's"), Answer("A's second"), Vote("agent1"), PRESENTED)
    models = {"a": a, "b": ScriptedModel(Answer("B's"), Vote("agent1"))}
    run = finish(start_by_rules(tmp_path, models, max_new_answers_per_agent=1))
    assert run.result == "presented"
    assert [len(v.answers) for v in run.view.agents.values()] == [1, 1]
    assert _why(run, "a")[0] == voting.LIMIT_EACH.format(limit=1)
    assert "All answers are complete." in prompt(a, 1)
    assert "new_answer(content)" not in prompt(a, 1)


def test_a_team_that_can_only_vote_and_never_does_still_ends(tmp_path: Path) -> None:
    models = {n: ScriptedModel(Answer(f"{n} {n}")) for n in "ab"}
    run = finish(start_by_rules(tmp_path, models, max_new_answers_global=1))
    assert run.status == "completed"
    (kept,) = [v.answer for v in run.view.agents.values() if v.answer]
    assert run.result == kept
    assert set(outcomes(run).values()) == {"failed"}


def test_copied_answer_is_rejected_and_its_agent_may_vote_for_the_original(
    tmp_path: Path, gate: Gate
) -> None:
    a = ScriptedModel(Answer("same"), Vote("agent1"), PRESENTED)
    b = ScriptedModel(Answer("same", gate=gate), Vote("agent1"))
    run = start_by_rules(tmp_path, {"a": a, "b": b})
    wait_until(lambda: run.view.agents["a"].vote)
    gate.open()
    finish(run)
    assert run.result == "presented"
    assert run.view.agents["b"].answers == ()
    assert run.view.votes == {"a": 2}
    assert "identical to the current answer of agent1" in _why(run, "b")[0]
    assert '<ANSWER from="agent1">\nsame\n</ANSWER>' in prompt(b, 1)


def test_too_similar_answers_are_rejected(tmp_path: Path) -> None:
    a = ScriptedModel(Answer("one two three four"), Answer("one two three"), Vote("agent1"))
    run = finish(start_by_rules(tmp_path, {"a": a, "b": a}, answer_novelty_requirement="strict"))
    assert any("shares 75% of its words" in why for n in "ab" for why in _why(run, n))


@pytest.mark.parametrize(
    ("sensitivity", "words"),
    [
        ("lenient", "can't improve it substantially"),
        ("balanced", "name the weakest point"),
        ("strict", "Vote only for an answer with a 3 on all"),
        ("roi", "If the estimate is 15 % or more"),
        ("roi_conservative", "If the estimate is 30 % or more"),
        ("roi_balanced", "If the estimate is 15 % or more"),
        ("roi_aggressive", "If the estimate is 5 % or more"),
    ],
)
def test_voters_are_told_how_demanding_to_be(tmp_path: Path, sensitivity: str, words: str) -> None:
    a = ScriptedModel(Answer("A's"), Vote("agent1"), PRESENTED)
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    finish(start_by_rules(tmp_path, {"a": a, "b": b}, voting_sensitivity=sensitivity))
    assert words in prompt(a, 0) and words in prompt(b, 0)
    assert words not in prompt(a, -1)


def test_nobody_votes_before_all_have_answered(tmp_path: Path, gate: Gate) -> None:
    a = ScriptedModel(Answer("A's"), Vote("agent2"))
    b = ScriptedModel(Vote("agent1", gate=gate), Answer("B's"), Vote("agent2"), PRESENTED)
    c = ScriptedModel(Answer("C's"), Vote("agent2"))
    models = {"a": a, "b": b, "c": c}
    run = start_by_rules(tmp_path, models, defer_voting_until_all_answered=True)
    wait_until(lambda: run.progress.answers == 2)
    assert (len(a.requests), len(c.requests)) == (1, 1)
    gate.open()
    finish(run)
    assert (run.view.winner, run.view.votes) == ("b", {"b": 3})
    assert _why(run, "b") == [voting.NO_VOTING] or _why(run, "b") == [voting.TOO_EARLY]


def test_agent_far_ahead_waits_for_the_slowest(tmp_path: Path, gate: Gate) -> None:
    a = ScriptedModel(*[Answer(f"A's {n}") for n in range(3)], Vote("agent1"), PRESENTED)
    b = ScriptedModel(Answer("B's", gate=gate), Vote("agent1"))
    run = start_by_rules(tmp_path, {"a": a, "b": b}, fairness_lead_cap_answers=1)
    wait_until(lambda: len(run.view.agents["a"].answers) == 2)
    gate.wait_reached()
    assert not run.view.agents["a"].in_flight
    gate.open()
    finish(run)
    assert run.result == "presented"
    told = [(e.agent, type(e).__name__) for e in events(run, ev.AnswerGiven, ev.RoundStarted)]
    second = [i for i, each in enumerate(told) if each == ("a", "AnswerGiven")][1]
    assert told.index(("b", "AnswerGiven")) < told.index(("a", "RoundStarted"), second)


def _news_run(
    root: Path, gate: Gate, patch: pytest.MonkeyPatch, *then: Turn
) -> tuple[Run, dict[str, ScriptedModel]]:
    """Play a run in which b answers while a runs a tool after its answer; then a votes for b."""
    working = Gate()

    async def work() -> str:
        """Take time."""
        await working.wait()
        return "worked"

    give_tools(patch, work)
    work_first = Turn(calls=(Call("work"),))
    a = ScriptedModel(Answer("A's"), work_first, *then, Vote("agent2"))
    b = ScriptedModel(Answer("B's", gate=gate), Vote("agent2"), work_first, PRESENTED)
    models = {"a": a, "b": b}
    run = start_by_rules(root, models)
    working.wait_reached()
    gate.open()
    wait_until(lambda: run.view.agents["b"].answers)
    working.open()
    return finish(run), models


def test_a_working_agent_is_shown_new_answers_and_its_vote_counts(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, models = _news_run(tmp_path, gate, monkeypatch)
    a = models["a"]
    assert run.result == "presented"
    assert "worked" in prompt(a, 2) and '<ANSWER from="agent2">\nB\'s' in prompt(a, 2)
    assert len(a.requests) == 3
    assert events(run, ev.VoteIgnored) == []
    shown = [e for e in events(run, ev.NoteSent) if e.seen]
    assert [(e.agent, e.seen) for e in shown] == [("a", {"a": 1, "b": 1})]


async def test_resumed_requests_are_identical(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, copy = Turn(text="hm"), Answer("B's")
    run, models = await to_thread.run_sync(_news_run, tmp_path, gate, monkeypatch, talk, copy)
    told = events(run)
    asked = [(i, e) for i, e in enumerate(told) if isinstance(e, ev.ModelStarted)]
    assert len(asked) == sum(len(m.requests) for m in models.values()) == 9
    for i, request in asked:
        past = replay(list(models), told[: i + 1]).rounds[request.agent]
        again = ScriptedModel(Answer("the end"))
        await _resume(again, past)
        once = models[request.agent].requests[request.call - 1]
        assert _lasting(again.requests[0]) == _lasting(once)
    refused = [e for e in told if isinstance(e, ev.TurnRejected) and "identical to" in e.why]
    assert [e.agent for e in refused] == ["a"]


async def _resume(model: ScriptedModel, past: PastRound) -> None:
    state, elapsed = voting.begin(["x", "y"]), prompts.Elapsed(0, 60)
    place = TeamContext("x", Rules(), lambda: state, lambda: elapsed, lambda event: None, {})
    with StopScope(CancelToken()) as boundary:
        events: list[ev.Event] = []
        round = Round("x", 1, past.opening, Toolbox(), place, events.append, boundary)
        await ModelRunner(model).play(round, past)


def _lasting(messages: list[ModelMessage]) -> list[Any]:
    """Return messages as JSON, without times."""
    dumped = dump_messages(messages)
    for part in [part for message in dumped for part in [message, *message["parts"]]]:
        part.pop("timestamp", None)
    return [(m["kind"], m["parts"]) for m in dumped]


def test_voting_can_be_skipped(tmp_path: Path) -> None:
    a = ScriptedModel(Answer("A's"), PRESENTED)
    b = ScriptedModel(Answer("B's"))
    run = finish(start_by_rules(tmp_path, {"a": a, "b": b}, skip_voting=True))
    assert (run.result, run.view.winner, len(b.requests)) == ("presented", "a", 1)
    assert "vote" not in prompt(a, 0).lower() and "Votes:" not in prompt(a, 1)
    assert "Your answer was chosen." in prompt(a, 1)


def test_without_voting_work_ends_after_every_agent_has_answered(tmp_path: Path) -> None:
    a = ScriptedModel(Answer("A's"))
    b = ScriptedModel(Turn(text="still writing ", hang=True))
    more = {"skip_voting": True, "max_new_answers_global": 1, "skip_final_presentation": True}
    run = finish(start_by_rules(tmp_path, {"a": a, "b": b}, **more))
    assert (run.status, run.result, b.open_streams) == ("completed", "A's", 0)


@pytest.mark.parametrize(
    "setting", [{"skip_final_presentation": True}, {"final_answer_strategy": "winner_reuse"}]
)
def test_winners_answer_can_be_reused_without_presentation(
    tmp_path: Path, setting: dict[str, Any]
) -> None:
    a = ScriptedModel(Answer("A's"), Vote("agent2"))
    b = ScriptedModel(Answer("B's"), Vote("agent2"), PRESENTED)
    run = finish(start_by_rules(tmp_path, {"a": a, "b": b}, **setting))
    assert (run.status, run.result, run.view.winner) == ("completed", "B's", "b")
    assert events(run, ev.PresentationStarted) == []


def test_stop_before_the_vote_is_not_completion_without_presentation(
    tmp_path: Path, gate: Gate
) -> None:
    a = ScriptedModel(Answer("A's"), Vote("agent1"))
    b = ScriptedModel(Turn(text="x ", gate=gate))
    run = start_by_rules(tmp_path, {"a": a, "b": b}, skip_final_presentation=True)
    wait_until(lambda: run.view.agents["a"].vote)
    gate.wait_reached()
    run.stop()
    gate.open()
    finish(run)
    assert (run.status, run.view.answer, run.view.agents["a"].answer) == ("cancelled", "", "A's")


def test_answers_can_be_synthesized(tmp_path: Path) -> None:
    a = ScriptedModel(Answer("A's"), Turn(text="both"))
    b = ScriptedModel(Answer("B's"))
    run = finish(start_by_rules(tmp_path, {"a": a, "b": b}, final_answer_strategy="synthesize"))
    assert (run.result, run.view.winner) == ("both", "a")
    assert "Combine their answers" in prompt(a, 1)
    assert "A's" in prompt(a, 1) and "B's" in prompt(a, 1)


def test_a_planning_team_changes_nothing_until_its_winner_acts(tmp_path: Path) -> None:
    a = ScriptedModel(WRITE, Answer("plan A"), Vote("agent1"), WRITE, Turn(text="done"))
    b = ScriptedModel(Answer("plan B"), Vote("agent1"))
    planning = {
        "enable_planning_mode": True,
        "planning_mode_instruction": "PLANNING MODE: name each file.",
    }
    run = finish(start_by_rules(tmp_path, {"a": a, "b": b}, coordination=planning))
    assert run.result == "done"
    writes = [e for e in events(run, ev.ToolFinished) if e.tool == "write_file"]
    assert [e.outcome for e in writes] == ["error", "ok"]
    assert "Your tools: list_files, read_file." in writes[0].result
    assert "planning phase" in prompt(a, 0) and "write_file" not in prompt(a, 0)
    assert all("name each file" in prompt(a, number) for number in range(3))
    assert "name each file" in prompt(b, 0) and "name each file" not in prompt(a, -1)
    assert "Carry out the plan" in prompt(a, -1) and "write_file" in prompt(a, -1)
    assert (run.path / "workspace" / "n.md").read_text() == "x"


def test_round_over_its_limit_can_only_decide(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> str:
        """Take longer than the round may."""
        await gate.wait()
        return "worked"

    give_tools(monkeypatch, work)
    a = ScriptedModel(Turn(calls=(Call("work"),)), Turn(calls=(Call("work"),)), Answer("A's"))
    timeouts = {"initial_round_timeout_seconds": LIMIT_S, "round_timeout_grace_seconds": 15}
    run = start_by_rules(tmp_path, {"a": a}, timeouts)
    gate.wait_reached()
    wait_until(lambda: _age(run) > LIMIT_S)
    gate.open()
    finish(run)
    assert (run.result, gate.reached) == ("A's", 1)
    assert "no other tools are available" in prompt(a, 1)
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["ok", "error"]


def test_round_ends_after_its_grace_time_without_tool_calls(tmp_path: Path) -> None:
    a = ScriptedModel(Turn(text="some words ", hang=True))
    b = ScriptedModel(Answer("B's"), Vote("agent2"), PRESENTED)
    timeouts = {"initial_round_timeout_seconds": LIMIT_S, "round_timeout_grace_seconds": 0.05}
    run = finish(start_by_rules(tmp_path, {"a": a, "b": b}, timeouts))
    assert (run.result, a.open_streams) == ("presented", 0)
    assert run.view.agents["a"].partial == "some words "
    assert run.view.agents["a"].error == f"No answer within {LIMIT_S:g} s and 0.05 s to wrap up."
    assert outcomes(run) == {"a": "failed", "b": "finished"}
    assert [e.agent for e in events(run, ev.ModelCut)] == ["a"]


def test_timed_out_round_keeps_the_agents_answer(tmp_path: Path) -> None:
    a = ScriptedModel(Answer("A's"), Turn(text="second thoughts ", hang=True))
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    timeouts = {"subsequent_round_timeout_seconds": LIMIT_S, "round_timeout_grace_seconds": 0.05}
    final = {"skip_final_presentation": True}
    run = finish(start_by_rules(tmp_path, {"a": a, "b": b}, timeouts, **final))
    assert (run.status, run.result) == ("completed", "A's")
    words = [e.text for e in events(run, ev.TextStreamed) if e.agent == "a" and e.call == 2]
    assert "".join(words) == "second thoughts "
    assert outcomes(run) == {"a": "finished", "b": "finished"}
    past = replay(["a", "b"], events(run))
    assert "a" in past.state.resting and past.rounds == {}


def test_all_rounds_cut_without_an_answer_fail_the_run(tmp_path: Path) -> None:
    timeouts = {"initial_round_timeout_seconds": 0.05, "round_timeout_grace_seconds": 0}
    run = finish(start_by_rules(tmp_path, {"a": ScriptedModel(Turn("x ", hang=True))}, timeouts))
    assert run.status == "failed"
    assert "No answer within 0.05 s" in run.view.agents["a"].error


def test_answer_is_kept_when_the_round_limit_interrupts_another_tool(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> str:
        """Never end."""
        await gate.wait()
        return ""

    give_tools(monkeypatch, work)
    a = ScriptedModel(Turn(calls=(Call("work"), *Answer("A's").calls)))
    timeouts = {"initial_round_timeout_seconds": LIMIT_S, "round_timeout_grace_seconds": 0.05}
    run = finish(start_by_rules(tmp_path, {"a": a}, timeouts))
    assert run.result == "A's"
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["cut"]
    assert events(run, ev.RoundTimedOut) == []


def test_each_tool_result_includes_the_remaining_time(tmp_path: Path) -> None:
    a = ScriptedModel(WRITE, Answer("A's"))
    run = finish(start_by_rules(tmp_path, {"a": a}, {"orchestrator_timeout_seconds": 600}))
    (told,) = events(run, ev.NoteSent)
    assert re.fullmatch(r"\[Time left: 9 min 5\d s of 10 min\]", told.text)
    assert told.text in prompt(a, 1)


def test_a_presenter_has_the_time_of_the_turn_not_of_a_round(tmp_path: Path, gate: Gate) -> None:
    write = Turn(text="x ", gate=gate, calls=WRITE.calls)
    a = ScriptedModel(Answer("A's"), Vote("agent1"), write, WRITE, PRESENTED)
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    timeouts = {"subsequent_round_timeout_seconds": LIMIT_S, "round_timeout_grace_seconds": 0}
    run = start_by_rules(tmp_path, {"a": a, "b": b}, timeouts)
    gate.wait_reached()
    wait_until(lambda: _age(run) > LIMIT_S)
    gate.open()
    finish(run)
    assert run.result == "presented"
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["ok", "ok"]


def test_resumed_round_knows_which_answers_its_agent_had_seen(tmp_path: Path, gate: Gate) -> None:
    a = ScriptedModel(Answer("A's"), Turn(text="hm ", hang=True))
    b = ScriptedModel(Answer("B's", gate=gate), Turn(text="hm ", hang=True))
    run = start_by_rules(tmp_path, {"a": a, "b": b})
    wait_until(lambda: len(a.requests) == 2)
    gate.open()
    wait_until(lambda: len(b.requests) == 2)
    run.stop(now=True)
    finish(run)
    a = ScriptedModel(Vote("agent1"))
    b = ScriptedModel(Vote("agent2"), PRESENTED)
    again = run.resume(config=scripted_team(a=a, b=b))
    again.wait(200, raise_on_stop=False)
    assert [(e.agent, e.target) for e in events(again, ev.VoteIgnored)] == [("a", "a")]


def test_a_resumed_round_knows_how_often_its_agent_was_shown_new_answers(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = Gate()

    async def work() -> str:
        """Take time."""
        await working.wait()
        return "worked"

    give_tools(monkeypatch, work)
    monkeypatch.setattr(decisions, "MAX_NEWS", 1)
    busy, hang = Turn(calls=(Call("work"),)), Turn(text="hm ", hang=True)
    a, b = ScriptedModel(Answer("A's"), busy, hang), ScriptedModel(Answer("B's", gate=gate), hang)
    run = start_by_rules(tmp_path, {"a": a, "b": b})
    working.wait_reached()
    gate.open()
    wait_until(lambda: len(b.requests) == 2)
    working.open()
    wait_until(lambda: len(a.requests) == 3)
    run.stop(now=True)
    finish(run)
    working, gate = Gate(), Gate()
    a = ScriptedModel(busy, Vote("agent2"))
    b = ScriptedModel(Answer("B's second"), Vote("agent2"), PRESENTED)
    again = run.resume(config=scripted_team(a=a, b=b))
    working.wait_reached()
    wait_until(lambda: len(again.view.agents["b"].answers) == 2)
    working.open()
    again.wait(200, raise_on_stop=False)
    assert [e.agent for e in events(again, ev.VoteIgnored)] == ["a"]


def _age(run: Run) -> float:
    """Return the seconds since the run's latest round began."""
    return float(time.time() - events(run, ev.RoundStarted)[-1].at)
