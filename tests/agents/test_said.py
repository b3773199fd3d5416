"""Tests of messages to a running turn: every agent gets each message once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.events import Say
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.kit.runs import MAX_SAID, DriverDeps, Run, TurnWriter, turn
from tests.kit.sessions import load_session
from tests.model_server import wait_until
from tests.team_kit import BOTH_ANSWER_FIRST, events, finish, outcome, prompt, start, start_by_rules
from tests.watching import turns_watched

TEXT = "And in British English, please."
NOTE = Call("write_file", {"path": "notes.md", "content": "kept"})


def heard(model: ScriptedModel, request: int = -1) -> int:
    """Return how often a text is in one of a model's requests."""
    return prompt(model, request).count(TEXT)


def hearings(run: Run, agent: str) -> list[int]:
    told = events(run, ev.RoundStarted, ev.NoteSent)
    return [e.heard for e in told if e.agent == agent and e.heard]


def test_user_message_is_in_the_next_and_each_later_request_once(
    tmp_path: Path,
) -> None:
    gate = Gate()
    solo = ScriptedModel(Turn(gate=gate, calls=(NOTE,)), Turn(calls=(NOTE,)), Answer("A"))
    run = start(tmp_path, solo=solo)
    gate.wait_reached()
    run.say(f"  {TEXT}\n")
    gate.open()
    assert run.wait(200) == "A"
    assert [heard(solo, n) for n in range(3)] == [0, 1, 1]
    assert run.view.said == (TEXT,)
    assert hearings(finish(run), "solo") == [1]


def test_agent_that_answered_before_a_message_works_again(tmp_path: Path) -> None:
    gate = Gate()
    solo = ScriptedModel(Answer("Too early.", gate=gate), Answer("Heard."))
    run = start(tmp_path, solo=solo)
    gate.wait_reached()
    run.say(TEXT)
    gate.open()
    assert run.wait(200) == "Heard."
    assert heard(solo) == 1
    assert run.view.agents["solo"].answers == ("Too early.", "Heard.")


def test_agent_may_keep_its_answer_after_a_message(tmp_path: Path) -> None:
    gate = Gate()
    solo = ScriptedModel(Answer("Right.", gate=gate), Answer("Right."))
    run = start(tmp_path, solo=solo)
    gate.wait_reached()
    run.say(TEXT)
    gate.open()
    assert run.wait(200) == "Right."
    assert events(run, ev.TurnRejected) == []


def test_voters_vote_again_after_a_message(tmp_path: Path) -> None:
    gate = Gate()
    ada = ScriptedModel(Answer("A"), Vote("agent1"), Vote("agent2"), Answer("A, in the end"))
    ben = ScriptedModel(
        Answer("B"), Vote("agent1", gate=gate), Vote("agent2"), Answer("B, in the end")
    )
    run = start_by_rules(tmp_path, {"ada": ada, "ben": ben}, **BOTH_ANSWER_FIRST)
    gate.wait_reached()
    wait_until(lambda: run.view.agents["ada"].vote is not None)
    run.say(TEXT)
    gate.open()
    assert run.wait(200) == "B, in the end"
    assert [v.target for v in events(run, ev.VoteCast)][-2:] == ["ben", "ben"]
    assert [heard(ada, n) for n in range(3)] == [0, 0, 1]
    # Its first vote is stale, whatever it is for: it had not heard the text.
    assert [(e.agent, e.target) for e in events(run, ev.VoteIgnored)] == [("ben", "ada")]


def test_message_resets_the_limit_of_answers(tmp_path: Path) -> None:
    gate = Gate()
    models = {
        agent: ScriptedModel(Answer(f"{agent} 1", gate=gate), Answer(f"{agent} 2"))
        for agent in ("ada", "ben")
    }
    run = start_by_rules(
        tmp_path,
        dict(models),
        max_new_answers_per_agent=1,
        skip_voting=True,
        skip_final_presentation=True,
    )
    gate.wait_reached(2)
    run.say(TEXT)
    gate.open()
    assert run.wait(200) == "ada 2"
    assert [run.view.agents[a].answers[-1] for a in models] == ["ada 2", "ben 2"]


def test_presenter_gets_a_message_at_its_next_boundary(tmp_path: Path) -> None:
    gate = Gate()
    presents = Turn(gate=gate, calls=(NOTE,))
    ada = ScriptedModel(Answer("A"), Vote("agent1"), presents, Answer("Final."))
    ben = ScriptedModel(Answer("B"), Vote("agent1"))
    run = start_by_rules(tmp_path, {"ada": ada, "ben": ben}, **BOTH_ANSWER_FIRST)
    wait_until(lambda: run.view.phase == "presenting")
    gate.wait_reached()
    run.say(TEXT)
    gate.open()
    assert run.wait(200) == "Final."
    assert heard(ada) == 1 and heard(ben) == 0
    assert len(events(run, ev.PresentationStarted)) == 1


def test_message_after_the_presentation_is_in_the_next_turn(
    tmp_path: Path,
) -> None:
    gate = Gate()
    ada = ScriptedModel(Answer("A"), Vote("agent1"), Answer("Final.", gate=gate))
    ben = ScriptedModel(Answer("B"), Vote("agent1"))
    run = start_by_rules(tmp_path, {"ada": ada, "ben": ben}, **BOTH_ANSWER_FIRST)
    gate.wait_reached()
    run.say(TEXT)
    gate.open()
    assert run.wait(200) == "Final."
    assert (run.view.said, run.view.unheard) == ((TEXT,), (TEXT,))
    told = [(m.role, m.content) for m in load_session(run.path.parent).messages]
    assert told == [("user", "the task"), ("user", TEXT), ("assistant", "Final.")]


def test_several_messages_arrive_in_order_once(tmp_path: Path) -> None:
    gate = Gate()
    texts = [f"Text {n}." for n in range(5)]
    solo = ScriptedModel(Turn(gate=gate, calls=(NOTE,)), Answer("A"))
    run = start(tmp_path, solo=solo)
    run.say(texts[0])  # perhaps before there is a team
    gate.wait_reached()
    for text in texts[1:]:
        run.say(text)
    gate.open()
    run.wait(200)
    read = prompt(solo, -1)
    assert [read.count(text) for text in texts] == [1] * 5
    assert sorted(texts, key=read.index) == texts


def test_message_before_the_team_starts_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = turn.driver_for
    writers: list[TurnWriter] = []

    async def say_first(job: DriverDeps, *given: Any) -> object:
        writers[0].take(Say(TEXT))
        return await make(job, *given)

    monkeypatch.setattr(turn, "driver_for", say_first)
    solo = ScriptedModel(Answer("A"))
    with turns_watched(lambda writer, event: writers.append(writer)):
        assert start(tmp_path, solo=solo).wait(200) == "A"
    assert heard(solo, 0) == 1
    assert "<FOLLOW_UP>" in prompt(solo, 0)


def test_message_can_be_sent_from_the_loop(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, solo=ScriptedModel(Answer("A", gate=gate), Answer("A2")))
    gate.wait_reached()
    run.subscribe(lambda view: None if view.said or view.is_over else run.say(TEXT))
    wait_until(lambda: run.view.said == (TEXT,))
    gate.open()
    assert run.wait(200) == "A2"


def test_message_of_a_stopped_turn_is_in_the_next_turn(tmp_path: Path) -> None:
    solo = ScriptedModel(Turn("Half a thought ", hang=True))
    run = start(tmp_path, solo=solo)
    wait_until(lambda: bool(run.view.agents["solo"].partial))
    run.stop()
    run.say(TEXT)
    run.stop(now=True)
    finish(run)
    assert run.view.unheard == (TEXT,)
    nexts = ScriptedModel(Answer("B"))
    team = nb_agents.testing.scripted_team(None, solo=nexts)
    goes_on = nb_agents.start(
        "go on", team, continue_=True, options=RunOptions(session_root=tmp_path)
    )
    assert goes_on.wait(200) == "B"
    read = prompt(nexts, 0)
    assert read.index("User: the task") < read.index(f"User: {TEXT}") < read.index("go on")


def test_invalid_message_raises_a_one_sentence_error(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, solo=ScriptedModel(Answer("A", gate=gate)))
    with pytest.raises(UserError, match="The message is empty"):
        run.say(" \n")
    with pytest.raises(UserError, match=f"has {MAX_SAID + 1} characters; the limit is {MAX_SAID}"):
        run.say("x" * (MAX_SAID + 1))
    gate.open()
    assert outcome(run) == "A"
    with pytest.raises(
        UserError,
        match=f"{run.id} is over. Give its agents a new task with `%%agents --continue --session",
    ):
        run.say(TEXT)
    assert events(run, ev.UserMessage) == []
