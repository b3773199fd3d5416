"""Management of sessions over HTTP: resume, continue, rename, export and delete."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.testing import Answer, Gate, ScriptedModel
from tests.kit.runs import Run, attach
from tests.kit.servers import places
from tests.kit.sessions import TurnPaths, current_origin
from tests.kit.teams import TeamSpec
from tests.model_server import wait_until
from tests.server.conftest import JupyterServer
from tests.team_kit import WAIT_S, start

QUICK, SLOW = 10_000, 1


def demo(jupyter: JupyterServer, words_per_second: float) -> Run:
    """Start a demo agent, with its team stored in the journal."""
    backend = {"type": "demo", "words_per_second": words_per_second}
    team = TeamSpec.model_validate({"agents": [{"id": "ada", "backend": backend}]})
    return nb_agents.start("the task", team, options=RunOptions(session_root=jupyter.sessions))


@pytest.fixture
def complete(jupyter: JupyterServer) -> Run:
    """Return a complete turn."""
    run = demo(jupyter, QUICK)
    run.wait(WAIT_S)
    return run


@pytest.fixture
def incomplete(jupyter: JupyterServer) -> Run:
    """Return a stopped turn."""
    run = demo(jupyter, SLOW)
    run.stop(now=True)
    run.wait(WAIT_S, raise_on_stop=False)
    return run


@pytest.fixture
def held(jupyter: JupyterServer) -> Iterator[Run]:
    """Start a run with one agent, which waits at a gate while it writes."""
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


def test_resume_runs_in_a_separate_process(jupyter: JupyterServer, incomplete: Run) -> None:
    path = f"runs/{jupyter.name(incomplete.path)}/resume"
    answer = jupyter.post(path)
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert told["id"] == f"{session(jupyter, incomplete)}/turn_2"
    again = jupyter.post(path)
    assert again.status_code == 409
    assert "turn 2" in again.json()["message"]
    assert end(jupyter, told).view.resumes == 1


def test_continued_session_keeps_its_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def begin(*_: object, **__: object) -> None:
        begun.append(current_origin(tmp_path))

    for name in ("start_verbatim", "resume"):
        monkeypatch.setattr(places, name, begin)
    monkeypatch.setattr(places, "_team", lambda last: None)
    turn = TurnPaths(tmp_path / "s" / "turn_1")
    turn.path.mkdir(parents=True)
    turn.metadata.write_text('{"origin": "notebook:../../a.ipynb"}')
    places.resume_turn(turn, {})
    places.continue_session(turn.path.parent, {"task": "And then?"})
    assert begun == ["notebook:../../a.ipynb"] * 2


def test_complete_turn_cannot_be_resumed(jupyter: JupyterServer, complete: Run) -> None:
    answer = jupyter.post(f"runs/{jupyter.name(complete.path)}/resume")
    assert answer.status_code == 409
    assert "nothing to resume" in answer.json()["message"]
    assert jupyter.get("runs") == []


def test_continue_uses_the_same_team(jupyter: JupyterServer, complete: Run) -> None:
    answer = jupyter.post(f"sessions/{session(jupyter, complete)}/continue", {"task": "And then?"})
    assert answer.status_code == 202, answer.text
    run = end(jupyter, answer.json())
    assert (run.turn, run.view.task, [*run.view.agents]) == (2, "And then?", ["ada"])


def test_session_of_python_models_cannot_be_continued(jupyter: JupyterServer) -> None:
    run = start(jupyter.sessions, ada=ScriptedModel())
    run.wait(WAIT_S, raise_on_stop=False)
    answer = jupyter.post(f"sessions/{session(jupyter, run)}/continue", {"task": "And then?"})
    assert answer.status_code == 400
    assert "--config FILE" in answer.json()["message"]


def test_rename_of_a_session(jupyter: JupyterServer, complete: Run) -> None:
    answer = jupyter.post(f"sessions/{session(jupyter, complete)}/rename", {"name": "caches"})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"id": ".nb_agents/sessions/caches", "session": "caches"}
    assert jupyter.get("sessions/.nb_agents/sessions/caches")["turns"][0]["state"] == "complete"


@pytest.mark.parametrize("name", ["../out", "a/b", "..", "", "a\0", "x" * 300])
def test_rename_does_not_leave_the_root(jupyter: JupyterServer, complete: Run, name: str) -> None:
    path = f"sessions/{session(jupyter, complete)}/rename"
    assert jupyter.post(path, {"name": name}).status_code == 400
    assert complete.path.is_dir()


def test_export_is_a_zip_file(jupyter: JupyterServer, complete: Run) -> None:
    answer = jupyter.client.get(f"{jupyter.url}/sessions/{session(jupyter, complete)}/export")
    assert answer.headers["Content-Type"] == "application/zip"
    assert f"{complete.session}.zip" in answer.headers["Content-Disposition"]
    names = zipfile.ZipFile(io.BytesIO(answer.content)).namelist()
    assert f"{complete.session}/turn_1/events.jsonl" in names


def test_deletion_of_a_session(jupyter: JupyterServer, complete: Run) -> None:
    path = f"{jupyter.url}/sessions/{session(jupyter, complete)}"
    assert jupyter.client.delete(path).status_code == 204
    assert not complete.path.parent.exists()
    assert jupyter.client.delete(path).status_code == 404


def test_live_session_cannot_be_renamed_deleted_or_continued(
    jupyter: JupyterServer, held: Run
) -> None:
    path = f"sessions/{session(jupyter, held)}"
    assert jupyter.post(f"{path}/rename", {"name": "caches"}).status_code == 409
    assert jupyter.client.delete(f"{jupyter.url}/{path}").status_code == 409
    assert jupyter.post(f"{path}/continue", {"task": "x"}).status_code in (400, 409)
    assert held.path.is_dir()


def test_deletion_requires_the_files_of_a_session(jupyter: JupyterServer) -> None:
    (jupyter.root / "reports" / "turn_1").mkdir(parents=True)
    assert jupyter.client.delete(f"{jupyter.url}/sessions/reports").status_code == 404
    assert (jupyter.root / "reports").is_dir()


def test_sessions_of_several_folders_below_the_root_are_listed(
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
