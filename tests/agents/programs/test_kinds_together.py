"""Tests of a team with a model, an external agent, a framework's agent and a function."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from tests.acp.test_acp_runner import agent as program
from tests.agents.programs.members import MODEL_URL
from tests.model_server import ModelServer, Reply, Request, ToolCall
from tests.samples import some_or_all
from tests.team_kit import events, finish

HERE = "tests.agents.programs.members"


def _says(request: Request) -> Reply:
    if "<FINAL PRESENTATION>" in request.prompt or "new_answer" not in request.tool_names:
        return Reply("The end.") if "vote" not in request.tool_names else _vote(request)
    return _vote(request) if "vote" in request.tool_names else _answer(request)


def _vote(request: Request) -> Reply:
    first = re.search(r'<ANSWER from="(\w+)">', request.prompt)
    args = {"agent_id": first and first[1], "reason": "good"}
    return Reply(tool_calls=(ToolCall("vote", args, "v"),))


def _answer(request: Request) -> Reply:
    return Reply(tool_calls=(ToolCall("new_answer", {"content": f"By {request.model}"}, "n"),))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    with ModelServer(default=_says) as made:
        monkeypatch.setenv(MODEL_URL, made.url)
        yield made


PROGRAM = program("acp", "vote", "answer By the program", "say The program's")


def team(server: ModelServer, *more: dict[str, Any]) -> TeamSpec:
    ours = {**server.backend("vllm"), "model": "ours"}
    objects = {name: f"{HERE}:{name}" for name in ("writer", "function")}
    agents: list[Any] = [{"id": "ada", "backend": ours}, *more]
    agents += [
        {"id": name, "backend": {"type": "python", "object": where}}
        for name, where in objects.items()
    ]
    return TeamSpec.model_validate({"agents": agents})


def test_all_kinds_answer_vote_and_present(tmp_path: Path, server: ModelServer) -> None:
    spec, options = team(server, PROGRAM), RunOptions(session_root=tmp_path)
    run = finish(nb_agents.start("t", spec, options=options))
    assert run.status == "completed"
    assert {e.agent for e in events(run, ev.VoteCast)} == {"ada", "acp", "writer", "function"}
    assert run.result


RECIPE = """
name: r
description: d
version: 1.0.0
steps:
- {id: one, agent: ada, prompt: Say one., output: one}
- {id: two, agent: writer, prompt: "Say two after {{one}}.", output: two}
- {id: three, agent: acp, prompt: Say three., output: three}
- {id: four, agent: function, prompt: "Say four after {{three}}.", output: four}
"""


def test_all_kinds_run_a_recipe_step(tmp_path: Path, server: ModelServer) -> None:
    path, options = tmp_path / "r.yaml", RunOptions(session_root=tmp_path)
    path.write_text(RECIPE)
    run = finish(nb_agents.start(config=team(server, PROGRAM), recipe=path, options=options))
    assert run.status == "completed"
    assert run.result == {
        "one": "The end.",
        "two": "The end.",
        "three": "The program's",
        "four": "The function's: Say four after The program's.",
    }


def test_all_kinds_run_in_a_sweep(tmp_path: Path, server: ModelServer) -> None:
    count, options = some_or_all(4, 20), RunOptions(session_root=tmp_path)
    sweep = nb_agents.map(range(count), "row {{value}}", team(server), name="s", options=options)
    sweep.wait()
    assert [row["status"] for row in sweep.table()] == ["complete"] * count


def test_all_kinds_run_on_a_cluster(tmp_path: Path, server: ModelServer) -> None:
    options = RunOptions(session_root=tmp_path, cluster="local:2")
    spec = team(server, PROGRAM)
    sweep = nb_agents.map(range(2), "row {{value}}", spec, name="s", options=options)
    sweep.wait()
    assert [row["status"] for row in sweep.table()] == ["complete"] * 2
