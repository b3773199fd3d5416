"""Agents that are functions: their words, steps, stops and resumes, in each place of an agent."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import ConfigError
from nb_agents.runs.run import Run
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, Vote
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
    """A function that does two steps, and waits for a gate between them."""

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


def test_a_coroutine_answers_and_its_steps_are_on_the_card(tmp_path: Path) -> None:
    worker = Worker()
    worker.gate.open()
    run = finish(start(tmp_path, worker.work))
    assert (run.status, run.result) == ("completed", "t: ONE TWO")
    assert [tool.tool for tool in run.view.tools] == ["first", "second"]


def test_an_async_generator_streams_its_words_and_votes_by_a_label(tmp_path: Path) -> None:
    model = ScriptedModel(Answer("A model's"), Vote("agent1"), Vote("agent1"), Answer("The end"))
    run = finish(
        start(tmp_path, talk, {"id": "ada", "backend": {"type": "python", "instance": model}})
    )
    assert run.status == "completed"
    assert run.view.agents["talk"].answers == ("so it is",)
    assert "so it is" in streamed(run)
    assert "talk" in {e.agent for e in events(run, ev.VoteCast)}


@pytest.mark.parametrize("now", [False, True])
def test_a_stop_between_steps_keeps_the_finished_one_and_a_resume_does_only_the_other(
    tmp_path: Path, now: bool
) -> None:
    worker = Worker()
    run = start(tmp_path, worker.work)
    worker.gate.wait_reached()
    run.stop(now=now)
    worker.gate.open()
    finish(run)
    assert (run.status, DONE) == ("cancelled", ["one"])
    assert "with their finished steps kept" in str(run.preview)
    resumed = again(run, worker.work)
    assert (resumed.result, DONE) == ("t: ONE TWO", ["one", "two"])


def test_a_stop_at_once_keeps_each_word_of_a_generator(tmp_path: Path) -> None:
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


def test_models_and_tools_that_a_function_used_are_not_asked_again(tmp_path: Path) -> None:
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


def test_steps_side_by_side_never_take_one_anothers_results(tmp_path: Path) -> None:
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


def test_a_failed_function_goes_on_with_its_finished_steps(tmp_path: Path) -> None:
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


def test_a_program_that_has_changed_is_told_with_the_place_and_asks_anew(tmp_path: Path) -> None:
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


def test_an_object_that_is_no_agent_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no agent. Give an async function"):
        start(tmp_path, lambda task: task)
    backend = {"type": "python", "object": "nowhere.at_all:agent"}
    with pytest.raises(ConfigError, match="can't be imported"):
        start(tmp_path, {"id": "a", "backend": backend})
