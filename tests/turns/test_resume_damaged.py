"""Turns with damaged journals: missing parts are reported, and the rest is resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.runs import Run, preview, resume
from tests.recipes.live import answering, begin, write
from tests.team_kit import WAIT_S, events, finish

RECIPE = 'steps:\n- {id: ask, agent: worker, prompt: "Ask", output: said}\n'


def change(run: Run, edit: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Edit each line of a run's journal; None takes it away."""
    path = run.path / "events.jsonl"
    edited = [edit(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in edited if line is not None))


def stopped_recipe(root: Path) -> Run:
    gate = Gate()
    run = begin(write(root, RECIPE), ScriptedModel(Turn("half ", gate=gate)))
    gate.wait_reached()
    run.stop(now=True)
    return finish(run)


def test_resume_asks_for_the_recipe_if_the_journal_lacks_it(tmp_path: Path) -> None:
    run = stopped_recipe(tmp_path)
    change(run, lambda line: line if line["kind"] == "turn_started" else None)
    team = scripted_team(worker=answering("Said."))
    options = RunOptions(session_root=tmp_path / "sessions", trust=True)
    for what in (
        partial(preview, session_root=tmp_path / "sessions"),
        partial(resume, config=team, options=options),
    ):
        with pytest.raises(UserError, match="does not contain its recipe.* --recipe FILE"):
            what("s")
    again = resume("s", team, recipe=tmp_path / "main.yaml", options=options)
    assert finish(again).result == {"said": "Said."}


def team_at_its_second_call(root: Path) -> Run:
    gate = Gate()
    note = Call("write_file", {"path": "notes.md", "content": "kept"})
    model = ScriptedModel(Turn(calls=(note,)), Turn("half ", gate=gate))
    run = nb_agents.start(
        "t", scripted_team(ada=model), session="s", options=RunOptions(session_root=root)
    )
    gate.wait_reached()
    run.stop(now=True)
    return finish(run)


BROKEN: dict[str, Any] = {
    "a list": [],
    "a text": "hello",
    "null": None,
    "no parts": {"kind": "response"},
    "other parts": {"kind": "response", "parts": [1, {"part_kind": "tool-call"}]},
    "deeply nested": json.loads("[" * 150 + "]" * 150),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("field", ["response", "request"])
def test_round_with_unreadable_messages_starts_again(tmp_path: Path, field: str, what: str) -> None:
    run = team_at_its_second_call(tmp_path)

    def broken(line: dict[str, Any]) -> dict[str, Any]:
        if field == "response" and field in line:
            return {**line, field: BROKEN[what]}
        if field == "request" and "asks" in line:  # as journals of version 0.1 have it
            return {k: v for k, v in line.items() if k != "asks"} | {field: [BROKEN[what]]}
        return line

    change(run, broken)
    assert "Runs again: the round of ada (its journal is damaged)." in str(
        preview("s", session_root=tmp_path)
    )
    again = resume(
        "s",
        scripted_team(ada=ScriptedModel(Answer("Done."))),
        options=RunOptions(session_root=tmp_path, trust=True),
    )
    again.wait(WAIT_S, raise_on_stop=False)
    assert (again.status, again.result) == ("completed", "Done.")
    assert [e.number for e in events(again, ev.RoundStarted)][0] == 2


@pytest.mark.parametrize("call_id", ["", "1.²", "1." + "9" * 5_000, "x.y", "1.-1", "1.1.1"])
def test_tool_call_with_an_unknown_number_is_ignored(tmp_path: Path, call_id: str) -> None:
    run = team_at_its_second_call(tmp_path)
    change(run, lambda line: {**line, "call_id": call_id} if "call_id" in line else line)
    assert "Runs again: 1 model call interrupted or failed (ada)." in str(
        preview("s", session_root=tmp_path)
    )
