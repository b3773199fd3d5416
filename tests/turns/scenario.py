"""Scenario S: a stop or kill of three concurrent agents, and the state of each afterwards.

**a** has finished its one call, **b** is in the middle of its stream, and **c** has one finished
call and is inside a tool that takes 30 s. The run is in a separate process and is resumed in
another. Its models are at an HTTP server, which sees the end of each connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import nb_agents
from nb_agents import RunOptions
from nb_agents.events import ModelFinished
from tests.kit.runs import Run
from tests.kit.sessions import load_session, read_journal
from tests.kit.tools import ToolContext
from tests.kit.views import RunView, fold
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.processes import line, python, tell
from tests.recipes.live import commands_alive
from tests.turns.proof import without_time

__all__ = [
    "ANSWERS",
    "SLEEP",
    "UNTIL_GO",
    "Resumed",
    "Scenario",
    "Stop",
    "Stopped",
    "ToolKind",
    "scenario",
]

ToolKind = Literal["run_command", "tidy", "bare"]
"""c's tool: the shell, or a notebook function that ends its child when it is cancelled, or not."""

Stop = Literal["now", "graceful", "kill"]

ANSWERS = {"a": "a's answer", "b": "b's answer", "c": "c's answer"}
ENDLESS = 100_000
"""Words that no test waits for."""

SLEEP = "sleep 30"
UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"
"""What c's tool does until `Scenario.let_tool_go`; with `SLEEP`, that counts at its beginning."""

_PLAY = "import sys; from tests.turns.scenario import play; play(*sys.argv[1:])"


@dataclass(frozen=True)
class Stopped:
    """The state after the run has stopped or its process was killed.

    Times are `time.monotonic()`; that of a killed process is when it was killed.

    Attributes:
        asked: When the stop was asked for.
        back: When the caller had control back.
        closed: When the last stream was closed, as the server saw it.
        closed_by: Who closed b's.
        alive: Processes of c's tool that lived when control was back; of a killed process, those
            that live still, after what it takes to end them.
        sent, kept: b's words: those that the server sent, and those on disk.
        answers: On disk, of each agent that has one.
        state: How the turn reads.
    """

    asked: float
    back: float
    closed: float
    closed_by: str
    alive: list[str]
    sent: list[str]
    kept: list[str]
    answers: dict[str, str]
    state: str


@dataclass(frozen=True)
class Resumed:
    """The result of a resume in a new process.

    Attributes:
        status: The run's final status.
        answers: Each agent's answer.
        asked: Number of requests to each model, before and after.
        finished: Number of requests that had been answered completely before.
        sent_again: Models whose finished requests were sent again.
        open_again: Models whose cut requests were sent again, word for word.
        tool_runs: How often c's tool began, in both processes together.
    """

    status: str
    answers: dict[str, str]
    asked: dict[str, int]
    finished: int
    sent_again: list[str]
    open_again: list[str]
    tool_runs: int


class Scenario:
    """One run of the scenario, from its first call to its end in another process.

    Args:
        server: The model server.
        root: The session root, which is empty.
        tool: The tool that c calls.
        words: Number of words that b writes before it answers.
        work: The command of c's tool.
    """

    def __init__(
        self, server: ModelServer, root: Path, tool: ToolKind, words: int, work: str
    ) -> None:
        self.server = server
        self.root = root
        self._tool = tool
        self._words = [f"w{n}" for n in range(words)]
        self._before: list[Request] = []
        command = {"command": f"echo >> begun; [ -e go ] || {{ {work}; }}"}
        server.script("a", _answer("a"))
        server.script("b", _answer("b", " ".join(self._words)))
        server.script("c", Reply(tool_calls=(ToolCall(tool, command),)), _answer("c"))

    def set_pace(self, words_per_second: float) -> None:
        """Keep b's speed."""
        self.server.script("b", _answer("b", " ".join(self._words), words_per_second))

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        """Give the process of the run, once a has answered and c is inside its tool."""
        (self.root / "team.yaml").write_text(json.dumps(_team(self.server.url)))
        with self._process("begin") as process:
            self.wait_on_disk(
                lambda view: "a" in view.agents and view.agents["a"].answers, "a's answer"
            )
            wait_until(self._begun.exists, what="the beginning of c's tool")
            wait_until(self.alive, what="the process of c's tool")
            yield process

    def stop(self, process: subprocess.Popen[str], how: Stop) -> float:
        """Stop the run or kill its process. Return the time."""
        if how != "kill":
            tell(process, how)
            return float(line(process))
        asked = time.monotonic()
        process.kill()
        process.wait()
        return asked

    def stopped(self, process: subprocess.Popen[str], asked: float) -> Stopped:
        """Wait for the end and return the state."""
        is_dead = process.poll() is not None
        back = asked if is_dead else float(line(process))
        alive = self._last_alive() if is_dead else self.alive()
        self.server.wait_closed()
        self._before = self.server.requests
        b = next(r for r in self._before if r.model == "b")
        (turn,) = load_session(self.root / "s").turns
        return Stopped(
            asked=asked,
            back=back,
            closed=max(r.closed_at or 0 for r in self._before),
            closed_by=b.closed_by or "",
            alive=alive,
            sent=self._words[: b.chunks_sent],
            kept=_words(turn.view) or self._finished_words(),
            answers={a.id: a.answer for a in turn.view.agents.values() if a.answers},
            state=turn.state,
        )

    def resumed(self) -> Resumed:
        """Resume in a new process, where b answers and c's tool ends immediately."""
        self.let_tool_go()
        self.server.release()
        self.server.script("b", _answer("b"))
        with self._process("resume") as process:
            told = json.loads(line(process))
        before, after = self._before, self.server.requests[len(self._before) :]
        heard = {_heard(each) for each in after}
        again = [(r.closed_by, r.model) for r in before if _heard(r) in heard]
        return Resumed(
            **told,
            asked={model: self.server.count(model) for model in "abc"},
            finished=sum(r.closed_by == "server" for r in before),
            sent_again=[model for who, model in again if who == "server"],
            open_again=[model for who, model in again if who == "client"],
            tool_runs=self._tool_runs(),
        )

    def let_tool_go(self) -> None:
        """Let c's tool end, now or when it is called again."""
        (self._begun.parent / "go").touch()

    def alive(self) -> list[str]:
        """The processes of c's tool."""
        return commands_alive(self.root)

    def wait_on_disk(self, shows: Callable[[RunView], object], what: str) -> None:
        """Wait until the first turn's journal shows something, read from this process."""

        def is_there() -> object:
            return self._journal.exists() and shows(fold(read_journal(self._journal).events))

        wait_until(is_there, what=f"{what} in the journal")

    def wait_words_on_disk(self, count: int) -> None:
        """Wait until so many of b's words are in the journal."""
        self.wait_on_disk(lambda view: len(_words(view)) >= count, f"{count} words")

    def wait_words_in_memory(self, process: subprocess.Popen[str], count: int) -> None:
        """Wait until the run has received a number of b's words."""
        tell(process, str(count))
        assert line(process) == "there"

    @property
    def _journal(self) -> Path:
        return self.root / "s" / "turn_1" / "events.jsonl"

    @property
    def _begun(self) -> Path:
        return self.root / "s" / "turn_1" / "workspaces" / "c" / "begun"

    @contextmanager
    def _process(self, verb: str) -> Iterator[subprocess.Popen[str]]:
        with python(_PLAY, verb, self.root, self._tool) as process:
            try:
                yield process
            finally:
                self._end_orphans()

    def _last_alive(self) -> list[str]:
        """Those that a dead process left behind, once the shell's have ended by themselves."""
        if self._tool == "run_command":
            wait_until(lambda: not self.alive(), what="the command's end")
        return self.alive()

    def _end_orphans(self) -> None:
        for each in self.alive():
            with suppress(ProcessLookupError):
                os.kill(int(each.split()[0]), signal.SIGKILL)

    def _finished_words(self) -> list[str]:
        events = read_journal(self._journal).events
        (response,) = (
            e.response for e in events if isinstance(e, ModelFinished) and e.agent == "b"
        )
        texts = [part["content"] for part in response["parts"] if part["part_kind"] == "text"]
        return "".join(texts).split()

    def _tool_runs(self) -> int:
        turns = load_session(self.root / "s").turns
        return len((turns[-1].paths.workspaces / "c" / "begun").read_text().splitlines())


@contextmanager
def scenario(
    root: Path, tool: ToolKind, words: int = ENDLESS, work: str = SLEEP
) -> Iterator[Scenario]:
    """Provide a scenario with its own server."""
    with ModelServer() as server:
        yield Scenario(server, root, tool, words, work)


def _answer(agent: str, text: str = "", pace: float | None = None) -> Reply:
    answer = ToolCall("new_answer", {"content": ANSWERS[agent]})
    return Reply(text=text, tool_calls=(answer,), words_per_second=pace)


def _team(url: str) -> dict[str, Any]:
    backend = {"type": "chatcompletion", "base_url": url, "api_key": "k"}
    agents = [{"id": name, "backend": {**backend, "model": name}} for name in "abc"]
    agents[2]["backend"]["enable_mcp_command_line"] = True  # type: ignore[index]
    # Each works for itself: no call but those of the scenario.
    return {
        "agents": agents,
        "orchestrator": {"skip_voting": True, "skip_final_presentation": True},
    }


def _words(view: RunView) -> list[str]:
    """Return b's words from a call that is open or was interrupted."""
    return view.agents["b"].partial.split()


def _heard(request: Request) -> tuple[str, str]:
    """Return the requests to a model."""
    return request.model, without_time(json.dumps(request.messages, sort_keys=True))


# In the run's own process


async def tidy(command: str, context: ToolContext) -> str:
    """Run a command, and end it when cancelled."""
    child = await _child(command, context)
    try:
        return f"exit code {await child.wait()}"
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            await child.wait()


async def bare(command: str, context: ToolContext) -> str:
    """Run a command and ignore stops."""
    child = await _child(command, context)
    return f"exit code {await child.wait()}"


async def _child(command: str, context: ToolContext) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        "bash", "-c", command, cwd=context.workspace, start_new_session=True
    )


_FUNCTIONS = {"tidy": nb_agents.tool(tidy), "bare": nb_agents.tool(bare)}


def play(verb: str, root: str, tool: str) -> None:
    """Start or resume the run, and carry out commands from stdin, one per line."""
    tools = [_FUNCTIONS[tool]] if tool in _FUNCTIONS else []
    if verb == "begin":
        run = nb_agents.start(
            "t", f"{root}/team.yaml", "s", options=RunOptions(session_root=root), tools=tools
        )
        _obey(run)
    else:
        run = nb_agents.resume("s", options=RunOptions(session_root=root), tools=tools)
        run.wait(200, raise_on_stop=False)
        answers = {a.id: a.answer for a in run.view.agents.values()}
        print(json.dumps({"status": run.status, "answers": answers}), flush=True)


def _obey(run: Run) -> None:
    for told in map(str.strip, sys.stdin):
        if told.isdigit():
            words = int(told)
            wait_until(lambda: len(_words(run.view)) >= words)  # noqa: B023
            print("there", flush=True)
            continue
        print(time.monotonic(), flush=True)
        run.stop(now=told == "now")
        run.wait(raise_on_stop=False)
        print(time.monotonic(), flush=True)
