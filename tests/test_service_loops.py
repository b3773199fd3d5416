"""Service loops: after an item fails, the next one is handled."""

import ast
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from inspect import iscoroutinefunction
from itertools import chain
from pathlib import Path
from typing import Any

import anyio
import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import RunFailed
from nb_agents.events import Say
from nb_agents.service_loops import ServiceLoop
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from nb_agents.testing import Turn as Said
from tests.kit.agents import Team
from tests.kit.processes import OutputTail, open_command
from tests.kit.programs import acp_link
from tests.kit.recipes import Executor
from tests.kit.runs import (
    AgentStopped,
    CancellationStatus,
    Hooks,
    Limits,
    Offering,
    Recorder,
    Run,
    StopRequest,
    TurnReader,
    TurnWriter,
    polling,
    registry,
    turn,
)
from tests.kit.servers import Feeds, TurnFeed, panels
from tests.kit.sessions import JournalReader, TurnPaths, ask, send
from tests.kit.sweeps import Sweep
from tests.kit.sweeps import sweep as sweep_module
from tests.kit.terminal import Chat
from tests.kit.tools import AsyncThread as _AsyncThread
from tests.kit.tools import CallInbox, CallRequest, mcp_stdio, stdio_streams
from tests.model_server import wait_until
from tests.recipes.live import begin as begin_recipe
from tests.recipes.live import write
from tests.team_kit import WAIT_S, events, finish

STOP = StopRequest(CancellationStatus.IMMEDIATE, "cli", "enough")
DEEP = '{"kind": "Say", "data": ' + "[" * 200_000 + "]" * 200_000 + "}"


class Faults:
    """Makes the first call of a function fail, and later ones work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.path = path
        self.options = RunOptions(session_root=path / "sessions")
        self.count = 0
        self._monkeypatch = monkeypatch

    def put(self, owner: Any, name: str, error: BaseException | None = None) -> None:
        """Let the next call of a function raise."""
        real, left = getattr(owner, name), [error or RecursionError("too deep")]

        def failing(*args: Any, **named: Any) -> Any:
            if left:
                self.count += 1
                raise left.pop()
            return real(*args, **named)

        self._monkeypatch.setattr(owner, name, failing)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Faults]:
    yield Faults(monkeypatch, tmp_path)
    for group in registry.groups():
        group.stop(True, reason="the test is over", source="parent")
    for run in registry.live_runs():
        run.stop(True)


def held(faults: Faults, **options: Any) -> tuple[Run, Gate]:
    """Start a run whose agent says some words and waits."""
    gate = Gate()
    team = scripted_team(a=ScriptedModel(Said(text="words ", gate=gate), Answer("A's")))
    root = faults.options.session_root
    run = nb_agents.start("it", team, options=RunOptions(session_root=root, **options))
    gate.wait_reached()
    return run, gate


def ends(run: Run, gate: Gate, *, told: ServiceLoop | None = None) -> None:
    """Check that a run completes, and reports the item that failed."""
    gate.open()
    assert finish(run).status == "completed"
    if told is not None:
        assert sum(notice.startswith(told.value) for notice in run.view.notices) == 1


def stopped_from_outside(run: Run) -> None:
    """Check that a command of another process is carried out and answered."""
    answer = ask(TurnPaths(run.path), STOP, WAIT_S, lambda: not run.is_over)
    assert answer is not None and (answer.changed, answer.status) == (True, "stopping-now")
    finish(run)


def a_command(faults: Faults) -> None:
    run, _ = held(faults)
    faults.put(turn, "take_commands")
    send(TurnPaths(run.path), Say("hello"))
    wait_until(lambda: events(run, ev.UserMessage))
    faults.put(TurnWriter, "take")
    answer = ask(TurnPaths(run.path), Say("more"), WAIT_S, lambda: True)
    assert answer is not None and "failed because of a bug" in answer.error
    stopped_from_outside(run)
    assert faults.count == 2
    assert (
        run.view.notices.count(
            "A command from another process failed and was skipped (RecursionError)."
        )
        == 1
    )


def a_tick(faults: Faults) -> None:
    faults.put(Team, "flush")
    run, gate = held(faults)
    wait_until(lambda: faults.count)
    ends(run, gate, told=ServiceLoop.TICKS)


def a_sync(faults: Faults) -> None:
    faults.put(Recorder, "sync")
    run, gate = held(faults)
    wait_until(lambda: faults.count)
    ends(run, gate, told=ServiceLoop.SYNCS)


def an_observer(faults: Faults) -> None:
    faults.put(Limits, "observe")
    ends(*held(faults), told=ServiceLoop.OBSERVERS)


def a_limit(faults: Faults) -> None:
    faults.put(Limits, "_watch_time")
    run, gate = held(faults, timeout=100)
    wait_until(lambda: faults.count)
    ends(run, gate, told=ServiceLoop.LIMITS)


def a_clock(faults: Faults) -> None:
    faults.put(Executor, "_only_waits")
    write(faults.path, "steps: [{id: a, type: bash, command: sleep 100}]", "sub")
    main = "steps: [{id: s, type: recipe, recipe: sub.yaml, timeout: 0.3}]"
    run = begin_recipe(write(faults.path, main))
    with pytest.raises(RunFailed, match="longer than"):
        run.wait(WAIT_S)


def a_status(faults: Faults) -> None:
    told: list[str] = []
    faults.put(Hooks, "_report_statuses")
    run, gate = held(faults, on_status_change=told.append)
    wait_until(lambda: faults.count)  # the last status is told by another call
    ends(run, gate, told=ServiceLoop.STATUSES)
    assert told[-1] == "completed"


def a_subscriber(faults: Faults) -> None:
    run, gate = held(faults)
    left = [SystemExit(1), KeyboardInterrupt(), AgentStopped(STOP), RecursionError()]
    shown: list[bool] = []

    def callback(view: object) -> None:
        if left:
            faults.count += 1
            raise left.pop()
        shown.append(True)

    run.subscribe(callback)
    wait_until(lambda: shown)
    ends(run, gate)


def a_watch(faults: Faults) -> None:
    news: list[str] = []

    def fail() -> bool:
        faults.count += 1
        raise RecursionError

    with polling(fail, list), polling(lambda: True, lambda: news.append("news")):
        wait_until(lambda: faults.count > 2 and len(news) > 2)


def a_followed_run(faults: Faults) -> None:
    run, gate = held(faults)
    reader, shown = TurnReader(TurnPaths(run.path)), list[str]()
    faults.put(JournalReader, "read")
    reader.subscribers.add(lambda view: shown.append(view.status))
    wait_until(lambda: faults.count and shown)
    ends(run, gate)
    reader.done.result(WAIT_S)
    wait_until(lambda: shown[-1] == "completed")


def an_offered_call(faults: Faults) -> None:
    def look() -> str:
        """Look."""
        return "seen"

    run, gate = held(faults)
    root = run.path.parent.parent
    offering = Offering([look], root)
    faults.put(Offering, "_read_news")
    offering.serve(run.path)
    offer = CallInbox(offering.id, root)
    call = CallRequest("look", {}, "a", False, root, (), root, root)
    answers = []
    for _ in range(2):
        name = offer.ask(call)
        wait_until(partial(offer.answer_to, name))
        answers.append(offer.answer_to(name))
        if faults.count == 1:
            faults.put(Offering, "_call")
    assert [each is not None and (each.text, each.is_error) for each in answers] == [
        ("seen", False),
        ("Error: a bug in nb_agents prevented the call.", True),
    ]
    ends(run, gate)


async def an_async_function(faults: Faults) -> None:
    async def leave() -> str:
        async def fail() -> None:
            faults.count += 1
            raise SystemExit(1)

        asyncio.get_running_loop().create_task(fail())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "left"

    thread = _AsyncThread()
    assert [await thread.run(leave) for _ in range(2)] == ["left"] * 2


SAYS_TWICE = """
import os, sys, time
for word in "one", "two":
    print(word, file=sys.stderr, flush=True)
    print(sys.argv[1], flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
sys.stdin.read()
"""


async def let_go(faults: Faults) -> None:
    """Let a program send its text and its message again after the first ones failed."""
    await anyio.to_thread.run_sync(wait_until, lambda: faults.count == 2)
    (faults.path / "go").touch()


async def a_message_of_a_server(faults: Faults) -> None:
    faults.put(mcp_stdio, "_parsed")
    faults.put(OutputTail, "add")
    message = '{"jsonrpc": "2.0", "method": "hello"}'
    words = OutputTail()
    argv = [sys.executable, "-c", SAYS_TWICE, message]
    async with stdio_streams(
        argv, cwd=faults.path, env={}, words=words, on_start=lambda _: None, on_end=lambda: None
    ) as (
        read,
        _,
    ):
        await let_go(faults)
        received = await read.receive()
        assert not isinstance(received, Exception)
        await anyio.to_thread.run_sync(wait_until, lambda: "two" in str(words))


async def a_message_of_a_program(faults: Faults) -> None:
    faults.put(acp_link, "_read")
    faults.put(OutputTail, "add")
    message = '{"jsonrpc": "2.0", "id": 1, "result": {}}'

    async def nothing(params: dict[str, Any]) -> None: ...

    argv = [sys.executable, "-c", SAYS_TWICE, message]
    async with open_command(argv, cwd=faults.path, env={}) as program:
        link = acp_link.AcpLink(program, nothing)
        async with anyio.create_task_group() as group:
            group.start_soon(link.overhear)
            group.start_soon(let_go, faults)
            assert await link.receive() == json.loads(message)
            await anyio.to_thread.run_sync(wait_until, lambda: "two" in str(link.words))
            group.cancel_scope.cancel()


def sweep_of(faults: Faults, count: int) -> tuple[Sweep, Gate]:
    gate = Gate()
    team = scripted_team(a=ScriptedModel(Answer("So.", gate=gate)))
    rows = [{"q": number} for number in range(count)]
    return nb_agents.map(rows, "Answer {{q}}", team, limit=2, options=faults.options), gate


def news_of_a_sweep(faults: Faults) -> None:
    sweep, gate = sweep_of(faults, 3)
    for name in ("_check_budget", "_publish", "_begin_due", "_take_commands"):
        faults.put(Sweep, name)
        sweep._inbox.put(partial(getattr(sweep, name)) if name == "_take_commands" else int)
    wait_until(lambda: faults.count == 4)  # or the sweep's last words might be the ones that fail
    gate.open()
    assert sweep.wait(WAIT_S).completed == 3


async def a_feed(faults: Faults) -> None:
    run, gate = held(faults)
    feeds = Feeds()
    bad, good = TurnFeed(run.path), TurnFeed(run.path)
    faults.put(bad, "_read_on")
    await feeds.read([bad, good])
    assert good.view.seq and bad.is_live and not bad.view.seq
    bad._read_at = 0.0
    await feeds.read([bad])
    assert bad.view.seq
    await anyio.to_thread.run_sync(ends, run, gate)


async def a_page(faults: Faults) -> None:
    run, gate = held(faults)
    other, other_gate = held(faults)
    feeds = Feeds()
    faults.put(feeds.of(run.path), "state")
    faults.put(feeds.of(run.path), "card")
    sent = []
    messages = panels(feeds, {"bad": run.path, "good": other.path})
    async for message in messages:
        sent.append(message.partition(', "state"')[0].partition(', "bundle"')[0])
        if sent[-1].startswith("event: state") and '"bad"' in sent[-1]:
            gate.open()
        if sent[-1].startswith("event: unknown"):
            other_gate.open()
    kinds = [message for message in sent if message]
    assert kinds[0] == 'event: state\ndata: {"id": "good"'
    assert kinds[-1] == 'event: card\ndata: {"id": "good"'
    assert 'event: unknown\ndata: {"id": "bad"}\n\n' in kinds


def a_line_of_a_chat(faults: Faults) -> None:
    told: list[str] = []
    chat = Chat(lambda task: pytest.fail(task), str, told.append)
    faults.put(Chat, "_receive")
    chat.talk(["lost", "/quit"])
    assert any(text.startswith(ServiceLoop.CHAT.value) for text in told)


SCENARIOS: dict[ServiceLoop, Callable[[Faults], Awaitable[None] | None]] = {
    ServiceLoop.COMMANDS: a_command,
    ServiceLoop.TICKS: a_tick,
    ServiceLoop.SYNCS: a_sync,
    ServiceLoop.OBSERVERS: an_observer,
    ServiceLoop.LIMITS: a_limit,
    ServiceLoop.CLOCKS: a_clock,
    ServiceLoop.STATUSES: a_status,
    ServiceLoop.VIEWS: a_subscriber,
    ServiceLoop.WATCHES: a_watch,
    ServiceLoop.FOLLOWED: a_followed_run,
    ServiceLoop.OFFERS: an_offered_call,
    ServiceLoop.ASYNC_FUNCTIONS: an_async_function,
    ServiceLoop.MCP: a_message_of_a_server,
    ServiceLoop.SWEEPS: news_of_a_sweep,
    ServiceLoop.FEEDS: a_feed,
    ServiceLoop.PAGES: a_page,
    ServiceLoop.CHAT: a_line_of_a_chat,
    ServiceLoop.PROGRAMS: a_message_of_a_program,
}


@pytest.mark.parametrize("loop", ServiceLoop)
def test_an_item_that_fails_does_not_end_its_loop(loop: ServiceLoop, faults: Faults) -> None:
    scenario = SCENARIOS[loop]
    if iscoroutinefunction(scenario):
        anyio.run(scenario, faults)
    else:
        scenario(faults)
    assert faults.count


def test_deeply_nested_command_is_answered(faults: Faults) -> None:
    run, _ = held(faults)
    commands = TurnPaths(run.path).commands
    commands.mkdir()
    (commands / "0.json").write_text(DEEP)
    wait_until(lambda: events(run, ev.CommandAnswered))
    assert "The command is unknown" in events(run, ev.CommandAnswered)[0].error
    assert turn.NO_COMMAND in run.view.notices
    stopped_from_outside(run)


def test_sweep_survives_a_deeply_nested_command(faults: Faults) -> None:
    sweep, _ = sweep_of(faults, 2)
    wait_until(lambda: len(sweep.runs) == 2)
    rows = list(sweep.runs.values())
    paths = TurnPaths(sweep.path)
    paths.commands.mkdir()
    (paths.commands / "0.json").write_text(DEEP)
    wait_until(lambda: not list(paths.commands.iterdir()))
    send(paths, STOP)
    assert sweep.wait(WAIT_S).status == "cancelled"
    assert all(row.is_over for row in rows)


@pytest.mark.parametrize("name", ["_on_begun", "_follow", "_on_end", "_score", "_end"])
def test_failing_update_of_a_row_ends_only_that_row(faults: Faults, name: str) -> None:
    faults.put(Sweep, name)
    sweep, gate = sweep_of(faults, 3)
    gate.open()
    view = sweep.wait(WAIT_S)
    assert faults.count == 1
    assert view.completed >= 2
    assert not [run for run in registry.live_runs() if sweep.path in run.path.parents]


@pytest.mark.parametrize("error", [RecursionError(), SystemExit(1)])
def test_when_the_collector_of_a_sweep_crashes_its_rows_are_stopped_first(
    faults: Faults, error: BaseException
) -> None:
    sweep, _ = sweep_of(faults, 3)
    wait_until(lambda: len(sweep.runs) == 2)
    rows = list(sweep.runs.values())
    faults.put(Sweep, "_is_finished", error)
    view = sweep.wait(WAIT_S)
    assert faults.count == 1
    assert [row.status for row in rows] == ["cancelled"] * 2
    assert view.status == "cancelled" and "a bug in nb_agents" in view.reason


def test_sweep_waits_for_threads_to_start_rows(
    faults: Faults,
) -> None:
    faults.put(sweep_module, "_in_thread", RuntimeError("can't start new thread"))
    sweep, gate = sweep_of(faults, 2)
    gate.open()
    assert sweep.wait(WAIT_S).completed == 2
    assert faults.count == 1


EXEMPT = {
    # Work that a run, a call or a caller waits for, which its error belongs to.
    "model_runner:ModelRound._stream": "one model call",
    "model_runner:ModelRound._run_tools": "the calls of one reply",
    "response_limits:_LimitedStream": "one model call",
    "cassettes:_copied": "one model call",
    "cassettes:record_request": "one model call",
    "batching:_Collector": "the model calls that wait for a batch",
    "batching:_created_since": "one model call",
    "batching:_known_batch": "one model call",
    "batching:_poll": "the model calls that wait for a batch",
    "python_kernel:PythonInterpreter": "one cell",
    "python:PythonCells._end": "one cell",
    "team_driver:Team": "the run's own work",
    "command:OpenCommand": "one command",
    "stage:ReplayStage": "waits",
    "replay_runner:_RecordedFolder.fold_if_needed": "one model call",
    "stop_scope:PauseGate.wait_over": "waits",
    "stop_scope:StopScope.sleep_until": "waits",
    "executor:Executor.run": "the run's own work",
    "subagents:SubAgents.close": "waits",
    "demo:demo_backend.write": "one model call",
    "testing:ScriptedModel._play": "one model call",
    "data_store:_open": "one call of a tool",
    "threads:ThreadCall._wait_for_copies": "waits",
    "offer:OfferedFunction._answer_to": "one call of a tool",
    "offering:Offering._answer": "one call of a tool; see Offering._serve",
    "command:_read": "one command",
    "lines:read_lines": "one pipe; see mcp_stdio:_listen and AcpLink.receive",
    "acp_runner:AcpRound": "one prompt",
    "team_agent:TeamAgent._show": "one turn of a client",
    "team_server:_report_progress": "one call of a client",
    "mcp_stdio:_write_messages": "a failure ends the connection and its waiting calls",
    "lines:write_all": "one message",
    "mcp_wire:_Answers": "one connection; what it reads ends with it",
    "limits:Limits._pass": "waits; see Limits._guarded",
    "budget_watch:BudgetWatch": "waits; see Limits._guarded",
    "day_watch:DayWatch.watch": "waits; see Limits._guarded",
    "cell_kernel:CellKernel": "one call of a tool",
    "cell_kernel:_outcome": "one call of a tool",
    "cell_runs:CellRuns": "one call of a tool",
    "cell_tools:NotebookTools._task_outline": "the prompt of a run",
    "hooks:Hooks._report_statuses": "see Hooks.watch",
    # A user waits in the foreground and sees the error.
    "tabled:_print_events.print_each": "a command of the terminal",
    "live_runs:save_with_retries": "a command of the terminal, or the end of a run's own process",
    "call_log:CallLog.settled": "waits; the agent's round guards it",
    "function_agent:_converse": "one call of a function",
    "graph_agent:converse": "one run of a graph",
    "openai_agent:_SdkModel.get_response": "one call of a model",
    "pydantic_agent:_receive": "one call of a model",
    "commands:ask": "one command's sender",
    "journal:follow": "a user's own loop",
    "handler:Handler.send": "one response",
    "handler:Handler.stream": "one response; see `streams`",
}
"""Functions, or classes, whose loops wait and are no service loops, with the reason."""


def _waits(loop: ast.AST) -> bool:
    names = {
        node.func.attr
        for node in ast.walk(loop)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr != "get" or any(each.arg == "timeout" for each in node.keywords)
    }
    awaits = (ast.Await, ast.AsyncFor, ast.AsyncWith)
    is_async = any(isinstance(node, awaits) for node in ast.walk(loop))
    return is_async or bool(names & {"wait", "sleep", "run_forever", "get"})


def waiting_loops(module: str, source: str) -> Iterator[tuple[str, bool]]:
    """Give the loops that wait: "module:Class.function", and whether they guard their items."""

    def loops(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            inner = names
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*names, child.name)
            if isinstance(child, ast.While | ast.AsyncFor) and _waits(child):
                yield f"{module}:{'.'.join(names)}", "ServiceLoop." in ast.unparse(child)
            yield from loops(child, inner)

    return loops(ast.parse(source), ())


def test_every_loop_that_waits_guards_its_items_or_is_listed_with_a_reason() -> None:
    package = Path(nb_agents.__file__).parent
    found = [
        each
        for path in sorted(package.rglob("*.py"))
        for each in waiting_loops(path.stem, path.read_text("utf-8"))
    ]
    unguarded = {name for name, is_guarded in found if not is_guarded}
    listed = {
        name: [key for key in EXEMPT if f"{name}.".startswith(f"{key}.")] for name in unguarded
    }
    assert [name for name in listed if not listed[name]] == [], "use ServiceLoop.item there"
    assert EXEMPT.keys() - set(chain(*listed.values())) == set(), "no such loop"
    assert len(found) - len(unguarded) >= 10


@pytest.mark.parametrize(
    "source, is_found",
    [
        ("async def f():\n  while True:\n    await x()", True),
        ("async def f():\n  async for x in y:\n    pass", True),
        ("def f():\n  while a:\n    time.sleep(1)", True),
        ("def f():\n  while a:\n    q.get(timeout=1)()", True),
        ("def f():\n  while a:\n    a.get('x')", False),
    ],
)
def test_a_loop_that_waits_is_found(source: str, is_found: bool) -> None:
    assert list(waiting_loops("m", source)) == [("m:f", False)] * is_found
