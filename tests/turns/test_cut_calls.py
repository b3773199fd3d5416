"""Interrupted tool calls: what a resume does with each kind, and what is reported about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Literal

import anyio
import pytest
from anyio import to_thread

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from tests.kit.agents import MAY_HAVE_HAPPENED
from tests.kit.cards import turn_bundle
from tests.kit.runs import Run, preview
from tests.kit.sessions import load_session
from tests.kit.tools import ToolContext, functions, mcp_server, offer
from tests.model_server import wait_until
from tests.recipes.live import begin, files_of, hold, let_go, over, wait_for_gate, wait_held, write
from tests.team_kit import WAIT_S, events, finish, loop_held, prompt
from tests.turns.proof import all_events
from tests.turns.test_tools import mcp_server as served
from tests.turns.test_tools import results
from tests.turns.trees import cut_copy

LINES = "lines"


def append(folder: str) -> str:
    """Write a line."""
    with Path(folder, LINES).open("a") as file:
        file.write("line\n")
    return "written"


@nb_agents.tool(repeatable=True)
def append_again(folder: str) -> str:
    """Write a line."""
    return append(folder)


async def append_later(folder: str) -> str:
    """Write a line."""
    return append(folder)


CUSTOM = """
import nb_agents
from tests.turns.test_cut_calls import append

def never(folder: str) -> str:
    return append(folder)

@nb_agents.tool(repeatable=True)
def always(folder: str) -> str:
    return append(folder)
"""

Becomes = Literal["made again", "told", "goes on"]


@dataclass(frozen=True)
class Kind:
    """A call to a kind of tool.

    Attributes:
        tool: The tool.
        args: Its arguments.
        becomes: What a resume does with the interrupted call.
        keys: The agent's configuration for it.
    """

    tool: str
    args: dict[str, Any]
    becomes: Becomes
    keys: tuple[str, ...] = ()


FOLDER = {"folder": "FOLDER"}
SPAWN = {"tasks": [{"task": "help me"}]}
KINDS = {
    "list_files": Kind("list_files", {}, "made again"),
    "read_file": Kind("read_file", {"path": "old"}, "made again"),
    "write_file": Kind("write_file", {"path": "new", "content": "x"}, "made again"),
    "edit_file": Kind("edit_file", {"path": "old", "old": "a", "new": "b"}, "made again"),
    "delete_file": Kind("delete_file", {"path": "old"}, "made again"),
    "run_command": Kind("run_command", {"command": f"echo line >> {LINES}"}, "told", ("shell",)),
    "run_python": Kind("run_python", {"code": f"open('{LINES}', 'a')"}, "told", ("shell",)),
    "data_set": Kind("data_set", {"key": "k", "value": 1}, "made again", ("store",)),
    "data_clear": Kind("data_clear", {}, "made again", ("store",)),
    "a function": Kind("append", FOLDER, "told"),
    "an async function": Kind("append_later", FOLDER, "told"),
    "a repeatable function": Kind("append_again", FOLDER, "made again"),
    "a custom tool": Kind("custom_tool__never", FOLDER, "told", ("custom",)),
    "a repeatable custom tool": Kind("custom_tool__always", FOLDER, "made again", ("custom",)),
    "an MCP tool": Kind("mcp__t__append", FOLDER, "told", ("mcp",)),
    "an idempotent MCP tool": Kind("mcp__t__append_safely", FOLDER, "made again", ("mcp",)),
    "a reading MCP tool": Kind("mcp__t__append_unseen", FOLDER, "made again", ("mcp",)),
    "call_agent": Kind("call_agent", {"name": "helper", "input": "help me"}, "goes on"),
    "spawn_subagents": Kind("spawn_subagents", SPAWN, "goes on", ("spawn",)),
    "a guarded function": Kind("append", FOLDER, "told", ("asks",)),
    "a guarded, repeatable function": Kind("append_again", FOLDER, "made again", ("asks",)),
    "an unknown tool": Kind("nothing", {}, "made again"),
}


class Stage:
    """A team of one that makes one call, in a folder."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.folder, self._kind = folder, kind
        (folder / "alive").touch()
        (folder / "go").touch()
        (folder / "tools.py").write_text(CUSTOM)
        args = json.loads(json.dumps(kind.args).replace("FOLDER", str(folder)))
        self._turns = {"": [Turn(calls=(Call(kind.tool, args),)), Turn(text="done")]}
        self._turns["help me"] = [Turn(text="helped")]
        self.model = ScriptedModel(self._reply)

    def _reply(self, messages: list[Any]) -> Turn:
        asked = "".join(str(getattr(p, "content", "")) for p in messages[0].parts)
        who = "help me" if "help me" in asked else ""
        return self._turns[who][sum(m.kind == "response" for m in messages)]

    def team(self) -> TeamSpec:
        keys: dict[str, dict[str, Any]] = {
            "shell": {"enable_mcp_command_line": True},
            "store": {"data_store": True},
            "mcp": {"mcp_servers": [served(self.folder)]},
            "asks": {"tool_policy": [{"match": "append*", "action": "allow"}]},
            "custom": {
                "custom_tools": [
                    {"path": str(self.folder / "tools.py"), "function": ["never", "always"]}
                ]
            },
        }
        backend: dict[str, Any] = {"type": "python", "instance": self.model}
        for key in self._kind.keys:
            backend |= keys.get(key, {})
        helper = {"id": "helper", "backend": dict(backend)}
        spawning = {"coordination": {"enable_subagents": "spawn" in self._kind.keys}}
        return TeamSpec.model_validate(
            {
                "agents": [{"id": "a", "backend": {**backend, "can_call": "*"}}],
                "callable_agents": [helper],
                "orchestrator": spawning,
            }
        )

    def play(self, root: Path, begin: bool) -> Run:
        """Start it, or resume it."""
        options, tools = RunOptions(session_root=root), [append, append_again, append_later]
        if begin:
            return nb_agents.start("the task", self.team(), "s", tools=tools, options=options)
        return nb_agents.resume("s", self.team(), tools=tools, options=options)


@pytest.mark.parametrize("name", KINDS)
def test_preview_and_resume_agree_about_interrupted_calls(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    stage = Stage(tmp_path, kind)
    finish(stage.play(tmp_path / "whole", True))
    asked = len(stage.model.requests)
    number = next(e.seq for e in all_events(tmp_path / "whole") if isinstance(e, ev.ToolStarted))
    cut_copy(tmp_path / "whole", tmp_path / "cut", number)

    told = preview("s", session_root=tmp_path / "cut")
    before = written(tmp_path)
    run = finish(stage.play(tmp_path / "cut", False))
    assert (run.status, run.result) == ("completed", "done")
    assert run.view.notices[0] == str(told)
    named = f"a: {kind.tool}"
    begun = [e.tool for e in events(run, ev.ToolStarted) if e.agent == "a"]
    heard = prompt(stage.model, len(stage.model.requests) - 1)
    lost = MAY_HAVE_HAPPENED.format(tool=kind.tool)
    if kind.becomes == "told":
        assert (told.tools_told, told.tools_again, begun) == ((named,), (), [])
        assert f"because it may have taken effect: the tool call {named}" in str(told)
        assert lost in heard and results(run) == [lost]
        assert written(tmp_path) == before
        assert len(stage.model.requests) == asked + 1
    else:
        assert (told.tools_told, told.tools_again, begun) == ((), (named,), [kind.tool])
        assert f"Runs again: the tool call {named}." in str(told)
        assert lost not in heard


def written(folder: Path) -> int:
    """How many lines tools have written, outside of workspaces."""
    path = folder / LINES
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_card_names_calls_that_are_not_repeated(tmp_path: Path) -> None:
    stage = Stage(tmp_path, KINDS["a function"])
    finish(stage.play(tmp_path / "whole", True))
    number = next(e.seq for e in all_events(tmp_path / "whole") if isinstance(e, ev.ToolStarted))
    cut_copy(tmp_path / "whole", tmp_path / "cut", number)
    turn = load_session(tmp_path / "cut" / "s").turns[-1]
    bundle = turn_bundle(turn, str(turn.paths.path))
    for kind in ("text/plain", "text/markdown"):
        assert "not run again: the tool call a: append" in bundle[kind]


@pytest.mark.parametrize("times", [1, 2])
def test_interrupted_call_stays_interrupted_over_stopped_resumes(
    tmp_path: Path, times: int
) -> None:
    made: list[str] = []
    entered = Event()

    def hang() -> str:
        made.append("made")
        entered.set()
        while True:
            nb_agents.checkpoint()

    model = ScriptedModel(Turn(calls=(Call("hang"),)), Turn(text="done"))
    team = nb_agents.testing.scripted_team(None, a=model)
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("t", team, tools=[hang], options=options)
    assert entered.wait(WAIT_S)
    run.stop(now=True)
    finish(run)
    for _ in range(times):
        with loop_held():
            run = run.resume()
            run.stop(now=True)
        run.wait(WAIT_S, raise_on_stop=False)
        assert run.status == "cancelled"
        assert run.preview is not None and run.preview.tools_told == ("a: hang",)
    run.resume().wait(WAIT_S)
    assert made == ["made"]
    assert "Check the current state first" in prompt(model, len(model.requests) - 1)


# What ends while a stop waits for it


def plainly(entered: Event, made: list[str]) -> Callable[[], Any]:
    def work() -> str:
        """Work until a stop is requested, then end."""
        entered.set()
        while not nb_agents.should_stop():
            pass
        made.append("line")
        return "all of it"

    return work


def later(entered: Event, made: list[str]) -> Callable[[], Any]:
    async def work() -> str:
        """Work until a stop is requested, then end."""
        entered.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            made.append("line")
        return "all of it"

    return work


def failing(entered: Event, made: list[str]) -> Callable[[], Any]:
    work = plainly(entered, made)

    def fail() -> str:
        """Work on, and fail once a stop was asked for."""
        raise ValueError(work())

    fail.__name__ = "work"
    return fail


@pytest.mark.parametrize("make", [plainly, later, failing])
def test_function_that_ends_during_an_immediate_stop_has_a_result(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "CLEANUP_S", 60.0)
    entered, made = Event(), list[str]()
    model = ScriptedModel(Turn(calls=(Call("work"), Call("list_files"))), Turn(text="done"))
    team = nb_agents.testing.scripted_team(None, a=model)
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("t", team, tools=[make(entered, made)], options=options)
    assert entered.wait(WAIT_S)
    run.stop(now=True)
    finish(run)
    assert run.status == "cancelled"
    first, second = events(run, ev.ToolFinished)
    assert first.outcome == ("error" if make is failing else "ok")
    assert "all of it" in first.result and second.outcome == "cancelled"
    assert run.preview is not None and run.preview.tools_again == ("a: list_files",)
    again = run.resume()
    again.wait(WAIT_S)
    assert made == ["line"]
    assert "all of it" in prompt(model, 1)


def test_mcp_reply_during_an_immediate_stop_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "ANSWER_S", 60.0)
    (tmp_path / "alive").touch()
    call = Call("mcp__t__append", {"folder": str(tmp_path)})
    model = ScriptedModel(Turn(calls=(call,)), Answer("done"))
    backend = {"type": "python", "instance": model, "mcp_servers": [served(tmp_path)]}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path / "s"))
    wait_until((tmp_path / "begun").exists, WAIT_S, "the call")
    run.stop(now=True)
    (tmp_path / "go").touch()
    finish(run)
    assert run.status == "cancelled" and results(run) == ["written"]
    run.resume().wait(WAIT_S)
    assert written(tmp_path) == 1


# Commands of recipes

STEP = 'steps: [{{id: build, type: bash, command: "{command}", output: built{more}}}]\n'


def cut_command(root: Path, more: str = "") -> Run:
    """Stop a recipe immediately in its only command, after it has written its line."""
    command = f"echo line >> lines; {hold('it')}"
    run = begin(write(root, STEP.format(command=command, more=more)))
    wait_held(run, "it")
    run.stop(now=True)
    finish(run)
    let_go(run, "it")
    return run


def test_interrupted_command_of_a_recipe_runs_again_as_previewed(tmp_path: Path) -> None:
    run = cut_command(tmp_path)
    told = preview("s", session_root=tmp_path / "sessions")
    assert "Runs again: the command of build (interrupted, may be partly done)." in str(told)
    again = run.resume()
    assert over(again).status == "completed" and again.view.notices[0] == str(told)
    assert files_of(again)["main/lines"] == "line\nline\n"


@pytest.mark.parametrize("approved", [True, False])
def test_interrupted_unrepeatable_command_asks_before_it_runs_again(
    tmp_path: Path, approved: bool
) -> None:
    run = cut_command(tmp_path, ", repeatable: false")
    told = preview("s", session_root=tmp_path / "sessions")
    assert "Runs again: nothing." in str(told)
    assert "Asks before running again, because it was interrupted: the command of build." in str(
        told
    )
    for _ in range(2):  # it asks again when it is stopped while it waits
        told = preview("s", session_root=tmp_path / "sessions")
        run = run.resume()
        assert run.view.notices[0] == str(told)
        (gate,) = wait_for_gate(run)
        assert "Check its results first. Run it again?" in run.view.gates[gate].prompt
        run.stop(now=True)
        over(run)
    again = run.resume()
    wait_for_gate(again)
    again.approve() if approved else again.deny("it is built")
    over(again)
    assert again.status == ("completed" if approved else "cancelled")
    assert files_of(again)["main/lines"] == "line\n" * (1 + approved)
    if not approved:
        assert again.view.stop is not None and "it is built" in again.view.stop.reason
        told = preview("s", session_root=tmp_path / "sessions")
        assert "Asks before running again" in str(told)
        assert over(again.resume(context={"built": "by hand"})).status == "completed"


async def test_answer_of_another_process_during_an_immediate_stop_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer, "CLEANUP_S", 60.0)
    made = offer.CallInbox.make(tmp_path)
    context = ToolContext("a", tmp_path, [], tmp_path, tmp_path, [], lambda text: None)
    function = offer.OfferedFunction("f", None, {"type": "object"}, made, is_repeatable=True)
    tool = function.tool(context)
    results = []

    async def answer() -> None:
        ((name, _),) = await to_thread.run_sync(wait_until, made.take_calls)
        scope.cancel()
        await to_thread.run_sync(wait_until, made.take_stops)
        made.answer(name, offer.CallResult("all of it"))

    async with anyio.create_task_group() as group:
        group.start_soon(answer)
        with anyio.CancelScope() as scope:
            results.append(await tool.call({}))
    made.withdraw()
    assert results == ["all of it"] and tool.is_repeatable
