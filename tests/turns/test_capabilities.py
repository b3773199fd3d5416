"""The prompt texts of features that a team file enables, byte by byte."""

from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, ScriptedModel, Vote
from tests.team_kit import events, finish
from tests.turns.team_files import options

TOLD = Path(__file__).parent / "told"
PLANS = {"enable_agent_task_planning": True}
FEATURES: dict[str, dict[str, Any]] = {
    "task_plan": PLANS,
    "task_plan_files": {**PLANS, "task_planning_filesystem_mode": True},
    "subagents": {"enable_subagents": True, "background_subagents": {"enabled": False}},
    "background": {"enable_subagents": True, "background_subagents": {"enabled": True}},
    "memories": {"enable_memory_filesystem_mode": True},
    "skills": {"use_skills": True, "skills_directory": "SKILLS"},
    "worktrees": {"write_mode": "worktree"},
}
ALL = {key: value for each in FEATURES.values() for key, value in each.items()}
RECIPE = "name: r\ndescription: d\nversion: 1.0.0\nsteps:\n- {id: one, agent: a, prompt: do it}\n"
SKILL = "---\nname: tables\ndescription: Reads tables\n---\nFirst look."


def team(root: Path, coordination: dict[str, Any], ids: str = "a") -> TeamSpec:
    (root / "site").mkdir()
    (root / "skills" / "tables").mkdir(parents=True)
    (root / "skills" / "tables" / "SKILL.md").write_text(SKILL)
    wanted: dict[str, Any] = dict(coordination)
    if "skills_directory" in wanted:
        wanted["skills_directory"] = str(root / "skills")
    backend = {"type": "python", "instance": ScriptedModel(Answer("done"), Vote("agent1"))}
    places = [{"path": str(root / "site"), "permission": "write"}] if "write_mode" in wanted else []
    return TeamSpec.model_validate(
        {
            "agents": [{"id": id, "backend": backend} for id in ids],
            "orchestrator": {"context_paths": places, "coordination": wanted},
        }
    )


@pytest.mark.parametrize("name", [*FEATURES, "all"])
def test_prompt_texts_of_all_features(tmp_path: Path, name: str) -> None:
    spec = team(tmp_path, FEATURES.get(name, ALL))
    run = finish(nb_agents.start("t", spec, options=options(tmp_path / "s")))
    assert_told(run, name, tmp_path)


def test_prompts_of_planning_agents_describe_only_skills(tmp_path: Path) -> None:
    spec = team(tmp_path, ALL | {"enable_planning_mode": True}, "ab")
    run = finish(nb_agents.start("t", spec, options=options(tmp_path / "s")))
    assert_told(run, "planning", tmp_path)


def test_prompts_of_steps_describe_features_for_steps(tmp_path: Path) -> None:
    spec = team(tmp_path, ALL)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    run = finish(nb_agents.start(recipe=recipe, config=spec, options=options(tmp_path / "s")))
    assert_told(run, "step", tmp_path)


def assert_told(run: nb_agents.Run, name: str, root: Path) -> None:
    said = events(run, ev.RoundStarted)[0].system.replace(str(root), "ROOT")
    assert said == (TOLD / f"{name}.txt").read_text()
