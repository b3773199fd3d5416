"""Resuming a recipe that failed without a value, by passing the value; finished steps are kept."""

from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import RecipeError, UserError
from nb_agents.testing import ScriptedModel, Turn, scripted_team
from tests.kit.runs import Run, preview
from tests.recipes.live import begin, ran, write
from tests.team_kit import finish

OUT_OF_RESOURCES = """
context: {depth: 1}
steps:
- {id: draft, agent: worker, prompt: "Draft at {{depth}}", output: draft}
- {id: push, type: bash, command: "echo {{draft}} to {{branch}} at {{depth}}", output: pushed}
"""


def lacking(root: Path) -> tuple[Run, ScriptedModel]:
    """Return a run that failed because the branch was missing."""
    model = ScriptedModel(Turn(text="words"))
    run = finish(begin(write(root, OUT_OF_RESOURCES), model))
    assert run.status == "failed" and "branch" in str(run.view.steps["push"])
    return run, model


def test_resume_with_the_missing_value_calls_no_model_twice(tmp_path: Path) -> None:
    run, model = lacking(tmp_path)
    again = finish(run.resume(scripted_team(None, worker=model), context={"branch": "main"}))
    assert again.result["pushed"] == "words to main at 1"
    assert ran(again) == ["push"] and len(model.requests) == 1
    assert not [n for n in again.view.notices if "was given" in n]


def test_value_is_kept_for_later_resumes(tmp_path: Path) -> None:
    body = (
        OUT_OF_RESOURCES
        + "- {id: tell, type: bash, command: 'echo {{branch}} {{who}}', output: told}\n"
    )
    model = ScriptedModel(Turn(text="words"))
    team = scripted_team(None, worker=model)
    run = finish(begin(write(tmp_path, body), model))
    second = finish(run.resume(team, context={"branch": "main"}))
    assert second.status == "failed" and "who" in str(second.view.steps["tell"])
    assert finish(second.resume(team, context={"who": "ada"})).result["told"] == "main ada"


def test_changed_value_is_used_and_finished_readers_are_reported(
    tmp_path: Path,
) -> None:
    run, model = lacking(tmp_path)
    given = {"branch": "main", "depth": 2, "colour": "red"}
    again = finish(run.resume(scripted_team(None, worker=model), context=given))
    assert again.result["pushed"] == "words to main at 2" and len(model.requests) == 1
    told = "Finished steps keep their results, although 'depth' has a new value: draft."
    assert any(notice.startswith(told) for notice in again.view.notices)
    assert "The recipe does not read the given value 'colour'." in again.view.notices


def test_unchanged_value_causes_no_notice(tmp_path: Path) -> None:
    run, model = lacking(tmp_path)
    given = {"branch": "main", "depth": 1}
    again = finish(run.resume(scripted_team(None, worker=model), context=given))
    assert not [n for n in again.view.notices if "What was done" in n]


def test_resume_can_pass_a_value_that_a_changed_recipe_requires(tmp_path: Path) -> None:
    run, model = lacking(tmp_path)
    team = scripted_team(None, worker=model)
    needs = "context: {branch: {type: string, required: true}, depth: 1}"
    changed = write(tmp_path, OUT_OF_RESOURCES.replace("context: {depth: 1}", needs), "changed")
    with pytest.raises(RecipeError, match="requires branch: pass it as --set branch=VALUE"):
        run.resume(team, recipe=changed)
    again = finish(run.resume(team, recipe=changed, context={"branch": "dev"}))
    assert again.result["pushed"] == "words to dev at 1"


def test_value_that_is_not_plain_data_is_refused(tmp_path: Path) -> None:
    run, model = lacking(tmp_path)
    team = scripted_team(None, worker=model)
    with pytest.raises(RecipeError, match="The value of 'branch' can't be used"):
        run.resume(team, context={"branch": object()})
    assert not (run.path.parent / "turn_2").exists()


def test_preview_uses_the_values_and_changes_nothing(tmp_path: Path) -> None:
    run, _ = lacking(tmp_path)
    told = preview("s", context={"branch": "main"}, session_root=tmp_path / "sessions")
    assert "1 finished step" in str(told)
    assert not (run.path.parent / "turn_2").exists()


def test_turn_of_a_team_accepts_no_values(tmp_path: Path) -> None:
    team = scripted_team(None, ada=ScriptedModel(Turn(error=ValueError("no"))))
    options = RunOptions(session_root=tmp_path, timeout=30)
    run = finish(nb_agents.start("t", team, options=options))
    assert run.status == "failed"
    with pytest.raises(UserError, match="The turn did not run a recipe. Leave out --set"):
        run.resume(team, context={"a": 1})
