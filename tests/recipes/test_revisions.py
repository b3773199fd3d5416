"""Resumes that replace outputs: unusable ones, those the user passes, and steps to repeat."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_ai.messages import ModelMessage

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import RecipeError, UserError
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, scripted_team
from tests.cli.calls import call_here
from tests.kit.runs import Run, preview
from tests.recipes.live import answering, begin, ran, wait_for_gate, write
from tests.team_kit import finish

BOARD = """
steps:
- {id: first, type: bash, command: "echo one", output: one}
- {id: board, agent: worker, prompt: "Style?", output: board, KEYS}
- {id: use, type: bash, command: "echo {{board.style}} {{one}}", output: used}
"""
STYLE = '{"style": "plain"}'


def begun(root: Path, *texts: str, keys: str = "timeout: 9") -> tuple[Run, ScriptedModel]:
    model = answering(*texts)
    return finish(begin(write(root, BOARD.replace("KEYS", keys)), model)), model


def again(run: Run, model: ScriptedModel, **given: object) -> Run:
    return finish(run.resume(scripted_team(None, worker=model), **given))  # type: ignore[arg-type]


def test_text_answer_fails_a_step_that_promises_json(tmp_path: Path) -> None:
    run, model = begun(tmp_path, "In words.", STYLE, keys="parse_json: true")
    assert "The answer contains no JSON" in run.view.steps["board"].why
    assert "the step board (it failed)" in str(run.preview)
    resumed = again(run, model)
    assert (resumed.result["used"], ran(resumed)) == ("plain one", ["board", "use"])


def test_text_answer_is_retried(tmp_path: Path) -> None:
    keys = "parse_json: true, retry: {max_attempts: 2, initial_delay: 0}"
    run, _ = begun(tmp_path, "In words.", STYLE, keys=keys)
    assert run.result["used"] == "plain one"


def test_text_answer_is_fine_if_no_field_is_read(tmp_path: Path) -> None:
    body = BOARD.replace("board.style", "board").replace("KEYS", "parse_json: true")
    assert finish(begin(write(tmp_path, body), answering("Plain."))).result["used"] == "Plain. one"


def test_resume_repeats_a_step_with_an_unusable_output(tmp_path: Path) -> None:
    run, model = begun(tmp_path, "In words.", "Again in words.", STYLE)
    assert ran(run) == ["first", "board"] and run.status == "failed"
    for _ in range(2):  # as often as the output is unusable
        told = preview("s", session_root=tmp_path / "sessions")
        assert "1 finished step" in str(told)
        assert "Runs again: the step board (its output is discarded)." in str(told)
        run = again(run, model)
    assert (run.result["used"], ran(run)) == ("plain one", ["board", "use"])


def test_only_the_iteration_with_the_unusable_output_is_repeated(tmp_path: Path) -> None:
    body = """
context: {files: [a, b, c]}
steps:
- id: each
  foreach: "{{files}}"
  parallel: true
  collect: all
  steps:
  - {id: look, agent: worker, prompt: "Look {{item}}", output: seen}
  - {id: told, type: bash, command: "echo {{seen.style}}"}
"""

    def look(messages: list[ModelMessage]) -> Turn:
        return Turn(text="In words." if "Look b" in str(messages) else STYLE)

    model = ScriptedModel(look)
    run = finish(begin(write(tmp_path, body), model))
    assert run.status == "failed"
    resumed = again(run, answering(STYLE))
    assert resumed.result["all"] == ["plain"] * 3
    assert ran(resumed) == ["each[1]/look", "each[1]/told"]


def test_user_can_pass_an_output(tmp_path: Path) -> None:
    run, model = begun(tmp_path, "In words.")
    resumed = again(run, model, context={"board": {"style": "given"}})
    assert (resumed.result["used"], ran(resumed)) == ("given one", ["use"])
    assert "Uses the given output of board." in resumed.view.notices
    assert len(model.requests) == 1


def test_user_can_pass_the_output_of_a_failed_step(tmp_path: Path) -> None:
    begun(tmp_path, "In words.", keys="parse_json: true")
    team = tmp_path / "team.yaml"
    team.write_text("agents: [{id: worker, backend: {type: demo}}]\n")
    root = str(tmp_path / "sessions")
    given = 'board={"style": "given"}'
    printed = call_here("resume", "s", "-c", str(team), "--set", given, "--session-root", root)
    assert "given one" in printed


def test_step_and_everything_after_it_run_again(tmp_path: Path) -> None:
    run, model = begun(tmp_path, '{"style": "old"}', STYLE)
    assert run.result["used"] == "old one"
    resumed = again(run, model, from_step="board")
    assert (resumed.result["used"], ran(resumed)) == ("plain one", ["board", "use"])


STAGES = """
stages:
- name: plan
  steps:
  - {id: draft, agent: worker, prompt: "Draft", output: draft}
  - {id: check, agent: worker, prompt: "Check {{draft}}", output: check}
  approval: {required: true, prompt: "Well?"}
- name: work
  steps:
  - {id: do, agent: worker, prompt: "Do {{check}}", output: done}
"""


def test_steps_after_a_repeated_step_run_again_even_after_a_stop(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(
        *(Turn(text=f"t{n}") for n in range(3)),
        Turn(text="new draft"),
        Turn(text="cut", gate=gate),
        Turn(text="new check"),
        Turn(text="new end"),
    )
    team = scripted_team(None, worker=model)
    run = begin(write(tmp_path, STAGES), model)
    wait_for_gate(run)
    run.decide(True)
    assert finish(run).result["done"] == "t2"
    second = run.resume(team, from_step="draft")
    gate.wait_reached()
    second.stop(now=True)
    gate.open()
    finish(second)
    assert ran(second) == ["plan/draft", "plan/check"]
    assert second.view.steps.keys() == {"plan", "plan/draft", "plan/check"}
    third = second.resume(team)
    assert wait_for_gate(third) == ["plan"]  # the approved text has changed
    third.decide(True)
    assert finish(third).result["done"] == "new end"
    assert ran(third) == ["plan/check", "work/do"]


def test_resume_that_would_fail_immediately_is_refused_with_advice(tmp_path: Path) -> None:
    body = "\nsteps:\n- {id: push, type: bash, command: 'echo {{branch}}'}\n"
    run = finish(begin(write(tmp_path, body), answering("")))
    helps = r"--set NAME=VALUE, .*--recipe FILE, .*--from STEP"
    with pytest.raises(RecipeError, match=r"would fail .* at push: .*\{\{branch\}\}.*" + helps):
        run.resume()
    assert "It would fail before anything runs" in str(run.preview)
    assert not (run.path.parent / "turn_2").exists()


def test_step_that_cannot_run_again_alone_is_refused(tmp_path: Path) -> None:
    run, _ = begun(tmp_path, STYLE)
    with pytest.raises(UserError, match="no step 'nope'.* It has: first, board, use"):
        run.resume(from_step="nope")
    options = RunOptions(session_root=tmp_path / "other")
    team = finish(
        nb_agents.start("t", scripted_team(a=ScriptedModel(Answer("So."))), options=options)
    )
    with pytest.raises(UserError, match="did not run a recipe. Leave out --from"):
        team.resume(from_step="a")
