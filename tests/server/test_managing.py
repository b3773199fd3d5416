"""What a person does with sessions over HTTP: go on with one, rename, export and delete it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.config.team import TeamSpec
from nb_agents.runs.finding import attach
from nb_agents.runs.run import Run
from nb_agents.server import places
from nb_agents.session.layout import TurnPaths
from nb_agents.session.lookup import origin_here
from nb_agents.testing import Answer, Gate, ScriptedModel
from tests.model_server import wait_until
from tests.server.conftest import JupyterServer
from tests.team_kit import WAIT_S, start

QUICK, SLOW = 10_000, 1


def demo(jupyter: JupyterServer, words_per_second: float) -> Run:
    """Start a demo agent, whose team is in the journal."""
    backend = {"type": "demo", "words_per_second": words_per_second}
    team = TeamSpec.model_validate({"agents": [{"id": "ada", "backend": backend}]})
    return nb_agents.start("the task", team, options=RunOptions(session_root=jupyter.sessions))


@pytest.fixture
def complete(jupyter: JupyterServer) -> Run:
    """A turn that is complete."""
    run = demo(jupyter, QUICK)
    run.wait(WAIT_S)
    return run


@pytest.fixture
def incomplete(jupyter: JupyterServer) -> Run:
    """A turn that was stopped."""
    run = demo(jupyter, SLOW)
    run.stop(now=True)
    run.wait(WAIT_S, raise_on_stop=False)
    return run


@pytest.fixture
def held(jupyter: JupyterServer) -> Iterator[Run]:
    """A run whose one agent writes and is held there."""
    gate = Gate()
    run = start(jupyter.sessions, ada=ScriptedModel(Answer("Use mmap.", text="I ", gate=gate)))
    gate.wait_reached()
    yield run
    run.stop(now=True)
    gate.open()
    run.wait(WAIT_S, raise_on_stop=False)


def session(jupyter: JupyterServer, run: Run) -> str:
    return jupyter.name(run.path.parent)


def end(jupyter: JupyterServer, told: dict[str, Any]) -> Run:
    """Stop a run of another process, and wait until it is saved."""
    run = attach(jupyter.root / told["id"])
    run.stop(now=True)
    wait_until(lambda: run.is_over, WAIT_S, "the end of the run")
    return run


def test_an_incomplete_turn_is_resumed_in_a_process_of_its_own(
    jupyter: JupyterServer, incomplete: Run
) -> None:
    path = f"runs/{jupyter.name(incomplete.path)}/resume"
    answer = jupyter.post(path)
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert told["id"] == f"{session(jupyter, incomplete)}/turn_2"
    again = jupyter.post(path)
    assert again.status_code == 409
    assert "turn 2" in again.json()["message"]
    assert end(jupyter, told).view.resumes == 1


def test_a_session_that_goes_on_from_the_page_stays_its_notebooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def begin(*_: object, **__: object) -> None:
        begun.append(origin_here(tmp_path))

    for name in ("start", "resume"):
        monkeypatch.setattr(places, name, begin)
    monkeypatch.setattr(places, "_team", lambda last: None)
    turn = TurnPaths(tmp_path / "s" / "turn_1")
    turn.path.mkdir(parents=True)
    turn.metadata.write_text('{"origin": "notebook:../../a.ipynb"}')
    places.resume_turn(turn, False)
    places.continue_session(turn.path.parent, "And then?", False)
    assert begun == ["notebook:../../a.ipynb"] * 2


def test_a_complete_turn_is_not_resumed(jupyter: JupyterServer, complete: Run) -> None:
    answer = jupyter.post(f"runs/{jupyter.name(complete.path)}/resume")
    assert answer.status_code == 409
    assert "nothing to resume" in answer.json()["message"]
    assert jupyter.get("runs") == []


def test_the_same_team_is_asked_something_new(jupyter: JupyterServer, complete: Run) -> None:
    answer = jupyter.post(f"sessions/{session(jupyter, complete)}/continue", {"task": "And then?"})
    assert answer.status_code == 202, answer.text
    run = end(jupyter, answer.json())
    assert (run.turn, run.view.task, [*run.view.agents]) == (2, "And then?", ["ada"])


def test_a_session_of_models_made_in_python_is_not_continued(jupyter: JupyterServer) -> None:
    run = start(jupyter.sessions, ada=ScriptedModel())
    run.wait(WAIT_S, raise_on_stop=False)
    answer = jupyter.post(f"sessions/{session(jupyter, run)}/continue", {"task": "And then?"})
    assert answer.status_code == 400
    assert "--config FILE" in answer.json()["message"]


def test_a_session_is_renamed(jupyter: JupyterServer, complete: Run) -> None:
    answer = jupyter.post(f"sessions/{session(jupyter, complete)}/rename", {"name": "caches"})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"id": ".nb_agents/sessions/caches", "session": "caches"}
    assert jupyter.get("sessions/.nb_agents/sessions/caches")["turns"][0]["state"] == "complete"


@pytest.mark.parametrize("name", ["../out", "a/b", "..", "", "a\0", "x" * 300])
def test_a_session_is_not_renamed_to_what_leads_elsewhere(
    jupyter: JupyterServer, complete: Run, name: str
) -> None:
    path = f"sessions/{session(jupyter, complete)}/rename"
    assert jupyter.post(path, {"name": name}).status_code == 400
    assert complete.path.is_dir()


def test_a_session_is_exported_as_a_zip(jupyter: JupyterServer, complete: Run) -> None:
    answer = jupyter.client.get(f"{jupyter.url}/sessions/{session(jupyter, complete)}/export")
    assert answer.headers["Content-Type"] == "application/zip"
    assert f"{complete.session}.zip" in answer.headers["Content-Disposition"]
    names = zipfile.ZipFile(io.BytesIO(answer.content)).namelist()
    assert f"{complete.session}/turn_1/events.jsonl" in names


def test_a_session_is_deleted(jupyter: JupyterServer, complete: Run) -> None:
    path = f"{jupyter.url}/sessions/{session(jupyter, complete)}"
    assert jupyter.client.delete(path).status_code == 204
    assert not complete.path.parent.exists()
    assert jupyter.client.delete(path).status_code == 404


def test_a_live_session_is_neither_renamed_nor_deleted_nor_continued(
    jupyter: JupyterServer, held: Run
) -> None:
    path = f"sessions/{session(jupyter, held)}"
    assert jupyter.post(f"{path}/rename", {"name": "caches"}).status_code == 409
    assert jupyter.client.delete(f"{jupyter.url}/{path}").status_code == 409
    assert jupyter.post(f"{path}/continue", {"task": "x"}).status_code in (400, 409)
    assert held.path.is_dir()


def test_a_folder_that_only_looks_like_a_session_is_not_deleted(jupyter: JupyterServer) -> None:
    (jupyter.root / "reports" / "turn_1").mkdir(parents=True)
    assert jupyter.client.delete(f"{jupyter.url}/sessions/reports").status_code == 404
    assert (jupyter.root / "reports").is_dir()


def test_sessions_of_several_folders_are_listed_and_none_outside(
    jupyter: JupyterServer, tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        model = ScriptedModel(Answer("Use mmap."))
        root = jupyter.root / folder / ".nb_agents" / "sessions"
        start(root, ada=model).wait(WAIT_S, raise_on_stop=False)
    folders = ["a", "b", "../..", str(tmp_path), "a\0"]
    listed = jupyter.get("sessions", params={"folder": folders})
    assert {each["id"].partition("/")[0] for each in listed} == {"a", "b"}
    assert listed[0]["turns"][0]["updated_at"] > 0
