"""Tests of calls from agent functions: a stop ends them all, in any task or thread."""

import asyncio
import inspect
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.function import AgentInfo, FunctionModel

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn
from tests.kit.programs import AgentContext
from tests.kit.runs import AgentStopped, Run
from tests.model_server import wait_until
from tests.team_kit import events, finish

Call = Callable[[], Awaitable[Any]]
LEVELS = ("graceful", "immediate")


def _text_model(gate: Gate) -> FunctionModel:
    async def stream(messages: list[Any], info: AgentInfo) -> Any:
        yield "some words "
        await gate.wait()
        yield "and the rest"

    return FunctionModel(stream_function=stream)


def _held_calls(gate: Gate) -> dict[str, Callable[[Any], Awaitable[Any]]]:
    """Return a call of each method that waits until the gate opens."""
    model = ScriptedModel(Turn("some words ", gate=gate))
    agent = Agent(_text_model(gate))
    return {
        "step": lambda ctx: ctx.step("hold", gate.wait),
        "call_tool": lambda ctx: ctx.call_tool("hold"),
        "model": lambda ctx: ctx.model("Say.", model),
        "run": lambda ctx: ctx.run(agent, "Say."),
        "checkpoint": lambda ctx: ctx.checkpoint(),
    }


METHODS = sorted(_held_calls(Gate()))
HOLDING = [method for method in METHODS if method != "checkpoint"]


def test_all_context_methods_are_tested() -> None:
    methods = inspect.getmembers(AgentContext, inspect.iscoroutinefunction)
    assert METHODS == sorted(name for name, _ in methods if not name.startswith("_"))


async def _in_same_task(call: Call) -> Any:
    return await call()


async def _in_other_task(call: Call) -> Any:
    task = asyncio.create_task(call())  # type: ignore[arg-type]
    await asyncio.wait([task])
    return task.result()


async def _in_task_that_nobody_awaits(call: Call) -> Any:
    task, over = asyncio.create_task(call()), asyncio.Event()  # type: ignore[arg-type]
    task.add_done_callback(lambda _: over.set())
    await over.wait()
    return task.result()


async def _in_thread(call: Call) -> Any:
    """Make a call like a synchronous framework, in a thread without context variables."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(asyncio.run_coroutine_threadsafe(call(), loop).result())  # type: ignore[arg-type]
        except BaseException as exc:
            found.append(exc)
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=work).start()
    await over.wait()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


async def _in_loop_of_another_thread(call: Call) -> Any:
    return await asyncio.to_thread(lambda: asyncio.run(call()))  # type: ignore[arg-type]


PLACES = {
    "same task": _in_same_task,
    "other task": _in_other_task,
    "task that nobody awaits": _in_task_that_nobody_awaits,
    "thread": _in_thread,
    "loop of another thread": _in_loop_of_another_thread,
}


class Play:
    """A function that makes a call that waits, and another one after it."""

    def __init__(self, method: str, place: str) -> None:
        self.gate = Gate()
        self.ends: list[BaseException | str] = []
        self._held, self._place = _held_calls(self.gate)[method], PLACES[place]

    async def hold(self) -> str:
        """Wait."""
        await self.gate.wait()
        return "held"

    async def work(self, task: str, ctx: Any) -> str:
        await self._place(lambda: self._told(self._held(ctx)))
        return str(await ctx.step("never", lambda: "begun"))

    async def _told(self, call: Awaitable[Any]) -> None:
        """Await a call, and record its end."""
        try:
            await call
        except BaseException as exc:
            self.ends.append(exc)
            raise
        self.ends.append("ok")


def start(root: Path, *agents: Any, **more: Any) -> Run:
    team = TeamSpec(agents=agents)
    return nb_agents.start("t", team, options=RunOptions(session_root=root), **more)


@contextmanager
def _no_complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that asyncio reports no exception that was never retrieved."""
    with caplog.at_level(logging.ERROR, "asyncio"):
        yield
    assert not [r for r in caplog.records if r.name == "asyncio" and "never retrieved" in r.message]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", HOLDING)
def test_an_immediate_stop_ends_each_call_before_the_receipt(
    tmp_path: Path, method: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    play = Play(method, place)
    with _no_complaints(caplog):
        run = start(tmp_path, play.work, tools=[play.hold])
        play.gate.wait_reached()
        run.stop(now=True)
        finish(run)
        [end] = play.ends  # before the receipt, and not by its own end
        assert isinstance(end, AgentStopped | asyncio.CancelledError)
        if place in ("thread", "loop of another thread"):
            assert isinstance(end, AgentStopped)  # else a Future's error is an Exception
    assert run.status == "cancelled"
    assert "never" not in [tool.tool for tool in run.view.tools]
    if method in ("model", "run"):
        assert "".join(e.text for e in events(run, ev.TextStreamed)) == "some words "
        assert events(run, ev.ModelCut)[0].seq < events(run, ev.TurnEnded)[0].seq
    else:
        assert [tool.outcome for tool in run.view.tools] == ["cut"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", HOLDING)
def test_a_graceful_stop_lets_each_call_finish_and_refuses_the_next(
    tmp_path: Path, method: str, place: str
) -> None:
    play = Play(method, place)
    run = start(tmp_path, play.work, tools=[play.hold])
    play.gate.wait_reached()
    run.stop()
    wait_until(lambda: run.view.stop)
    play.gate.open()
    finish(run)
    assert play.ends == ["ok"]
    assert run.status == "cancelled"
    assert "never" not in [tool.tool for tool in run.view.tools]
    calls = [tool.outcome for tool in run.view.tools]
    assert calls == (["ok"] if method in ("step", "call_tool") else [])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", METHODS)
def test_a_call_after_a_stop_is_refused(
    tmp_path: Path, method: str, place: str, level: str
) -> None:
    """Also a call that finished in an earlier turn and would only be replayed."""
    play, held = Play(method, place), Gate()
    work, began = play.work, threading.Event()

    async def late(task: str, ctx: Any) -> str:
        began.set()
        try:
            await held.wait()
        except asyncio.CancelledError:
            await work(task, ctx)
            raise
        return await work(task, ctx)

    run = start(tmp_path, late, tools=[play.hold])
    held.wait_reached()
    run.stop(now=level == "immediate")
    wait_until(lambda: run.view.stop)
    held.open()
    finish(run)
    [end] = play.ends
    assert isinstance(end, AgentStopped)
    assert run.status == "cancelled"
    assert run.view.tools == ()
    assert not [e for e in events(run, ev.ModelStarted) if e.place != "/words"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", METHODS)
def test_call_after_its_function_returned_is_refused(
    tmp_path: Path, method: str, place: str
) -> None:
    play = Play(method, place)
    kept: list[Any] = []

    async def returns(task: str, ctx: Any) -> str:
        kept.append((ctx, asyncio.get_running_loop()))
        return "mine"

    # Another agent keeps the run at work.
    gate = Gate()
    other = {
        "id": "ada",
        "backend": {"type": "python", "instance": ScriptedModel(Turn(gate=gate), Answer("A"))},
    }
    run = start(tmp_path, returns, other, tools=[play.hold])
    gate.wait_reached()
    wait_until(lambda: run.view.agents["returns"].answers)
    ctx, loop = kept[0]
    with pytest.raises(AgentStopped, match="returns"):
        asyncio.run_coroutine_threadsafe(play.work("t", ctx), loop).result(60)
    run.stop(now=True)
    finish(run)
    assert [type(end) for end in play.ends] == [AgentStopped]
    assert run.view.tools == ()


@pytest.mark.parametrize("method", HOLDING)
def test_call_that_outlives_its_function_is_cancelled_with_it(tmp_path: Path, method: str) -> None:
    play = Play(method, "same task")
    kept: list[Any] = []

    async def leaves(task: str, ctx: Any) -> str:
        kept.append(asyncio.create_task(play.work(task, ctx)))
        await asyncio.to_thread(play.gate.wait_reached)
        return "mine"

    run = finish(start(tmp_path, leaves, tools=[play.hold]))
    assert (run.status, run.result) == ("completed", "mine")
    assert [type(end) for end in play.ends] == [AgentStopped]


@pytest.mark.parametrize("level", LEVELS)
def test_a_paused_call_in_another_task_ends_with_a_stop(tmp_path: Path, level: str) -> None:
    """A pause holds calls in all tasks and threads."""
    held = Gate()

    async def waits(task: str, ctx: Any) -> str:
        await held.wait()
        return str(await _in_thread(lambda: ctx.step("never", lambda: "begun")))

    run = start(tmp_path, waits)
    held.wait_reached()
    run.pause()
    wait_until(lambda: run.view.is_paused)
    held.open()
    time.sleep(0.2)  # a wrong call would begin within it; a right one waits for ever
    assert run.view.tools == ()
    run.stop(now=level == "immediate")
    finish(run)
    assert (run.status, run.view.tools) == ("cancelled", ())


@pytest.mark.parametrize("level", LEVELS)
def test_stopped_group_of_tasks_is_not_a_failure(tmp_path: Path, level: str) -> None:
    gate = Gate()

    async def groups(task: str, ctx: Any) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("hold", gate.wait))
            group.create_task(ctx.step("hold", gate.wait))
        return str(await ctx.step("never", lambda: "begun"))

    run = start(tmp_path, groups)
    gate.wait_reached(2)
    run.stop(now=level == "immediate")
    wait_until(lambda: run.view.stop)
    gate.open()
    finish(run)
    assert (run.status, run.view.agents["groups"].error) == ("cancelled", "")


async def _exits() -> None:
    raise SystemExit(3)


async def _is_cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("place", ["same task", "other task", "thread"])
@pytest.mark.parametrize(("ends", "why"), [(_exits, "SystemExit"), (_is_cancelled, "ancelled")])
def test_only_the_function_that_exits_or_is_cancelled_fails(
    tmp_path: Path, ends: Any, why: str, place: str
) -> None:
    async def odd(task: str, ctx: Any) -> str:
        await PLACES[place](lambda: ctx.step("odd", ends))
        return "never"

    run = finish(start(tmp_path, odd))
    assert run.status == "failed"
    assert why in run.view.agents["odd"].error
    assert finish(start(tmp_path, well_behaved)).result == "still here"


async def well_behaved(task: str) -> str:
    return "still here"


@pytest.mark.parametrize(("ends", "why"), [(_exits, "SystemExit"), (_is_cancelled, "ancelled")])
def test_only_the_function_that_exits_fails(tmp_path: Path, ends: Any, why: str) -> None:
    async def odd(task: str, ctx: Any) -> str:
        await ends()
        return "never"

    run = finish(start(tmp_path, odd))
    assert run.status == "failed"
    assert why in run.view.agents["odd"].error


class Framework:
    """A synchronous framework that retries failed model calls forever.

    Args:
        catches: What it takes for a failure.
    """

    def __init__(self, catches: type[BaseException]) -> None:
        self._catches = catches
        self.tries = 0
        self.left = threading.Event()

    def run(self, call: Callable[[], str]) -> str:
        try:
            for _ in range(60):
                self.tries += 1
                try:
                    call()
                except self._catches:
                    time.sleep(0.5)
            return "no answer"
        finally:
            self.left.set()


@pytest.mark.parametrize("catches", [Exception, BaseException])
@pytest.mark.parametrize("level", LEVELS)
def test_framework_that_retries_is_stopped_and_incomplete(
    tmp_path: Path, level: str, catches: type[BaseException]
) -> None:
    framework, gate = Framework(catches), Gate()
    model = ScriptedModel(Turn("some words ", gate=gate))

    async def wrapped(task: str, ctx: Any) -> str:
        loop = asyncio.get_running_loop()

        def ask() -> str:
            return asyncio.run_coroutine_threadsafe(ctx.model(task, model), loop).result()

        return await asyncio.to_thread(framework.run, ask)

    run = start(tmp_path, wrapped)
    gate.wait_reached()
    run.stop(now=level == "immediate")
    wait_until(lambda: run.view.stop)
    gate.open()
    finish(run)
    assert (run.status, run.view.agents["wrapped"].answers) == ("cancelled", ())
    assert run.view.ended_at and run.view.stop
    assert run.view.ended_at - run.view.stop.requested_at < 10
    assert len(model.requests) == 1
    if catches is Exception:
        assert framework.left.wait(10)
        assert framework.tries <= 2


def test_command_of_another_task_has_ended_when_the_receipt_arrives(tmp_path: Path) -> None:
    async def commands(task: str, ctx: Any) -> str:
        asyncio.create_task(ctx.call_tool("run_command", {"command": "echo $$ > pid; sleep 1000"}))
        await asyncio.Event().wait()
        return ""

    backend = {"type": "python", "instance": commands, "enable_mcp_command_line": True}
    run = start(tmp_path, {"id": "a", "backend": backend})
    pid = run.path / "workspaces" / "a" / "pid"
    wait_until(lambda: pid.exists() and pid.read_text().strip())
    held = [p for p in Path("/proc").glob("[0-9]*") if _works_in(p, pid.parent)]
    assert held
    run.stop(now=True)
    finish(run)
    assert not [p for p in Path("/proc").glob("[0-9]*") if _works_in(p, pid.parent)]


def _works_in(process: Path, place: Path) -> bool:
    try:
        return os.path.realpath(process / "cwd") == os.path.realpath(place)
    except OSError:
        return False


@pytest.mark.parametrize("level", LEVELS)
def test_resume_repeats_only_the_interrupted_call_of_a_thread(tmp_path: Path, level: str) -> None:
    gate, done = Gate(), list[str]()

    async def second() -> str:
        await gate.wait()
        done.append("second")
        return "two"

    async def threaded(task: str, ctx: Any) -> str:
        first = await _in_thread(lambda: ctx.step("first", lambda: done.append("first") or "one"))
        return f"{first} {await _in_thread(lambda: ctx.step('second', second))}"

    run = start(tmp_path, threaded)
    gate.wait_reached()
    run.stop(now=level == "immediate")
    wait_until(lambda: run.view.stop)
    if level == "graceful":
        gate.open()
    finish(run)
    if run.status == "completed":  # its last call was in hand
        assert run.result == "one two"
        return
    gate.open()
    options = RunOptions(session_root=tmp_path)
    resumed = nb_agents.resume(run.session, TeamSpec(agents=[threaded]), options=options)
    assert finish(resumed).result == "one two"
    assert done == ["first", "second"]
