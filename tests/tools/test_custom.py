"""Functions of user files as tools: one that can't be loaded does not affect the others."""

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio
import pytest
from anyio import to_thread

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from nb_agents.tools.custom import CustomTools
from tests.kit.runs import CancellationStatus, CancelToken, Run, bind
from tests.kit.secrets import snapshot
from tests.kit.teams import report_on
from tests.kit.tools import EMPTY_RESULT, CustomToolSpec, Tool, ToolContext, ToolKeys
from tests.model_server import wait_until
from tests.team_kit import WAIT_S, events, finish
from tests.tools.test_functions import Meeting, cut

pytestmark = pytest.mark.anyio

SOURCE = '''
from __future__ import annotations

from dataclasses import dataclass

from nb_agents.tools.base import ToolContext


@dataclass
class Block:
    data: str


@dataclass
class ExecutionResult:
    output_blocks: list[Block]


seen = []


def double(number: int) -> int:
    """Double a number.

    Args:
        number: Which one.
    """
    return 2 * number


async def two_num_tool(x: int, y: int) -> ExecutionResult:
    """Add two numbers."""
    return ExecutionResult([Block(f"{x} and {y}"), Block(f"make {x + y}")])


def shout(text: str) -> str:
    return text.upper()


def where(context: ToolContext) -> str:
    return context.agent


def remember(text: str) -> list[str]:
    seen.append(text)
    return seen


def fail() -> None:
    raise ValueError("no luck")


answer = 42
'''


class Desk:
    """An agent's session, in which tools can be created without a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notices: list[str] = []
        self.shown: list[str] = []
        self.custom = CustomTools(self.notices.append)

    def file(self, source: str = SOURCE, name: str = "mine.py") -> str:
        path = self.folder / name
        path.write_text(dedent(source))
        return str(path)

    async def make(self, *specs: dict[str, Any], agent: str = "a", **more: Any) -> list[Tool]:
        read = [CustomToolSpec.model_validate(spec) for spec in specs]
        return await self.custom.tools(self._context(agent), read, **more)

    def _context(self, agent: str) -> ToolContext:
        here = self.folder
        return ToolContext(agent, here, (), here, here, (), self.shown.append)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# Tools


@pytest.mark.parametrize(
    "function, args, told",
    [
        ("double", {"number": 21}, "42"),
        ("two_num_tool", {"x": 20, "y": 22}, "20 and 22\nmake 42"),
        ("shout", {"text": "hey"}, "HEY"),
        ("where", {}, "a"),
    ],
)
async def test_function_result_matches_massgen(
    desk: Desk, function: str, args: dict[str, Any], told: str
) -> None:
    [tool] = await desk.make({"path": desk.file(), "function": function})
    assert (tool.name, desk.notices) == (f"custom_tool__{function}", [])
    assert await tool.call(args) == told


async def test_description_comes_from_function_or_team_file(desk: Desk) -> None:
    both = {"path": desk.file(), "function": ["double", "shout"]}
    own, _ = await desk.make(both)
    given, other = await desk.make({**both, "name": ["a", "b"], "description": ["One.", "Two."]})
    assert own.definition.description == "Double a number."
    assert own.definition.parameters_json_schema["properties"]["number"] == {
        "type": "integer",
        "description": "Which one.",
    }
    assert (given.definition.name, given.definition.description) == ("custom_tool__a", "One.")
    assert (other.definition.name, other.definition.description) == ("custom_tool__b", "Two.")


async def test_invalid_arguments_and_failures_are_reported_to_the_model(desk: Desk) -> None:
    double, fail = await desk.make({"path": desk.file(), "function": ["double", "fail"]})
    assert (await double.call({"number": "many"})).is_error
    told = await fail.call({})
    assert told.is_error and "ValueError: no luck" in told


async def test_file_is_imported_once_and_its_state_is_shared(desk: Desk) -> None:
    spec = {"path": desk.file(), "function": "remember"}
    [mine] = await desk.make(spec)
    [yours] = await desk.make(spec, agent="b")
    assert await mine.call({"text": "x"}) == '["x"]'
    assert await yours.call({"text": "y"}) == '["x","y"]'


@pytest.mark.parametrize("excluded", ["double", "custom_tool__double"])
async def test_excluded_tool_gives_no_notice(desk: Desk, excluded: str) -> None:
    takes = ToolKeys(exclude_tools=(excluded,)).takes
    assert await desk.make({"path": desk.file(), "function": "double"}, takes=takes) == []
    assert desk.notices == []


# Functions that yield

YIELDS = """
import asyncio
from dataclasses import dataclass

from tests.tools import test_custom


@dataclass
class Block:
    data: str


class ExecutionResult:
    def __init__(self, *texts, is_log=False):
        self.output_blocks = [Block(text) for text in texts]
        self.is_log = is_log


def count(upto: int):
    "Count."
    for number in range(upto):
        yield ExecutionResult(f"{number + 1} of {upto}")


async def count_async(upto: int):
    "Count."
    for number in range(upto):
        await asyncio.sleep(0)
        yield ExecutionResult(f"{number + 1} of {upto}")


def counting(upto: int):
    return count(upto)


def all_kinds(upto: int):
    yield "a line\\n"
    yield None
    yield ExecutionResult()
    yield ExecutionResult("two", "blocks")
    yield {"upto": upto}


def log(upto: int):
    yield ExecutionResult("looking", is_log=True)
    yield ExecutionResult("found")


def nothing(upto: int):
    yield from ()


def fail():
    yield "half"
    raise ValueError("no luck")


def wait():
    try:
        yield "first"
        test_custom.meeting.attend()
        yield "second"
    finally:
        test_custom.meeting.gone.set()


async def wait_async():
    try:
        yield "first"
        test_custom.meeting.come.set()
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        yield "MassGen's tools say that they were interrupted"
        raise
    finally:
        await asyncio.sleep(0)
        test_custom.meeting.gone.set()
"""

meeting = Meeting()


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meeting]:
    """A meeting point for functions in files."""
    made = Meeting()
    monkeypatch.setattr(sys.modules[__name__], "meeting", made)
    yield made
    made.let_go.set()


async def yielding(desk: Desk, function: str) -> Tool:
    [tool] = await desk.make({"path": desk.file(YIELDS), "function": function})
    assert desk.notices == []
    return tool


@pytest.mark.parametrize(
    "function, shown, told",
    [
        ("count", ["1 of 2\n", "2 of 2\n"], "1 of 2\n2 of 2"),
        ("count_async", ["1 of 2\n", "2 of 2\n"], "1 of 2\n2 of 2"),
        ("counting", ["1 of 2\n", "2 of 2\n"], "1 of 2\n2 of 2"),
        (
            "all_kinds",
            ["a line\n", "two\nblocks\n", '{"upto":2}\n'],
            'a line\ntwo\nblocks\n{"upto":2}',
        ),
        ("log", ["looking\n", "found\n"], "found"),
        ("nothing", [], EMPTY_RESULT),
    ],
)
async def test_yielded_pieces_are_shown_one_by_one_and_returned_together(
    desk: Desk, function: str, shown: list[str], told: str
) -> None:
    tool = await yielding(desk, function)
    assert tool.name == f"custom_tool__{function}"
    assert await tool.call({"upto": 2}) == told
    assert desk.shown == shown


async def test_piece_is_shown_before_the_next_one_arrives(desk: Desk, met: Meeting) -> None:
    tool = await yielding(desk, "wait")
    said: list[str] = []

    async def call() -> None:
        said.append(await tool.call({}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await met.reached()
        assert (desk.shown, said) == (["first\n"], [])
        met.let_go.set()
    assert said == ["first\nsecond"]


async def test_failure_between_pieces_is_reported_to_the_model(desk: Desk) -> None:
    told = await (await yielding(desk, "fail")).call({})
    assert told.is_error and "ValueError: no luck" in told
    assert desk.shown == ["half\n"]


async def test_graceful_stop_lets_a_generator_finish(desk: Desk, met: Meeting) -> None:
    tool, token = await yielding(desk, "wait"), CancelToken()

    async def stop() -> None:
        await met.reached()
        token.request(CancellationStatus.REQUESTED, "api")
        met.let_go.set()

    with bind(token):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            assert await tool.call({}) == "first\nsecond"


async def test_immediate_stop_ends_a_generator_at_its_next_piece(desk: Desk, met: Meeting) -> None:
    assert await cut(CancelToken(), met, await yielding(desk, "wait"))
    met.let_go.set()
    await met.left()
    assert desk.shown == ["first\n"]


async def test_immediate_stop_cancels_an_async_generator_which_cleans_up(
    desk: Desk, met: Meeting
) -> None:
    assert await cut(CancelToken(), met, await yielding(desk, "wait_async"))
    assert met.gone.is_set()  # before the call ended
    assert desk.shown == ["first\n"]


# Preset arguments

PRESET = """
from pathlib import Path


def browse(url: str, environment: Path, display: dict, headless: bool = False) -> str:
    \"\"\"Look at a page.

    Args:
        url: Which one.
        environment: Of no interest to a model.
    \"\"\"
    return f"{url} {environment} {display} {headless}"


def anything(url: str, **more: int) -> str:
    return f"{url} {sorted(more.items())}"
"""


async def test_preset_argument_is_hidden_from_the_model(desk: Desk) -> None:
    preset = {"environment": "browser", "display": {"width": 8, "on": ["a"]}}
    spec = {"path": desk.file(PRESET), "function": "browse", "preset_args": preset}
    [tool] = await desk.make(spec)
    schema = tool.definition.parameters_json_schema
    assert (list(schema["properties"]), schema["required"]) == (["url", "headless"], ["url"])
    assert "environment" not in repr(tool.definition)
    told = "u browser {'width': 8, 'on': ['a']} True"
    assert await tool.call({"url": "u", "headless": True}) == told
    assert (await tool.call({"url": "u", "environment": "mine"})).is_error


async def test_presets_apply_to_all_functions_or_one_each(desk: Desk) -> None:
    file = desk.file("def f(x: int, y: int = 0) -> int:\n    return 10 * x + y\ng = f")
    both = {"path": file, "function": ["f", "g"], "name": ["a", "b"]}
    for preset, told in (({"x": 1}, ["10", "10"]), ([{"x": 1}, {"x": 2, "y": 3}], ["10", "23"])):
        tools = await desk.make({**both, "preset_args": preset})
        assert [await tool.call({}) for tool in tools] == told
    first, second = await desk.make({**both, "preset_args": [{"x": 1}, {}]})
    assert await second.call({"x": 7}) == "70"


async def test_tool_with_an_unknown_preset_is_left_out(desk: Desk) -> None:
    file, astray = desk.file(PRESET), {"nowhere": 1}
    both = {"path": file, "function": ["browse", "anything"], "preset_args": astray}
    [tool] = await desk.make(both)
    assert await tool.call({"url": "u"}) == "u [('nowhere', 1)]"
    [notice] = desk.notices
    assert "it has no parameter 'nowhere' that can be passed by name" in notice
    assert "Its parameters: url, environment, display, headless." in notice


TOKEN = "s3cret-token-of-mine"


@pytest.mark.parametrize(
    "preset, told",
    [
        ({"api_key": TOKEN}, "'api_key' may be a secret"),
        ({"config": {"credentials": {"value": TOKEN}}}, "'credentials' may be a secret"),
        ({"headers": [{"Authorization": f"Bearer {TOKEN}"}]}, "'Authorization' may be a secret"),
        ({"endpoint": f"http://host/?with={TOKEN}"}, "'endpoint' may be a secret"),
        ([{}, {}], "1 functions have 2 `preset_args`"),
        ({"on": object()}, "preset_args"),
    ],
)
def test_secret_preset_is_refused_without_being_repeated(
    preset: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    keys = {"path": "t.py", "function": "f", "preset_args": preset}
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        CustomToolSpec.model_validate(keys)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    "preset",
    [
        {"token": "none"},
        {"sort_key": "created_at"},
        {"max_tokens": 100_000_000},
        {"password": None},
    ],
)
def test_preset_that_resembles_a_secret_is_accepted(preset: Any) -> None:
    spec = CustomToolSpec(function=("f",), preset_args=(preset,))
    assert spec.functions[0].preset == preset


# Unavailable tools


@pytest.mark.parametrize(
    "spec, why",
    [
        ({"path": "massgen/tool/x.py"}, "there is no Python file 'massgen/tool/x.py' next to"),
        ({}, "it has no `path`, and MassGen's own tools are not available here."),
        ({"source": "", "name": "mine.txt"}, "there is no Python file '"),
        ({"source": "import nowhere_at_all"}, "can't be imported (ModuleNotFoundError: No module"),
        ({"source": "def f(:"}, "SyntaxError"),
        ({"source": "raise SystemExit(3)"}, "can't be imported (SystemExit: 3)."),
        ({"source": "raise KeyboardInterrupt"}, "can't be imported (KeyboardInterrupt)."),
        ({"source": "def g(): ..."}, "has no function 'f'."),
        ({"source": "f = 42"}, "has no function 'f'."),
        ({"source": "def f(*numbers): ..."}, "parameter 'numbers' can't be passed by name."),
    ],
)
async def test_unavailable_tool_is_reported_and_others_work(
    desk: Desk, spec: dict[str, str], why: str
) -> None:
    path = spec.get("path", "")
    if "source" in spec:
        path = desk.file(spec["source"], spec.get("name", "faulty.py"))
    good = {"path": desk.file(), "function": "double"}
    [tool] = await desk.make({"path": path, "function": "f"}, good)
    assert await tool.call({"number": 1}) == "2"
    [notice] = desk.notices
    assert notice.startswith("Custom tool 'f' of a is left out: ") and why in notice


async def test_first_of_two_tools_with_one_name_is_used(desk: Desk) -> None:
    spec = {"path": desk.file(), "function": ["double", "shout"], "name": ["it", "it"]}
    [tool] = await desk.make(spec)
    assert await tool.call({"number": 1}) == "2"
    [notice] = desk.notices
    assert notice == "Custom tool 'it' of a is left out: another custom tool has the same name."


async def test_failed_import_leaves_no_module(desk: Desk) -> None:
    before = set(sys.modules)
    await desk.make({"path": desk.file("raise ValueError"), "function": "f"})
    assert set(sys.modules) == before


HANGS = """
from tests.tools import test_custom
test_custom.come.set()
test_custom.let_go.wait()
"""

come, let_go = threading.Event(), threading.Event()


async def test_stop_does_not_wait_for_a_hanging_import(desk: Desk) -> None:
    spec = {"path": desk.file(HANGS), "function": "f"}
    try:
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as group:
                group.start_soon(desk.make, spec)
                assert await to_thread.run_sync(come.wait, WAIT_S)
                group.cancel_scope.cancel()
    finally:
        let_go.set()
    assert desk.notices == []


# Runs


TEAM = """
agents:
  - id: a
    backend:
      type: demo
      custom_tools:
        - {name: [two_num_tool], category: math, path: tools/mine.py, function: [two_num_tool]}
        - {name: other, path: massgen/tool/other.py, function: other}
        - {path: tools/yields.py, function: wait}
        - {path: tools/mine.py, function: shout, preset_args: {text: all of it}}
"""


def team_file(folder: Path, source: str = SOURCE) -> Path:
    (folder / "tools").mkdir()
    (folder / "tools/mine.py").write_text(source)
    (folder / "tools/yields.py").write_text(YIELDS)
    path = folder / "team.yaml"
    path.write_text(TEAM)
    return path


def with_model(team: TeamSpec, model: ScriptedModel) -> TeamSpec:
    """Return the team with a scripted model instead of the demo model."""
    [agent] = team.agents
    backend = agent.backend.model_copy(update={"type": "python", "instance": model})
    return team.model_copy(update={"agents": (agent.model_copy(update={"backend": backend}),)})


def finished(run: Run) -> list[tuple[str, str]]:
    return [(each.outcome, each.result) for each in events(run, ev.ToolFinished)]


def test_agent_calls_a_function_from_a_file_next_to_the_team_file(tmp_path: Path) -> None:
    call = Call("custom_tool__two_num_tool", {"x": 20, "y": 22})
    model = ScriptedModel(Turn(calls=(call,)), Answer("done"))
    team = with_model(TeamSpec.from_file(team_file(tmp_path)), model)
    run = nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path / "s"))
    finish(run)
    assert (run.status, run.result) == ("completed", "done")
    assert finished(run) == [("ok", "20 and 22\nmake 42")]
    assert [each for each in run.view.notices if "left out" in each] == [
        "Custom tool 'other' of a is left out: there is no Python file 'massgen/tool/other.py' "
        "next to the team file or in the working directory."
    ]


def test_view_shows_the_last_piece_of_a_running_function(tmp_path: Path, met: Meeting) -> None:
    model = ScriptedModel(Turn(calls=(Call("custom_tool__wait", {}),)), Answer("done"))
    team = with_model(TeamSpec.from_file(team_file(tmp_path)), model)
    run = nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path / "s"))
    wait_until(lambda: run.view.agents["a"].tool_tail == "first\n", WAIT_S, "the piece")
    met.let_go.set()
    finish(run)
    assert finished(run) == [("ok", "first\nsecond")]


def test_journal_contains_file_path_and_presets(tmp_path: Path) -> None:
    team = TeamSpec.from_file(team_file(tmp_path))
    again = TeamSpec.model_validate(snapshot(team)).agents[0].backend.custom_tools
    mine, other, _, shout = again
    assert shout.functions[0].preset == {"text": "all of it"}
    assert (mine.path, other.path) == (str(tmp_path / "tools/mine.py"), "massgen/tool/other.py")
    assert [each.functions for each in again] == [
        each.functions for each in team.agents[0].backend.custom_tools
    ]


def test_file_next_to_the_team_file_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here/tools").mkdir(parents=True)
    (tmp_path / "here/tools/mine.py").write_text("raise ValueError")
    monkeypatch.chdir(tmp_path / "here")
    [mine, *_] = TeamSpec.from_file(team_file(tmp_path)).agents[0].backend.custom_tools
    assert mine.path == str(tmp_path / "tools/mine.py")


async def test_file_in_the_working_directory_is_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.file()
    monkeypatch.chdir(desk.folder)
    [tool] = await desk.make({"path": "mine.py", "function": "double"})
    assert await tool.call({"number": 1}) == "2"


def test_check_imports_no_file(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    path = team_file(tmp_path, f"open({str(ran)!r}, 'w').close()")
    report_on(TeamSpec.from_file(path))
    assert not ran.exists()
