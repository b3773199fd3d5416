"""A run that waits for a user prints its question and the commands that answer it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import pytest

from tests.cli.calls import CLI, answer, call, call_here, told, told_here
from tests.cli.conftest import write_team
from tests.kit.terminal import COMPLETE, INCOMPLETE
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
    """A team with a tool that needs an approval and then asks for a text."""
    (place / "tools.py").write_text(TOOL)
    tools = "custom_tools: [{path: tools.py, function: colour}]"
    write_team(place, server, keys=f", {tools}, tool_policy: {ASK}")
    return place


@pytest.fixture
def terminal(asking: Path) -> Iterator[Callable[..., Terminal]]:
    """Return a function that starts commands in a terminal. They have ended when the test ends."""
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


def test_run_in_a_terminal_asks_and_other_commands_approve_and_answer(
    terminal: Callable[..., Terminal], server: ModelServer
) -> None:
    server.script("m", CALLS, answer("done"))
    run = terminal("run", "-c", "team.yaml", "-s", "asked", "Paint it.")
    run.wait_text("asks: “a wants to call colour()” `nb-agents approve asked [MESSAGE]`")
    assert "`nb-agents deny asked [MESSAGE]` rejects it." in run.text
    assert "Approved “a wants to call colour()” of run asked/1." in call(
        "approve", "asked", "go on"
    )
    run.wait_text("asks: “Which colour?” `nb-agents answer asked TEXT` answers")
    assert "The answer was sent" in call("answer", "asked", "blue")
    assert run.wait_end() == COMPLETE
    assert "done" in run.text and "blue" in tool_results(server)


def test_deny_sends_the_reason_to_the_model_of_a_detached_run(
    asking: Path, server: ModelServer
) -> None:
    server.script("m", CALLS, answer("done"))
    call("run", "-c", "team.yaml", "--detach", "-s", "denied", "Paint it.")
    wait_asked("denied", "a wants to call")
    assert "`nb-agents approve denied [MESSAGE]` allows it" in call_here("show", "denied")
    assert "denied" in call_here("deny", "denied", "too dear")
    assert told_here("wait", "denied")["result"] == "done"
    assert "too dear" in tool_results(server)


def test_detached_run_is_approved_and_answered(asking: Path, server: ModelServer) -> None:
    server.script("m", CALLS, answer("done"))
    call("run", "-c", "team.yaml", "--detach", "-s", "approved", "Paint it.")
    wait_asked("approved", "a wants to call")
    call_here("approve", "approved")
    wait_asked("approved", "Which colour?")
    assert "The answer was sent" in call_here("answer", "approved", "blue")
    assert told_here("wait", "approved")["result"] == "done"
    assert "blue" in tool_results(server)


def test_budget_of_a_detached_run_is_raised_to_the_given_amount(
    asking: Path, server: ModelServer
) -> None:
    listed = ToolCall("list_files", {})
    server.script("m", Reply(tool_calls=(listed,), input_tokens=3000), answer("done"))
    limits = ("--max-tokens", "2000", "--on-budget", "ask")
    call("run", "-c", "team.yaml", "--detach", "-s", "dear", *limits, "Paint it.")
    wait_asked("dear", "Raise the budget to 4,000 tokens?")
    assert len(server.requests) == 1
    call_here("approve", "dear", "90000")
    assert told_here("wait", "dear")["result"] == "done"


def test_wait_without_terminal_does_not_stop_the_run_at_a_gate(
    asking: Path, server: ModelServer
) -> None:
    server.script("m", CALLS, answer("done"))
    call("run", "-c", "team.yaml", "--detach", "-s", "left", "Paint it.")
    wait_asked("left", "a wants to call")
    with Popen([*CLI, "wait", "left"], stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True) as wait:
        assert wait.stderr and "asks: “a wants to call" in wait.stderr.readline()
        call_here("approve", "left")
        assert "asks: “Which colour?”" in wait.stderr.readline()
        call_here("answer", "left", "blue")
        assert "done" in wait.communicate()[0]
    assert wait.returncode == COMPLETE


def test_run_without_terminal_stops_at_its_gate_and_resume_asks_again(
    terminal: Callable[..., Terminal], server: ModelServer
) -> None:
    server.script("m", CALLS, answer("done"))
    said = call("run", "-c", "team.yaml", "-s", "again", "Paint it.", code=INCOMPLETE)
    assert "asks: “a wants to call colour()” `nb-agents approve again [MESSAGE]`" in said
    assert (
        "it has a question and stdin is not a terminal. `nb-agents resume again` asks again" in said
    )
    assert "Stopped by an approval gate (nobody can answer" in said
    again = terminal("resume", "again", "-c", "team.yaml")
    again.wait_text("nb-agents approve again")
    call_here("deny", "again")
    assert again.wait_end() == COMPLETE
    assert told("show", "again")["result"] == "done"


def test_gate_with_default_does_not_stop_the_run(asking: Path, server: ModelServer) -> None:
    team = asking / "team.yaml"
    team.write_text(f"approval: {{timeout: 0.5}}\n{team.read_text()}")
    server.script("m", CALLS, answer("done"))
    said = call_here("run", "-c", "team.yaml", "-s", "timed", "Paint it.")
    assert "then denied) `nb-agents approve timed [MESSAGE]`" in said and "done" in said
