"""A run that waits for a person tells what it asks and how to answer, and is answered so."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import pytest

from nb_agents.cli.application import COMPLETE, INCOMPLETE
from tests.cli.calls import CLI, answer, call, call_here, told, told_here
from tests.cli.conftest import write_team
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.processes import Terminal

ASK = '[{match: "*colour", action: ask}]'
TOOL = '''import nb_agents


def colour() -> str:
    """Ask which colour."""
    return nb_agents.ask("Which colour?")
'''
CALLS = Reply(tool_calls=(ToolCall("custom_tool__colour", {}),))


@pytest.fixture
def asking(place: Path, server: ModelServer) -> Path:
    """A team whose tool asks for a text, once its call is approved."""
    (place / "tools.py").write_text(TOOL)
    tools = "custom_tools: [{path: tools.py, function: colour}]"
    write_team(place, server, keys=f", {tools}, tool_policy: {ASK}")
    return place


@pytest.fixture
def terminal(asking: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts commands at a terminal; they are over at the end."""
    started: list[Terminal] = []

    def start(*words: str) -> Terminal:
        started.append(Terminal([*CLI, *words], asking, {**os.environ, "TERM": "dumb"}))
        return started[-1]

    yield start
    for each in started:
        each.close()


def wait_asked(session: str, word: str) -> None:
    wait_until(lambda: word in str(told_here("show", session)["asks"]), what=word)


def tool_results(server: ModelServer) -> str:
    return json.dumps(server.requests[-1].messages)


def test_a_run_at_a_terminal_asks_and_another_command_approves_and_answers(
    terminal: Callable[..., Terminal], server: ModelServer
) -> None:
    server.script("m", CALLS, answer("done"))
    run = terminal("run", "-c", "team.yaml", "-s", "asked", "Paint it.")
    run.wait_text("asks: “May a call custom_tool__colour?” `nb-agents approve asked [MESSAGE]`")
    assert "`nb-agents deny asked [MESSAGE]` does not." in run.text
    assert "Gate 'a: custom_tool__colour #1' of run asked/1 is approved" in call(
        "approve", "asked", "go on"
    )
    run.wait_text("asks: “Which colour?” `nb-agents answer asked TEXT` answers")
    assert "has its answer" in call("answer", "asked", "blue")
    assert run.wait_end() == COMPLETE
    assert "done" in run.text and "blue" in tool_results(server)


def test_a_detached_run_is_denied_and_its_model_told_why(asking: Path, server: ModelServer) -> None:
    server.script("m", CALLS, answer("done"))
    call("run", "-c", "team.yaml", "--detach", "-s", "denied", "Paint it.")
    wait_asked("denied", "May a call")
    assert "`nb-agents approve denied [MESSAGE]` allows it" in call_here("show", "denied")
    assert "denied" in call_here("deny", "denied", "too dear")
    assert told_here("wait", "denied")["result"] == "done"
    assert "too dear" in tool_results(server)


def test_a_detached_run_is_approved_and_answered(asking: Path, server: ModelServer) -> None:
    server.script("m", CALLS, answer("done"))
    call("run", "-c", "team.yaml", "--detach", "-s", "approved", "Paint it.")
    wait_asked("approved", "May a call")
    call_here("approve", "approved")
    wait_asked("approved", "Which colour?")
    assert "has its answer" in call_here("answer", "approved", "blue")
    assert told_here("wait", "approved")["result"] == "done"
    assert "blue" in tool_results(server)


def test_who_waits_for_another_s_run_without_a_terminal_does_not_stop_it_at_a_gate(
    asking: Path, server: ModelServer
) -> None:
    server.script("m", CALLS, answer("done"))
    call("run", "-c", "team.yaml", "--detach", "-s", "left", "Paint it.")
    wait_asked("left", "May a call")
    with Popen([*CLI, "wait", "left"], stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True) as wait:
        assert wait.stderr and "asks: “May a call" in wait.stderr.readline()
        call_here("approve", "left")
        assert "asks: “Which colour?”" in wait.stderr.readline()
        call_here("answer", "left", "blue")
        assert "done" in wait.communicate()[0]
    assert wait.returncode == COMPLETE


def test_without_a_terminal_a_run_stops_at_its_gate_and_a_resume_asks_again(
    terminal: Callable[..., Terminal], server: ModelServer
) -> None:
    server.script("m", CALLS, answer("done"))
    said = call("run", "-c", "team.yaml", "-s", "again", "Paint it.", code=INCOMPLETE)
    assert "asks: “May a call custom_tool__colour?” `nb-agents approve again [MESSAGE]`" in said
    assert "so the run was stopped. `nb-agents resume again` asks again in a terminal" in said
    assert "Stopped by an approval gate (nobody is there to answer" in said
    again = terminal("resume", "again", "-c", "team.yaml")
    again.wait_text("nb-agents approve again")
    call_here("deny", "again")
    assert again.wait_end() == COMPLETE
    assert told("show", "again")["result"] == "done"


def test_a_gate_that_decides_by_itself_stops_nothing(asking: Path, server: ModelServer) -> None:
    team = asking / "team.yaml"
    team.write_text(f"approval: {{timeout: 0.5}}\n{team.read_text()}")
    server.script("m", CALLS, answer("done"))
    said = call_here("run", "-c", "team.yaml", "-s", "timed", "Paint it.")
    assert "then denied) `nb-agents approve timed [MESSAGE]`" in said and "done" in said
