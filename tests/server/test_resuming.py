"""Resumes and rewinds over HTTP take the arguments of `nb_agents.resume` and `rewind`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import nb_agents
from nb_agents import Client, RunOptions
from nb_agents.events import StepFinished, TurnStarted
from tests.kit.runs import Run
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.server.conftest import JupyterServer
from tests.team_kit import WAIT_S, finish, kill_writers

RECIPE = """
name: two
description: Two steps
version: 1.0.0
context: {who: Ada}
steps:
- {id: first, type: bash, command: "echo first {{who}}", output: one}
- {id: second, type: bash, command: "echo second {{who}}; test {{who}} != Ada", output: two}
"""


def _play(request: Request) -> Reply:
    if request.model == "slow":
        return Reply(text="I think so", hang_after=1)
    if "<FINAL PRESENTATION>" in request.prompt:
        return Reply(text=f"The end of {request.model}.")
    if "answer of" in request.prompt:
        vote = {"agent_id": "agent1", "reason": "good"}
        return Reply(tool_calls=(ToolCall("vote", vote),))
    answer = {"content": f"answer of {request.model}"}
    return Reply(tool_calls=(ToolCall("new_answer", answer),))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(_play) as server:
        yield server


@pytest.fixture
def client(jupyter: JupyterServer) -> Iterator[Client]:
    with Client(jupyter.base, jupyter.token) as client:
        yield client
    kill_writers(jupyter.root)


def _team(server: ModelServer, model: str) -> dict[str, Any]:
    return {"agents": [{"id": "a", "backend": server.backend("openai", model=model)}]}


def _begin(jupyter: JupyterServer, server: ModelServer, model: str, session: str) -> Run:
    team = TeamSpec.model_validate(_team(server, model))
    options = RunOptions(session_root=jupyter.sessions)
    return nb_agents.start("Why?", team, session=session, options=options)


def _written(jupyter: JupyterServer, server: ModelServer, model: str) -> Path:
    path = jupyter.root / f"{model}.yaml"
    path.write_text(yaml.safe_dump(_team(server, model)))
    return path


def test_resume_takes_a_team_and_options(
    client: Client, jupyter: JupyterServer, server: ModelServer
) -> None:
    run = _begin(jupyter, server, "slow", "other-team")
    wait_until(lambda: run.view.agents["a"].unsubmitted, WAIT_S, "the first word")
    run.stop(now=True)
    finish(run)
    file = _written(jupyter, server, "quick")
    told = client.resume(jupyter.name(run.path), config=str(file), timeout=900, max_tokens=5000)
    [started, *_] = client.events(told["id"])
    assert isinstance(started, TurnStarted)
    assert (started.timeout_s, started.max_tokens) == (900, 5000)
    assert client.run(told["id"])["result"] == "answer of quick"


def test_resume_repeats_a_step_with_other_values(client: Client, jupyter: JupyterServer) -> None:
    file = jupyter.root / "two.yaml"
    file.write_text(RECIPE)
    told = client.start(recipe=str(file))
    assert [each.kind for each in client.events(told["id"])][-1]
    assert client.run(told["id"])["state"] == "failed"
    told = client.resume(told["id"], from_step="first", context={"who": "Ben"})
    steps = [each for each in client.events(told["id"]) if isinstance(each, StepFinished)]
    assert [each.output for each in steps] == ["first Ben\n", "second Ben\n"]
    assert client.run(told["id"])["state"] == "complete"


def test_resume_of_an_agent_that_the_turn_lacks_is_rejected(
    client: Client, jupyter: JupyterServer, server: ModelServer
) -> None:
    run = _begin(jupyter, server, "slow", "no-agent")
    wait_until(lambda: run.view.agents["a"].unsubmitted, WAIT_S, "the first word")
    run.stop(now=True)
    finish(run)
    with pytest.raises(nb_agents.UserError, match="no agent 'zoe'"):
        client.resume(jupyter.name(run.path), agent="zoe")
    with pytest.raises(TypeError, match=r"^resume\(\) got an unexpected keyword argument 'agnet'"):
        client.resume(jupyter.name(run.path), agnet="a")


def test_rewind_starts_a_turn_from_a_checkpoint(
    client: Client, jupyter: JupyterServer, server: ModelServer
) -> None:
    run = finish(_begin(jupyter, server, "quick", "rewound"))
    point = "before a's 1st answer"
    preview = client.ask(jupyter.name(run.path), "rewind", to=point, preview=True)
    assert preview["lines"][0].startswith(f"Goes back to event {preview['point']} of rewound/1")
    told = client.rewind(jupyter.name(run.path), point, say="Think of the cost.", model="openai:m2")
    assert told["id"] == jupyter.name(run.path.parent / "turn_2")
    assert [each.kind for each in client.events(told["id"])][-1]
    assert client.run(told["id"])["state"] == "complete"
    last = server.requests[-1]
    assert last.model == "m2" and "Think of the cost." in str(last.body)
