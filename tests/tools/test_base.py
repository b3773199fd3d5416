"""Tools: errors are reported to the model, and only a stop is raised."""

import json
import logging
import os
import types
from typing import Any

import pytest
from anyio import CancelScope, create_task_group, sleep_forever, to_thread
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.tools.base import (
    MAX_RESULT_CHARS,
    EndOfAgent,
    Tool,
    Toolbox,
    ToolError,
    ToolResult,
    summarize,
)
from tests.kit.runs import (
    AgentStopped,
    CancellationStatus,
    CancelToken,
    StopRequest,
    bind,
    checkpoint,
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


def test_schema_comes_from_signature_and_docstring() -> None:
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
async def test_invalid_arguments_are_reported_to_the_model(args: object, told: str) -> None:
    result = await toolbox().call("repeat", args)  # type: ignore[arg-type]
    assert result.is_error
    assert result.startswith("Error: invalid arguments for repeat: ")
    assert told in result
    assert CALLS == []


async def test_unknown_tool_error_lists_the_tools() -> None:
    result = await toolbox().call("reapeat", None)
    assert result.is_error
    assert result == "Error: no tool 'reapeat'. Your tools: repeat, broken."
    assert await Toolbox().call("x", None) == "Error: no tool 'x'. Your tools: none."


async def test_tool_error_is_sent_to_the_model() -> None:
    result = await toolbox().call("broken", {"kind": "told"})
    assert (result, result.is_error) == ("Error: there is no such thing", True)


async def test_exception_in_a_tool_fails_the_call_not_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "nb_agents"):
        result = await toolbox().call("broken", {"kind": "else"})
    assert (result, result.is_error) == ("Error: ZeroDivisionError: division by zero", True)
    assert "broken" in caplog.text


class Odd(BaseException):
    """An exception that `except Exception` does not catch."""


@pytest.mark.parametrize(
    "error", [GeneratorExit(), Odd("so"), BaseExceptionGroup("two", [GeneratorExit(), Odd("so")])]
)
async def test_any_exception_of_a_tool_fails_the_call(error: BaseException) -> None:
    async def fail() -> str:
        raise error

    result = await Tool(fail).call(None)
    assert result.is_error and result.startswith("Error: ")
    assert type(error).__name__ in result or "GeneratorExit; Odd: so" in result


STOP = AgentStopped(StopRequest(CancellationStatus.REQUESTED, "api"))


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (STOP, STOP),
        (end := EndOfAgent(), end),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SystemExit(), SystemExit),
        (BaseExceptionGroup("two", [ValueError("x"), STOP]), STOP),
    ],
)
async def test_exceptions_that_end_the_agent_or_process_are_raised(
    error: BaseException, end: BaseException | type[BaseException]
) -> None:
    async def fail() -> str:
        raise error

    with pytest.raises(end if isinstance(end, type) else type(end)) as raised:
        await Tool(fail).call(None)
    assert isinstance(end, type) or raised.value is end


async def test_cancellation_of_a_call_is_raised() -> None:
    with CancelScope() as scope:
        scope.cancel()
        await Tool(sleep_forever_).call(None)
    assert scope.cancelled_caught


async def sleep_forever_() -> str:
    """Wait."""
    await sleep_forever()
    return ""


def test_abandoned_call_is_closed() -> None:
    call = Tool(pausing).call(None)
    call.send(None)
    call.close()


@types.coroutine
def _pause() -> Any:
    yield


async def pausing() -> str:
    """Pause."""
    await _pause()
    return ""


async def test_error_in_a_tools_task_group_is_reported_without_the_group() -> None:
    result = await toolbox().call("broken", {"kind": "in a task group"})
    assert result == "Error: IsADirectoryError: Is a directory"


async def test_disk_error_is_reported_without_paths() -> None:
    result = await toolbox().call("broken", {"kind": "disk"})
    assert result == "Error: OSError: No space left on device"


async def test_stop_takes_effect_before_the_tool_starts() -> None:
    token = CancelToken()
    token.request(CancellationStatus.REQUESTED, "api")
    with bind(token), pytest.raises(AgentStopped):
        await toolbox().call("repeat", {"text": "a"})
    assert CALLS == []


async def test_stop_inside_a_tool_is_raised() -> None:
    class Late(CancelToken):
        """A token that is stopped between the check at entry and the tool's own check."""

        checks = 0

        def checkpoint(self) -> None:
            self.checks += 1
            if self.checks == 2:
                self.request(CancellationStatus.IMMEDIATE, "api")
            super().checkpoint()

    with bind(Late()), pytest.raises(AgentStopped):
        await toolbox().call("broken", {"kind": "stop"})


async def test_long_result_is_cut_with_a_note() -> None:
    result = await toolbox().call("repeat", {"text": "a" * 1000, "times": 1000})
    assert len(result) < MAX_RESULT_CHARS + 100
    assert result.endswith("[truncated: 1000000 characters in total]")
    assert not result.is_error


def test_result_at_the_limit_is_not_cut() -> None:
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
def test_call_summary_is_short(args: object, summary: str) -> None:
    assert summarize("tool", args) == summary  # type: ignore[arg-type]


@given(st.text() | st.dictionaries(st.text(), st.text() | st.integers()).map(json.dumps))
async def test_no_arguments_crash_a_call(args: str) -> None:
    assert isinstance(await toolbox().call("repeat", args), ToolResult)
    assert isinstance(summarize("repeat", args), str)


async def test_tool_from_definition() -> None:
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
