"""Restrictions in team files: their effect on runs, and the findings of checks and starts."""

import json
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import ConfigError
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from tests.kit.runs import Run
from tests.kit.sessions import turns_of
from tests.kit.teams import check_file
from tests.kit.tools import confinement
from tests.model_server import wait_until
from tests.team_kit import WAIT_S, events, finish
from tests.tools.sandboxes import needs_sandbox

COMMANDS = {"enable_mcp_command_line": True}
# As MassGen's debug/code_execution/command_filtering_blacklist.yaml has them.
NO_PYTHON = ["python.*", "python3.*", "pytest.*", "pip.*"]


def call(tool: str, **args: Any) -> Turn:
    return Turn(calls=(Call(tool, args),))


def command(line: str) -> Turn:
    return call("run_command", command=line)


def team(model: ScriptedModel, **keys: Any) -> TeamSpec:
    agent = {"id": "a", "backend": {"type": "python", "instance": model, **keys}}
    return TeamSpec.model_validate({"agents": [agent]})


def begin(root: Path, *turns: Turn, **keys: Any) -> Run:
    spec = team(ScriptedModel(*turns, Answer("done")), **keys)
    return nb_agents.start("the task", spec, options=RunOptions(session_root=root))


def results(root: Path, *turns: Turn, **keys: Any) -> list[str]:
    run = finish(begin(root, *turns, **keys))
    return [each.result for each in events(run, ev.ToolFinished)]


@needs_sandbox
def test_blocked_commands_do_not_run_in_any_spelling(tmp_path: Path) -> None:
    lines = ["python3 -c 'print(6*7)'", "$(echo python3) -c 'print(6*7)'", "echo fine"]
    *tries, fine, python = results(
        tmp_path,
        *map(command, lines),
        call("run_python", code="6*7"),
        **COMMANDS,
        command_line_blocked_commands=NO_PYTHON,
    )
    assert "blocked by the rule 'python.*'" in tries[0]
    assert not any("42" in each for each in (*tries, python))
    assert fine.startswith("fine") and python.startswith("Error: no tool 'run_python'")


def test_only_allowed_commands_run_even_without_a_sandbox(tmp_path: Path) -> None:
    lines = ["echo fine", "ls", "echo $(ls)", "echo fine; ls"]
    keys = {**COMMANDS, "sandbox": False, "command_line_allowed_commands": ["echo.*"]}
    fine, *refused = results(tmp_path, *map(command, lines), **keys)
    assert fine.startswith("fine")
    assert all(each.startswith("Error: ") for each in refused)


def test_blocking_rules_without_a_sandbox_remove_the_command_line(tmp_path: Path) -> None:
    keys = {**COMMANDS, "sandbox": False, "command_line_blocked_commands": NO_PYTHON}
    run = finish(begin(tmp_path, command("python3 -V"), **keys))
    [tried] = events(run, ev.ToolFinished)
    assert tried.result.startswith("Error: no tool 'run_command'")
    assert any("Rules that block commands can't be enforced" in n for n in run.view.notices)


def test_permissions_can_allow_ask_or_deny(tmp_path: Path) -> None:
    rules = {"deny": ["command(rm *)"], "allow": ["command(echo *)"]}
    lines = ["echo fine", "true; rm x", "touch made"]
    run = begin(
        tmp_path,
        *map(command, lines),
        call("write_file", path="a.txt", content="x"),
        **{**COMMANDS, "permissions": {"rules": rules}},
    )
    if not confinement().is_confined:
        finish(run)
        assert any("can't run commands" in notice for notice in run.view.notices)
        return
    wait_until(lambda: bool(run.view.gates) or run.is_over, WAIT_S, "a question", lambda: run.view)
    [gate] = run.view.gates
    assert run.view.gates[gate].prompt == "a wants to call run_command: touch made"
    run.approve()
    finish(run)
    fine, denied, asked, written = [e.result for e in events(run, ev.ToolFinished)]
    assert fine.startswith("fine") and "exit code 0" in asked and written.startswith("Wrote")
    assert denied.startswith("Error: this call to ") and "denied by the team file" in denied


def test_approval_shows_the_whole_command(tmp_path: Path) -> None:
    line = f"echo {'x' * 300}; touch made"
    run = begin(tmp_path, command(line), **COMMANDS, tool_policy=[{"match": "*", "action": "ask"}])
    wait_until(lambda: bool(run.view.gates) or run.is_over, WAIT_S, "a question", lambda: run.view)
    [gate] = run.view.gates.values()
    assert line in gate.prompt
    run.deny()
    finish(run)


def test_stricter_of_two_rules_applies(tmp_path: Path) -> None:
    policy = [{"match": "write_file", "action": "allow"}, {"match": "*", "action": "deny"}]
    read_only = {"permissions": {"role": "read-only"}, "tool_policy": policy}
    write, read = results(
        tmp_path,
        call("write_file", path="a", content="x"),
        call("read_file", path="a"),
        **read_only,
    )
    assert "this call to write_file is denied" in write and "file denies read_file" in read


def test_tools_excluded_by_the_file_are_missing(tmp_path: Path) -> None:
    turns = [
        call("list_files"),
        call("write_file", path="a.txt", content="x"),
        call("data_get", key="k"),
    ]
    keys = {"exclude_file_operation_mcps": True, "data_store": True}
    listed, written, got = results(tmp_path / "1", *turns, **keys)
    assert listed.startswith("Error: no tool") and written.startswith("Wrote")
    assert not got.startswith("Error: no tool")
    listed, written, got = results(
        tmp_path / "2", *turns, data_store=True, allowed_tools=["list_directory"]
    )
    assert not listed.startswith("Error")
    assert written.startswith("Error: no tool") and got.startswith("Error: no tool")


def test_rejected_start_leaves_no_files(tmp_path: Path) -> None:
    spec = team(ScriptedModel(), forbidden_hosts=["*"])
    with pytest.raises(ConfigError, match="can't be enforced here"):
        nb_agents.start("the task", spec, options=RunOptions(session_root=tmp_path))
    assert not [turn for session in tmp_path.glob("session_*") for turn in turns_of(session)]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"cwd": "w", "colour": "red"},
        {**COMMANDS},
        {**COMMANDS, "sandbox": False},
        {**COMMANDS, "command_line_execution_mode": "docker"},
        {**COMMANDS, "command_line_docker_memory_limit": "2g"},
        {**COMMANDS, "command_line_blocked_commands": NO_PYTHON},
        {**COMMANDS, "command_line_blocked_commands": NO_PYTHON, "sandbox": False},
        {**COMMANDS, "command_line_allowed_commands": ["ls"]},
        {**COMMANDS, "permissions": {"rules": {"deny": ["write_file(x/*)"]}}},
        {"mcp_servers": [{"name": "s", "command": "docker", "security": {"level": "strict"}}]},
        {"mcp_servers": [{"name": "s", "command": "docker", "disabled": True}]},
    ],
)
def test_check_and_start_report_the_same_about_tools(tmp_path: Path, keys: dict[str, Any]) -> None:
    spec = team(ScriptedModel(Answer("done")), **keys)
    run = finish(nb_agents.start("the task", spec, options=RunOptions(session_root=tmp_path)))
    file = tmp_path / "team.json"
    agent = {"id": "a", "backend": {"type": "demo", **keys}}
    file.write_text(json.dumps({"agents": [agent]}))
    [_, _, *lines, verdict] = check_file(str(file)).lines
    assert (tuple(lines), verdict) == (run.view.notices, "Can start.")
