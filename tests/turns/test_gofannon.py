"""Gofannon's document about the Stop button, line by line, and the bugs of its first fix.

Source: https://github.com/The-AI-Alliance/gofannon, issue "Stop button for in-flight runs
(cooperative cancellation)"; the faults are those that its later commits mended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import AgentStopped, RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.cards import panel_state
from tests.kit.runs import (
    CancellationStatus,
    CancelToken,
    Run,
    StopResult,
    bind,
    current_token,
    post,
)
from tests.kit.tools import (
    ApprovalDecision,
    DataStore,
    RunTools,
    RunToolSettings,
    Tool,
    ToolKeys,
    Workspace,
)
from tests.model_server import ModelServer, Reply, wait_until
from tests.team_kit import WAIT_S, events, finish, metadata, start
from tests.turns.test_tools import mcp_server


@pytest.fixture
def gate() -> Gate:
    return Gate()


def with_tools(root: Path, model: ScriptedModel, *functions: Any) -> Run:
    team = scripted_team(None, a=model)
    return nb_agents.start(
        "the task", team, options=RunOptions(session_root=root), tools=list(functions)
    )


# "CancelToken contextvar threaded through agent execution"


def test_tool_has_its_runs_token_in_every_thread_and_task(tmp_path: Path) -> None:
    seen: list[CancelToken | None] = []

    def in_a_thread() -> None:
        seen.append(current_token())
        thread = threading.current_thread()
        assert thread is not threading.main_thread()

    async def in_a_task() -> None:
        # A task that the tool itself makes inherits it too.
        await asyncio.create_task(look())

    async def look() -> None:
        seen.append(current_token())

    both = Turn(calls=(Call("in_a_thread", {}), Call("in_a_task", {})))
    finish(with_tools(tmp_path, ScriptedModel(both, Answer("done")), in_a_thread, in_a_task))
    assert len(seen) == 2 and None not in seen
    assert current_token() is None


# "… check should_stop() on entry": every tool that there is


@asynccontextmanager
async def everything(root: Path, policy: Any) -> AsyncIterator[list[Tool]]:
    """All tools that an agent with all keys has."""

    async def ask(agent: str, tool: str, about: str, stops: bool) -> ApprovalDecision:
        raise AssertionError("nobody is asked once a stop was")

    def function(text: str = "") -> str:
        """Do something."""
        raise AssertionError("called in spite of the stop")

    async def coroutine(text: str = "") -> str:
        """Do something else."""
        raise AssertionError("called in spite of the stop")

    (root / "alive").touch()
    (root / "w").mkdir()
    keys = ToolKeys.model_validate(
        {
            "enable_mcp_command_line": True,
            "data_store": True,
            "mcp_servers": [mcp_server(root)],
            "tool_policy": policy,
        }
    )
    places = RunToolSettings(session=root, kept=root / "kept", readable=[], secrets=[])
    async with RunTools(
        places, [function, coroutine], lambda text: None, ask, lambda: None
    ) as run_tools:
        opened = await run_tools.open("a", root / "w", keys)
        yield opened.with_files(Workspace(root / "w", {}, []).tools())


async def passing(tools: list[Tool], level: CancellationStatus) -> list[str]:
    """Call each tool with a stop asked for: the names of those that do not stop."""
    token = CancelToken("r")
    token.request(level, "api")
    passed = []
    with bind(token):
        for tool in tools:
            try:
                await tool.call({})
            except AgentStopped:
                continue
            passed.append(tool.name)
    return passed


POLICIES: dict[str, list[dict[str, str]]] = {
    "no policy": [],
    "ask": [{"match": "*", "action": "ask"}],
    "deny": [{"match": "*", "action": "deny"}],
}


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_tool_checks_for_a_stop_before_it_starts(tmp_path: Path, policy: str) -> None:
    async with everything(tmp_path, POLICIES[policy]) as tools:
        names = {tool.name for tool in tools}
        assert {"run_command", "run_python", "mcp__t__add", "function", "coroutine"} < names
        assert {"write_file", "read_file", "data_get", "data_set"} < names
        # There, the store's bulk reads lacked it at first.
        assert {"data_get_all", "data_get_many", "data_list_keys"} < names
        for level in (CancellationStatus.REQUESTED, CancellationStatus.IMMEDIATE):
            assert await passing(tools, level) == []
    assert [path.name for path in (tmp_path / "w").iterdir()] == []


async def test_tool_without_a_stop_check_is_detected() -> None:
    class Unchecked(Tool):
        async def call(self, args: Any) -> Any:
            return "done"

    async def careless() -> str:
        return "done"

    assert await passing([Unchecked(careless)], CancellationStatus.REQUESTED) == ["careless"]


async def test_every_data_store_method_checks_for_a_stop(tmp_path: Path) -> None:
    store = DataStore(tmp_path / "store", "a")
    token = CancelToken("r")
    token.request(CancellationStatus.REQUESTED, "api")
    arguments: dict[str, tuple[Any, ...]] = {
        "get": ("k",),
        "set": ("k", 1),
        "delete": ("k",),
        "delete_many": (["k"],),
        "list_keys": (),
        "list_namespaces": (),
        "get_all": (),
        "get_many": (["k"],),
        "set_many": ({"k": 1},),
        "clear": (),
        "entry": ("k",),
        "operations": (),
    }
    public = {name for name in dir(store) if not name.startswith("_")}
    assert set(arguments) == public - {"of", "tools", "use_namespace"}
    with bind(token):
        for name, given in arguments.items():
            with pytest.raises(AgentStopped):
                getattr(store, name)(*given)
    assert not (tmp_path / "store").exists()


# "POST /runs/{run_id}/stop sets cancel token, responds 202": all entry points call `run.stop`


def test_stop_returns_immediately_with_its_result(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))
    gate.wait_reached()
    assert run.stop() == StopResult(True, "stopping")
    assert not run.is_over
    assert run.stop() == StopResult(False, "stopping")
    gate.open()
    finish(run)
    # There, a run that was over was answered with 202, too.
    assert run.stop() == StopResult(False, "finished")


# "UI Stop button next to Run, disabled appropriately", "Stopping… state until run halts",
# "RunRecord.status = stopped distinguishable from error"


def test_panel_shows_stopping_until_the_run_has_halted(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, a=ScriptedModel(Turn(calls=(Call("list_files", {}),), gate=gate)))
    gate.wait_reached()
    assert panel_state(run.view, run.id, 0.0)["button"]["label"] == "Stop"
    run.stop()
    wait_until(lambda: run.view.stop, WAIT_S, "the stop")
    shown = panel_state(run.view, run.id, 0.0)
    assert shown["chip"] == "Stopping… (after current LLM call completes)"
    gate.open()
    finish(run)
    shown = panel_state(run.view, run.id, 0.0)
    assert (shown["button"], shown["status"], shown["chip"]) == (None, "stopped", "stopped")
    assert (metadata(run)["run_status"], run.state) == ("cancelled", "stopped")


# "Stop during LLM call halts at next tool boundary (not mid-await)"


def test_graceful_stop_lets_the_model_call_finish_and_starts_no_tool(
    tmp_path: Path, gate: Gate
) -> None:
    called: list[str] = []

    def observe() -> None:
        called.append("observe")

    turn = Turn(text="all of my words ", calls=(Call("observe", {}),), gate=gate)
    run = with_tools(tmp_path, ScriptedModel(turn, Answer("never")), observe)
    gate.wait_reached()
    run.stop()
    wait_until(lambda: run.view.stop, WAIT_S, "the stop")
    gate.open()
    finish(run)
    assert events(run, ev.ModelCut) == []
    assert len(events(run, ev.ModelFinished)) == 1
    assert called == []
    assert run.receipt.tools == (("a: observe", "never started"),)


# "Chained sub-agent stops when parent receives stop"


@pytest.mark.parametrize("now", [False, True])
def test_sub_agent_stops_with_its_caller(tmp_path: Path, gate: Gate, now: bool) -> None:
    caller = ScriptedModel(
        Turn(calls=(Call("call_agent", {"name": "b", "input": "go"}),)), Answer("never")
    )
    called = ScriptedModel(Turn(text="on it ", gate=gate, calls=(Call("list_files", {}),)))
    backends: list[dict[str, Any]] = [
        {"type": "python", "instance": caller, "can_call": ["b"]},
        {"type": "python", "instance": called},
    ]
    agents = [{"id": name, "backend": b} for name, b in zip("ab", backends, strict=True)]
    team = TeamSpec.model_validate({"agents": agents[:1], "callable_agents": agents[1:]})
    run = nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path))
    gate.wait_reached()
    run.stop(now=now)
    wait_until(lambda: run.view.stop, WAIT_S, "the stop")
    gate.open()
    finish(run)
    assert run.status == "cancelled"
    assert (len(caller.requests), len(called.requests)) == (1, 1)
    ended = {a.id: a.outcome for a in run.view.agents.values()}
    assert set(ended.values()) == {"killed" if now else "stopped"}, ended


@pytest.mark.parametrize("now", [False, True])
def test_no_agent_is_called_after_a_stop(tmp_path: Path, gate: Gate, now: bool) -> None:
    """There, the call to an agent had no check at its entry."""
    call = Call("call_agent", {"name": "b", "input": "go"})
    caller = ScriptedModel(Turn(calls=(call,), gate=gate), Answer("never"))
    called = ScriptedModel(Answer("never"))
    backends: list[dict[str, Any]] = [
        {"type": "python", "instance": caller, "can_call": ["b"]},
        {"type": "python", "instance": called},
    ]
    agents = [{"id": name, "backend": b} for name, b in zip("ab", backends, strict=True)]
    team = TeamSpec.model_validate({"agents": agents[:1], "callable_agents": agents[1:]})
    run = nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path))
    gate.wait_reached()
    run.stop(now=now)
    wait_until(lambda: run.view.stop, WAIT_S, "the stop")
    gate.open()
    finish(run)
    assert (run.status, called.requests) == ("cancelled", [])


# "Cleanup runs (e.g., http_client.aclose() in finally) execute before exit"


def test_clients_are_closed_before_the_run_is_over(tmp_path: Path) -> None:
    with ModelServer(Reply(text="word ", endless=True, words_per_second=200)) as server:
        backend = {"type": "chatcompletion", "model": "m", "base_url": server.url}
        team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
        run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path))
        server.wait_chunks(3)
        run.stop(now=True)
        finish(run)
        # The stream has no end of its own: it was this side that closed the connection.
        server.wait_closed()
        assert [request.closed_by for request in server.requests] == ["client"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_tools_can_clean_up(tmp_path: Path, kind: str) -> None:
    entered, closed = threading.Event(), threading.Event()

    def sync_tool() -> None:
        try:
            while True:
                entered.set()
                nb_agents.checkpoint()
        finally:
            closed.set()

    async def async_tool() -> None:
        try:
            entered.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.set()

    made = {"sync": sync_tool, "async": async_tool}[kind]
    run = with_tools(tmp_path, ScriptedModel(Turn(calls=(Call(made.__name__, {}),))), made)
    assert entered.wait(WAIT_S)
    run.stop(now=True)
    finish(run)
    assert closed.wait(WAIT_S)


# What broke there after it had landed


def test_a_tool_that_catches_every_exception_does_not_swallow_a_stop(tmp_path: Path) -> None:
    entered = threading.Event()
    caught: list[BaseException] = []

    def stubborn() -> str:
        while True:
            try:
                entered.set()
                nb_agents.checkpoint()
            except Exception as exc:
                caught.append(exc)

    run = with_tools(tmp_path, ScriptedModel(Turn(calls=(Call("stubborn", {}),))), stubborn)
    assert entered.wait(WAIT_S)
    run.stop()
    finish(run)
    assert (run.status, caught) == ("cancelled", [])


@pytest.mark.parametrize("now", [False, True])
def test_stop_before_the_task_starts_takes_effect(tmp_path: Path, now: bool) -> None:
    model = ScriptedModel(Answer("never"))
    hold = threading.Event()
    post(hold.wait, WAIT_S)  # the loop does nothing until the stop is there
    run = start(tmp_path, a=model)
    try:
        assert run.stop(now=now) == StopResult(False, "asked")
    finally:
        hold.set()
    finish(run)
    assert (run.status, model.requests) == ("cancelled", [])
    assert run.receipt.agents["a"].outcome == "never started"


def test_a_finished_runs_status_is_never_overwritten(tmp_path: Path) -> None:
    run = finish(start(tmp_path, a=ScriptedModel(Answer("A's"))))
    before = (run.path / "events.jsonl").read_bytes(), metadata(run)
    for now in (False, True):
        assert run.stop(now=now) == StopResult(False, "finished")
    assert (run.status, run.result, run.view.stop) == ("completed", "A's", None)
    assert ((run.path / "events.jsonl").read_bytes(), metadata(run)) == before
    assert not run._turn.is_stopping


def test_stop_affects_only_the_displayed_run(tmp_path: Path, gate: Gate) -> None:
    shown, other = (start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate))) for _ in range(2))
    gate.wait_reached(2)
    shown.stop()
    gate.open()
    finish(other)
    finish(shown)
    assert other.view.stop is None and shown.view.stop is not None
    assert other.status == "completed"


def test_cancelled_wait_leaves_no_run_marked_as_running(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(waited(run))), 0.01)

    asyncio.run(give_up())
    gate.open()
    finish(run)
    assert metadata(run)["run_status"] == "completed"


async def waited(run: Run) -> str:
    return await run


def test_blocking_tool_does_not_delay_other_runs(tmp_path: Path) -> None:
    entered, let_go = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        let_go.wait(60)

    slow = with_tools(
        tmp_path / "1", ScriptedModel(Turn(calls=(Call("block", {}),)), Answer("x")), block
    )
    assert entered.wait(WAIT_S)
    assert finish(start(tmp_path / "2", a=ScriptedModel(Answer("quick")))).result == "quick"
    let_go.set()
    assert finish(slow).result == "x"


def test_stopped_run_keeps_its_results_and_reports_how_each_agent_ended(tmp_path: Path) -> None:
    run = start(tmp_path, a=ScriptedModel(Turn(text="words so far ", hang=True)))
    wait_until(lambda: run.view.agents["a"].partial == "words so far ", WAIT_S, "the words")
    run.stop(now=True)
    finish(run)
    assert [each.outcome for each in events(run, ev.AgentEnded)] == ["killed"]
    assert run.view.agents["a"].partial.strip() == "words so far"
