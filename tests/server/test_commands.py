"""What is asked over HTTP reaches a run of another process: this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import nb_agents
from nb_agents.options import RunOptions
from nb_agents.runs.run import Run
from nb_agents.testing import Answer, Gate, ScriptedModel, Vote, scripted_team
from tests.model_server import wait_until
from tests.server.conftest import JupyterServer
from tests.team_kit import WAIT_S, finish, start


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def held(jupyter: JupyterServer, gate: Gate) -> Iterator[Run]:
    """A run whose one agent writes and is held there."""
    run = start(jupyter.sessions, ada=two_rounds(gate))
    gate.wait_reached()
    yield run
    run.stop(now=True)
    gate.open()
    run.wait(WAIT_S, raise_on_stop=False)


def two_rounds(gate: Gate) -> ScriptedModel:
    return ScriptedModel(
        Answer("Use mmap.", text="I think ", gate=gate),
        Vote("agent1"),
        Vote("agent1"),
        Answer("Use mmap."),
    )


def asked(jupyter: JupyterServer, run: Run, action: str, **body: object) -> tuple[int, object]:
    """Ask it; returns the status and, of what is replied, what is of interest."""
    answer = jupyter.post(f"runs/{jupyter.name(run.path)}/{action}", body)
    told = answer.json()
    return answer.status_code, (told.get("changed"), told.get("status"))


def test_a_stop_is_taken_once_and_may_be_asked_again(
    jupyter: JupyterServer, held: Run, gate: Gate
) -> None:
    assert asked(jupyter, held, "stop", reason="wrong path") == (202, (True, "stopping"))
    assert asked(jupyter, held, "stop") == (202, (False, "stopping"))
    assert asked(jupyter, held, "stop", immediate=True) == (202, (True, "stopping-now"))
    finish(held)
    assert held.view.stop is not None
    assert (held.view.stop.source, held.view.stop.reason) == ("rest", "wrong path")
    assert "I think" in held.view.agents["ada"].unsubmitted
    assert asked(jupyter, held, "stop") == (409, (None, "stopped"))


def test_one_agent_is_stopped_and_an_unknown_one_is_refused(
    jupyter: JupyterServer, gate: Gate
) -> None:
    run = start(jupyter.sessions, ada=two_rounds(gate), ben=two_rounds(gate))
    gate.wait_reached(2)
    path = f"runs/{jupyter.name(run.path)}/stop"
    assert jupyter.post(path, {"agent": "nobody"}).status_code == 400
    assert jupyter.post(path, {"agent": "ben", "immediate": True}).status_code == 202
    assert run.view.agents["ben"].stop == "immediate"
    assert run.view.stop is None
    gate.open()
    finish(run)


def test_with_a_row_its_whole_sweep_is_stopped(jupyter: JupyterServer, gate: Gate) -> None:
    tasks = [{"q": number} for number in range(6)]
    options = RunOptions(session_root=jupyter.sessions)
    team = scripted_team(ada=ScriptedModel(Answer("Use mmap.", text="I think ", gate=gate)))
    sweep = nb_agents.map(tasks, "{{q}}?", team, limit=2, options=options)
    gate.wait_reached(2)
    wait_until(lambda: len(sweep.runs) == 2)  # known a moment after they work
    row, other = sweep.runs.values()
    assert asked(jupyter, row, "stop", immediate=True) == (202, (True, "stopping-now"))
    gate.wait_reached(3)  # the others go on, and so does the sweep
    body = {"sweep": True, "immediate": True, "reason": "seen enough"}
    assert asked(jupyter, other, "stop", **body)[0] == 202
    view = sweep.wait(WAIT_S)
    gate.open()
    assert (view.status, view.reason, view.to_go) == ("cancelled", "seen enough", 3)


def test_a_text_is_heard(jupyter: JupyterServer, held: Run, gate: Gate) -> None:
    assert asked(jupyter, held, "say", text="Leave out the appendix")[0] == 202
    gate.open()
    assert finish(held).view.said == ("Leave out the appendix",)
    assert asked(jupyter, held, "say", text="too late") == (409, (None, "complete"))


def test_a_run_is_paused_and_goes_on(jupyter: JupyterServer, held: Run, gate: Gate) -> None:
    assert asked(jupyter, held, "pause")[0] == 202
    assert held.view.is_paused
    assert asked(jupyter, held, "resume")[0] == 202
    assert not held.view.is_paused
    gate.open()
    assert finish(held).status == "completed"


def test_what_nobody_asks_for_can_not_be_decided(jupyter: JupyterServer, held: Run) -> None:
    for action, body in {"approve": {}, "deny": {}, "answer": {"text": "x"}}.items():
        assert asked(jupyter, held, action, **body)[0] == 409
    assert held.view.status == "in-progress"


@pytest.mark.parametrize("action", ["stop", "approve", "deny", "answer", "pause", "resume", "say"])
def test_a_run_that_is_not_there_is_told_apart(jupyter: JupyterServer, action: str) -> None:
    answer = jupyter.post(
        f"runs/no/session/turn_1/{action}", {"text": "x"} if action in ("answer", "say") else {}
    )
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "body", ['{"immediate": 1}', '{"now": true}', '{"source": "parent"}', "[]", "{", '"x"']
)
def test_a_body_that_makes_no_sense_stops_nothing(
    jupyter: JupyterServer, held: Run, body: str
) -> None:
    path = f"{jupyter.url}/runs/{jupyter.name(held.path)}/stop"
    assert jupyter.client.post(path, content=body).status_code == 400
    assert held.view.stop is None


def is_refused(client: httpx2.Client, url: str, **options: Any) -> bool:
    try:
        return client.post(url, json={}, **options).status_code in (403, 404)
    except httpx2.TransportError:
        return True  # it hangs up before it has read what it was sent


def test_a_page_elsewhere_stops_nothing(jupyter: JupyterServer, held: Run) -> None:
    url = f"{jupyter.url}/runs/{jupyter.name(held.path)}/stop"
    none_is_kept = httpx2.Limits(max_keepalive_connections=0)
    with httpx2.Client(timeout=120, limits=none_is_kept) as browser:
        assert is_refused(browser, url)
        browser.get(f"{jupyter.base}/api/status", params={"token": jupyter.token})
        # With the person's cookie, and without what a page of the server's own would send too.
        assert is_refused(browser, url)
        assert is_refused(browser, url, headers={"Origin": "http://evil.example"})
        # A page of the server's own can read its cookies, and says so.
        browser.cookies.set("_xsrf", "5ca1ab1e", domain="127.0.0.1")
        assert browser.post(url, json={}, headers={"X-XSRFToken": "5ca1ab1e"}).status_code == 202
    assert held.view.stop is not None and held.view.stop.level == "requested"


def test_a_run_that_is_elsewhere_is_found_as_long_as_it_was_seen_live(
    jupyter: JupyterServer, tmp_path: Path, gate: Gate
) -> None:
    run = start(tmp_path / "elsewhere", ada=two_rounds(gate))
    gate.wait_reached()
    [told] = jupyter.get("runs")
    assert told["id"] == str(run.path)
    assert jupyter.post(f"runs{told['id']}/stop", {"immediate": True}).status_code == 202
    assert finish(run).status == "cancelled"
    assert jupyter.get(f"runs{told['id']}")["state"] == "stopped"
    gate.open()


def test_a_run_is_started_in_a_process_of_its_own(jupyter: JupyterServer) -> None:
    (jupyter.root / "reports").mkdir()
    team = "agents: [{id: ada, backend: {type: demo, words_per_second: 1}}]\n"
    (jupyter.root / "reports" / "team.yaml").write_text(team)
    body = {"task": "Compare caches", "folder": "reports", "config": "team.yaml"}
    answer = jupyter.post("runs", body)
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert told["id"].startswith("reports/.nb_agents/sessions/")
    [live] = jupyter.get("runs")
    assert (live["id"], live["task"]) == (told["id"], "Compare caches")
    with jupyter.stream(f"runs/{told['id']}/view") as messages:
        next(messages)
        assert jupyter.post(f"runs/{told['id']}/stop", {"immediate": True}).status_code == 202
        *_, (kind, _, _) = messages
    assert kind == "card"


@pytest.mark.parametrize("what", ["folder", "config", "recipe"])
@pytest.mark.parametrize("name", ["..", "no", "../../etc/passwd", "/etc/passwd", "a\0", "link"])
def test_nothing_is_started_from_outside(jupyter: JupyterServer, what: str, name: str) -> None:
    outside = "/etc" if what == "folder" else "/etc/passwd"
    (jupyter.root / "link").symlink_to(outside)
    assert jupyter.post("runs", {"task": "x", what: name}).status_code == 404
    assert jupyter.get("runs") == []


def test_a_session_that_is_begun_can_not_be_outside(jupyter: JupyterServer) -> None:
    answer = jupyter.post("runs", {"task": "x", "session": "../../../outside"})
    assert (answer.status_code, jupyter.get("runs")) == (400, [])
    assert "outside" in answer.json()["message"]
    assert not (jupyter.root.parent / "outside").exists()


def test_a_mistake_in_what_is_to_start_is_told(jupyter: JupyterServer) -> None:
    answer = jupyter.post("runs", {"task": " "})
    assert answer.status_code == 400
    assert "task" in answer.json()["message"]
