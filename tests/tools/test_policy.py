"""What a person is told who decides on a call."""

from pathlib import Path
from typing import Any

import pytest

from nb_agents.config.tools import ToolKeys
from nb_agents.tools.base import Tool, ToolDefinition
from nb_agents.tools.policy import MAX_ASKED_CHARS, ApprovalDecision, Policy


async def asked_about(tmp_path: Path, name: str, args: dict[str, Any]) -> str:
    """Make a call that a person has to allow: what the person is told of it."""
    told = []

    async def ask(tool: str, about: str, stops: bool) -> ApprovalDecision:
        told.append(about)
        return ApprovalDecision(True)

    async def call(given: dict[str, Any]) -> str:
        return "done"

    keys = ToolKeys.model_validate({"tool_policy": [{"match": "*", "action": "ask"}]})
    definition = ToolDefinition(name, None, {"type": "object"})
    guarded = Policy(keys, tmp_path, ask).guarded(Tool.from_definition(definition, call))
    assert await guarded.call(args) == "done"
    return told[0]


@pytest.mark.parametrize(
    "name, args, told",
    [
        ("run_command", {"command": "rm -r x"}, "rm -r x"),
        ("pay", {"to": "ben"}, "ben"),
        ("pay", {"to": "ben", "sum": 900}, 'ben {"sum": 900}'),
        ("write_file", {"content": "hé", "path": "a.md"}, 'a.md {"content": "hé"}'),
        ("log_in", {"user": "ada", "password": "pw"}, 'ada {"password": "[key]"}'),
        ("run_command", {"command": "echo \u202elive"}, r"echo \u202elive"),
        ("pay", {}, ""),
    ],
)
async def test_a_person_is_asked_with_all_that_a_call_is_about(
    tmp_path: Path, name: str, args: dict[str, Any], told: str
) -> None:
    assert await asked_about(tmp_path, name, args) == told


async def test_what_a_person_is_asked_with_is_bounded_and_says_so(tmp_path: Path) -> None:
    told = await asked_about(tmp_path, "pay", {"to": "ben", "note": "x" * 10_000})
    assert told.endswith(" characters more]") and len(told) < MAX_ASKED_CHARS + 100
