"""Commands over HTTP to a run of another process, which is the test process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import nb_agents
from nb_agents.options import RunOptions
from nb_agents.testing import Answer, Gate, ScriptedModel, Vote, scripted_team
from tests.kit.runs import Run
from tests.kit.verbs import BODIES
from tests.model_server import wait_until
from tests.server.conftest import JupyterServer
from tests.team_kit import WAIT_S, finish, start


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def held(jupyter: JupyterServer, gate: Gate) -> Iterator[Run]:
    """Start a run with one agent, which waits at a gate while it writes."""
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
    """Send a command. Return the HTTP status and the relevant fields of the reply."""
    answer = jupyter.post(f"runs/{jupyter.name(run.path)}/{action}", body)
    told = answer.json()
    return answer.status_code, (told.get("changed"), told.get("status"))


def test_stop_is_idempotent(jupyter: JupyterServer, held: Run, gate: Gate) -> None:
    assert asked(jupyter, held, "stop", reason="wrong path") == (202, (True, "stopping"))
    assert asked(jupyter, held, "stop") == (202, (False, "stopping"))
    assert asked(jupyter, held, "stop", immediate=True) == (202, (True, "stopping-now"))
    finish(held)
    assert held.view.stop is not None
    assert (held.view.stop.source, held.view.stop.reason) == ("rest", "wrong path")
    assert "I think" in held.view.agents["ada"].unsubmitted
    assert asked(jupyter, held, "stop") == (409, (None, "stopped"))


def test_stop_of_one_agent_and_of_an_unknown_agent(jupyter: JupyterServer, gate: Gate) -> None:
    run = start(jupyter.sessions, ada=two_rounds(gate), ben=two_rounds(gate))
    gate.wait_reached(2)
    path = f"runs/{jupyter.name(run.path)}/stop"
    assert jupyter.post(path, {"agent": "nobody"}).status_code == 400
    assert jupyter.post(path, {"agent": "ben", "immediate": True}).status_code == 202
    assert run.view.agents["ben"].stop == "immediate"
    assert run.view.stop is None
    gate.open()
    finish(run)


def test_stop_of_a_row_with_its_sweep(jupyter: JupyterServer, gate: Gate) -> None:
    tasks = [{"q": number} for number in range(6)]
    options = RunOptions(session_root=jupyter.sessions)
    team = scripted_team(ada=ScriptedModel(Answer("Use mmap.", text="I think ", gate=gate)))
    sweep = nb_agents.map(tasks, "{{q}}?", team, limit=2, options=options)
    gate.wait_reached(2)
    wait_until(lambda: len(sweep.runs) == 2)  # visible shortly after the rows have started
    row, other = sweep.runs.values()
    assert asked(jupyter, row, "stop", immediate=True) == (202, (True, "stopping-now"))
    gate.wait_reached(3)  # the other rows and the sweep continue
    body = {"sweep": True, "immediate": True, "reason": "seen enough"}
    assert asked(jupyter, other, "stop", **body)[0] == 202
    view = sweep.wait(WAIT_S)
    gate.open()
    assert (view.status, view.reason, view.to_go) == ("cancelled", "seen enough", 3)


def test_message_reaches_the_agents(jupyter: JupyterServer, held: Run, gate: Gate) -> None:
    assert asked(jupyter, held, "say", text="Leave out the appendix")[0] == 202
    gate.open()
    assert finish(held).view.said == ("Leave out the appendix",)
    assert asked(jupyter, held, "say", text="too late") == (409, (None, "complete"))


# Clients of version 0.1 end a pause with "resume".
@pytest.mark.parametrize("verb", ["unpause", "resume"])
def test_resume_and_unpause_end_a_pause(
    jupyter: JupyterServer, held: Run, gate: Gate, verb: str
) -> None:
    assert asked(jupyter, held, "pause")[0] == 202
    assert held.view.is_paused
    assert asked(jupyter, held, verb)[0] == 202
    assert not held.view.is_paused
    gate.open()
    assert finish(held).status == "completed"


def test_decision_without_a_gate_is_a_conflict(jupyter: JupyterServer, held: Run) -> None:
    for action, body in {"approve": {}, "deny": {}, "answer": {"text": "x"}}.items():
        assert asked(jupyter, held, action, **body)[0] == 409
    assert held.view.status == "in-progress"


@pytest.mark.parametrize("action", [*sorted(BODIES.keys() - {"rewind"}), "resume"])
def test_unknown_run_has_status_404(jupyter: JupyterServer, action: str) -> None:
    body = {
        "answer": {"text": "x"},
        "say": {"text": "x"},
        "cells_read": {"request": 1, "count": 0},
        "cells_claim": {"number": 1, "page": "p"},
        "cells_decide": {"number": 1, "how": "rejected"},
        "cells_revert": {"page": "p", "cells": "[]"},
        "cells_run": {"number": 1, "step": "start"},
    }
    answer = jupyter.post(f"runs/no/session/turn_1/{action}", body.get(action, {}))
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "body", ['{"immediate": 1}', '{"now": true}', '{"source": "parent"}', "[]", "{", '"x"']
)
def test_invalid_body_does_not_stop_the_run(jupyter: JupyterServer, held: Run, body: str) -> None:
    path = f"{jupyter.url}/runs/{jupyter.name(held.path)}/stop"
    assert jupyter.client.post(path, content=body).status_code == 400
    assert held.view.stop is None


def is_refused(client: httpx2.Client, url: str, **options: Any) -> bool:
    try:
        return client.post(url, json={}, **options).status_code in (403, 404)
    except httpx2.TransportError:
        return True  # the server closes the connection before it has read the body


def test_cross_site_page_cannot_stop_a_run(jupyter: JupyterServer, held: Run) -> None:
    url = f"{jupyter.url}/runs/{jupyter.name(held.path)}/stop"
    none_is_kept = httpx2.Limits(max_keepalive_connections=0)
    with httpx2.Client(timeout=120, limits=none_is_kept) as browser:
        assert is_refused(browser, url)
        browser.get(f"{jupyter.base}/api/status", params={"token": jupyter.token})
        # With the user's cookie, but without the header that a page of the server would also send.
        assert is_refused(browser, url)
        assert is_refused(browser, url, headers={"Origin": "http://evil.example"})
        # A page of the server can read its cookies, and sends their token in a header.
        browser.cookies.set("_xsrf", "5ca1ab1e", domain="127.0.0.1")
        assert browser.post(url, json={}, headers={"X-XSRFToken": "5ca1ab1e"}).status_code == 202
    assert held.view.stop is not None and held.view.stop.level == "requested"


def test_run_in_another_root_is_found_after_it_was_listed(
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


def test_start_runs_in_a_separate_process(jupyter: JupyterServer) -> None:
    (jupyter.root / "reports").mkdir()
    team = "agents: [{id: ada, backend: {type: demo, words_per_second: 1}}]\n"
    (jupyter.root / "reports" / "team.yaml").write_text(team)
    body = {"task": "Compare caches", "folder": "reports", "config": "team.yaml"}
    refused = jupyter.post("runs", {**body, "max_tokens": 0})
    assert refused.status_code == 400 and "max_tokens is 0" in refused.text
    answer = jupyter.post("runs", {**body, "max_tokens": 9000, "max_cost": 0.5})
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
def test_start_accepts_no_files_outside_the_root(
    jupyter: JupyterServer, what: str, name: str
) -> None:
    outside = "/etc" if what == "folder" else "/etc/passwd"
    (jupyter.root / "link").symlink_to(outside)
    assert jupyter.post("runs", {"task": "x", what: name}).status_code == 404
    assert jupyter.get("runs") == []


def test_start_accepts_no_session_outside_the_root(jupyter: JupyterServer) -> None:
    answer = jupyter.post("runs", {"task": "x", "session": "../../../outside"})
    assert (answer.status_code, jupyter.get("runs")) == (400, [])
    assert "outside" in answer.json()["message"]
    assert not (jupyter.root.parent / "outside").exists()


def test_start_reports_an_invalid_team(jupyter: JupyterServer) -> None:
    answer = jupyter.post("runs", {"task": " "})
    assert answer.status_code == 400
    assert "task" in answer.json()["message"]
