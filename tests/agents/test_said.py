"""Follow-up texts in a running turn: every agent hears each once, and nothing is over before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.events.turn_events import Say
from nb_agents.runs import turn
from nb_agents.runs.drivers import DriverDeps
from nb_agents.runs.run import MAX_SAID, Run
from nb_agents.runs.turn import TurnWriter
from nb_agents.session.history import load_session
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.model_server import wait_until
from tests.team_kit import BOTH_ANSWER_FIRST, events, finish, outcome, prompt, start, start_by_rules
from tests.watching import turns_watched

TEXT = "And in British English, please."
NOTE = Call("write_file", {"path": "notes.md", "content": "kept"})


def heard(model: ScriptedModel, request: int = -1) -> int:
    """How often the text is in what a model read in one of its requests."""
    return prompt(model, request).count(TEXT)


def hearings(run: Run, agent: str) -> list[int]:
    told = events(run, ev.RoundStarted, ev.Told)
    return [e.heard for e in told if e.agent == agent and e.heard]


def test_a_text_is_in_the_next_request_of_a_round_and_once_in_each_later_one(
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


def test_one_that_answered_before_it_heard_works_again(tmp_path: Path) -> None:
    gate = Gate()
    solo = ScriptedModel(Answer("Too early.", gate=gate), Answer("Heard."))
    run = start(tmp_path, solo=solo)
    gate.wait_reached()
    run.say(TEXT)
    gate.open()
    assert run.wait(200) == "Heard."
    assert heard(solo) == 1
    assert run.view.agents["solo"].answers == ("Too early.", "Heard.")


def test_it_may_find_that_its_answer_stands(tmp_path: Path) -> None:
    gate = Gate()
    solo = ScriptedModel(Answer("Right.", gate=gate), Answer("Right."))
    run = start(tmp_path, solo=solo)
    gate.wait_reached()
    run.say(TEXT)
    gate.open()
    assert run.wait(200) == "Right."
    assert events(run, ev.TurnRejected) == []


def test_voters_vote_again_with_the_text_in_front_of_them(tmp_path: Path) -> None:
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


def test_one_whose_answers_are_used_up_may_answer_to_the_text(tmp_path: Path) -> None:
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


def test_the_presenter_hears_it_at_its_next_boundary(tmp_path: Path) -> None:
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


def test_a_text_that_comes_too_late_for_the_presenter_stays_in_the_conversation(
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


def test_several_texts_are_told_in_their_order_each_once(tmp_path: Path) -> None:
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


def test_a_text_said_before_the_team_is_there_is_heard(
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


def test_a_text_from_the_loop_itself_is_taken(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, solo=ScriptedModel(Answer("A", gate=gate), Answer("A2")))
    gate.wait_reached()
    run.subscribe(lambda view: None if view.said or view.is_over else run.say(TEXT))
    wait_until(lambda: run.view.said == (TEXT,))
    gate.open()
    assert run.wait(200) == "A2"


def test_after_a_stop_the_next_turn_has_it_in_its_conversation(tmp_path: Path) -> None:
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


def test_what_can_not_be_said_is_one_sentence(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, solo=ScriptedModel(Answer("A", gate=gate)))
    with pytest.raises(UserError, match="The text is empty"):
        run.say(" \n")
    with pytest.raises(UserError, match=f"has {MAX_SAID + 1} characters; at most {MAX_SAID}"):
        run.say("x" * (MAX_SAID + 1))
    gate.open()
    assert outcome(run) == "A"
    with pytest.raises(UserError, match=f"{run.id} is over. `%%agents --continue --session"):
        run.say(TEXT)
    assert events(run, ev.Said) == []
