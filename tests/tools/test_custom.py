"""Functions of a person's files as tools: they work, and what can't be had costs only itself."""

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
from nb_agents.cancel import CancellationStatus, CancelToken, bind
from nb_agents.config.secrets import snapshot
from nb_agents.config.tools import CustomToolSpec, ToolKeys
from nb_agents.launch.team_report import report_on
from nb_agents.runs.run import Run
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from nb_agents.tools.base import Tool, ToolContext
from nb_agents.tools.custom import CustomTools
from nb_agents.tools.functions import NOTHING
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
    """An agent's place, whose tools can be made without a run."""

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
async def test_a_function_answers_as_it_would_in_massgen(
    desk: Desk, function: str, args: dict[str, Any], told: str
) -> None:
    [tool] = await desk.make({"path": desk.file(), "function": function})
    assert (tool.name, desk.notices) == (f"custom_tool__{function}", [])
    assert await tool.call(args) == told


async def test_what_a_model_is_told_comes_from_the_function_or_from_the_file(desk: Desk) -> None:
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


async def test_arguments_are_checked_and_a_failure_is_told_to_the_model(desk: Desk) -> None:
    double, fail = await desk.make({"path": desk.file(), "function": ["double", "fail"]})
    assert (await double.call({"number": "many"})).is_error
    told = await fail.call({})
    assert told.is_error and "ValueError: no luck" in told


async def test_a_file_is_run_once_and_its_agents_share_what_it_keeps(desk: Desk) -> None:
    spec = {"path": desk.file(), "function": "remember"}
    [mine] = await desk.make(spec)
    [yours] = await desk.make(spec, agent="b")
    assert await mine.call({"text": "x"}) == '["x"]'
    assert await yours.call({"text": "y"}) == '["x","y"]'


@pytest.mark.parametrize("excluded", ["double", "custom_tool__double"])
async def test_a_tool_that_is_left_out_on_purpose_is_not_told(desk: Desk, excluded: str) -> None:
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
    """A meeting that functions of files find here."""
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
        ("nothing", [], NOTHING),
    ],
)
async def test_what_a_function_yields_is_shown_piece_by_piece_and_told_as_one(
    desk: Desk, function: str, shown: list[str], told: str
) -> None:
    tool = await yielding(desk, function)
    assert tool.name == f"custom_tool__{function}"
    assert await tool.call({"upto": 2}) == told
    assert desk.shown == shown


async def test_a_piece_is_shown_while_the_next_one_is_waited_for(desk: Desk, met: Meeting) -> None:
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


async def test_a_failure_between_pieces_is_told_to_the_model(desk: Desk) -> None:
    told = await (await yielding(desk, "fail")).call({})
    assert told.is_error and "ValueError: no luck" in told
    assert desk.shown == ["half\n"]


async def test_a_graceful_stop_lets_it_yield_to_the_end(desk: Desk, met: Meeting) -> None:
    tool, token = await yielding(desk, "wait"), CancelToken()

    async def stop() -> None:
        await met.reached()
        token.request(CancellationStatus.REQUESTED, "api")
        met.let_go.set()

    with bind(token):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            assert await tool.call({}) == "first\nsecond"


async def test_an_immediate_stop_ends_it_at_its_next_piece(desk: Desk, met: Meeting) -> None:
    assert await cut(CancelToken(), met, await yielding(desk, "wait"))
    met.let_go.set()
    await met.left()
    assert desk.shown == ["first\n"]


async def test_an_immediate_stop_cancels_an_async_one_which_cleans_up(
    desk: Desk, met: Meeting
) -> None:
    assert await cut(CancelToken(), met, await yielding(desk, "wait_async"))
    assert met.gone.is_set()  # before the call was over
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


async def test_a_preset_argument_is_given_and_a_model_knows_nothing_of_it(desk: Desk) -> None:
    preset = {"environment": "browser", "display": {"width": 8, "on": ["a"]}}
    spec = {"path": desk.file(PRESET), "function": "browse", "preset_args": preset}
    [tool] = await desk.make(spec)
    schema = tool.definition.parameters_json_schema
    assert (list(schema["properties"]), schema["required"]) == (["url", "headless"], ["url"])
    assert "environment" not in repr(tool.definition)
    told = "u browser {'width': 8, 'on': ['a']} True"
    assert await tool.call({"url": "u", "headless": True}) == told
    assert (await tool.call({"url": "u", "environment": "mine"})).is_error


async def test_presets_are_one_for_all_or_one_for_each(desk: Desk) -> None:
    file = desk.file("def f(x: int, y: int = 0) -> int:\n    return 10 * x + y\ng = f")
    both = {"path": file, "function": ["f", "g"], "name": ["a", "b"]}
    for preset, told in (({"x": 1}, ["10", "10"]), ([{"x": 1}, {"x": 2, "y": 3}], ["10", "23"])):
        tools = await desk.make({**both, "preset_args": preset})
        assert [await tool.call({}) for tool in tools] == told
    first, second = await desk.make({**both, "preset_args": [{"x": 1}, {}]})
    assert await second.call({"x": 7}) == "70"


async def test_a_preset_that_a_function_cant_take_costs_the_tool(desk: Desk) -> None:
    file, astray = desk.file(PRESET), {"nowhere": 1}
    both = {"path": file, "function": ["browse", "anything"], "preset_args": astray}
    [tool] = await desk.make(both)
    assert await tool.call({"url": "u"}) == "u [('nowhere', 1)]"
    [notice] = desk.notices
    assert "it takes no 'nowhere' by that name" in notice
    assert "It takes: url, environment, display, headless." in notice


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
def test_a_preset_that_can_not_be_kept_is_refused_and_not_repeated(
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
def test_a_preset_that_only_looks_like_a_secret_is_taken(preset: Any) -> None:
    spec = CustomToolSpec(function=("f",), preset_args=(preset,))
    assert spec.functions[0].preset == preset


# What can't be had


@pytest.mark.parametrize(
    "spec, why",
    [
        ({"path": "massgen/tool/x.py"}, "there is no Python file 'massgen/tool/x.py' beside"),
        ({}, "it has no `path`, and MassGen's own tools are not available here."),
        ({"source": "", "name": "mine.txt"}, "there is no Python file '"),
        ({"source": "import nowhere_at_all"}, "can't be imported (ModuleNotFoundError: No module"),
        ({"source": "def f(:"}, "SyntaxError"),
        ({"source": "raise SystemExit(3)"}, "can't be imported (SystemExit: 3)."),
        ({"source": "raise KeyboardInterrupt"}, "can't be imported (KeyboardInterrupt)."),
        ({"source": "def g(): ..."}, "has no function 'f'."),
        ({"source": "f = 42"}, "has no function 'f'."),
        ({"source": "def f(*numbers): ..."}, "a model can't name its parameter 'numbers'."),
    ],
)
async def test_a_tool_that_cant_be_had_is_told_and_the_others_work(
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


async def test_of_two_tools_of_a_name_the_first_counts(desk: Desk) -> None:
    spec = {"path": desk.file(), "function": ["double", "shout"], "name": ["it", "it"]}
    [tool] = await desk.make(spec)
    assert await tool.call({"number": 1}) == "2"
    assert desk.notices == ["Custom tool 'it' of a is left out: there is another of that name."]


async def test_a_file_that_failed_leaves_no_half_made_module(desk: Desk) -> None:
    before = set(sys.modules)
    await desk.make({"path": desk.file("raise ValueError"), "function": "f"})
    assert set(sys.modules) == before


HANGS = """
from tests.tools import test_custom
test_custom.come.set()
test_custom.let_go.wait()
"""

come, let_go = threading.Event(), threading.Event()


async def test_a_stop_does_not_wait_for_a_file_that_hangs(desk: Desk) -> None:
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
    """The team with a scripted model in place of the demo."""
    [agent] = team.agents
    backend = agent.backend.model_copy(update={"type": "python", "instance": model})
    return team.model_copy(update={"agents": (agent.model_copy(update={"backend": backend}),)})


def finished(run: Run) -> list[tuple[str, str]]:
    return [(each.outcome, each.result) for each in events(run, ev.ToolFinished)]


def test_an_agent_calls_a_function_of_a_file_beside_the_teams(tmp_path: Path) -> None:
    call = Call("custom_tool__two_num_tool", {"x": 20, "y": 22})
    model = ScriptedModel(Turn(calls=(call,)), Answer("done"))
    team = with_model(TeamSpec.from_file(team_file(tmp_path)), model)
    run = nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path / "s"))
    finish(run)
    assert (run.status, run.result) == ("completed", "done")
    assert finished(run) == [("ok", "20 and 22\nmake 42")]
    assert [each for each in run.view.notices if "left out" in each] == [
        "Custom tool 'other' of a is left out: there is no Python file 'massgen/tool/other.py' "
        "beside the team's file or in the working directory."
    ]


def test_the_view_has_the_last_piece_of_a_function_that_runs(tmp_path: Path, met: Meeting) -> None:
    model = ScriptedModel(Turn(calls=(Call("custom_tool__wait", {}),)), Answer("done"))
    team = with_model(TeamSpec.from_file(team_file(tmp_path)), model)
    run = nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path / "s"))
    wait_until(lambda: run.view.agents["a"].tool_tail == "first\n", WAIT_S, "the piece")
    met.let_go.set()
    finish(run)
    assert finished(run) == [("ok", "first\nsecond")]


def test_a_journal_keeps_where_the_file_is_and_what_is_preset(tmp_path: Path) -> None:
    team = TeamSpec.from_file(team_file(tmp_path))
    again = TeamSpec.model_validate(snapshot(team)).agents[0].backend.custom_tools
    mine, other, _, shout = again
    assert shout.functions[0].preset == {"text": "all of it"}
    assert (mine.path, other.path) == (str(tmp_path / "tools/mine.py"), "massgen/tool/other.py")
    assert [each.functions for each in again] == [
        each.functions for each in team.agents[0].backend.custom_tools
    ]


def test_a_file_beside_the_teams_goes_before_one_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here/tools").mkdir(parents=True)
    (tmp_path / "here/tools/mine.py").write_text("raise ValueError")
    monkeypatch.chdir(tmp_path / "here")
    [mine, *_] = TeamSpec.from_file(team_file(tmp_path)).agents[0].backend.custom_tools
    assert mine.path == str(tmp_path / "tools/mine.py")


async def test_a_file_of_the_working_directory_will_do(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.file()
    monkeypatch.chdir(desk.folder)
    [tool] = await desk.make({"path": "mine.py", "function": "double"})
    assert await tool.call({"number": 1}) == "2"


def test_checking_a_team_runs_no_file(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    path = team_file(tmp_path, f"open({str(ran)!r}, 'w').close()")
    report_on(TeamSpec.from_file(path))
    assert not ran.exists()
