"""Messages and exact resume: received messages are repeated, others are delivered now."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote, scripted_team
from tests.kit.agents import dump_messages
from tests.kit.runs import Run
from tests.kit.sessions import load_session
from tests.model_server import wait_until
from tests.team_kit import BOTH_ANSWER_FIRST, events, prompt, start_by_rules
from tests.turns.proof import without_time

WAIT_S = 200.0
TEXT = "And in British English, please."
NOTE = Call("write_file", {"path": "n.md", "content": "kept"})


def begin(root: Path, **models: Any) -> Run:
    team = scripted_team(None, **models)
    return nb_agents.start("the task", team, session="s", options=RunOptions(session_root=root))


def stop(run: Run) -> None:
    run.stop(now=True)
    run.wait(WAIT_S, raise_on_stop=False)


def resumed(run: Run) -> Run:
    again = run.resume()
    again.wait(WAIT_S, raise_on_stop=False)
    return again


def sent(model: ScriptedModel, request: int) -> str:
    """A whole request, but for what the clock says."""
    return without_time(json.dumps(dump_messages(model.requests[request])))


@pytest.mark.parametrize("before", [(), (Turn(calls=(NOTE,)),)], ids=["at once", "after a tool"])
def test_unread_message_is_in_the_repeated_request(
    tmp_path: Path, before: tuple[Turn, ...]
) -> None:
    gate = Gate()
    model = ScriptedModel(*before, Turn("so far ", gate=gate), Answer("A's"))
    run = begin(tmp_path, a=model)
    gate.wait_reached()
    run.say(TEXT)
    stop(run)
    again = resumed(run)
    assert again.result == "A's"
    assert [prompt(model, n).count(TEXT) for n in (-2, -1)] == [0, 1]
    assert (again.view.said, again.view.unheard) == ((TEXT,), ())
    told = [(m.role, m.content) for m in load_session(again.path.parent).messages]
    assert told == [("user", "the task"), ("user", TEXT), ("assistant", "A's")]


def test_read_message_is_repeated_verbatim_exactly_once(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    model = ScriptedModel(
        Turn(gate=gates[0], calls=(NOTE,)), Turn("so far ", gate=gates[1]), Answer("A's")
    )
    run = begin(tmp_path, a=model)
    gates[0].wait_reached()
    run.say(TEXT)
    gates[0].open()
    gates[1].wait_reached()
    stop(run)
    assert run.view.unheard == ()
    again = resumed(run)
    assert again.result == "A's"
    assert TEXT in sent(model, 1) and sent(model, 2) == sent(model, 1)
    assert events(again, ev.NoteSent) == []


def test_message_to_a_resumed_request_follows_the_earlier_messages(
    tmp_path: Path,
) -> None:
    gate = Gate()
    model = ScriptedModel(Turn("so far ", gate=gate), Turn("so far ", gate=gate), Answer("A's"))
    run = begin(tmp_path, a=model)
    for number in (1, 2):
        gate.wait_reached(number)
        run.say(f"Text {number}.")
        stop(run)
        run = run.resume()
    run.wait(WAIT_S, raise_on_stop=False)
    read = prompt(model, -1)
    assert [read.count(f"Text {n}.") for n in (1, 2)] == [1, 1]
    assert read.index("Text 1.") < read.index("Text 2.")
    assert run.view.said == ("Text 1.", "Text 2.")


def test_stopped_presenter_presents_again_with_its_text(tmp_path: Path) -> None:
    gate = Gate()
    ada = ScriptedModel(Answer("A"), Vote("agent1"), Turn("Well, ", gate=gate), Answer("Final."))
    models: dict[str, Any] = {"ada": ada, "ben": ScriptedModel(Answer("B"), Vote("agent1"))}
    run = start_by_rules(tmp_path, models, **BOTH_ANSWER_FIRST)
    gate.wait_reached()
    run.say(TEXT)
    stop(run)
    again = resumed(run)
    assert again.result == "Final."
    assert prompt(ada, -1).count(TEXT) == 1
    assert events(again, ev.PresentationStarted, ev.VoteCast) == []


# Killed at any event between


def part(name: str, gate: Gate | None = None) -> Callable[[list[Any]], Turn]:
    """A model that answers early, again after a message, and votes once all have answered."""

    def turn(messages: list[Any]) -> Turn:
        read = [str(getattr(p, "content", "")) for m in messages for p in m.parts]
        assert "\n".join(read).count(TEXT) <= 1
        opening = read[1]
        if "<FINAL PRESENTATION>" in opening:
            return Answer("Final.")
        if TEXT in "\n".join(read):
            return Vote("agent1") if f"{name} heard." in opening else Answer(f"{name} heard.")
        return (
            Vote("agent1") if f"{name} early." in opening else Answer(f"{name} early.", gate=gate)
        )

    return turn


def cast(gate: Gate | None = None) -> dict[str, ScriptedModel]:
    return {"ada": ScriptedModel(part("ada")), "ben": ScriptedModel(part("ben", gate))}


def test_message_reaches_all_agents_after_a_kill_at_any_event(
    tmp_path: Path,
) -> None:
    gate = Gate()
    run = begin(tmp_path / "whole", **cast(gate))
    gate.wait_reached()
    wait_until(lambda: run.view.agents["ada"].vote is not None)
    run.say(TEXT)
    gate.open()
    assert run.wait(WAIT_S) == "Final."
    lines = (run.path / "events.jsonl").read_bytes().splitlines(keepends=True)
    first = next(e.seq for e in events(run, ev.UserMessage))
    ended = next(e.seq for e in events(run, ev.TurnEnded))
    assert [e.agent for e in events(run, ev.VoteCast)][0] == "ada"
    for last in range(first, ended):
        root = tmp_path / str(last)
        shutil.copytree(run.path.parent, root / "s", symlinks=True)
        (root / "s" / "turn_1" / "events.jsonl").write_bytes(b"".join(lines[:last]))
        team, options = scripted_team(None, **cast()), RunOptions(session_root=root)
        again = nb_agents.resume("s", team, options=options)
        assert again.wait(WAIT_S) == "Final."
        heard = {a.id: (a.answer, a.heard) for a in again.view.agents.values()}
        assert heard == {"ada": ("ada heard.", 1), "ben": ("ben heard.", 1)}
        # Those that count have all been cast by one that had heard.
        assert again.view.said == (TEXT,)
