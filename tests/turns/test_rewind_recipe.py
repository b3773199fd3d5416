"""A recipe with all kinds of steps: each rewind has the same result and files."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import Call, ScriptedModel, Turn
from tests.kit.runs import Run
from tests.kit.sessions import load_session, read_journal
from tests.kit.views import checkpoints_of
from tests.model_server import wait_until
from tests.samples import sample
from tests.snapshots.test_store import state
from tests.team_kit import events, finish, team_by_rules

INNER = """\
name: inner
description: d
version: 1.0.0
steps:
- {id: deep, type: bash, command: "mv log old; tac old > log; cat log", output: deep}
"""
RECIPE = """\
name: outer
description: d
version: 1.0.0
context: {names: [x, y], turns: 0}
stages:
- name: begin
  steps:
  - {id: first, type: bash, command: "echo 1 >> log; mkdir empty; ln -s log link", output: a}
  - {id: each, foreach: "{{names}}", as: n, type: bash, command: "echo {{n}} >> log", output: b}
  - {id: think, agent: a, prompt: "Think of {{a}}.", output: thought}
  approval: {required: true, prompt: "Go on?"}
- name: end
  steps:
  - {id: inner, type: recipe, recipe: inner.yaml, output: c}
  - {id: write, agent: a, prompt: "Write it down.", output: d}
  - id: last
    type: bash
    command: "rm link; cat log work.md; echo {{_approval_message}}"
    output: e
"""


def _model(heard: list[str]) -> ScriptedModel:
    def reply(messages: Any) -> Turn:
        heard.append(str(messages))
        done = sum(message.kind == "response" for message in messages)
        calls = (
            Call("write_file", {"path": "work.md", "content": "one two\n"}),
            Call("edit_file", {"path": "work.md", "old": "two", "new": "2"}),
        )
        if "Write it" in str(messages) and done < len(calls):
            return Turn(calls=(calls[done],))
        return Turn("A thought.")

    return ScriptedModel(reply)


def approve(run: Run, message: str = "Buy it.") -> None:
    """Approve what the run waits for."""
    wait_until(lambda: bool(run.view.gates) or run.is_over)
    run.approve(message)


def go_on_from_each_point(run: Run, heard: list[str]) -> set[str]:
    """Rewind to points of a recipe with a gate, and continue: the end is always the same.

    Args:
        run: The recipe's finished run.
        heard: The requests to its models. The list is cleared.

    Returns:
        The kinds of all points.
    """
    want, before = state(run.path / "workspaces"), state(run.path)
    own, calls = read_journal(run.path / "events.jsonl").events, len(events(run, ev.ModelFinished))
    points = checkpoints_of(own)
    for point in sample(points, 8):
        heard.clear()
        again = run.rewind(point.seq)
        if not any(isinstance(e, ev.ApprovalGiven) and e.seq <= point.seq for e in own):
            approve(again)
        finish(again)
        kept = sum(isinstance(e, ev.ModelFinished) and e.seq <= point.seq for e in own)
        assert (again.status, again.result) == ("completed", run.result), point
        assert state(again.path / "workspaces") == want, point
        assert len(heard) == calls - kept, point
        assert state(run.path) == before, point
    return {point.kind for point in points}


def _finished(place: Path, heard: list[str]) -> Run:
    """Run the recipe to its end, and note what its model hears."""
    (place / "inner.yaml").write_text(INNER)
    (place / "recipe.yaml").write_text(RECIPE)
    team, options = team_by_rules({"a": _model(heard)}), RunOptions(session_root=place)
    run = nb_agents.start("", team, "s", recipe=place / "recipe.yaml", options=options)
    approve(run)
    return finish(run)


def test_rewind_to_any_checkpoint_of_a_recipe_gives_the_same_files_and_outputs(
    tmp_path: Path,
) -> None:
    heard: list[str] = []
    run = _finished(tmp_path, heard)
    assert run.status == "completed", run.view.notices
    kinds = go_on_from_each_point(run, heard)
    assert kinds >= {"start", "step", "call", "tool", "approval"}


def test_preview_counts_the_same_preserved_and_skipped_steps(
    tmp_path: Path,
) -> None:
    run = _finished(tmp_path, [])
    for to, kept, left_out in (
        ("the start", "0 finished steps", "7 steps"),
        ("step begin/first", "1 finished step", "6 steps"),
        ("before step end/last", "6 finished steps", "1 step"),
    ):
        told = run.preview_rewind(to)
        assert told.lines[1].startswith(f"Kept at no new cost: {kept}, ")
        assert told.left_out[0] == left_out


def test_rewound_gate_can_be_decided_differently(tmp_path: Path) -> None:
    run = _finished(tmp_path, [])
    again = run.rewind("before approval begin")
    approve(again, "Sell it.")
    finish(again)
    assert "Sell it." in str(again.result)
    assert "Buy it." in str(run.result)


_BACK = """
import sys
import nb_agents
from nb_agents import RunOptions
options = RunOptions(session_root=sys.argv[1])
print("begins", flush=True)
nb_agents.rewind("s/1", sys.argv[2], options=options).wait(raise_on_stop=False)
"""
FILES = """\
name: many
description: d
version: 1.0.0
steps:
- {id: make, type: bash, command: "for i in $(seq 400); do echo $i > f$i; done", output: a}
- {id: change, type: bash, command: "for i in $(seq 400); do echo x >> f$i; done", output: b}
- {id: look, type: bash, command: "cat f1 f400", output: c}
"""
KILLS = 3


def test_kill_during_a_rewind_leaves_the_old_turn_and_no_partial_new_one(
    tmp_path: Path,
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(FILES)
    options = RunOptions(session_root=tmp_path)
    run = finish(nb_agents.start("", None, "s", recipe=recipe, options=options))
    before = state(run.path)
    point = run.preview_rewind("step make").point
    dice = random.Random(7)
    for _ in range(KILLS):
        words = [sys.executable, "-c", _BACK, str(tmp_path), str(point)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(dice.uniform(0, 0.35))  # whenever: each moment must do
            os.kill(process.pid, signal.SIGKILL)
        session = load_session(tmp_path / "s")
        for turn in session.turns[1:]:
            if turn.paths.has_begun:
                assert (turn.view.resumes, turn.view.point) == (1, point)
                assert len(list(turn.paths.workspaces.rglob("f*"))) == 400
        assert state(run.path) == before
    again = finish(run.rewind(point))
    assert again.result == run.result
    assert state(again.path / "workspaces") == state(run.path / "workspaces")
    assert state(run.path) == before
