"""Exact resume after kill -9 at every event: new processes, models behind HTTP that count."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nb_agents import events as ev
from nb_agents.runs.resume import preview
from nb_agents.session.history import load_session
from tests.model_server import ModelServer, Reply, Request, ToolCall
from tests.play import AGENTS, Conductor, Line
from tests.processes import line, python, tell
from tests.runs.proof import (
    all_events,
    assert_complete,
    assert_truthful,
    lines_said,
    without_time,
)

KEY = "sk-nobody-may-read-this"
PARTS = 4
"""In so many tests, which may run side by side."""

# Forks a process for each run from one that has everything imported, has asked a model and read
# messages once, for which the libraries make much ready, and has no thread yet.
UNDERSTUDY = """
import asyncio, gc, os, signal, ssl, sys, threading
import nb_agents
from nb_agents.agents.replay import dump_messages, load_messages
from nb_agents.config.team import TeamSpec
from nb_agents.models.providers import backend_for, http_client, load
from nb_agents.session.journal import Journal
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.tools import ToolDefinition
from tests.model_server import ModelServer, Reply, ToolCall
load({"chatcompletion"})
# Reading certificates anew would take a quarter of each run.
context = ssl.create_default_context()
ssl.create_default_context = lambda *args, **more: context

async def rehearse(url):
    backend = {"type": "chatcompletion", "base_url": url, "model": "m", "api_key": "k"}
    [agent] = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]}).agents
    parts = ToolCallPart("look", {}, "c1"), ToolReturnPart("look", "seen", "c1")
    said = [ModelRequest.user_text_prompt("t"), ModelResponse([parts[0]]), ModelRequest([parts[1]])]
    said = load_messages(dump_messages(said))
    async with http_client() as client:
        backend = backend_for(agent, lambda: client)
        async with backend.stream(said, [ToolDefinition(name="look")]) as reply:
            async for _ in reply:
                pass

with ModelServer(default=Reply(text="So.", tool_calls=(ToolCall("look"),))) as server:
    asyncio.run(rehearse(server.url))

def play(verb, root, after):
    append, count = Journal.append, 0
    def counted(self, event):
        nonlocal count
        append(self, event)
        count += 1
        if count == after:
            os.kill(os.getpid(), signal.SIGKILL)
    Journal.append = counted
    options = nb_agents.RunOptions(session_root=root)
    if verb == "begin":
        run = nb_agents.start("t", f"{root}/team.yaml", "s", options=options)
    else:
        run = nb_agents.resume("s", options=options)
    run.wait(200, raise_on_stop=False)

assert threading.active_count() == 1
gc.freeze()
gc.disable()
for told in sys.stdin:
    verb, root, after = told.split()
    child = os.fork()
    if not child:
        try:
            play(verb, root, int(after))
        finally:
            sys.stderr.flush()
            os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Theatre(ModelServer):
    """The play, given by a server."""

    def __init__(self) -> None:
        super().__init__(default=self._reply)
        self.conductor = Conductor()
        self.strays: list[str] = []
        self._lines: dict[int, Line] = {}

    def begin(self, said: Sequence[str]) -> None:
        """Make ready for a run, when that before is dead."""
        self.wait_closed()
        self._on_loop(lambda: self.conductor.begin(said))

    async def _respond(self, request: Request, writer: Any) -> None:
        messages = request.messages
        opening = next(m["content"] for m in messages if m["role"] == "user")
        said = sum(m["role"] == "assistant" for m in messages)
        heard = without_time(json.dumps(request.body, sort_keys=True))
        try:
            said_now = await self.conductor.turn(request.model, opening, said, heard)
        except KeyError as exc:
            self.strays.append(str(exc))
            return await super()._respond(request, writer)
        self._lines[request.number] = said_now
        await super()._respond(request, writer)
        self.conductor.said(said_now.name)

    def _reply(self, request: Request) -> Reply:
        if request.number not in self._lines:
            return Reply(status=400, error="The play has no line for this.")
        mine = self._lines[request.number]
        calls = [ToolCall(t, a, f"{mine.name}.{n}") for n, (t, a) in enumerate(mine.calls)]
        return Reply(text=mine.text, tool_calls=tuple(calls))


@dataclass
class Stage:
    """A theatre, and a process that forks the runs."""

    theatre: Theatre
    process: subprocess.Popen[str]

    def play(self, verb: str, root: Path, after: int = 0) -> bool:
        """Give a run in a process of its own: whether it lived to the end."""
        self.theatre.begin(lines_said(all_events(root)))
        tell(self.process, f"{verb} {root} {after}")
        status = line(self.process)
        assert status in ("0", "-9"), status
        assert not self.theatre.strays
        return status == "0"


@contextmanager
def stage() -> Iterator[Stage]:
    with Theatre() as theatre, python(UNDERSTUDY) as process:
        yield Stage(theatre, process)


def write_team(root: Path, theatre: Theatre) -> None:
    root.mkdir()
    backend = {"type": "chatcompletion", "base_url": theatre.url, "api_key": KEY}
    agents = [{"id": a, "backend": {**backend, "model": a}} for a in AGENTS]
    (root / "team.yaml").write_text(json.dumps({"agents": agents}))


def play_killed(stage: Stage, root: Path, after: int, again: int, reference: Conductor) -> None:
    """Kill a run after an event, and perhaps its resumption; resume it; compare."""
    write_team(root, stage.theatre)
    stage.theatre.conductor = mine = Conductor()
    is_over = stage.play("begin", root, after)
    assert not is_over
    while not is_over:
        old, asked = all_events(root), len(mine.asked)
        if load_session(root / "s").turns[-1].is_complete:
            break  # killed after its last line: reading it brings its files up to date
        told = preview("s", session_root=root)
        is_over = stage.play("resume", root, again)
        assert not set(lines_said(old)) & set(mine.asked[asked:])
        if is_over:
            assert_truthful(told, old, all_events(root)[len(old) :])
        again = 0
    assert_complete(root, mine.heard, reference.heard)
    assert KEY not in "".join(p.read_text() for p in (root / "s").rglob("*.*") if p.is_file())


@pytest.mark.parametrize("first", range(1, 1 + PARTS))
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_at_any_event_goes_on_as_if_it_had_not_been(
    tmp_path: Path, first: int
) -> None:
    with stage() as here:
        write_team(tmp_path / "whole", here.theatre)
        assert here.play("begin", tmp_path / "whole")
        reference = here.theatre.conductor
        assert_complete(tmp_path / "whole", reference.heard, reference.heard)
        # Once its last line is written a turn is complete, whatever becomes of the process.
        ends = (e.seq for e in all_events(tmp_path / "whole") if isinstance(e, ev.TurnEnded))
        for after in range(first, next(ends), PARTS):
            again = 3 + after % 7 if after % 10 < 2 else 0
            play_killed(here, tmp_path / str(after), after, again, reference)
