"""The route that names who wrote each line of a file in an editor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from tests.kit.teams import TeamSpec
from tests.server.conftest import JupyterServer
from tests.team_kit import WAIT_S

TASK = "Write the notes"


@pytest.fixture
def page(jupyter: JupyterServer) -> Path:
    """A user file with a line of the user and two of an agent, below the server's root."""
    site = jupyter.root / "site"
    site.mkdir()
    page = site / "page.md"
    page.write_text("mine\n")
    calls = (
        Call("edit_file", {"path": str(page), "old": "mine", "new": "mine\nfirst"}),
        Call("run_command", {"command": f"echo second >> '{page}'"}),
        Call("write_file", {"path": "notes.md", "content": "one\ntwo\n"}),
    )
    model = ScriptedModel(*(Turn(calls=(each,)) for each in calls), Answer("Done."))
    backend = {"type": "python", "instance": model, "enable_mcp_command_line": True}
    team = {
        "agents": [{"id": "ada", "backend": backend}],
        "orchestrator": {
            "skip_voting": True,
            "context_paths": [{"path": str(site), "permission": "write"}],
        },
    }
    options = RunOptions(session_root=jupyter.sessions)
    run = nb_agents.start(TASK, TeamSpec.model_validate(team), "authors", options=options)
    run.wait(WAIT_S)
    return page


def ask(jupyter: JupyterServer, path: str, text: str, code: int = 200) -> Any:
    reply = jupyter.client.post(f"{jupyter.url}/authors", json={"path": path, "text": text})
    assert reply.status_code == code, reply.text
    return reply.json()


def test_lines_of_a_user_file_name_the_calls(jupyter: JupyterServer, page: Path) -> None:
    found = ask(jupyter, "site/page.md", page.read_text())
    assert found["is_current"] and found["lines"] == [None, 0, 1]
    assert [each["tool"] for each in found["calls"]] == ["edit_file", "run_command"]
    assert {(each["agent"], each["prompt"]) for each in found["calls"]} == {("ada", TASK)}


def test_lines_that_differ_from_the_file_are_the_users(jupyter: JupyterServer, page: Path) -> None:
    edited = page.read_text().replace("first", "FIRST")
    found = ask(jupyter, "site/page.md", edited)
    assert not found["is_current"] and found["lines"] == [None, None, 0]


def test_file_of_a_turn_is_named_by_its_turn(jupyter: JupyterServer, page: Path) -> None:
    folder = jupyter.sessions.relative_to(jupyter.root)
    for turn in (f"{folder}/authors/turn_1", "authors/turn_1"):
        found = ask(jupyter, f"{turn}/workspaces/ada/notes.md", "one\n2\n")
        assert found["lines"] == [0, None] and found["calls"][0]["tool"] == "write_file"
        assert not found["is_current"]


@pytest.mark.parametrize(
    "path", ["../secret.txt", "/etc/hosts", "site/link.txt", "site", "", "a\0"]
)
def test_other_files_are_unknown(jupyter: JupyterServer, page: Path, path: str) -> None:
    (jupyter.root.parent / "secret.txt").write_text("secret\n")
    (page.parent / "link.txt").symlink_to(jupyter.root.parent / "secret.txt")
    assert "secret\n" not in str(ask(jupyter, path, "secret\n", 404))


def test_file_of_a_turn_is_not_reached_through_a_link(jupyter: JupyterServer, page: Path) -> None:
    ada = jupyter.sessions / "authors" / "turn_1" / "workspaces" / "ada"
    (jupyter.root.parent / "secret.txt").write_text("secret\n")
    (ada / "link.txt").symlink_to(jupyter.root.parent / "secret.txt")
    ask(jupyter, "authors/turn_1/workspaces/ada/link.txt", "secret\n", 404)
    ask(jupyter, "authors/turn_1/workspaces/ada/../../../../../secret.txt", "secret\n", 404)
