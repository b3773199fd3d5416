"""``%agents check`` reports the same findings about a file as a start, with the same errors."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import UserError
from nb_agents.launch.file_report import check_file
from tests.kit.teams import SECTIONS
from tests.team_kit import finish

DEMO: dict[str, Any] = {"id": "ada", "backend": {"type": "demo", "words_per_second": 100_000}}
SERVER = Path(__file__).parents[1] / "tools" / "mcp_server.py"


def agent(kind: str, name: str = "ada", **backend: Any) -> dict[str, Any]:
    return {"id": name, "backend": {"type": kind, **backend}}


def team(*agents: dict[str, Any], **more: Any) -> str:
    return yaml.safe_dump({"agents": agents or [DEMO], **more})


def recipe(*steps: dict[str, Any], **more: Any) -> str:
    return yaml.safe_dump(
        {"name": "r", "description": "d", "version": "1.0.0", "steps": steps, **more}
    )


def step(**keys: Any) -> dict[str, Any]:
    return {"id": "s", "agent": "ada", "prompt": "Go.", **keys}


def bash(command: str, **keys: Any) -> dict[str, Any]:
    return {"id": "s", "type": "bash", "command": command, **keys}


def told(file: Path, config: Path | None = None, **how: Any) -> str:
    try:
        return "\n".join(check_file(str(file), str(config) if config else None, **how).lines)
    except UserError as exc:
        return str(exc)


# Refusals

BAD_TEAMS = {
    "no YAML": "agents: [",
    "no mapping": "- a\n- b\n",
    "a key twice": "agents: []\nagents: []\n",
    "no agents": team(agents=[]),
    "a table of rate limits": "openai: {gpt-5: {rpm: 5}}\n",
    "a wrong value and a slip": team(agent("demo", temperature="hot"), orchestrater={}),
    "two of one name": team(DEMO, DEMO),
    "a key that is not set": team(agent("openai", model="gpt-5")),
    "an empty variable as key": team(agent("vllm", model="m", api_key="${NOT_SET_HERE}")),
    "a variable in an address": team(agent("vllm", model="m", base_url="http://${NOT_SET_HERE}")),
    "azure without address": team(agent("azure_openai", model="m", api_key="k")),
    "no model": team(agent("ollama")),
    "a program": team(agent("antigravity_cli", model="opus")),
    "a program among others": team(DEMO, agent("uitars", "ben")),
    "a type that nobody knows": team(agent("opnai", model="m")),
    "a called agent without key": team(callable_agents=[agent("grok", "ben", model="m")]),
    "a path that is not there": team(orchestrator={"context_paths": ["gone", "gone too"]}),
    "a path that may be written": team(
        orchestrator={"context_paths": [{"path": "gone", "permission": "write"}]}
    ),
    "a bad time limit": team(timeout_settings={"orchestrator_timeout_seconds": 0}),
    "a bad pattern": team(agent("demo", command_line_blocked_commands=["("])),
    "a server without command": team(agent("demo", mcp_servers=[{"name": "s"}])),
    "an agent that nobody has": team(agent("demo", can_call=["ghost"])),
}

BAD_RECIPES = {
    "no YAML": "name: r\nsteps:\n- id: [\n",
    "steps that are no list": "name: r\nsteps: {a: b}\n",
    "no steps": "name: r\ndescription: d\nversion: 1.0.0\n",
    "a slip": recipe(step(promt="x")),
    "an id twice": recipe(step(), step()),
    "a condition that is none": recipe(step(condition="1 +")),
    "a template that is none": recipe(step(prompt="{{#if x}}")),
    "a recipe that is not there": recipe({"id": "s", "type": "recipe", "recipe": "gone.yaml"}),
    "a bundle that nobody knows": recipe({"id": "s", "type": "recipe", "recipe": "@x:gone.yaml"}),
    "a model that must be": recipe(
        step(provider_preferences=[{"provider": "antropic", "model": "m", "required": True}])
    ),
    "a model that must be, without its key": recipe(
        step(),
        step(
            id="t",
            provider_preferences=[{"provider": "openai", "model": "gpt-5", "required": True}],
        ),
    ),
    "a value that is missing": recipe(
        step(), context={"who": {"type": "string", "required": True}}
    ),
}


def refusing_keys() -> Iterator[tuple[str, str]]:
    """Give a team for each key of MassGen's that stops the start."""
    for section, table in SECTIONS.items():
        if section in {(), ("orchestrator",)} or section[-1:] == ("backend",):
            for key, restriction in table.refused.items():
                value = next(v for v in (True, False, "x") if restriction.restricts(v))
                inner: Any = {key: value}
                if section[-1:] == ("backend",):
                    inner = {"agents": [agent("demo", **inner)]}
                else:
                    inner = {"agents": [DEMO], **({section[0]: inner} if section else inner)}
                yield f"{'.'.join(section)}.{key}", yaml.safe_dump(inner)


BAD_TEAMS |= dict(refusing_keys())


@pytest.mark.parametrize("name", BAD_TEAMS)
def test_check_reports_the_errors_of_a_start_of_a_team(tmp_path: Path, name: str) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(BAD_TEAMS[name])
    options = RunOptions(session_root=tmp_path / "sessions")
    with pytest.raises(UserError) as refused:
        nb_agents.start("t", file, options=options)
    said = told(file)
    reasons = getattr(refused.value, "others", ()) or (refused.value,)
    assert all(str(reason) in said for reason in reasons)
    assert "Can start.\n" not in f"{said}\n"


@pytest.mark.parametrize("name", BAD_RECIPES)
def test_check_reports_the_errors_of_a_start_of_a_recipe(tmp_path: Path, name: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(BAD_RECIPES[name])
    options = RunOptions(session_root=tmp_path / "sessions")
    with pytest.raises(UserError) as refused:
        nb_agents.start(recipe=file, options=options)
    said = told(file)
    for line in str(refused.value).split("\n"):
        assert line in said


def test_check_of_a_recipe_reports_the_errors_of_its_team(
    tmp_path: Path,
) -> None:
    config, file = tmp_path / "team.yaml", tmp_path / "recipe.yaml"
    config.write_text(team(agent("openai", model="gpt-5")))
    file.write_text(recipe(step()))
    options = RunOptions(session_root=tmp_path / "sessions")
    with pytest.raises(UserError) as refused:
        nb_agents.start(recipe=file, config=config, options=options)
    said = told(file, config)
    assert str(refused.value) in said and said.endswith("It can't run.")


# What can start


GOOD_TEAMS = {
    "plain": team(),
    "of MassGen's": team(ui={"display_type": "rich"}, orchestrator={"snapshot_storage": "s"}),
    "with a path": team(orchestrator={"context_paths": ["."]}),
    "with limits": team(timeout_settings={"initial_round_timeout_seconds": 60}),
    "with tools that can't be had": team(
        agent(
            "demo",
            words_per_second=100_000,
            custom_tools=[{"path": "gone.py", "function": "f"}],
            mcp_servers=[{"name": "s", "command": "/no/such/program"}],
        )
    ),
}


@pytest.mark.parametrize("name", GOOD_TEAMS)
def test_teams_that_pass_the_check_can_start(tmp_path: Path, name: str) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(GOOD_TEAMS[name])
    assert told(file).endswith("\nCan start.")
    options = RunOptions(session_root=tmp_path / "sessions")
    assert finish(nb_agents.start("t", file, options=options)).status == "completed"


def test_start_skips_the_agents_that_the_check_names(tmp_path: Path) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(BAD_TEAMS["a program among others"])
    assert "Can start with --skip-unsupported, without ben (uitars)." in told(file)
    options = RunOptions(session_root=tmp_path / "sessions", skip_unsupported=True)
    run = finish(nb_agents.start("t", file, options=options))
    assert run.status == "completed" and [*run.view.agents] == ["ada"]


def test_recipes_that_pass_the_check_can_run(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe(bash("echo {{who}}", output="out"), context={"who": "you"}))
    assert told(file).endswith("\nIt can run.")
    options = RunOptions(session_root=tmp_path / "sessions")
    run = finish(nb_agents.start(recipe=file, options=options))
    assert run.status == "completed" and run.result["out"] == "you"


def test_check_names_the_agent_that_does_a_step(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    wish = {"provider": "anthropic", "model": "haiku"}
    file.write_text(recipe(step(**wish), step(id="t", provider="demo"), step(id="u")))
    said = told(file)
    options = RunOptions(session_root=tmp_path / "sessions")
    run = finish(nb_agents.start(recipe=file, options=options))
    workers = [view.worker for view in run.view.steps.values()]
    assert len(workers) == 3 and "anthropic:haiku is not available" in workers[0]
    assert [worker for worker in workers if f"({worker})" not in said] == []


def test_missing_required_model_is_only_a_notice_for_a_skippable_step(
    tmp_path: Path,
) -> None:
    file = tmp_path / "recipe.yaml"
    must = {"provider_preferences": [{"provider": "openai", "model": "gpt-5", "required": True}]}
    file.write_text(
        recipe(step(condition="1 == 2", **must), step(id="t", on_error="continue", **must))
    )
    said = told(file)
    assert said.count("requires openai:gpt-5, which is not available") == 2
    assert "Error " not in said and said.endswith("It can run.")
    options = RunOptions(session_root=tmp_path / "sessions")
    assert finish(nb_agents.start(recipe=file, options=options)).status == "completed"


# Tools

TOOLS = {
    "enable_mcp_command_line": True,
    "command_line_execution_mode": "docker",
    "custom_tools": [
        {"path": "gone.py", "function": "f"},
        {"path": "broken.py", "function": "f"},
        {"path": "whole.py", "function": ["f", "missing"]},
    ],
    "mcp_servers": [
        {"name": "real", "command": sys.executable, "args": [str(SERVER), os.devnull]},
        {"name": "gone", "command": "/no/such/program"},
        {"name": "token", "command": "x", "env": {"TOKEN": "${NOT_SET_HERE}"}},
        {"name": "barred", "command": "docker", "security": {"level": "strict"}},
    ],
}


@pytest.fixture
def with_tools(tmp_path: Path) -> Path:
    (tmp_path / "broken.py").write_text("import no_such_module_here\n")
    (tmp_path / "whole.py").write_text("def f(n: int) -> int:\n    return n\n")
    file = tmp_path / "team.yaml"
    file.write_text(team(agent("demo", words_per_second=100_000, **TOOLS)))
    return file


def test_check_with_connections_lists_the_tools_of_a_run(tmp_path: Path, with_tools: Path) -> None:
    options = RunOptions(session_root=tmp_path / "sessions")
    run = finish(nb_agents.start("t", with_tools, options=options))
    said = told(with_tools, connects=True).split("\n")
    about = [n for n in run.view.notices if "Demo" not in n]
    assert len(about) >= 7
    for name in ("docker", "gone.py", "broken.py", "'missing'", "'gone'", "NOT_SET_HERE", "barred"):
        assert any(name in notice for notice in about), name
    assert [notice for notice in about if notice not in said] == []
    assert not any("'real'" in line for line in said)
    assert said[-1] == "Can start."


def test_check_without_connections_runs_nothing(tmp_path: Path, with_tools: Path) -> None:
    (tmp_path / "whole.py").write_text("raise AssertionError('it was run')\n")
    said = told(with_tools)
    for name in ("docker", "there is no Python file", "NOT_SET_HERE is not set", "barred"):
        assert name in said
    assert "it was run" not in said and "did not start" not in said
    assert f"the custom tools of '{tmp_path / 'whole.py'}', MCP server 'real'" in said
    untried = next(
        line for line in said.split("\n") if line.startswith("Not tested (use --connect")
    )
    assert "gone.py" not in untried and "'token'" not in untried
    assert "MCP server 'token' of ada can't be started: " in said


# Names in recipes


def test_unknown_provider_and_agent_are_reported_with_the_nearest_name(
    tmp_path: Path,
) -> None:
    config, file = tmp_path / "team.yaml", tmp_path / "recipe.yaml"
    config.write_text(team(agent("demo", "critic")))
    file.write_text(recipe(step(agent="critik", provider="antropic", model="m")))
    said = told(file, config)
    assert (
        "Step 's' uses the agent 'critik', which the team does not have: critic is used instead. "
        "Did you mean 'critic'?" in said
    )
    assert (
        "Step 's' uses the provider 'antropic', which is unknown. Did you mean 'anthropic'?" in said
    )
    assert f"Note {file}:" in said and said.endswith("It can run.")


def test_known_names_and_pattern_matches_are_not_reported(tmp_path: Path) -> None:
    config, file = tmp_path / "team.yaml", tmp_path / "recipe.yaml"
    config.write_text(team(agent("demo", "critic"), recipe_agents={"foundation:*": "critic"}))
    steps = [step(provider="anthropic", model="m"), step(id="t", agent="x:critic")]
    file.write_text(recipe(*({**each, "agent": "foundation:zen"} for each in steps[:1]), steps[1]))
    assert "names the" not in told(file, config)


# Bundles


def test_check_finds_bundles_like_a_run(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "part.yaml").write_text(recipe(bash("echo part")))
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe({"id": "s", "type": "recipe", "recipe": "@lib:part.yaml"}))
    assert "Unknown bundle 'lib'." in told(file)
    assert told(file, bundles=[f"lib={tmp_path / 'shared'}"]).endswith("It can run.")
    (tmp_path / "team.yaml").write_text(team())
    assert "can only be used with a recipe" in told(tmp_path / "team.yaml", bundles=["a=b"])


def test_report_lists_the_findings_of_a_recipe_and_of_its_team(tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text(team(agent("uitars")))
    (tmp_path / "r.yaml").write_text(recipe(bash("echo {{who}}")))
    found = check_file(str(tmp_path / "r.yaml"), str(tmp_path / "team.yaml")).findings
    assert [(each.severity, Path(each.file or "").name) for each in found] == [
        ("warning", "r.yaml"),
        ("warning", "team.yaml"),
    ]
    assert "{{who}}, which nothing sets before it." in str(found[0])
    assert "backend type 'uitars', which is not supported" in str(found[1])
