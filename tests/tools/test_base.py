"""Tools: what a model gets wrong it is told; a stop passes through; nothing else comes out."""

import json
import logging
import os
from typing import Any

import pytest
from anyio import create_task_group, to_thread
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.cancel import AgentStopped, CancellationStatus, CancelToken, bind, checkpoint
from nb_agents.tools.base import (
    MAX_RESULT_CHARS,
    Tool,
    Toolbox,
    ToolError,
    ToolResult,
    summarize,
)

CALLS: list[tuple[str, int]] = []


async def repeat(text: str, times: int = 1) -> str:
    """Repeat a text.

    Args:
        text: What to repeat.
        times: How often.
    """
    CALLS.append((text, times))
    return text * times


async def broken(kind: str) -> str:
    """Fail.

    Args:
        kind: How.
    """
    match kind:
        case "told":
            raise ToolError("there is no such thing")
        case "in a task group":
            async with create_task_group() as group:
                group.start_soon(to_thread.run_sync, os.open, "/", os.O_RDWR)
        case "disk":
            raise OSError(28, "No space left on device", "/secret/place")
        case "stop":
            checkpoint()
        case _:
            raise ZeroDivisionError("division by zero")
    return "not reached"


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


def toolbox() -> Toolbox:
    return Toolbox([Tool(repeat), Tool(broken)])


def test_the_schema_is_read_from_signature_and_docstring() -> None:
    definition = toolbox().definitions[0]
    assert (definition.name, definition.description) == ("repeat", "Repeat a text.")
    schema = definition.parameters_json_schema
    assert schema["required"] == ["text"]
    assert schema["properties"]["times"]["description"] == "How often."


@pytest.mark.parametrize("args", ['{"text": "ab", "times": 2}', {"text": "ab", "times": 2}])
async def test_arguments_come_as_json_or_as_a_mapping(args: str | dict[str, object]) -> None:
    result = await toolbox().call("repeat", args)
    assert (result, result.is_error) == ("abab", False)


@pytest.mark.parametrize(
    "args, told",
    [
        (None, "text: Field required"),
        ("", "text: Field required"),
        ("{}", "text: Field required"),
        ('{"text": 3}', "text: "),
        ('{"text": "a", "times": "many"}', "times: "),
        ('{"text": "a", "colour": "red"}', "colour: "),
        ('{"text": "a"', "Invalid JSON"),
        ('["a"]', "arguments: "),
        ("[" * 100_000, "Invalid JSON"),
        ('{"text": "\\ud800"}', "Invalid JSON"),
        ({"text": None}, "text: "),
    ],
)
async def test_arguments_that_do_not_fit_are_told_to_the_model(args: object, told: str) -> None:
    result = await toolbox().call("repeat", args)  # type: ignore[arg-type]
    assert result.is_error
    assert result.startswith("Error: repeat was called with wrong arguments: ")
    assert told in result
    assert CALLS == []


async def test_an_unknown_tool_is_told_with_those_there_are() -> None:
    result = await toolbox().call("reapeat", None)
    assert result.is_error
    assert result == "Error: no tool 'reapeat'. You have: repeat, broken."
    assert await Toolbox().call("x", None) == "Error: no tool 'x'. You have: none."


async def test_a_tools_own_complaint_goes_to_the_model() -> None:
    result = await toolbox().call("broken", {"kind": "told"})
    assert (result, result.is_error) == ("Error: there is no such thing", True)


async def test_a_tool_that_breaks_costs_a_call_and_not_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "nb_agents"):
        result = await toolbox().call("broken", {"kind": "else"})
    assert (result, result.is_error) == ("Error: ZeroDivisionError: division by zero", True)
    assert "broken" in caplog.text


async def test_what_fails_in_a_task_group_of_a_tool_is_told_by_itself() -> None:
    result = await toolbox().call("broken", {"kind": "in a task group"})
    assert result == "Error: IsADirectoryError: Is a directory"


async def test_a_disk_error_is_told_without_the_machines_paths() -> None:
    result = await toolbox().call("broken", {"kind": "disk"})
    assert result == "Error: OSError: No space left on device"


async def test_a_stop_is_felt_before_the_tool_begins() -> None:
    token = CancelToken()
    token.request(CancellationStatus.REQUESTED, "api")
    with bind(token), pytest.raises(AgentStopped):
        await toolbox().call("repeat", {"text": "a"})
    assert CALLS == []


async def test_a_stop_inside_a_tool_passes_through() -> None:
    class Late(CancelToken):
        """Stopped between the check at entry and the tool's own."""

        checks = 0

        def checkpoint(self) -> None:
            self.checks += 1
            if self.checks == 2:
                self.request(CancellationStatus.IMMEDIATE, "api")
            super().checkpoint()

    with bind(Late()), pytest.raises(AgentStopped):
        await toolbox().call("broken", {"kind": "stop"})


async def test_a_long_result_is_cut_and_the_model_is_told() -> None:
    result = await toolbox().call("repeat", {"text": "a" * 1000, "times": 1000})
    assert len(result) < MAX_RESULT_CHARS + 100
    assert result.endswith("[cut: 1000000 characters in all]")
    assert not result.is_error


def test_a_result_of_just_the_limit_is_whole() -> None:
    assert ToolResult("a" * MAX_RESULT_CHARS) == "a" * MAX_RESULT_CHARS


@pytest.mark.parametrize(
    "args, summary",
    [
        ('{"content": "x", "path": "notes.md"}', "notes.md"),
        ({"query": "cats", "limit": 3}, "cats"),
        ({"path": "a" * 100}, "a" * 80),
        ({}, ""),
        (None, ""),
        ("", ""),
        ("[1]", ""),
        ('{"path"', ""),
        ("[" * 100_000, ""),
    ],
)
def test_a_call_is_summed_up_in_a_few_words(args: object, summary: str) -> None:
    assert summarize("tool", args) == summary  # type: ignore[arg-type]


@given(st.text() | st.dictionaries(st.text(), st.text() | st.integers()).map(json.dumps))
async def test_no_arguments_whatever_break_a_call(args: str) -> None:
    assert isinstance(await toolbox().call("repeat", args), ToolResult)
    assert isinstance(summarize("repeat", args), str)


async def test_a_tool_can_be_made_of_a_definition_and_a_call() -> None:
    from nb_agents.tools.base import ToolDefinition

    async def call(arguments: dict[str, Any]) -> str:
        if not arguments:
            raise ToolError("nothing to say")
        return json.dumps(arguments)

    definition = ToolDefinition("echo", None, {"type": "object"})
    tool = Tool.from_definition(definition, call)
    assert (tool.name, tool.definition) == ("echo", definition)
    assert await tool.call('{"a": [1]}') == await tool.call({"a": [1]}) == '{"a": [1]}'
    for args in (None, "[1]", "{", "1"):
        result = await tool.call(args)
        assert result.is_error and result.startswith("Error: ")
