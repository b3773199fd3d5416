"""A team that starts again if its final answer is rejected: limits, saving and exact resume."""

import json
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.kit import runs as resume
from tests.kit.agents import replay
from tests.kit.runs import Run
from tests.kit.sessions import load_session
from tests.model_server import ModelServer, Reply, ToolCall
from tests.team_kit import events, finish, prompt, start_by_rules
from tests.turns.team_files import killed_at, options, write_team

FILE = """\
# Self-evaluation and restart
agents:
  - id: "agent_a"
    backend:
      type: "chatcompletion"
      model: "m"
      base_url: SERVER
      api_key: "k"
orchestrator:
  snapshot_storage: "snapshots"
  coordination:
    max_orchestration_restarts: 2  # Allow up to 2 restarts (3 total attempts)
"""
WHY = {"reason": "Only John is described.", "instructions": "Describe Paul, too."}
AGAIN = Turn(calls=(Call("restart_orchestration", WHY),))
SUBMIT = Turn(calls=(Call("submit", {"confirmed": True}),))


def start(root: Path, restarts: int, **models: ScriptedModel) -> Run:
    coordination = {"max_orchestration_restarts": restarts}
    return start_by_rules(root, dict(models), coordination=coordination)


def restarts(run: Run) -> list[tuple[str, int]]:
    return [(e.agent, e.attempt) for e in events(run, ev.OrchestrationRestarted)]


def partial(run: Run) -> str:
    kept = json.loads((run.path / "partial_answers.json").read_text())
    return str(kept["a"]["answer"])


def test_restarted_team_receives_the_reason_and_its_next_answer_is_final(tmp_path: Path) -> None:
    a = ScriptedModel(
        Answer("A's"), Vote("agent1"), Turn("John"), AGAIN,
        Answer("A's again"), Vote("agent1"), Turn("John and Paul"), SUBMIT,
    )  # fmt: skip
    b = ScriptedModel(Vote("agent1"))
    run = finish(start(tmp_path, 2, a=a, b=b))
    assert (run.status, run.result, run.view.winner) == ("completed", "John and Paul", "a")
    assert restarts(run) == [("a", 2)]
    assert run.view.attempt == 2
    judging = prompt(a, 3)
    assert "<FINAL_ANSWER>\nJohn\n</FINAL_ANSWER>" in judging and "`submit(" in judging
    again = prompt(a, 4)
    assert "Only John is described." in again and "Describe Paul, too." in again
    assert "<FINAL_ANSWER>\nJohn\n" in again and "(no answers yet)" in again
    assert any(
        "Attempt 2: a judged the final answer insufficient" in told for told in run.view.notices
    )
    (mark,) = [e for e in run.timeline.entries if e.kind == "again"]
    assert (mark.agent, mark.name, mark.text) == ("a", "2", WHY["reason"])
    assert load_session(run.path.parent).turns[0].view.attempt == 2


@pytest.mark.parametrize("where", ["coordination", "orchestrator"])
def test_number_of_attempts_is_limited_by_the_team_file(tmp_path: Path, where: str) -> None:
    a = ScriptedModel(Answer("A's"), AGAIN, Answer("A's"), AGAIN, Answer("last"))
    given: dict[str, Any] = {"max_orchestration_restarts": 2}
    rules = {"coordination": given} if where == "coordination" else given
    run = finish(start_by_rules(tmp_path, {"a": a}, **rules))
    # The answer of the last attempt is not judged: there is nothing left to do about it.
    assert (run.result, len(a.requests)) == ("last", 5)
    assert restarts(run) == [("a", 2), ("a", 3)]


def test_without_the_key_no_answer_is_judged(tmp_path: Path) -> None:
    a = ScriptedModel(Answer("A's"), AGAIN)
    run = finish(start(tmp_path, 0, a=a))
    assert (run.result, len(a.requests)) == ("A's", 1)
    assert not events(run, ev.FinalAnswerGiven)


def test_answer_counts_if_its_judge_fails_or_calls_no_tool(tmp_path: Path) -> None:
    broken = ScriptedModel(Answer("A's"), Turn(error=ValueError("broken")))
    run = finish(start(tmp_path / "1", 1, a=broken))
    assert (run.status, run.result) == ("completed", "A's")
    assert any("could not judge its answer" in told for told in run.view.notices)
    talker = ScriptedModel(Answer("A's"), Turn(text="It will do."))
    run = finish(start(tmp_path / "2", 1, a=talker))
    assert (run.status, run.result) == ("completed", "A's")


def test_judge_reads_files_and_must_give_a_reason_and_instructions(
    tmp_path: Path,
) -> None:
    a = ScriptedModel(
        Turn(calls=(Call("write_file", {"path": "john.md", "content": "John"}),)),
        Answer("A's"),
        Turn(calls=(Call("read_file", {"path": "john.md"}),)),
        Turn(calls=(Call("restart_orchestration", {"reason": "", "instructions": ""}),)),
        AGAIN,
        Answer("better"),
    )
    run = finish(start(tmp_path, 1, a=a))
    assert (run.result, restarts(run)) == ("better", [("a", 2)])
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["ok", "ok"]
    assert [e.fault for e in events(run, ev.TurnRejected)] == [
        "it gave no reason or no instructions"
    ]


@pytest.mark.parametrize("now", [False, True])
def test_resume_judges_an_answer_whose_judge_was_stopped(tmp_path: Path, now: bool) -> None:
    gate = Gate()
    a = ScriptedModel(
        Answer("A's"), Vote("agent1"), Turn("John"), Turn(text="Hm ", gate=gate),
        SUBMIT if now else Turn(text="never asked"),
    )  # fmt: skip
    b = ScriptedModel(Vote("agent1"))
    run = start(tmp_path, 2, a=a, b=b)
    gate.wait_reached()
    run.stop(now=now)
    gate.open()
    finish(run)
    assert run.status == "cancelled"
    assert partial(run) == "John"
    asked = len(a.requests)
    preview = resume.preview(run.path.parent.name, session_root=tmp_path)
    assert preview.asked_again == (("a",) if now else ())
    again = run.resume(config=None)
    again.wait(200, raise_on_stop=False)
    assert again.result == "John"
    assert not events(again, ev.PresentationStarted, ev.AnswerGiven, ev.FinalAnswerGiven)
    assert len(a.requests) > asked


def test_resume_continues_in_a_later_attempt(tmp_path: Path) -> None:
    gate = Gate()
    a = ScriptedModel(
        Answer("A's"), AGAIN, Turn(calls=(Call("list_files"),)), Turn(text="Paul ", gate=gate),
        Answer("John and Paul"), SUBMIT,
    )  # fmt: skip
    run = start(tmp_path, 2, a=a)
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    assert (run.status, run.view.attempt) == ("cancelled", 2)
    assert partial(run) == "A's"
    gate.open()
    again = finish(run.resume())
    assert (again.result, again.view.attempt) == ("John and Paul", 2)
    assert [e.tool for e in events(again, ev.ToolStarted)] == []
    assert restarts(again) == []
    assert "Only John is described." in prompt(a, 4)


@pytest.mark.parametrize("killed_in", [2, 3, 4])
def test_killed_run_continues_in_its_attempt_without_paying_twice(
    tmp_path: Path, server: ModelServer, killed_in: int
) -> None:
    write_team(tmp_path, server, FILE)
    replies = [
        Reply(tool_calls=(ToolCall("new_answer", {"content": "John"}),)),
        Reply(tool_calls=(ToolCall("restart_orchestration", WHY),)),
        Reply(tool_calls=(ToolCall("new_answer", {"content": "John and Paul"}),)),
        Reply(tool_calls=(ToolCall("submit", {"confirmed": True}),)),
    ]
    replies.insert(killed_in - 1, Reply(text="one two", hang_after=1))
    server.script("m", *replies)
    run = killed_at(tmp_path, tmp_path / "s", lambda: server.count() == killed_in, server)
    assert finish(run).result == "John and Paul"
    assert run.view.attempt == 2
    assert server.count() == len(replies)


@pytest.mark.parametrize("is_refused", [False, True])
def test_round_with_a_submitted_answer_is_not_continued(is_refused: bool) -> None:
    told: list[ev.Event] = [
        ev.AnswerGiven(agent="a", answer="A's"),
        ev.PresentationStarted(agent="a"),
        ev.RoundStarted(agent="a", number=2),
        ev.ModelFinished(agent="a", call=2, response={}, usage=ev.Usage()),
        ev.FinalAnswerGiven(agent="a", answer="John"),
    ]
    if is_refused:
        told += [
            ev.RoundStarted(agent="a", number=3),
            ev.OrchestrationRestarted(agent="a", attempt=2, **WHY),
        ]
    past = replay(["a", "b"], told)
    assert past.rounds == {}
    assert past.state.final == ("" if is_refused else "John")
    assert [why.answer for why in past.state.restarts] == ["John"] * is_refused


def test_spending_counts_over_all_attempts(tmp_path: Path) -> None:
    a = ScriptedModel(Answer("A's"), AGAIN)
    team = TeamSpec.model_validate(
        {
            "agent": {"id": "a", "backend": {"type": "python", "instance": a}},
            "orchestrator": {
                "max_tokens": 150,
                "coordination": {"max_orchestration_restarts": 100},
            },
        }
    )
    run = finish(nb_agents.start("t", team, options=options(tmp_path)))
    assert run.status == "cancelled" and run.view.stop and run.view.stop.source == "budget"
    assert run.view.attempt < 10


def test_stop_of_the_judge_keeps_the_answer(tmp_path: Path) -> None:
    gate = Gate()
    a = ScriptedModel(Answer("A's"), Turn(text="Hm ", gate=gate))
    run = start(tmp_path, 1, a=a)
    gate.wait_reached()
    run.stop(now=True, agent="a")
    assert finish(run).result == "A's"
