"""Tests of agent functions: text, steps, stops and resumes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import ConfigError
from nb_agents.options import Retry
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, Vote
from tests.kit.runs import Run
from tests.model_server import wait_until
from tests.team_kit import events, finish

DONE: list[str] = []
"""What the steps of the agents here have done."""


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


def do(what: str) -> str:
    DONE.append(what)
    return what.upper()


class Worker:
    """A function with two steps that waits for a gate between them."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def work(self, task: str, ctx: Any) -> str:
        first = await ctx.step("first", do, "one")
        await self.gate.wait()
        second = await ctx.step("second", do, "two")
        return f"{task}: {first} {second}"


async def talk(task: str, ctx: Any) -> AsyncIterator[str]:
    if ctx.voters:
        yield ctx.voters[-1]
        return
    for word in ("so ", "it ", "is"):
        yield word


def start(root: Path, *agents: Any, **more: Any) -> Run:
    team = TeamSpec(agents=agents)
    return nb_agents.start("t", team, options=RunOptions(session_root=root), **more)


def again(run: Run, *agents: Any) -> Run:
    options = RunOptions(session_root=run.path.parents[1])
    return finish(nb_agents.resume(run.session, TeamSpec(agents=agents), options=options))


def streamed(run: Run) -> str:
    return "".join(e.text for e in events(run, ev.TextStreamed) if e.channel == "text")


def test_coroutine_answers_and_the_card_lists_its_steps(tmp_path: Path) -> None:
    worker = Worker()
    worker.gate.open()
    run = finish(start(tmp_path, worker.work))
    assert (run.status, run.result) == ("completed", "t: ONE TWO")
    assert [tool.tool for tool in run.view.tools] == ["first", "second"]


def test_async_generator_streams_text_and_votes_by_label(tmp_path: Path) -> None:
    model = ScriptedModel(Answer("A model's"), Vote("agent1"), Vote("agent1"), Answer("The end"))
    run = finish(
        start(tmp_path, talk, {"id": "ada", "backend": {"type": "python", "instance": model}})
    )
    assert run.status == "completed"
    assert run.view.agents["talk"].answers == ("so it is",)
    assert "so it is" in streamed(run)
    assert "talk" in {e.agent for e in events(run, ev.VoteCast)}


@pytest.mark.parametrize("now", [False, True])
def test_resume_after_a_stop_between_steps_runs_only_the_second(tmp_path: Path, now: bool) -> None:
    worker = Worker()
    run = start(tmp_path, worker.work)
    worker.gate.wait_reached()
    run.stop(now=now)
    worker.gate.open()
    finish(run)
    assert (run.status, DONE) == ("cancelled", ["one"])
    assert "with finished steps kept" in str(run.preview)
    resumed = again(run, worker.work)
    assert (resumed.result, DONE) == ("t: ONE TWO", ["one", "two"])


def test_immediate_stop_saves_all_text_of_a_generator(tmp_path: Path) -> None:
    gate = Gate()

    async def held(task: str, ctx: Any) -> AsyncIterator[str]:
        yield "one "
        yield "two "
        await gate.wait()
        yield "three"

    run = start(tmp_path, held)
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    assert streamed(run) == "one two "
    assert len(events(run, ev.ModelCut)) == 1
    gate.open()
    assert again(run, held).result == "one two three"


def test_finished_model_and_tool_calls_are_not_repeated(tmp_path: Path) -> None:
    model, gate = ScriptedModel(Turn("a thought")), Gate()

    async def think(task: str, ctx: Any) -> str:
        thought = await ctx.model("Think.", model)
        await ctx.call_tool("write_file", {"path": "a.md", "content": thought})
        await gate.wait()
        return f"{thought}, {await ctx.call_tool('read_file', {'path': 'a.md'})}"

    run = start(tmp_path, think)
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    assert len(model.requests) == 1
    gate.open()
    resumed = again(run, think)
    assert "a thought" in str(resumed.result)
    assert len(model.requests) == 1
    assert [e.tool for e in events(resumed, ev.ToolStarted)] == ["read_file"]


def test_parallel_steps_have_separate_results(tmp_path: Path) -> None:
    gate = Gate()

    async def slow(n: int) -> int:
        if n % 2:
            await gate.wait()
        return n

    async def wide(task: str, ctx: Any) -> str:
        found = await asyncio.gather(*(ctx.step("each", slow, n) for n in range(6)))
        return str(found)

    run = start(tmp_path, wide)
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    gate.open()
    assert again(run, wide).result == "[0, 1, 2, 3, 4, 5]"


def test_resumed_function_keeps_its_finished_steps(tmp_path: Path) -> None:
    fails = [True]

    async def shaky(task: str, ctx: Any) -> str:
        first = await ctx.step("first", do, "one")
        if fails.pop():
            raise ValueError("not today")
        return str(first)

    run = finish(start(tmp_path, shaky))
    assert run.status == "failed"
    assert "not today" in run.view.agents["shaky"].error
    fails.append(False)
    assert (again(run, shaky).result, DONE) == ("ONE", ["one"])


def test_changed_function_is_reported_and_repeats_the_call(tmp_path: Path) -> None:
    model, gate = ScriptedModel(Turn("old"), Turn("new")), Gate()
    prompts = ["What was?", "What will be?"]

    async def think(task: str, ctx: Any) -> str:
        thought = await ctx.model(prompts[0], model)
        await gate.wait()
        return str(thought)

    run = start(tmp_path, think)
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    prompts.pop(0)
    gate.open()
    resumed = again(run, think)
    assert resumed.result == "new"
    [told] = [e.text for e in events(resumed, ev.Noticed) if "has changed" in e.text]
    assert "/m1" in told


def test_unsupported_object_raises_a_one_sentence_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be an agent. Pass an async function"):
        start(tmp_path, lambda task: task)
    backend = {"type": "python", "object": "nowhere.at_all:agent"}
    with pytest.raises(ConfigError, match="can't be imported"):
        start(tmp_path, {"id": "a", "backend": backend})


REFUSED = httpx2.ConnectError("connection refused")


def start_thinking(root: Path, model: ScriptedModel, attempts: int, delay: float = 0) -> Run:
    """Start a function that asks a model twice."""

    async def think(task: str, ctx: Any) -> str:
        first = await ctx.model("First.", model)
        return f"{first}, {await ctx.model('Second.', model)}"

    retry = Retry(attempts=attempts, delay=delay, max_delay=delay)
    options = RunOptions(session_root=root, retry=retry)
    return nb_agents.start("t", TeamSpec(agents=[think]), options=options)


def test_model_called_by_a_function_is_retried_after_a_failed_connection(tmp_path: Path) -> None:
    model = ScriptedModel(Turn("one"), Turn(error=REFUSED), Turn(error=REFUSED), Turn("two"))
    run = finish(start_thinking(tmp_path, model, attempts=2))
    assert run.result == "one, two"
    assert len(model.requests) == 4
    started = [e for e in events(run, ev.ModelStarted) if e.place.endswith("m2")]
    assert [e.attempt for e in started] == [1, 2, 3]
    assert [e.retry_in_s for e in events(run, ev.ModelFailed)] == [0, 0]


def test_resume_repeats_a_permanently_failed_model_call(tmp_path: Path) -> None:
    model = ScriptedModel(Turn("one"), Turn(error=REFUSED), Turn(error=REFUSED), Turn("two"))
    run = finish(start_thinking(tmp_path, model, attempts=1))
    assert (run.status, len(model.requests)) == ("failed", 3)
    resumed = finish(run.resume())
    assert (resumed.result, len(model.requests)) == ("one, two", 4)


def test_stop_ends_the_wait_before_the_retry_of_a_functions_model(tmp_path: Path) -> None:
    model = ScriptedModel(Turn(error=REFUSED), Turn("one"), Turn("two"))
    run = start_thinking(tmp_path, model, attempts=1, delay=3600)
    wait_until(lambda: events(run, ev.ModelFailed))
    run.stop()
    finish(run)
    assert (run.state, len(model.requests)) == ("stopped", 1)
    resumed = finish(run.resume(options=RunOptions(retry=Retry(attempts=0))))
    assert (resumed.result, len(model.requests)) == ("one, two", 3)
