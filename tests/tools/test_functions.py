"""Functions of a notebook as tools: results for the model, threads and loops, and stops."""

import asyncio
import functools
import json
import logging
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import nb_agents
from nb_agents.errors import UserError
from nb_agents.events import ToolFinished
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from nb_agents.tools import functions
from nb_agents.tools.functions import EMPTY_RESULT, find_functions, function_tool, is_marked, tool
from tests.kit.agents import ModelRunner, Note, Offer, Opening, Round, StopScope, Verdict
from tests.kit.runs import AgentStopped, CancellationStatus, CancelToken, bind, checkpoint
from tests.kit.tools import MAX_RESULT_CHARS, Tool, Toolbox, ToolContext, ToolError, ToolResult

pytestmark = pytest.mark.anyio

WAIT_S = 200.0


class Meeting:
    """A meeting point at which a function in another thread waits."""

    def __init__(self) -> None:
        self.come = threading.Event()
        self.let_go = threading.Event()
        self.gone = threading.Event()

    def attend(self) -> None:
        self.come.set()
        assert self.let_go.wait(WAIT_S)

    async def reached(self) -> None:
        assert await anyio.to_thread.run_sync(self.come.wait, WAIT_S)

    async def left(self) -> None:
        assert await anyio.to_thread.run_sync(self.gone.wait, WAIT_S)


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    made = Meeting()
    yield made
    made.let_go.set()


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext("a", tmp_path, (), tmp_path, tmp_path, (), lambda text: None)


def area(width: float, height: float = 1.0) -> float:
    """Compute an area.

    Args:
        width: In metres.
        height: In metres, too.
    """
    return width * height


async def area_async(width: float, height: float = 1.0) -> float:
    """Compute an area.

    Args:
        width: In metres.
        height: In metres, too.
    """
    await asyncio.sleep(0)
    return width * height


both = pytest.mark.parametrize("function", [area, area_async])


@both
async def test_schema_comes_from_signature_and_docstring(function: Callable[..., Any]) -> None:
    definition = function_tool(function).definition
    assert (definition.name, definition.description) == (function.__name__, "Compute an area.")
    schema = definition.parameters_json_schema
    assert schema["required"] == ["width"]
    assert schema["properties"]["height"] == {
        "type": "number",
        "default": 1.0,
        "description": "In metres, too.",
    }


@both
async def test_result_is_sent_to_the_model(function: Callable[..., Any]) -> None:
    made = function_tool(function)
    assert await made.call('{"width": 2, "height": 3}') == "6.0"
    assert await made.call({"width": 2}) == "2.0"
    assert (await made.call({"width": "wide"})).startswith("Error: invalid arguments for area")


def test_decorated_function_is_unchanged() -> None:
    marked = tool(area)
    try:
        assert marked is area
        assert is_marked(area) and not is_marked(area_async) and not is_marked(3)
        assert area(2.0, 3.0) == 6.0
    finally:
        del area.__nb_agents_tool__  # type: ignore[attr-defined]


class Point(BaseModel):
    x: int
    y: int = 0


class Rectangle(BaseModel):
    corner: Point
    width: float


def one_model(point: Point) -> int:
    return point.x + point.y


def nested(rectangle: Rectangle, unit: Literal["m", "km"] = "m") -> str:
    return f"{rectangle.corner.x} {rectangle.width}{unit}"


def open_ended(first: str, **more: int) -> str:
    return f"{first} {sorted(more.items())}"


def constrained(count: Annotated[int, Field(ge=1, description="How many.")]) -> int:
    return count


def bare(a, b=None):  # type: ignore[no-untyped-def]
    return [a, b]


def keyword_only(*, text: str) -> str:
    return text


def later(point: "Point") -> int:
    return point.x


def default_without_json(text: str, lock=threading.Lock()) -> str:  # type: ignore[no-untyped-def] # noqa: B008
    with lock:
        return text


def returns_a_frame(rows: int) -> pd.DataFrame:
    return pd.DataFrame({"n": range(rows)})


@functools.lru_cache
def cached(text: str) -> str:
    return text * 2


@pytest.mark.parametrize(
    "function, args, result",
    [
        (one_model, {"x": 1, "y": 2}, "3"),
        (nested, {"rectangle": {"corner": {"x": 1}, "width": 2}}, "1 2.0m"),
        (open_ended, {"first": "a", "name": 3, "function": 2}, "a [('function', 2), ('name', 3)]"),
        (constrained, {"count": 2}, "2"),
        (bare, {"a": {"b": [1]}}, '[{"b":[1]},null]'),
        (keyword_only, {"text": "x"}, "x"),
        (later, {"x": 3}, "3"),
        (default_without_json, {"text": "x"}, "x"),
        (returns_a_frame, {"rows": 2}, "   n\n0  0\n1  1"),
        (cached, {"text": "ab"}, "abab"),
    ],
)
async def test_supported_signatures(
    function: Callable[..., Any], args: dict[str, Any], result: str
) -> None:
    assert await function_tool(function).call(args) == result


def takes_a_frame(rows: int, frame: pd.DataFrame) -> int: ...  # type: ignore[empty-body]
def takes_a_function(then: Callable[[int], int]) -> int: ...  # type: ignore[empty-body]
def takes_many(*texts: str) -> str: ...  # type: ignore[empty-body]
def takes_by_place(text: str, /) -> str: ...  # type: ignore[empty-body]
def unknown_name(text: "Missing") -> str: ...  # type: ignore[name-defined,empty-body]  # noqa: F821
def naïve(text: str) -> str: ...  # type: ignore[empty-body]
def yields(count: int) -> Iterator[int]:
    yield count


async def yields_async(count: int) -> Any:
    yield count


@pytest.mark.parametrize(
    "function, fact",
    [
        (takes_a_frame, "'takes_a_frame' can't be a tool: its parameter 'frame' is of type 'DataF"),
        (takes_a_function, "parameter 'then' is of type 'Callable'"),
        (takes_many, "parameter 'texts' can't be passed by name"),
        (takes_by_place, "parameter 'text' can't be passed by name"),
        (unknown_name, "its annotations can't be read (name 'Missing' is not defined)"),
        (naïve, "'naïve' can't be a tool: its name must have"),
        (lambda text: text, "'<lambda>' can't be a tool: its name must have"),
        (functools.partial(area, 1.0), "'partial' can't be a tool: its name must have"),
        (yields, "'yields' can't be a tool: it is a generator."),
        (yields_async, "'yields_async' can't be a tool: it is a generator."),
        ([1].count, "parameter 'value' can't be passed by name"),
        (min, "'min' can't be a tool: it has no signature."),
    ],
)
def test_unsupported_function_is_reported_when_it_is_decorated(
    function: Callable[..., Any], fact: str
) -> None:
    with pytest.raises(UserError) as told:
        tool(function)
    assert fact in str(told.value)
    assert "\n" not in str(told.value)
    assert not is_marked(function)


@dataclass
class Row:
    name: str
    when: date


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "value, told",
    [
        ("as\nit is", "as\nit is"),
        ("", ""),
        (None, EMPTY_RESULT),
        (3, "3"),
        (True, "true"),
        ([1, "é", None], '[1,"é",null]'),
        ({"a": (1, 2)}, '{"a":[1,2]}'),
        (Row("x", date(2026, 1, 2)), '{"name":"x","when":"2026-01-02"}'),
        (Point(x=1), '{"x":1,"y":0}'),
        (date(2026, 1, 2), "2026-01-02"),
        (Path("a/b"), "a/b"),
        (math.nan, "null"),
        (b"bytes", "bytes"),
        (b"\xff", "b'\\xff'"),
        (LOOP, "[[...]]"),
        (np.int64(3), "3"),
        ({"mean": np.float32(0.5), "n": np.int64(2)}, '{"mean":0.5,"n":2}'),
        (np.array([1, 2]), "array([1, 2])"),
        (pd.DataFrame({"n": [1, 2]}), "   n\n0  1\n1  2"),
        ([pd.DataFrame({"n": [1]})], '["   n\\n0  1"]'),
        (Meeting, repr(Meeting)),
    ],
)
async def test_result_is_text_json_or_repr(value: object, told: str) -> None:
    def give() -> object:
        return value

    async def give_async() -> object:
        return value

    for each in (give, give_async):
        result = await function_tool(each).call(None)
        assert (result, result.is_error) == (told, False)


async def test_long_result_is_cut_with_a_note() -> None:
    def give() -> object:
        return list(range(MAX_RESULT_CHARS))

    result = await function_tool(give).call(None)
    assert len(result) < MAX_RESULT_CHARS + 100
    assert result.endswith("characters in total]")


@pytest.mark.parametrize("kind", ["text", "bytes", "json"])
async def test_result_of_100_mb_is_cut(kind: str) -> None:
    size = 100_000_000
    values = {"text": "x" * size, "bytes": b"x" * size, "json": ["x" * size]}

    def give() -> object:
        return values[kind]

    result = await function_tool(give).call(None)
    assert not result.is_error
    assert len(result) < MAX_RESULT_CHARS + 100
    assert result.endswith(f"[truncated: {size + 4 * (kind == 'json')} characters in total]")


class Odd(BaseException):
    """An exception that `except Exception` does not catch."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "error, told",
    [
        (ValueError("no such row"), "Error: ValueError: no such row"),
        (FileNotFoundError(2, "No such file", "a.csv"), "FileNotFoundError: [Errno 2] No such f"),
        (StopIteration(), "StopIteration"),
        (KeyboardInterrupt(), "Error: KeyboardInterrupt"),
        (SystemExit(3), "Error: SystemExit: 3"),
        (GeneratorExit(), "Error: GeneratorExit"),
        (Odd("so"), "Odd: so"),
        (asyncio.CancelledError(), "Error: the function was cancelled"),
        (Unspeakable(), "Unspeakable: <exception str() failed>"),
        (ToolError("told as it is"), "Error: told as it is"),
        (
            BaseExceptionGroup("two", [SystemExit(1), ValueError("x")]),
            "SystemExit: 1\nValueError: x",
        ),
    ],
)
async def test_exception_fails_the_call_and_is_reported_to_the_model(
    error: BaseException, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    for each in (fail, fail_async):
        result = await function_tool(each).call(None)
        assert result.is_error
        assert told in result
    if not isinstance(error, ToolError | asyncio.CancelledError):
        assert [r.levelno for r in caplog.records] == [logging.WARNING] * 2
        assert "fail_async failed" in caplog.text


async def test_leftover_task_does_not_end_the_loop() -> None:
    async def leave() -> str:
        async def exit() -> None:
            raise SystemExit(1)

        asyncio.get_running_loop().create_task(exit())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "left"

    made = function_tool(leave)
    assert await made.call(None) == "left"
    assert await made.call(None) == "left"


@pytest.mark.parametrize("is_async", [False, True])
async def test_blocking_function_delays_no_agent(meeting: Meeting, is_async: bool) -> None:
    def block() -> str:
        meeting.attend()
        return threading.current_thread().name

    async def block_async() -> str:
        return block()

    async def meet() -> None:
        await meeting.reached()
        meeting.let_go.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(meet)
        name = await function_tool(block_async if is_async else block).call(None)
    assert name != threading.current_thread().name


async def test_async_functions_share_a_loop_between_calls() -> None:
    lock = asyncio.Lock()
    inside: list[int] = []

    async def share() -> list[int]:
        async with lock:
            inside.append(1)
            await asyncio.sleep(0)
            together = list(inside)
            inside.pop()
            return together

    made = function_tool(share)
    results: list[str] = []

    async def call() -> None:
        results.append(await made.call(None))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(call)
    assert results == ["[1]"] * 5


async def test_coroutine_returned_by_a_plain_function_is_awaited() -> None:
    async def double(x: int) -> int:
        await asyncio.sleep(0)
        return x * 2

    @functools.wraps(double)
    def logged(*args: Any, **known: Any) -> Any:  # as many decorators do
        return double(*args, **known)

    async def fail() -> None:
        raise KeyError("no such row")

    def failing() -> Any:
        return fail()

    assert await function_tool(logged).call('{"x": 21}') == "42"
    refused = await function_tool(failing).call("{}")
    assert refused.is_error and "no such row" in refused


async def test_hanging_functions_use_no_threads_of_other_tools(meeting: Meeting) -> None:
    waiting = threading.Semaphore(0)

    def hang() -> None:
        waiting.release()
        meeting.attend()

    limiter = anyio.to_thread.current_default_thread_limiter()
    made = function_tool(hang)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(made.call, None)
        for _ in range(3):
            assert await anyio.to_thread.run_sync(waiting.acquire, True, WAIT_S)
        assert limiter.borrowed_tokens == 0
        meeting.let_go.set()


@pytest.mark.parametrize("is_async", [False, True])
async def test_stop_reaches_a_function_despite_except_exception(
    meeting: Meeting, is_async: bool
) -> None:
    token = CancelToken()
    heard: list[bool] = []

    def work() -> str:
        heard.append(nb_agents.should_stop())
        meeting.attend()
        heard.append(nb_agents.should_stop())
        try:
            checkpoint()
        except Exception:
            return "swallowed"
        return "never stopped"

    async def work_async() -> str:
        return work()

    async def stop() -> None:
        await meeting.reached()
        token.request(CancellationStatus.REQUESTED, "api")
        meeting.let_go.set()

    made = function_tool(work_async if is_async else work)
    with bind(token):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            with pytest.raises(AgentStopped):
                await made.call(None)
    assert heard == [False, True]


async def test_graceful_stop_lets_a_function_without_checks_finish(meeting: Meeting) -> None:
    token = CancelToken()

    def work() -> str:
        meeting.attend()
        return "finished"

    async def stop() -> None:
        await meeting.reached()
        token.request(CancellationStatus.REQUESTED, "api")
        meeting.let_go.set()

    with bind(token):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            assert await function_tool(work).call(None) == "finished"


async def test_stop_passes_through_a_functions_task_group() -> None:
    token = CancelToken()

    async def part() -> None:
        token.request(CancellationStatus.REQUESTED, "api")
        checkpoint()

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(part())

    with bind(token), pytest.raises(AgentStopped):
        await function_tool(work).call(None)


async def test_no_function_starts_after_a_stop() -> None:
    began: list[int] = []

    def work() -> None:
        began.append(1)

    token = CancelToken()
    token.request(CancellationStatus.REQUESTED, "api")
    with bind(token), pytest.raises(AgentStopped):
        await function_tool(work).call(None)
    assert began == []


async def cut(token: CancelToken, meeting: Meeting, made: Tool) -> bool:
    """Stop a call immediately when the function is at the meeting point.

    Return whether it was interrupted.
    """

    async def stop() -> None:
        await meeting.reached()
        token.request(CancellationStatus.IMMEDIATE, "api")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop)
        with StopScope(token) as boundary:
            await made.call(None)
        return boundary.was_cut


async def test_immediate_stop_reaches_the_function_without_waiting_for_its_thread(
    meeting: Meeting,
) -> None:
    stopping: list[bool] = []

    def work() -> None:
        meeting.attend()
        stopping.append(nb_agents.should_stop())
        meeting.gone.set()

    assert await cut(CancelToken(), meeting, function_tool(work))
    assert not meeting.gone.is_set()
    meeting.let_go.set()
    await meeting.left()
    assert stopping == [True]


async def test_an_immediate_stop_cancels_an_async_function_and_lets_it_clean_up() -> None:
    meeting = Meeting()
    steps: list[str] = []

    async def work() -> None:
        try:
            meeting.come.set()
            await asyncio.sleep(1000)
        except Exception:
            steps.append("swallowed")
        finally:
            await asyncio.sleep(0)
            steps.append("closed")

    assert await cut(CancelToken(), meeting, function_tool(work))
    assert steps == ["closed"]  # before the call ended


async def test_async_function_that_does_not_end_is_abandoned(
    meeting: Meeting,
) -> None:
    thread = functions._async_thread()

    async def stay() -> None:
        meeting.come.set()
        while not meeting.let_go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        meeting.gone.set()

    assert await cut(CancelToken(), meeting, function_tool(stay))
    assert not meeting.gone.is_set()
    assert functions._async_thread() is thread  # it is not blocked
    meeting.let_go.set()
    await meeting.left()


async def test_blocked_async_function_does_not_affect_later_calls(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "CLEANUP_S", 0.05)

    async def freeze() -> None:
        meeting.attend()
        meeting.gone.set()

    assert await cut(CancelToken(), meeting, function_tool(freeze))
    assert not meeting.gone.is_set()
    assert await function_tool(area_async).call({"width": 2}) == "2.0"
    meeting.let_go.set()
    await meeting.left()


class RoundContext:
    def offer(self) -> Offer:
        return Offer(voters=())

    def judge_answer(self, answer: str) -> str:
        return ""

    def judge_vote(self, label: str) -> Verdict:
        raise AssertionError("nobody votes")

    def note(self, *, was_refused: bool) -> Note:
        return Note()

    def take_messages(self) -> str:
        return ""


async def play(made: Tool, token: CancelToken, meeting: Meeting | None) -> tuple[bool, list[Any]]:
    """Let an agent call a tool and answer.

    Return whether it was interrupted, and the tools' outcomes.
    """
    model = ScriptedModel(Turn(calls=(Call(made.name),)), Answer("done"))
    emitted: list[Any] = []

    async def stop(meeting: Meeting) -> None:
        await meeting.reached()
        token.request(CancellationStatus.IMMEDIATE, "api")

    async with anyio.create_task_group() as tasks:
        if meeting:
            tasks.start_soon(stop, meeting)
        with StopScope(token) as boundary:
            opening, toolbox = Opening("", ("go",)), Toolbox([made])
            round = Round("a", 1, opening, toolbox, RoundContext(), emitted.append, boundary)
            await ModelRunner(model).play(round, None)
    return boundary.was_cut, [e for e in emitted if isinstance(e, ToolFinished)]


async def test_an_agent_calls_a_notebook_function() -> None:
    def look_up() -> dict[str, int]:
        """Look something up."""
        return {"rows": 3}

    was_cut, finished = await play(function_tool(look_up), CancelToken(), None)
    assert not was_cut
    assert [(e.tool, e.outcome, e.result) for e in finished] == [("look_up", "ok", '{"rows":3}')]


async def test_agent_continues_after_a_function_raises_system_exit() -> None:
    def leave() -> None:
        raise SystemExit(1)

    was_cut, finished = await play(function_tool(leave), CancelToken(), None)
    assert not was_cut
    assert [(e.outcome, e.result) for e in finished] == [("error", "Error: SystemExit: 1")]


async def test_immediate_stop_records_the_call_as_interrupted(meeting: Meeting) -> None:
    def hang() -> None:
        meeting.attend()

    was_cut, finished = await play(function_tool(hang), CancelToken(), meeting)
    assert was_cut
    assert [(e.tool, e.outcome) for e in finished] == [("hang", "cut")]


def save(text: str, place: ToolContext, name: str = "a.txt") -> str:
    """Save a text.

    Args:
        text: What to save.
        place: Where.
        name: The file's name.
    """
    (place.workspace / name).write_text(text)
    return place.agent


async def test_context_parameter_is_set_and_hidden(context: ToolContext) -> None:
    made = function_tool(save, context)
    assert list(made.definition.parameters_json_schema["properties"]) == ["text", "name"]
    assert await made.call({"text": "x"}) == "a"
    assert (context.workspace / "a.txt").read_text() == "x"
    assert (await made.call({"text": "x", "place": {"agent": "b"}})).is_error


def test_find_functions_keeps_order_without_duplicates() -> None:
    namespace = {"area": area, "save": save, "rows": 3}
    assert find_functions("save, area,save,", namespace) == [save, area]


def test_object_that_is_not_a_function_is_refused() -> None:
    with pytest.raises(UserError, match="3 can't be a tool: it is of type 'int'. Use a function"):
        tool(3)  # type: ignore[type-var]


@pytest.mark.parametrize(
    "names, told",
    [
        ("", "No function names were given."),
        (" , ", "No function names were given."),
        ("aera", "No function 'aera' in this notebook. Did you mean 'area'?"),
        ("zzz", "No function 'zzz' in this notebook. Marked as tools: marked."),
        ("rows", "'rows' is of type 'DataFrame'."),
        ("area,same", "have the name 'area'. Rename one of them."),
    ],
)
def test_unknown_name_suggests_the_nearest(names: str, told: str) -> None:
    def same() -> None: ...

    def marked() -> None: ...

    same.__name__ = "area"
    namespace = {"area": area, "same": same, "marked": tool(marked), "rows": pd.DataFrame()}
    with pytest.raises(UserError) as error:
        find_functions(names, namespace)
    assert told in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(JSON)
async def test_no_argument_or_result_crashes_a_call(value: Any) -> None:
    def echo(value: Any) -> Any:
        return value

    result = await function_tool(echo).call(json.dumps({"value": value}))
    assert isinstance(result, ToolResult)
    assert result.encode().decode() == result  # an empty text is a result too
