"""Authentication and authorization, valid names, and limits of requests."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from nb_agents.testing import Answer, ScriptedModel, Vote
from tests import canaries
from tests.kit.verbs import BODIES
from tests.model_server import ModelServer, Reply, ToolCall
from tests.server.conftest import JupyterServer, jupyter_server
from tests.team_kit import finish, start

READING = (
    *("runs", "runs/s/turn_1", "runs/s/turn_1/events", "runs/s/turn_1/view", "view"),
    *("sessions", "sessions/s", "sessions/s/turns/1", "sessions/s/export", "openapi.json"),
)
CHANGING = (
    *(("POST", f"runs/s/turn_1/{action}") for action in ("stop", "resume")),
    *(("POST", f"sessions/s/{action}") for action in ("continue", "rename")),
    *(("POST", "runs"), ("DELETE", "sessions/s")),
)
ASKED = {action: {"text": "x"} if action in ("answer", "say") else {} for action in BODIES}
"""All commands of a run, each with a valid body."""
ONCE = {"Connection": "close"}
"""The server closes the connection of a rejected request before it has read the body."""


def over(root: Path) -> Path:
    """Complete a turn and return its directory."""
    model = ScriptedModel(Answer("Use mmap."), Vote("agent1"), Answer("Use mmap."))
    return finish(start(root, ada=model)).path


@pytest.fixture
def stranger() -> Iterator[httpx2.Client]:
    with httpx2.Client(timeout=120) as client:
        yield client


@pytest.mark.parametrize("path", READING)
def test_reading_needs_a_token(jupyter: JupyterServer, stranger: httpx2.Client, path: str) -> None:
    for headers in ({}, {"Authorization": "token wrong"}):
        answer = stranger.get(f"{jupyter.url}/{path}", headers=headers)
        assert answer.status_code == 403
        assert "mmap" not in answer.text


@pytest.mark.parametrize(("method", "path"), CHANGING)
def test_changes_need_a_token(
    jupyter: JupyterServer, stranger: httpx2.Client, method: str, path: str
) -> None:
    for headers in ({}, {"Authorization": "token wrong"}):
        answer = stranger.request(method, f"{jupyter.url}/{path}", headers=ONCE | headers)
        assert answer.status_code == 403


def test_cross_site_page_cannot_read_with_the_users_cookie(
    jupyter: JupyterServer, stranger: httpx2.Client
) -> None:
    stranger.get(f"{jupyter.base}/api/status", params={"token": jupyter.token})  # sets the cookie
    assert stranger.get(f"{jupyter.url}/runs").status_code == 200
    answer = stranger.get(f"{jupyter.url}/runs", headers={"Origin": "http://evil.example"})
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "name",
    [
        "../outside/session/turn_1",
        "../../outside/session/turn_1",
        "%2e%2e/outside/session/turn_1",
        "..%2Foutside%2Fsession%2Fturn_1",
        "sub/../../outside/session/turn_1",
        "link/turn_1",
        "session/link_turn/turn_1",
        "%00/turn_1",
        "session%00/turn_1",
        "turn_1",
        "turn_0",
        "session/turn_99999999999999999999",
        "a" * 5000 + "/turn_1",
        "{outside}/session/turn_1",
        "%2F{outside}/session/turn_1",
        "session/turn_1/../../../outside/session/turn_1",
        "session/turn_1/events.jsonl",
    ],
)
def test_names_do_not_leave_the_root(jupyter: JupyterServer, tmp_path: Path, name: str) -> None:
    outside = jupyter.root.parent / "outside"
    if not outside.exists():
        over(outside).parent.rename(outside / "session")
    (jupyter.root / "sub").mkdir()
    (jupyter.root / "link").symlink_to(outside / "session")
    inside = name.format(outside=str(outside).lstrip("/"))
    asked = [f"runs/{inside}", f"runs/{inside}/events", f"runs/{inside}/view"]
    if session := inside.rpartition("/")[0]:
        asked += [f"sessions/{session}", f"sessions/{session}/turns/1"]
        asked += [f"sessions/{session}/export"]
    for path in asked:
        # Sent unchanged, as the client would remove the dots from a URL.
        answer = jupyter.client.send(_as_it_stands(jupyter, f"/nb-agents/{path}"))
        assert answer.status_code in (400, 404), path
        assert "mmap" not in answer.text
    before = sorted(outside.rglob("*"))
    changes = [("POST", f"runs/{inside}/{action}", body) for action, body in ASKED.items()]
    if session:
        changes += [
            ("POST", f"sessions/{session}/continue", {"task": "x"}),
            ("POST", f"sessions/{session}/rename", {"name": "mine"}),
            ("DELETE", f"sessions/{session}", {}),
        ]
    for method, path, body in changes:
        answer = jupyter.client.send(_as_it_stands(jupyter, f"/nb-agents/{path}", method, body))
        assert answer.status_code in (400, 404), path
        assert "mmap" not in answer.text
    assert sorted(outside.rglob("*")) == before
    with jupyter.stream("view", params={"id": inside}) as messages:
        assert [kind for kind, _, _ in messages] == ["unknown"]


def _as_it_stands(
    jupyter: JupyterServer, path: str, method: str = "GET", body: dict[str, str] | None = None
) -> httpx2.Request:
    request = jupyter.client.build_request(method, jupyter.base, json=body)
    request.url = httpx2.URL(jupyter.base).copy_with(raw_path=path.encode())
    return request


def test_symbolic_link_as_journal_is_not_read(jupyter: JupyterServer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mmap\n")
    turn = jupyter.sessions / "session" / "turn_1"
    turn.mkdir(parents=True)
    (turn / "events.jsonl").symlink_to(tmp_path / "secret")
    os.symlink(tmp_path / "secret", turn / "answer.txt")
    for part in ("", "/events", "/view"):
        answer = jupyter.client.get(f"{jupyter.url}/runs/{jupyter.name(turn)}{part}")
        assert "mmap" not in answer.text


TEAM = """
agents:
  - id: ada
    backend: {{type: vllm, model: tells, base_url: "{url}", api_key: {key},
               enable_mcp_command_line: true, tool_policy: [{{match: "*", action: ask}}]}}
  - id: ben
    backend: {{type: vllm, model: fails, base_url: "{url}", api_key: {key}}}
"""


def test_keys_are_masked_in_replies_exports_and_logs(jupyter: JupyterServer) -> None:
    """The user starts and approves the run over HTTP, and its models repeat their key."""
    asks = ToolCall("run_command", {"command": f"echo {canaries.KEY}"})
    answers = ToolCall("new_answer", {"content": f"The key is {canaries.KEY}."})
    with ModelServer() as models:
        told = f"I have {canaries.KEY}."
        models.script("tells", *(Reply(told, tool_calls=(call,)) for call in (asks, answers)))
        models.script("fails", Reply(status=401, error=f"wrong key {canaries.KEY}"))
        team = TEAM.format(url=models.url, key=canaries.KEY)
        (jupyter.root / "team.yaml").write_text(team)
        begun = jupyter.post("runs", {"task": "Tell me the key", "config": "team.yaml"})
        run = begun.json()["id"]
        answers_of_all = [begun.content]
        with jupyter.stream(f"runs/{run}/events") as messages:
            for kind, data, _ in messages:
                if kind == "approval_asked":
                    answers_of_all += read_all(jupyter, run, is_over=False)
                    yes = {"gate": data["step"], "message": "Do."}
                    assert jupyter.post(f"runs/{run}/approve", yes).status_code == 202
        assert models.requests[0].headers["authorization"] == f"Bearer {canaries.KEY}"
    answers_of_all += read_all(jupyter, run, is_over=True)
    assert any(b"I have [key]" in answer for answer in answers_of_all)
    for answer in (*answers_of_all, jupyter.log.encode()):
        assert canaries.found_in(answer) == [], answer


def read_all(jupyter: JupyterServer, run: str, is_over: bool) -> Iterator[bytes]:
    """Read all replies about a run and the files of its export. Streams end with the run."""
    for path in READING:
        if not is_over and path.endswith(("/events", "view", "export")):
            continue
        here = re.sub(r"/s(?=/|$)", f"/{run.rpartition('/')[0]}", path)
        answer = jupyter.client.get(f"{jupyter.url}/{here}", params={"id": run})
        assert answer.status_code == 200, here
        yield answer.content
        if path.endswith("export"):
            with zipfile.ZipFile(io.BytesIO(answer.content)) as packed:
                yield from map(packed.read, packed.namelist())


def authorizer(home: Path, rule: str) -> str:
    """Write a module with an authorizer. Return the flag that enables it."""
    (home / "only_some.py").write_text(
        "from jupyter_server.auth import Authorizer\n"
        "class OnlySome(Authorizer):\n"
        "    def is_authorized(self, handler, user, action, resource):\n"
        f"        return {rule}\n"
    )
    return "--ServerApp.authorizer_class=only_some.OnlySome"


def test_authorizer_can_refuse_all_requests(tmp_path: Path) -> None:
    flag = authorizer(tmp_path, "resource != 'nb_agents'")
    with jupyter_server(tmp_path, flag) as server:
        for path in READING:
            assert server.client.get(f"{server.url}/{path}").status_code == 403
        assert server.client.get(f"{server.base}/api/contents").status_code == 200


def test_authorizer_can_allow_reading_only(tmp_path: Path) -> None:
    flag = authorizer(tmp_path, "resource != 'nb_agents' or action == 'read'")
    with jupyter_server(tmp_path, flag) as server:
        session = over(server.sessions).parent
        for method, path in CHANGING:
            there = path.replace("/s", f"/{server.name(session)}", 1)
            answer = server.client.request(method, f"{server.url}/{there}", headers=ONCE)
            assert answer.status_code == 403, path
        assert server.get("sessions")[0]["turns"][0]["state"] == "complete"


def test_large_body_is_rejected_before_it_is_read(jupyter: JupyterServer) -> None:
    for headers in ({}, {"Transfer-Encoding": "chunked"}):
        content = iter([b"x" * 1_000_000] * 10) if headers else b"x" * 10_000_000
        try:
            answer = jupyter.client.post(f"{jupyter.url}/runs/s/turn_1/stop", content=content)
        except httpx2.TransportError:
            continue  # the server closes the connection while the client is sending
        assert answer.status_code in (400, 413)
    assert jupyter.get("runs") == []


def test_document_describes_the_routes(jupyter: JupyterServer) -> None:
    document = jupyter.get("openapi.json")
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        known = path.replace("{id}", "no/session/turn_1").replace("{n}", "1")
        for method in methods:
            answer = jupyter.client.request(method, f"{jupyter.url}{known}", json={"text": "x"})
            assert answer.status_code != 405, path
            assert "message" in answer.text or answer.status_code == 200, path
