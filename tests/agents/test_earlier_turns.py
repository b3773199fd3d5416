"""A session with many turns: what the next turn's prompt contains, and what agents can read."""

from __future__ import annotations

from pathlib import Path

import nb_agents
from nb_agents import RunOptions
from nb_agents.agents.earlier_turns import HEAD_CHARS, WHOLE_CHARS, shorten
from nb_agents.testing import Call, ScriptedModel, Turn, scripted_team
from tests.kit.sessions import PastMessage
from tests.team_kit import prompt


def conversation(turns: int, size: int) -> list[PastMessage]:
    return [
        PastMessage(role, f"{role} {number} {'x' * size}", number)
        for number in range(1, turns + 1)
        for role in ("user", "assistant")
    ]


def test_short_conversation_is_not_changed() -> None:
    history = conversation(5, 100)
    assert shorten(history) == history


def test_answers_in_a_prompt_have_a_limited_size() -> None:
    shown = shorten(conversation(100, 5000))
    answers = [each.content for each in shown if each.role == "assistant"]
    assert sum(map(len, answers)) < WHOLE_CHARS + 100 * 2 * HEAD_CHARS
    assert answers[-1] == conversation(100, 5000)[-1].content


def test_messages_of_the_user_stay_whole() -> None:
    history = conversation(20, 5000)
    assert [m for m in shorten(history) if m.role == "user"] == [
        m for m in history if m.role == "user"
    ]


def test_agent_reads_an_earlier_turn(tmp_path: Path) -> None:
    long = "y" * (WHOLE_CHARS + 1)
    options = RunOptions(session_root=tmp_path)
    for number in (1, 2):
        model = ScriptedModel(
            Turn(calls=(Call("new_answer", {"content": f"A{number} {long} END"}),))
        )
        nb_agents.start(
            "t", scripted_team(None, a=model), session="s", continue_=number > 1, options=options
        ).wait(200)
    model = ScriptedModel(
        Turn(calls=(Call("read_turn", {"turn": 1, "offset": len(long)}),)),
        Turn(calls=(Call("new_answer", {"content": "Done."}),)),
    )
    team = scripted_team(None, a=model)
    run = nb_agents.start("t", team, session="s", continue_=True, options=options)
    assert run.wait(200) == "Done."
    assert "END" not in prompt(model, 0)
    assert "read_turn(1)" in prompt(model, 0)
    assert " END" in prompt(model, 1)


def test_prompt_of_the_twelfth_turn_is_bounded_and_earlier_turns_can_be_read(
    tmp_path: Path,
) -> None:
    options = RunOptions(session_root=tmp_path)
    for number in range(1, 13):
        answer = Call("new_answer", {"content": f"A{number} {'y' * 4500} END{number}."})
        reading = [Turn(calls=(Call("read_turn", {"turn": 2}),))] if number == 12 else []
        model = ScriptedModel(*reading, Turn(calls=(answer,)))
        team = scripted_team(None, a=model)
        nb_agents.start(
            f"task {number}", team, session="s", continue_=number > 1, options=options
        ).wait(200)
    first = prompt(model, 0)
    assert len(first) < WHOLE_CHARS + 12 * 2 * HEAD_CHARS
    assert [number for number in range(1, 12) if f"END{number}." in first] == [8, 9, 10, 11]
    assert all(f"task {number}" in first for number in range(1, 13))
    assert "END2." in prompt(model, 1)
