"""Starts with a team file, a team or one model, and without unsupported agents."""

from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.errors import ConfigError
from tests.kit.teams import team_from_options
from tests.team_kit import finish

MIXED = """\
agents:
  - {id: ada, backend: {type: demo}}
  - {id: coder, backend: {type: antigravity_cli, model: opus}}
  - {id: agi, backend: {type: ag2}}
ui: {display_type: simple}
"""


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "team.yaml"
    path.write_text(MIXED)
    return path


def test_start_fails_and_names_the_agents_that_cannot_run(tmp_path: Path, mixed: Path) -> None:
    root = tmp_path / "sessions"
    with pytest.raises(ConfigError) as caught:
        nb_agents.start("t", mixed, options=RunOptions(session_root=root))
    assert "'coder'" in str(caught.value) and "'agi'" in str(caught.value)
    assert [each.line for each in caught.value.others] == [3, 4]
    assert not root.exists()


def test_supported_agents_run_when_others_are_skipped_with_a_notice(
    tmp_path: Path, mixed: Path
) -> None:
    run = nb_agents.start(
        "t", mixed, options=RunOptions(session_root=tmp_path / "s", skip_unsupported=True)
    )
    assert list(finish(run).view.agents) == ["ada"]
    assert run.status == "completed"
    assert "Ignored keys: ui" in run.view.notices
    assert "Skipped unsupported agents: coder (antigravity_cli), agi (ag2)" in run.view.notices
    assert [p.name for p in (run.path / "workspaces").iterdir()] == ["ada"]


def test_skipping_has_no_effect_if_all_agents_are_supported(tmp_path: Path) -> None:
    run = finish(
        nb_agents.start("t", options=RunOptions(session_root=tmp_path, skip_unsupported=True))
    )
    assert len(run.view.agents) == 3
    assert not [n for n in run.view.notices if "Skipped" in n]


def test_skipping_every_agent_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    path.write_text("agent:\n  backend: {type: uitars}\n")
    with pytest.raises(
        ConfigError, match=r"None of the team's agents can run here: agent1 \(uitars\)"
    ):
        nb_agents.start(
            "t", path, options=RunOptions(session_root=tmp_path / "s", skip_unsupported=True)
        )
    assert not (tmp_path / "s").exists()


def test_one_model_is_a_run_of_one_agent(tmp_path: Path) -> None:
    run = finish(
        nb_agents.start(
            "t", TeamSpec.from_model("demo:"), options=RunOptions(session_root=tmp_path)
        )
    )
    assert [(a.id, a.model) for a in run.view.agents.values()] == [("agent1", "demo")]
    assert run.status == "completed"


def test_a_model_and_a_config_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="Remove --model or --config"):
        team_from_options("team.yaml", "demo:")


def test_a_model_without_provider_is_refused() -> None:
    with pytest.raises(ConfigError, match="Use 'provider:llama-3'"):
        team_from_options(None, "llama-3")


CALLING = """\
agents:
  - {id: ada, backend: {type: demo, can_call: [coder, helper, critic]}}
  - {id: coder, backend: {type: antigravity_cli, model: opus}}
callable_agents:
  - {id: helper, backend: {type: uitars}}
  - {id: critic, backend: {type: demo}}
recipe_agents: {"foundation:*": coder, "other:*": ada}
"""
RECIPE = """\
name: two
description: d
version: "1.0.0"
steps:
  - {id: one, agent: ada, prompt: "hello", output: said}
"""


def test_unsupported_callable_agents_are_skipped_too(tmp_path: Path) -> None:
    path = tmp_path / "team.yaml"
    path.write_text(CALLING)
    with pytest.raises(ConfigError, match="'helper' has backend type 'uitars'.*--skip-unsupported"):
        nb_agents.start("t", path, options=RunOptions(session_root=tmp_path / "s"))
    run = nb_agents.start(
        "t", path, options=RunOptions(session_root=tmp_path / "s", skip_unsupported=True)
    )
    run.stop(now=True)
    assert finish(run).status == "cancelled"
    assert (
        "Skipped unsupported agents: coder (antigravity_cli), helper (uitars)" in run.view.notices
    )


@pytest.mark.parametrize("recipe", [False, True])
@pytest.mark.parametrize("file_is_gone", [False, True])
def test_resume_skips_the_unsupported_agents_too(
    tmp_path: Path, recipe: bool, file_is_gone: bool
) -> None:
    path, steps, root = tmp_path / "team.yaml", tmp_path / "two.yaml", tmp_path / "s"
    path.write_text(CALLING)
    steps.write_text(RECIPE)
    options = RunOptions(session_root=root, skip_unsupported=True)
    task, given = ("", steps) if recipe else ("t", None)
    run = nb_agents.start(task, path, recipe=given, options=options)
    run.stop(now=True)
    assert finish(run).status == "cancelled"
    if file_is_gone:
        path.unlink()
    again = nb_agents.resume(options=RunOptions(session_root=root))
    again.stop(now=True)
    assert finish(again).status == "cancelled"


def test_resume_does_not_skip_an_agent_of_its_turn(tmp_path: Path) -> None:
    path, steps, root = tmp_path / "team.yaml", tmp_path / "two.yaml", tmp_path / "s"
    path.write_text(
        "agents:\n  - {id: bob, backend: {type: demo}}\n  - {id: ada, backend: {type: demo}}\n"
    )
    steps.write_text(RECIPE)
    run = nb_agents.start(config=path, recipe=steps, options=RunOptions(session_root=root))
    run.stop(now=True)
    finish(run)
    given = path.read_text().replace("ada, backend: {type: demo}", "ada, backend: {type: uitars}")
    path.write_text(given)
    with pytest.raises(ConfigError, match="'ada' has backend type 'uitars'"):
        nb_agents.resume(config=path, options=RunOptions(session_root=root))
