"""Tool calls under MassGen's ``permissions``."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.kit.tools import PermissionSpec, judge

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
        # Each command of a line counts, and an unparsable line needs approval.
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
def test_each_command_of_a_line_is_checked(workspace: Path, command: str, expected: str) -> None:
    assert verdict(workspace, "run_command", command=command) == expected


def test_unparsable_line_is_allowed_only_by_a_star(workspace: Path) -> None:
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
def test_file_is_denied_by_any_of_its_names(workspace: Path, path: str) -> None:
    (workspace / "secrets").mkdir()
    os.symlink("secrets", workspace / "link")
    path = path.replace("{workspace}", str(workspace))
    assert verdict(workspace, "write_file", SECRET, path=path) == "deny"
    assert verdict(workspace, "edit_file", SECRET, path=path) == "deny"
    assert verdict(workspace, "delete_file", SECRET, path=path) == "deny"
    assert verdict(workspace, "read_file", SECRET, path=path) == "deny"


def test_workspace_files_need_approval_only_to_be_deleted(
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
        # The arguments of a model may be invalid.
        ("mcp__web__fetch", {"url": 3}, "ask"),
        ("write_file", {}, "allow"),
        ("write_file", {"path": "a\0b"}, "allow"),
        ("run_command", {"command": ["x"]}, "allow"),
    ],
)
def test_other_tools_need_approval_unless_a_rule_matches(
    workspace: Path, tool: str, args: dict[str, Any], expected: str
) -> None:
    assert verdict(workspace, tool, **args) == expected


def test_server_rule_matches_all_its_tools(workspace: Path) -> None:
    rules = {"deny": ["mcp(web/*)", "mcp(mcp__shop__buy)", "mcp(area)"]}
    for tool in ("mcp__web__fetch", "mcp__shop__buy", "custom_tool__area"):
        assert verdict(workspace, tool, rules) == "deny"
