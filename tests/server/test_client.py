"""The Python client with a real server, and with runs of this process and of others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import nb_agents
from nb_agents import Client, StopResult
from nb_agents.errors import ServerError, UnknownRunError, UserError
from nb_agents.events import StepFinished, TextStreamed
from nb_agents.options import RunOptions
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.runs import Run
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


def test_client_lists_shows_and_stops_a_live_run(
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


def test_stop_of_one_agent(client: Client, jupyter: JupyterServer, gate: Gate) -> None:
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


def test_events_include_past_and_new_ones_until_the_run_ends(
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


def test_message_pause_and_unpause(
    client: Client, jupyter: JupyterServer, held: Run, gate: Gate
) -> None:
    name = jupyter.name(held.path)
    client.say(name, "Leave out the appendix")
    client.pause(name)
    assert held.view.is_paused
    client.unpause(name)
    assert not held.view.is_paused
    for ask in (client.approve, client.deny):
        with pytest.raises(UserError, match="is not waiting for an approval"):
            ask(name)
    with pytest.raises(UserError, match="has no open question"):
        client.answer(name, "42")
    told = client.ask(name, "say", text="Be brief")
    assert told["message"] == "The agents receive it with their next request."
    with pytest.raises(UserError, match="There is no command"):
        client.ask(name, "sing")
    gate.open()
    assert finish(held).view.said == ("Leave out the appendix", "Be brief")
    with pytest.raises(UserError, match="is over"):
        client.say(name, "too late")


@pytest.mark.parametrize("approved", [True, False])
def test_approve_and_deny_a_gate(
    client: Client, jupyter: JupyterServer, held: Run, approved: bool
) -> None:
    name = jupyter.name(held.path)
    with ThreadPoolExecutor(1) as person:
        given = person.submit(held.wait_for_approval, "May it go on?", WAIT_S)
        wait_until(lambda: held.view.gates, WAIT_S, "the question")
        (client.approve if approved else client.deny)(name, "as you like")
        assert (given.result().approved, given.result().message) == (approved, "as you like")


def test_answer_to_a_question(client: Client, jupyter: JupyterServer, gate: Gate) -> None:
    def choose() -> str:
        """Let the user choose."""
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


def test_start_with_a_budget_stops_there(client: Client, jupyter: JupyterServer) -> None:
    told = client.start("What is it?", max_tokens=9)
    try:
        *_, last = client.events(told["id"])
        assert client.run(told["id"])["receipt"]["source"] == "budget", last
    finally:
        kill_writers(jupyter.root)


def test_start_and_stop_a_run_on_the_server(client: Client, jupyter: JupyterServer) -> None:
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


def test_start_a_recipe_with_a_context(client: Client, jupyter: JupyterServer) -> None:
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


# Errors


def test_unknown_run_error_names_the_live_runs(
    client: Client, jupyter: JupyterServer, held: Run
) -> None:
    for ask in (client.run, client.stop, client.pause, lambda run: next(client.events(run))):
        with pytest.raises(UnknownRunError, match="No run named 'no/such'. Known runs: ") as told:
            ask("no/such")
        assert told.value.known == (jupyter.name(held.path),)


def test_rejected_token_is_not_in_the_error(jupyter: JupyterServer) -> None:
    for url, token in ((jupyter.base, "wr0ng"), (f"{jupyter.base}/?token=wr0ng", "")):
        with Client(url, token) as client, pytest.raises(ServerError, match="the token") as told:
            client.runs()
        assert "wr0ng" not in str(told.value) + repr(client)


def test_token_in_the_address(jupyter: JupyterServer) -> None:
    with Client(f"{jupyter.base}/?token={jupyter.token}") as client:
        assert client.runs() == []


def test_error_without_a_server(jupyter: JupyterServer) -> None:
    with Client("http://127.0.0.1:1") as client:
        with pytest.raises(ServerError, match="'http://127.0.0.1:1' failed: the conn"):
            client.runs()
        with pytest.raises(ServerError):
            next(client.events("x"))


def test_error_for_a_server_without_nb_agents(jupyter: JupyterServer) -> None:
    with Client(f"{jupyter.base}/elsewhere", jupyter.token) as client:
        with pytest.raises(ServerError, match="nb_agents is not installed on it. Install it"):
            client.runs()


def test_error_for_an_invalid_address() -> None:
    with pytest.raises(UserError, match="is not the address"):
        Client("http://[::1")


def test_error_of_a_start(client: Client, jupyter: JupyterServer) -> None:
    with pytest.raises(UserError, match="The task is empty"):
        client.start("")
    with pytest.raises(UserError, match=r"file 'missing.yaml'"):
        client.start("t", config="missing.yaml")


def test_run_with_special_characters_in_its_name(client: Client, jupyter: JupyterServer) -> None:
    run = over(jupyter.root / "a b#c?d%e" / ".nb_agents" / "sessions")
    assert client.run(jupyter.name(run.path))["state"] == "complete"
