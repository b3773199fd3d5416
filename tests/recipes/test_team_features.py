"""Features that a team file enables in the steps of a recipe, such as plans and skills."""

import json
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Call, Gate, ScriptedModel, Turn
from tests.kit.runs import Run
from tests.kit.teams import check_file
from tests.recipes.live import write
from tests.team_kit import events, finish, prompt

RECIPE = """
steps:
- {id: one, agent: ada, prompt: "First part.", output: one}
- {id: two, agent: ada, prompt: "Second part.", output: two}
"""


def begin(root: Path, model: ScriptedModel, **coordination: Any) -> Run:
    team = {
        "agent": {"id": "ada", "backend": {"type": "python", "instance": model}},
        "orchestrator": {"coordination": coordination},
    }
    spec, recipe = TeamSpec.model_validate(team), write(root, RECIPE)
    return nb_agents.start("", spec, recipe=recipe, options=RunOptions(session_root=root / "s"))


def planning(*tasks: str) -> Call:
    return Call("create_task_plan", {"tasks": list(tasks)})


def plans(run: Run) -> list[list[str]]:
    """Return the tasks found each time the plan was read."""
    found = [e.result for e in events(run, ev.ToolFinished) if e.tool == "get_task_plan"]
    return [[task["description"] for task in json.loads(text)["tasks"]] for text in found]


def test_each_step_has_its_own_plan_which_a_resume_keeps(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(
        Turn(calls=(planning("look", "write"), Call("get_task_plan"))),
        Turn(text="first"),
        Turn(calls=(planning("check"),)),
        Turn(text="so ", gate=gate, calls=(Call("get_task_plan"),)),
        Turn(calls=(Call("get_task_plan"),)),
        Turn(text="second"),
    )
    run = begin(tmp_path, model, enable_agent_task_planning=True)
    gate.wait_reached()
    run.stop(now=True)
    gate.open()
    finish(run)
    again = run.resume()
    again.wait(200, raise_on_stop=False)
    assert again.status == "completed"
    assert (plans(run), plans(again)) == ([["look", "write"]], [["check"]])
    told = prompt(model, 0)
    assert "create_task_plan" in told and "End your answer with a list" not in told
    assert "the status of each" not in told and "peers" not in told
    kept = {p.parents[1].name for p in (tmp_path / "s").rglob("plan.json")}
    assert kept == {"plan+one", "plan+two"}  # but not the workspace that steps share


def test_step_has_no_plan_unless_enabled(tmp_path: Path) -> None:
    model = ScriptedModel(Turn(text="first"), Turn(text="second"))
    assert finish(begin(tmp_path, model)).status == "completed"
    assert "create_task_plan" not in prompt(model, 0)


def test_step_gets_and_reads_skills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skill = tmp_path / "skills" / "tables" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: tables\ndescription: Reads tables\n---\nFirst look.")
    model = ScriptedModel(
        Turn(calls=(Call("read_file", {"path": str(skill)}),)),
        Turn(text="first"),
        Turn(text="second"),
    )
    wanted = {"use_skills": True, "skills_directory": str(tmp_path / "skills")}
    run = finish(begin(tmp_path, model, **wanted))
    assert run.status == "completed"
    assert f"- tables ({skill}): Reads tables" in prompt(model, 0)
    (read,) = events(run, ev.ToolFinished)
    assert "First look." in read.result


def test_team_only_options_are_reported_by_check_and_start(tmp_path: Path) -> None:
    wanted = {"enable_memory_filesystem_mode": True, "enable_subagents": True}
    told = "A recipe ignores the team's enable_memory_filesystem_mode, enable_subagents."
    model = ScriptedModel(Turn(text="first"), Turn(text="second"))
    assert told in finish(begin(tmp_path, model, **wanted)).view.notices
    team = {"agent": {"id": "ada", "backend": {"type": "demo"}}}
    team |= {"orchestrator": {"coordination": wanted}}
    (tmp_path / "team.yaml").write_text(json.dumps(team))
    found = check_file(str(tmp_path / "main.yaml"), str(tmp_path / "team.yaml"))
    assert told in found.lines
