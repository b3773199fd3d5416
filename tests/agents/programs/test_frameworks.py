"""Tests of agents of other frameworks in a team: they stop and resume like model agents."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Gate
from tests.agents.programs.frameworks import FRAMEWORKS
from tests.kit.runs import Run
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.team_kit import events, finish

pytestmark = pytest.mark.parametrize("make", FRAMEWORKS.values(), ids=FRAMEWORKS)
Make = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as made:
        yield made


class Counter:
    """The agent's own tool, which counts its calls."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.gate = Gate()

    async def count(self, word: str) -> str:
        """Count a word."""
        self.done.append(word)
        return f"{word} is {len(self.done)}"

    async def hold(self, word: str) -> str:
        """Hold a word until it is released."""
        await self.gate.wait()
        return await self.count(word)


def start(root: Path, *agents: Any) -> Run:
    return nb_agents.start("t", TeamSpec(agents=agents), options=RunOptions(session_root=root))


def again(run: Run, *agents: Any) -> Run:
    options = RunOptions(session_root=run.path.parents[1])
    return finish(nb_agents.resume(run.session, TeamSpec(agents=agents), options=options))


def call(*words: str, tool: str = "count") -> Reply:
    return Reply(tool_calls=tuple(ToolCall(tool, {"word": word}, f"c-{word}") for word in words))


def streamed(run: Run) -> str:
    return "".join(e.text for e in events(run, ev.TextStreamed) if e.channel == "text")


def test_agents_text_streams_and_its_tools_run(
    tmp_path: Path, server: ModelServer, make: Make
) -> None:
    counter = Counter()
    server.script("m", call("a", "b"), Reply("Two words were counted."))
    run = finish(start(tmp_path, make(server, counter.count)))
    assert (run.status, run.result) == ("completed", "Two words were counted.")
    assert streamed(run) == run.result
    assert sorted(counter.done) == ["a", "b"]
    assert [tool.outcome for tool in run.view.tools] == ["ok", "ok"]
    [agent] = run.view.agents.values()
    assert agent.input_tokens and agent.output_tokens


def test_immediate_stop_saves_text_and_resume_repeats_only_open_calls(
    tmp_path: Path, server: ModelServer, make: Make
) -> None:
    counter = Counter()
    server.script("m", call("a"), Reply("one two three", hang_after=2))
    agent = make(server, counter.count)
    run = start(tmp_path, agent)
    wait_until(lambda: "two" in [*run.view.agents.values()][0].partial)
    run.stop(now=True)
    finish(run)
    assert run.status == "cancelled"
    assert streamed(run).strip() == "one two"
    server.wait_closed()
    assert server.requests[-1].closed_by == "client"
    server.script("m", Reply("All of it."))
    resumed = again(run, agent)
    assert resumed.result == "All of it."
    assert counter.done == ["a"]
    assert len(server.requests) == 3
    assert server.requests[-1].body["messages"][-1]["role"] == "tool"


def test_graceful_stop_finishes_the_tool_and_starts_no_work(
    tmp_path: Path, server: ModelServer, make: Make
) -> None:
    counter = Counter()
    calls = (ToolCall("hold", {"word": "a"}, "a"), ToolCall("count", {"word": "b"}, "b"))
    server.script("m", Reply(tool_calls=calls))
    agent = make(server, counter.hold, counter.count)
    run = start(tmp_path, agent)
    counter.gate.wait_reached()
    wait_until(lambda: counter.done == ["b"])
    run.stop()
    wait_until(lambda: run.view.stop)
    counter.gate.open()
    finish(run)
    assert run.status == "cancelled"
    assert sorted(counter.done) == ["a", "b"]
    assert len(server.requests) == 1
    server.script("m", Reply("So."))
    assert again(run, agent).result == "So."
    assert sorted(counter.done) == ["a", "b"]


def test_interrupted_tool_is_not_repeated_and_reported_to_the_model(
    tmp_path: Path, server: ModelServer, make: Make
) -> None:
    counter = Counter()
    server.script("m", call("a", tool="hold"))
    agent = make(server, counter.hold)
    run = start(tmp_path, agent)
    counter.gate.wait_reached()
    run.stop(now=True)
    finish(run)
    assert run.preview is not None
    assert [each.rpartition(": ")[2] for each in run.preview.tools_told] == ["hold"]
    counter.gate.open()
    server.script("m", Reply("Then not."))
    assert again(run, agent).result == "Then not."
    assert counter.done == []
    assert "may have happened" in server.requests[-1].prompt


def test_agent_votes_with_team_tools_and_presents(
    tmp_path: Path, server: ModelServer, make: Make
) -> None:
    def says(request: Request) -> Reply:
        if "<FINAL PRESENTATION>" in request.prompt:
            return Reply("The end.")
        if "Mine." in request.prompt or "A model's" in request.prompt and request.model == "ours":
            best = "agent2" if "Mine." in request.prompt else "agent1"
            args = {"agent_id": best, "reason": "good"}
            return Reply(tool_calls=(ToolCall("vote", args, "v"),))
        content = "A model's" if request.model == "ours" else "Mine."
        return Reply(tool_calls=(ToolCall("new_answer", {"content": content}, "n"),))

    server.script("m", says)
    server.script("ours", says)
    ours = {"id": "ada", "backend": {**server.backend("vllm"), "model": "ours"}}
    run = finish(start(tmp_path, make(server), ours))
    assert run.status == "completed"
    votes = {e.agent: e.target for e in events(run, ev.VoteCast)}
    [own] = set(run.view.agents) - {"ada"}
    assert votes == {"ada": own, own: own}
    assert run.result == "The end."


def test_agent_is_offered_its_workspace_tools(
    tmp_path: Path, server: ModelServer, make: Make
) -> None:
    args = {"path": "a.md", "content": "written"}
    server.script("m", Reply(tool_calls=(ToolCall("write_file", args, "w"),)), Reply("Done."))
    run = finish(start(tmp_path, make(server)))
    assert run.result == "Done."
    [file] = run.path.glob("workspaces/*/a.md")
    assert file.read_text() == "written"


def test_call_written_as_text_is_not_an_answer(
    tmp_path: Path, server: ModelServer, make: Make
) -> None:
    written = '<tool_call>{"name": "list_files", "arguments": {}}</tool_call>'
    server.script("m", Reply(written), Reply("Done."))
    run = finish(start(tmp_path, make(server)))
    assert run.result == "Done."
    assert "You wrote a call to list_files as text" in server.requests[1].prompt
    assert events(run, ev.ToolStarted) == []


def test_parallel_runs_have_separate_results(
    tmp_path: Path, server: ModelServer, make: Make
) -> None:
    def says(request: Request) -> Reply:
        word = next(w for w in "abcd" if f"say {w}!" in request.prompt)
        if any(each.get("role") == "tool" for each in request.messages):
            return Reply(f"{word}.", hang_after=0 if word in "bd" and not held.is_set() else None)
        return call(word)

    held, counter = threading.Event(), Counter()
    server.script("m", says)
    agent = make(server, counter.count)

    async def wide(task: str, ctx: Any) -> str:
        found = await asyncio.gather(*(ctx.run(agent, f"say {word}!") for word in "abcd"))
        return "".join(found)

    run = start(tmp_path, wide)
    ended = (ev.ModelFinished, ev.ToolFinished)
    wait_until(lambda: len(events(run, *ended)) == 10 and len(server.requests) == 8)
    run.stop(now=True)
    finish(run)
    held.set()
    assert again(run, wide).result == "a.b.c.d."
    assert sorted(counter.done) == [*"abcd"]
    assert len(server.requests) == 10


def test_resume_restarts_an_agent_whose_model_was_unreachable(
    tmp_path: Path, server: ModelServer, make: Make
) -> None:
    counter = Counter()
    server.script("m", call("a"), Reply(drop_after=0))
    run = finish(start(tmp_path, make(server, counter.count)))
    assert run.status == "failed"
    asked = len(server.requests)
    server.script("m", Reply("One word was counted."))
    resumed = again(run, make(server, counter.count))
    assert (resumed.status, resumed.result) == ("completed", "One word was counted.")
    assert (counter.done, len(server.requests)) == (["a"], asked + 1)
