"""Whether an agent gets command tools, depending on its configuration and the machine."""

from typing import Any

import pytest

from tests.kit.teams import CommandLine, command_line
from tests.kit.tools import ToolKeys


def line(is_confined: bool = True, *, protects: bool = False, **keys: Any) -> CommandLine:
    given = ToolKeys.model_validate({"enable_mcp_command_line": True, **keys})
    return command_line(given, is_confined=is_confined, has_protected_paths=protects)


def denying(*rules: str) -> dict[str, Any]:
    return {"permissions": {"rules": {"deny": [*rules]}}}


@pytest.mark.parametrize("confined", [True, False])
def test_commands_are_available_when_enabled(confined: bool) -> None:
    assert line(confined)[:2] == (True, True)
    assert not line(confined).notices
    assert command_line(ToolKeys(), is_confined=confined) == CommandLine()


@pytest.mark.parametrize(
    "keys, told",
    [
        ({"command_line_execution_mode": "docker"}, "Command line mode 'docker' is not supported"),
        ({"command_line_docker_memory_limit": "2g"}, "`command_line_docker_memory_limit`"),
        ({"command_line_docker_network_mode": "none"}, "`command_line_docker_network_mode`"),
        ({"command_line_srt_deny_read": ["/x"]}, "`command_line_srt_deny_read`"),
        ({"command_line_srt_network_allowed_domains": []}, "allowed_domains`"),
        ({"command_line_blocked_commands": [".*push"]}, "The pattern '.*push' does not begin with"),
        ({"command_line_blocked_commands": ["ba"]}, "blocks bash, which runs commands"),
        (denying("write_file(secrets/**)"), "denies write_file(secrets/**)"),
        (denying("write_file(/**)"), "denies write_file(/**)"),
        (denying("read_file(/home/**)"), "denies read_file(/home/**)"),
    ],
)
def test_unenforceable_command_restriction_withholds_commands(
    keys: dict[str, Any], told: str
) -> None:
    found = line(**keys)
    assert found[:2] == (False, False)
    assert any(told in notice and "can't run commands" in notice for notice in found.notices)


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
def test_sandbox_only_restriction_withholds_commands_without_a_sandbox(
    keys: dict[str, Any], protects: bool
) -> None:
    assert line(True, protects=protects, **keys).has_shell
    found = line(False, protects=protects, **keys)
    assert found[:2] == (False, False)
    assert all("can't be enforced without a sandbox" in notice for notice in found.notices)


@pytest.mark.parametrize(
    "keys",
    [
        {"command_line_allowed_commands": ["ls"]},
        {"command_line_blocked_commands": ["git push"]},
        denying("command(git push*)"),
    ],
)
def test_command_list_withholds_run_python(keys: dict[str, Any]) -> None:
    found = line(**keys)
    assert found[:2] == (True, False)
    assert "run_python is not available" in found.notices[0]


def test_an_allowed_list_needs_no_sandbox() -> None:
    assert line(False, command_line_allowed_commands=["ls"])[:2] == (True, False)


@pytest.mark.parametrize(
    "permissions",
    [{"role": "read-only"}, {"role": " Researcher "}, {"rules": {"deny": "command"}}],
)
def test_denied_commands_leave_no_command_tools(permissions: dict[str, Any]) -> None:
    assert line(permissions=permissions) == CommandLine()


@pytest.mark.parametrize("permissions", [False, None, {"enabled": False, "role": "read-only"}])
def test_disabled_permissions_do_not_withhold_commands(permissions: object) -> None:
    assert line(permissions=permissions)[:2] == (True, True)
