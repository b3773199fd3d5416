"""Files in agents' directories are never opened by an absolute path."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, Vote
from tests.acp.test_acp_runner import agent
from tests.kit.cards import CELL, card_bundle
from tests.kit.processes import environment
from tests.kit.sessions import export_session, fork_session, turns_of
from tests.kit.verbs import Caller, diff
from tests.team_kit import finish

EVENTS = frozenset(
    "open os.chmod os.link os.listdir os.mkdir os.remove os.rename os.rmdir os.scandir os.symlink "
    "os.truncate os.utime sqlite3.connect".split()
)
_recorders: list[list[str]] = []


def _record(event: str, args: tuple[Any, ...]) -> None:
    if event in EVENTS and _recorders:
        paths = [os.fsdecode(each) for each in args if isinstance(each, str | bytes | os.PathLike)]
        _recorders[-1].extend(f"{event} {path}" for path in paths if path.startswith("/"))


sys.addaudithook(_record)


@contextmanager
def uses_of_paths() -> Iterator[list[str]]:
    """Record what this process does with absolute paths within the block."""
    used: list[str] = []
    _recorders.append(used)
    try:
        yield used
    finally:
        _recorders.remove(used)


def is_below_an_agents(use: str, scratch: Path) -> bool:
    """Whether a path is below a home, a workspace, or the temporary directory of an agent."""
    parts = Path(use.partition(" ")[2]).parts
    for name in ("workspaces", "programs"):
        if name in parts and len(parts) > parts.index(name) + 2:
            return True
    below = parts[len(scratch.parts) :] if parts[: len(scratch.parts)] == scratch.parts else ()
    return len(below) > 2 and below[1] == "d"


def turn(*calls: Call) -> Turn:
    return Turn(calls=calls)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A temporary directory whose path leaves room for the path of a socket (107 bytes)."""
    with TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def test_paths_that_agents_can_change_are_opened_below_open_directories(
    tmp_path: Path, short_folder: Path, monkeypatch: Any
) -> None:
    scratch, given = short_folder, tmp_path / "given"
    given.mkdir()
    (given / "old.txt").write_text("old")
    monkeypatch.setattr(environment, "PLACE", str(scratch))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789")
    plot = "from IPython.display import Image, display\nimport base64\n" + (
        "display(Image(base64.b64decode('iVBORw0KGgo=')))\nopen('made', 'w').close()"
    )
    model = ScriptedModel(
        turn(Call("write_file", {"path": "memory/short_term/a.md", "content": "a"})),
        turn(Call("edit_file", {"path": "memory/short_term/a.md", "old": "a", "new": "b"})),
        turn(Call("read_file", {"path": "memory/short_term/a.md"})),
        turn(Call("list_files", {"path": "."})),
        turn(Call("run_command", {"command": "mkdir -p d && echo x > d/file && seq 1 9000"})),
        turn(Call("run_python", {"code": plot})),
        Answer("![](d/x.png)"),
        Vote("agent1"),
        turn(Call("write_file", {"path": str(given / "new.txt"), "content": "new"})),
        Turn(text="done"),
    )
    backend = {"enable_mcp_command_line": True, "enable_code_execution": True}
    agents = [
        {"id": "a", "backend": {"type": "python", "instance": model, **backend}},
        agent("ada", "run mkdir -p d && echo y > d/file", "vote", "answer B", type="codex"),
    ]
    orchestrator = {
        "context_paths": [{"path": str(given), "permission": "write"}],
        "coordination": {"enable_memory_filesystem_mode": True},
    }
    spec = TeamSpec.model_validate({"agents": agents, "orchestrator": orchestrator})
    root = tmp_path / "sessions"
    with uses_of_paths() as used:
        run = finish(nb_agents.start("t", spec, options=RunOptions(session_root=root)))
        assert run.status == "completed", run.view
        card_bundle(run.view, str(run.path))
        str(run.preview_rewind("a's 1st answer"))
        again = finish(run.rewind("a's 1st answer"))
        session = run.path.parent
        diff(root, Caller("magic", CELL), first=f"{session.name}/1", second=f"{session.name}/2")
        export_session(session, tmp_path / "a.zip")
        fork_session(session, 1, datetime.now())
    assert again.path == turns_of(session)[-1].path
    worked = {tool.tool for tool in run.view.tools if tool.outcome == "ok"}
    assert {"write_file", "edit_file", "run_command", "run_python", "execute"} <= worked
    assert [use for use in used if is_below_an_agents(use, scratch)] == []
    assert [use for use in used if str(run.path) in use]
