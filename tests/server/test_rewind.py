"""Rewinds over HTTP: previews, and forks with another team file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import nb_agents
from nb_agents import RunOptions
from tests.kit.runs import Run
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.server.conftest import JupyterServer
from tests.team_kit import finish

POINT = "before b's 1st answer"


def _play(request: Request) -> Reply:
    if "<FINAL PRESENTATION>" in request.prompt:
        return Reply(text="The end.")
    if f"answer of {request.model}" in request.prompt:
        vote = {"agent_id": "agent1", "reason": "good"}
        return Reply(tool_calls=(ToolCall("vote", vote),))
    answer = {"content": f"answer of {request.model}"}
    return Reply(tool_calls=(ToolCall("new_answer", answer),))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(_play) as server:
        yield server


def _team(server: ModelServer, *models: str) -> dict[str, object]:
    agents = [
        {"id": each, "backend": server.backend("openai", model=model)}
        for each, model in zip("ab", models, strict=True)
    ]
    return {"agents": agents}


@pytest.fixture
def played(jupyter: JupyterServer, server: ModelServer) -> Run:
    team = TeamSpec.model_validate(_team(server, "m", "n"))
    options = RunOptions(session_root=jupyter.sessions)
    return finish(nb_agents.start("the task", team, session="s", options=options))


def test_forks_with_another_team_file_are_one_sweep(
    jupyter: JupyterServer, server: ModelServer, played: Run
) -> None:
    other = jupyter.root / "other.yaml"
    other.write_text(yaml.safe_dump(_team(server, "m", "critic")))
    place = f"runs/{jupyter.name(played.path)}/rewind"
    preview = jupyter.post(place, {"to": POINT, "preview": True}).json()
    assert preview["lines"][0].startswith(f"Goes back to event {preview['point']} of s/1")
    answers = [point for point in preview["points"] if point["says"].endswith("answer")]
    assert answers and all(point["text"] for point in answers)
    before = (played.path / "events.jsonl").read_bytes()
    body = {"to": str(preview["point"]), "times": 2, "config": str(other)}
    reply = jupyter.post(place, body)
    assert reply.status_code == 202, reply.text
    sweep = f"runs/{reply.json()['id']}"
    wait_until(lambda: jupyter.get(sweep)["state"] == "complete", 120, "the sweep's end")
    assert jupyter.get(sweep)["rows"] == {"total": 2, "done": 2, "failed": 0}
    root = Path(jupyter.root, reply.json()["id"])
    for row in ("try_1", "try_2"):
        said = (root / row / "turn_2" / "events.jsonl").read_text()
        assert "answer of critic" in said
        assert "answer of n" not in said
    assert (played.path / "events.jsonl").read_bytes() == before


def test_invalid_rewind_is_rejected(jupyter: JupyterServer, played: Run) -> None:
    place = f"runs/{jupyter.name(played.path)}/rewind"
    for body, why in (
        ({"to": POINT, "times": 0}, "can't be forked 0 times"),
        ({"to": "before nobody's 1st answer"}, "has no checkpoint"),
        ({"to": POINT, "config": "nowhere.yaml"}, "nowhere.yaml"),
        ({"to": POINT, "say": "Hello.", "agent": "zoe"}, "no agent 'zoe'"),
        ({"to": POINT, "agent": "n"}, "There is no message for"),
        ({"to": POINT, "model": "nobody:x"}, "nobody"),
    ):
        for preview in (False, True):
            reply = jupyter.post(place, {**body, "preview": preview})
            assert 400 <= reply.status_code < 500
            assert why in reply.text
    assert not (played.path.parent / "turn_2").exists()
