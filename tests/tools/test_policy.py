"""The text that a user sees when a call needs approval."""

from pathlib import Path
from typing import Any

import pytest

from nb_agents.tools.policy import MAX_SHOWN_CHARS, ApprovalDecision, Policy
from tests.kit.tools import Tool, ToolDefinition, ToolKeys


async def asked_about(tmp_path: Path, name: str, args: dict[str, Any]) -> str:
    """Make a call that needs approval. Return the text that the user sees."""
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
        ("run_command", {"command": "rm -r x"}, "run_command: rm -r x"),
        ("pay", {"to": "ben"}, "pay(to='ben')"),
        ("pay", {"to": "ben", "sum": 900}, "pay(to='ben', sum=900)"),
        (
            "custom_tool__pay",
            {"to": ["O'Neill"], "of": 'a "b"'},
            """pay(to=["O'Neill"], of='a "b"')""",
        ),
        ("write_file", {"content": "hé", "path": "a.md"}, "write_file(content='hé', path='a.md')"),
        ("log_in", {"user": "ada", "password": "pw"}, "log_in(user='ada', password='[key]')"),
        ("run_command", {"command": "echo \u202elive"}, r"run_command: echo \u202elive"),
        ("pay", {}, "pay()"),
    ],
)
async def test_approval_request_contains_all_arguments(
    tmp_path: Path, name: str, args: dict[str, Any], told: str
) -> None:
    assert await asked_about(tmp_path, name, args) == told


async def test_long_approval_request_is_cut_with_a_note(tmp_path: Path) -> None:
    told = await asked_about(tmp_path, "pay", {"to": "ben", "note": "x" * 10_000})
    assert told.endswith(" more characters]") and len(told) < MAX_SHOWN_CHARS + 100
