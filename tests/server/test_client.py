"""The Python client against a real server, and runs of this process and of others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import nb_agents
from nb_agents import Client, StopResult
from nb_agents.errors import ServerError, UnknownRunError, UserError
from nb_agents.events import StepFinished, TextStreamed
from nb_agents.options import RunOptions
from nb_agents.runs.run import Run
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.model_server import wait_until
from tests.server.conftest import JupyterServer
from tests.server.test_commands import gate, held
from tests.server.test_reading import over
from tests.team_kit import WAIT_S, finish, kill_writers, start

__all__ = ["gate", "held"]


@pytest.fixture
def client(jupyter: JupyterServer) -> Iterator[Client]:
    with Client(jupyter.base, jupyter.token) as client:
        yield client


def test_a_live_run_is_listed_told_of_and_stopped(
    client: Client, jupyter: JupyterServer, held: Run
) -> None:
    [told] = client.runs()
    run = told["id"]
    assert client.run(run)["task"] == "the task"
    assert client.stop(run, reason="wrong path") == StopResult(True, "stopping")
    assert client.stop(run) == StopResult(False, "stopping")
    assert client.stop(run, now=True) == StopResult(True, "stopping-now")
    finish(held)
    assert held.view.stop is not None and held.view.stop.reason == "wrong path"
    assert client.stop(run) == StopResult(False, "finished")
    assert client.run(run)["status"] == "stopped"
    assert client.runs() == []


def test_one_agent_is_stopped_alone(client: Client, jupyter: JupyterServer, gate: Gate) -> None:
    models = {each: ScriptedModel(Answer("x", text="I ", gate=gate)) for each in ("ada", "ben")}
    run = start(jupyter.sessions, **models)
    gate.wait_reached(2)
    name = jupyter.name(run.path)
    assert client.stop(name, agent="ben", now=True).changed
    assert run.view.agents["ben"].stop == "immediate" and run.view.stop is None
    with pytest.raises(UserError, match="no agent 'nobody'"):
        client.stop(name, agent="nobody")
    run.stop(True)
    gate.open()
    finish(run)


def test_events_are_those_so_far_then_those_that_come_and_end_with_the_run(
    client: Client, jupyter: JupyterServer, held: Run, gate: Gate
) -> None:
    name = jupyter.name(held.path)
    events = client.events(name)
    first = next(events)
    assert (first.kind, first.seq) == ("turn_started", 1)
    gate.open()
    rest = list(events)
    assert "turn_ended" in [each.kind for each in rest]
    assert any(isinstance(each, TextStreamed) for each in rest)
    assert [each.seq for each in client.events(name, after=3)][0] == 4


def test_a_text_is_heard_and_a_run_is_paused(
    client: Client, jupyter: JupyterServer, held: Run, gate: Gate
) -> None:
    name = jupyter.name(held.path)
    client.say(name, "Leave out the appendix")
    client.pause(name)
    assert held.view.is_paused
    client.resume(name)
    assert not held.view.is_paused
    for ask in (client.approve, client.deny):
        with pytest.raises(UserError, match="waits for no approval"):
            ask(name)
    with pytest.raises(UserError, match="asks for no text"):
        client.answer(name, "42")
    told = client.ask(name, "say", text="Be brief")
    assert told["message"] == "Its agents read it with their next request."
    with pytest.raises(UserError, match="Method Not Allowed"):
        client.ask(name, "sing")
    gate.open()
    assert finish(held).view.said == ("Leave out the appendix", "Be brief")
    with pytest.raises(UserError, match="is over"):
        client.say(name, "too late")


@pytest.mark.parametrize("approved", [True, False])
def test_a_gate_is_approved_or_denied(
    client: Client, jupyter: JupyterServer, held: Run, approved: bool
) -> None:
    name = jupyter.name(held.path)
    with ThreadPoolExecutor(1) as person:
        given = person.submit(held.wait_for_approval, "May it go on?", WAIT_S)
        wait_until(lambda: held.view.gates, WAIT_S, "the question")
        (client.approve if approved else client.deny)(name, "as you like")
        assert (given.result().approved, given.result().message) == (approved, "as you like")


def test_a_question_for_a_text_is_answered(
    client: Client, jupyter: JupyterServer, gate: Gate
) -> None:
    def choose() -> str:
        """Let the person choose."""
        return nb_agents.ask("Which?")

    model = ScriptedModel(Turn(calls=(Call("choose", {}),)), Answer("done"))
    run = nb_agents.start(
        "t",
        scripted_team(a=model),
        tools=[choose],
        options=RunOptions(session_root=jupyter.sessions),
    )
    name = jupyter.name(run.path)
    for event in client.events(name):
        if event.kind == "approval_asked":
            client.answer(name, "the first")
    finish(run)
    assert [tool.outcome for tool in run.view.tools] == ["ok"]


def test_a_run_is_started_beside_the_server_and_stopped(
    client: Client, jupyter: JupyterServer
) -> None:
    (jupyter.root / "here").mkdir()
    told = client.start("What is it?", session="lab", folder="here")
    try:
        assert told["session"] == "lab" and told["id"] in [each["id"] for each in client.runs()]
        client.stop(told["id"], now=True)
        assert [event.kind for event in client.events(told["id"])][-1] in (
            "turn_ended",
            "files_listed",
        )
        assert client.sessions("here")[0]["session"] == "lab"
    finally:
        kill_writers(jupyter.root)


GREETS = """
name: greet
description: Greets someone
version: 1.0.0
context: {who: {type: string, required: true}}
steps: [{id: hello, type: bash, command: "echo 'Hello' {{who}}", output: said}]
"""


def test_a_recipe_is_started_beside_the_server_with_its_values(
    client: Client, jupyter: JupyterServer
) -> None:
    (jupyter.root / "here").mkdir()
    (jupyter.root / "here" / "greet.yaml").write_text(GREETS)
    given = {"recipe": "greet.yaml", "context": {"who": "Zoë"}, "folder": "here"}
    lacking = jupyter.post("runs", {**given, "context": {}})
    assert lacking.status_code == 400 and "who" in lacking.json()["message"]
    begun = [client.start(**given), jupyter.post("runs", given).json()]
    for run in (each["id"] for each in begun):
        assert [event.kind for event in client.events(run)][-1] in ("turn_ended", "files_listed")
        assert client.run(run)["state"] == "complete"
        [hello] = [event for event in client.events(run) if isinstance(event, StepFinished)]
        assert hello.output == "Hello Zoë\n"


# Mistakes, each in a sentence


def test_an_unknown_run_is_told_with_the_live_ones(
    client: Client, jupyter: JupyterServer, held: Run
) -> None:
    for ask in (client.run, client.stop, client.pause, lambda run: next(client.events(run))):
        with pytest.raises(UnknownRunError, match="No run named 'no/such'. Known here: ") as told:
            ask("no/such")
        assert told.value.known == (jupyter.name(held.path),)


def test_a_wrong_token_is_told_and_shown_nowhere(jupyter: JupyterServer) -> None:
    for url, token in ((jupyter.base, "wr0ng"), (f"{jupyter.base}/?token=wr0ng", "")):
        with Client(url, token) as client, pytest.raises(ServerError, match="the token") as told:
            client.runs()
        assert "wr0ng" not in str(told.value) + repr(client)


def test_the_address_may_carry_the_token(jupyter: JupyterServer) -> None:
    with Client(f"{jupyter.base}/?token={jupyter.token}") as client:
        assert client.runs() == []


def test_no_server_is_told(jupyter: JupyterServer) -> None:
    with Client("http://127.0.0.1:1") as client:
        with pytest.raises(ServerError, match="'http://127.0.0.1:1' can't be asked: the conn"):
            client.runs()
        with pytest.raises(ServerError):
            next(client.events("x"))


def test_a_server_without_nb_agents_is_told(jupyter: JupyterServer) -> None:
    with Client(f"{jupyter.base}/elsewhere", jupyter.token) as client:
        with pytest.raises(ServerError, match="it has no nb_agents: install it"):
            client.runs()


def test_what_is_no_address_is_told() -> None:
    with pytest.raises(UserError, match="is not the address"):
        Client("http://[::1")


def test_a_start_that_cannot_be_is_told(client: Client, jupyter: JupyterServer) -> None:
    with pytest.raises(UserError, match="The task is empty"):
        client.start("")
    with pytest.raises(UserError, match=r"is called 'missing.yaml'"):
        client.start("t", config="missing.yaml")


def test_a_name_with_odd_characters_is_found(client: Client, jupyter: JupyterServer) -> None:
    run = over(jupyter.root / "a b#c?d%e" / ".nb_agents" / "sessions")
    assert client.run(jupyter.name(run.path))["state"] == "complete"
