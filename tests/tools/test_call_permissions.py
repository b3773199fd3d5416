"""Calls of tools under MassGen's ``permissions``."""

import os
from pathlib import Path
from typing import Any

import pytest

from nb_agents.config.permissions import PermissionSpec
from nb_agents.tools.policy import judge

SAMPLE = {
    "deny": ["command(git push --force*)", "write_file(/etc/**)"],
    "ask": ["read_url(*)", "command(npm publish*)"],
    "allow": ["command(git status)", "command(git diff*)", "write_file(./**)", "mcp(linear/*)"],
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "w"
    folder.mkdir()
    return folder


def verdict(workspace: Path, tool: str, rules: dict[str, Any] | None = None, **args: Any) -> str:
    spec = PermissionSpec.model_validate({"rules": SAMPLE if rules is None else rules})
    return judge(spec, tool, args, workspace)


@pytest.mark.parametrize(
    "command, expected",
    [
        ("git status", "allow"),
        ("git diff HEAD", "allow"),
        ("git push --force origin main", "deny"),
        ("npm publish", "ask"),
        ("make", "ask"),
        ("ls -l | head", "allow"),
        ("ls > out.txt", "ask"),
        # All of a line counts, and what can't be read is asked about.
        ("git status; make", "ask"),
        ("git status && git push --force", "deny"),
        ("cd x\ngit push --force", "deny"),
        ("env git push --force", "deny"),
        ("/usr/bin/git push --force", "deny"),
        ("git status $(make)", "ask"),
        ("git diff `make`", "ask"),
        ("g''it push --force", "deny"),
        ("", "allow"),
    ],
)
def test_a_line_of_commands_is_judged_by_each_of_them(
    workspace: Path, command: str, expected: str
) -> None:
    assert verdict(workspace, "run_command", command=command) == expected


def test_a_line_that_can_not_be_read_is_allowed_by_a_star_alone(workspace: Path) -> None:
    command = "make $(x)"
    assert (
        verdict(workspace, "run_command", {"allow": ["command(make*)"]}, command=command) == "ask"
    )
    assert verdict(workspace, "run_command", {"allow": ["command(*)"]}, command=command) == "allow"
    assert verdict(workspace, "run_python", {"allow": ["command(py*)"]}, code="1") == "ask"
    assert verdict(workspace, "run_python", {"allow": ["command(*)"]}, code="1") == "allow"


SECRET = {"deny": ["write_file(./secrets/**)", "read_file(secrets/*)"]}


@pytest.mark.parametrize(
    "path",
    ["secrets/a", "./secrets/a", "x/../secrets/a", "secrets//a", "link/a", "{workspace}/secrets/a"],
)
def test_a_file_is_denied_by_any_of_its_names(workspace: Path, path: str) -> None:
    (workspace / "secrets").mkdir()
    os.symlink("secrets", workspace / "link")
    path = path.replace("{workspace}", str(workspace))
    assert verdict(workspace, "write_file", SECRET, path=path) == "deny"
    assert verdict(workspace, "edit_file", SECRET, path=path) == "deny"
    assert verdict(workspace, "delete_file", SECRET, path=path) == "deny"
    assert verdict(workspace, "read_file", SECRET, path=path) == "deny"


def test_files_of_the_workspace_are_read_and_written_unasked_and_deleted_asked(
    workspace: Path,
) -> None:
    verdicts = {
        name: verdict(workspace, name, {}, path="a")
        for name in ("list_files", "read_file", "write_file", "edit_file", "delete_file")
    }
    assert set(verdicts.values()) == {"allow", "ask"} and verdicts.pop("delete_file") == "ask"
    assert set(verdicts.values()) == {"allow"}


@pytest.mark.parametrize(
    "tool, args, expected",
    [
        ("mcp__linear__create_issue", {}, "allow"),
        ("mcp__other__create_issue", {}, "ask"),
        ("mcp__web__fetch", {"url": "https://x"}, "ask"),
        ("mcp__filesystem__write_file", {"path": "/etc/passwd"}, "deny"),
        ("custom_tool__run_shell", {"command": "git push --force"}, "deny"),
        ("data_set", {"key": "k"}, "ask"),
        ("call_agent", {}, "ask"),
        # What a model gives need not be what the tool wants.
        ("mcp__web__fetch", {"url": 3}, "ask"),
        ("write_file", {}, "allow"),
        ("write_file", {"path": "a\0b"}, "allow"),
        ("run_command", {"command": ["x"]}, "allow"),
    ],
)
def test_other_tools_are_asked_about_unless_a_rule_fits(
    workspace: Path, tool: str, args: dict[str, Any], expected: str
) -> None:
    assert verdict(workspace, tool, **args) == expected


def test_a_rule_for_a_server_fits_its_tools_whatever_they_are_called(workspace: Path) -> None:
    rules = {"deny": ["mcp(web/*)", "mcp(mcp__shop__buy)", "mcp(area)"]}
    for tool in ("mcp__web__fetch", "mcp__shop__buy", "custom_tool__area"):
        assert verdict(workspace, tool, rules) == "deny"
