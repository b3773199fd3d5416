"""Whether an agent gets a shell and a Python, by its configuration and the machine."""

from typing import Any

import pytest

from nb_agents.config.report import CommandLine, command_line
from nb_agents.config.tools import ToolKeys


def line(is_confined: bool = True, *, protects: bool = False, **keys: Any) -> CommandLine:
    given = ToolKeys.model_validate({"enable_mcp_command_line": True, **keys})
    return command_line(given, is_confined=is_confined, has_protected_paths=protects)


def denying(*rules: str) -> dict[str, Any]:
    return {"permissions": {"rules": {"deny": [*rules]}}}


@pytest.mark.parametrize("confined", [True, False])
def test_commands_run_when_the_file_says_so(confined: bool) -> None:
    assert line(confined)[:2] == (True, True)
    assert not line(confined).notices
    assert command_line(ToolKeys(), is_confined=confined) == CommandLine()


@pytest.mark.parametrize(
    "keys, told",
    [
        ({"command_line_execution_mode": "docker"}, "Commands can't run in 'docker' here"),
        ({"command_line_docker_memory_limit": "2g"}, "`command_line_docker_memory_limit`"),
        ({"command_line_docker_network_mode": "none"}, "`command_line_docker_network_mode`"),
        ({"command_line_srt_deny_read": ["/x"]}, "`command_line_srt_deny_read`"),
        ({"command_line_srt_network_allowed_domains": []}, "allowed_domains`"),
        ({"command_line_blocked_commands": [".*push"]}, "The pattern '.*push' begins with"),
        ({"command_line_blocked_commands": ["ba"]}, "blocks bash, which runs them all"),
        (denying("write_file(secrets/**)"), "deny write_file(secrets/**)"),
        (denying("write_file(/**)"), "deny write_file(/**)"),
        (denying("read_file(/home/**)"), "deny read_file(/home/**)"),
    ],
)
def test_what_restricts_commands_and_can_not_be_kept_withholds_them(
    keys: dict[str, Any], told: str
) -> None:
    found = line(**keys)
    assert found[:2] == (False, False)
    assert any(told in notice and "no command line" in notice for notice in found.notices)


@pytest.mark.parametrize(
    "keys, protects",
    [
        ({"command_line_blocked_commands": ["git push"]}, False),
        (denying("command(git push*)"), False),
        (denying("write_file(/etc/**)"), False),
        (denying("read_url(*)"), False),
        ({}, True),
    ],
)
def test_what_only_a_sandbox_can_keep_withholds_commands_without_one(
    keys: dict[str, Any], protects: bool
) -> None:
    assert line(True, protects=protects, **keys).has_shell
    found = line(False, protects=protects, **keys)
    assert found[:2] == (False, False)
    assert all("can't be kept without a sandbox" in notice for notice in found.notices)


@pytest.mark.parametrize(
    "keys",
    [
        {"command_line_allowed_commands": ["ls"]},
        {"command_line_blocked_commands": ["git push"]},
        denying("command(git push*)"),
    ],
)
def test_a_list_of_commands_leaves_no_python_that_could_run_others(keys: dict[str, Any]) -> None:
    found = line(**keys)
    assert found[:2] == (True, False)
    assert "run_python is left out" in found.notices[0]


def test_an_allowed_list_needs_no_sandbox() -> None:
    assert line(False, command_line_allowed_commands=["ls"])[:2] == (True, False)


@pytest.mark.parametrize(
    "permissions",
    [{"role": "read-only"}, {"role": " Researcher "}, {"rules": {"deny": "command"}}],
)
def test_whoever_may_run_nothing_has_nothing_to_run_it_with(permissions: dict[str, Any]) -> None:
    assert line(permissions=permissions) == CommandLine()


@pytest.mark.parametrize("permissions", [False, None, {"enabled": False, "role": "read-only"}])
def test_permissions_that_are_switched_off_hold_nothing_back(permissions: object) -> None:
    assert line(permissions=permissions)[:2] == (True, True)
