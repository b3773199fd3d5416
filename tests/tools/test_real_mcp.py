"""MCP servers from PyPI and npm, as a team file names them.

`make py-test` installs both, so a missing server is a failure and not a skip.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.kit.runs import Run
from tests.model_server import wait_until
from tests.recipes.live import commands_alive
from tests.team_kit import WAIT_S, events, finish, prompt

BIN = Path(sys.executable).parent
TIME_SERVER = BIN / "mcp-server-time"
NPM_TARGET = ".venv/mcp-filesystem-2026.8.31"
NPM_PREFIX = Path(__file__).parents[2] / NPM_TARGET
INSTALLED = {
    ".venv/.test": TIME_SERVER,
    f"{NPM_TARGET}/.installed": NPM_PREFIX / "node_modules/.bin/mcp-server-filesystem",
}

CONVERT = Call(
    "mcp__time__convert_time",
    {"source_timezone": "Asia/Kolkata", "time": "12:00", "target_timezone": "Asia/Tokyo"},
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="Processes are found in /proc.")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The servers' directory, and the only one that the filesystem server may access."""
    made = tmp_path / "home"
    made.mkdir()
    return made


@pytest.fixture(autouse=True)
def our_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the environment's own `node` and `npx`, as in the Makefile."""
    monkeypatch.setenv("PATH", str(BIN), prepend=os.pathsep)


@pytest.fixture(autouse=True, scope="module")
def installed() -> None:
    for target, made in INSTALLED.items():
        if not made.exists():
            pytest.fail(f"{made.name} is not installed. `make {target}` does it.", pytrace=False)


def time_server(home: Path) -> dict[str, Any]:
    return {
        "name": "time",
        "type": "stdio",
        "command": str(TIME_SERVER),
        "args": ["--local-timezone=UTC"],
        "cwd": str(home),
    }


def file_server(home: Path) -> dict[str, Any]:
    return {
        "name": "files",
        "type": "stdio",
        "command": "npx",
        "args": ["--offline", "--prefix", str(NPM_PREFIX), "mcp-server-filesystem", str(home)],
        "cwd": str(home),
        "env": {"npm_config_cache": str(home.with_name("npm"))},  # including its logs
    }


def file_call(tool: str, path: Path, **more: Any) -> Call:
    return Call(f"mcp__files__{tool}", {"path": str(path), **more})


def start(root: Path, server: dict[str, Any], *models: ScriptedModel) -> Run:
    """Start a team of two agents, a and b, with this server."""
    agents = [
        {"id": name, "backend": {"type": "python", "instance": model, "mcp_servers": [server]}}
        for name, model in zip("ab", models, strict=False)
    ]
    team = TeamSpec.model_validate({"agents": agents})
    return nb_agents.start("the task", team, options=RunOptions(session_root=root / "sessions"))


def played(root: Path, server: dict[str, Any], *calls: Call) -> list[ev.ToolFinished]:
    """Let one agent make these calls one after the other. Return the results."""
    model = ScriptedModel(*(Turn(calls=(call,)) for call in calls), Answer("done"))
    run = finish(start(root, server, model))
    assert (run.status, run.result) == ("completed", "done"), run.view.notices
    told = events(run, ev.ToolFinished)
    assert len(told) == len(calls)
    assert all(each.result in prompt(model, -1) for each in told)
    return told


def test_time_server_works_and_can_be_stopped(tmp_path: Path, home: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    now, there, nowhere = played(
        tmp_path,
        time_server(home),
        Call("mcp__time__get_current_time", {"timezone": "UTC"}),
        CONVERT,
        Call("mcp__time__get_current_time", {"timezone": "Mars/Olympus"}),
    )
    assert (now.outcome, there.outcome, nowhere.outcome) == ("ok", "ok", "error")
    assert before <= datetime.fromisoformat(json.loads(now.result)["datetime"]) <= datetime.now(UTC)
    converted = json.loads(there.result)
    assert converted["target"]["datetime"].endswith("T15:30:00+09:00")
    assert converted["time_difference"] == "+3.5h"
    assert "Mars/Olympus" in nowhere.result


def test_filesystem_server_stays_in_its_directory(tmp_path: Path, home: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("private")
    wrote, read, refused, kept = played(
        tmp_path,
        file_server(home),
        file_call("write_file", home / "note.txt", content="grüße\n"),
        file_call("read_text_file", home / "note.txt"),
        file_call("read_text_file", outside),
        file_call("write_file", outside, content="mine"),
    )
    assert (wrote.outcome, read.outcome) == ("ok", "ok")
    assert (home / "note.txt").read_text(encoding="utf-8") == read.result == "grüße\n"
    for each in (refused, kept):
        assert each.outcome == "error" and "outside allowed directories" in each.result
    assert outside.read_text() == "private"


@linux
def test_stop_during_a_call_ends_the_server_and_the_processes_of_npx(
    tmp_path: Path, home: Path
) -> None:
    pipe = home / "pipe"
    os.mkfifo(pipe)
    model = ScriptedModel(Turn(calls=(file_call("read_text_file", pipe),)), Answer("done"))
    run = start(tmp_path, file_server(home), model)
    with held_open(pipe, run):
        assert commands_alive(home)
        run.stop(now=True)
        finish(run)
        assert not is_read(pipe)
    assert commands_alive(home) == []
    assert run.status == "cancelled"


def test_stop_of_one_agent_leaves_the_server_to_the_other(tmp_path: Path, home: Path) -> None:
    pipe, gate = home / "pipe", Gate()
    os.mkfifo(pipe)
    write = file_call("write_file", home / "note.txt", content="mine")
    stuck = ScriptedModel(Turn(calls=(file_call("read_text_file", pipe),)))
    free = ScriptedModel(Turn(calls=(write,), gate=gate), Answer("B"), Vote("agent1"))
    run = start(tmp_path, counted(file_server(home)), stuck, free)
    with held_open(pipe, run):
        run.stop(now=True, agent="a")
        wait_until(lambda: events(run, ev.ToolFinished), WAIT_S, "the stop", lambda: run.view)
        gate.open()
        finish(run)
    cut, served = events(run, ev.ToolFinished)
    assert (cut.agent, cut.outcome) == ("a", "cut")
    assert (served.agent, served.outcome) == ("b", "ok")
    assert (home / "note.txt").read_text() == "mine"
    assert run.result == "B"
    assert starts(home) == 1


def test_two_agents_share_one_server(tmp_path: Path, home: Path) -> None:
    models = [
        ScriptedModel(Turn(calls=(CONVERT,)), Answer(name), Vote("agent1")) for name in ("A", "B")
    ]
    run = finish(start(tmp_path, counted(time_server(home)), *models))
    assert run.status == "completed"
    made = {each.agent: each.outcome for each in events(run, ev.ToolFinished)}
    assert made == {"a": "ok", "b": "ok"}
    assert starts(home) == 1


def counted(server: dict[str, Any]) -> dict[str, Any]:
    """Make each start of a server write a line to a file in its directory."""
    script = 'echo started >> starts; exec "$0" "$@"'
    return {**server, "command": "sh", "args": ["-c", script, server["command"], *server["args"]]}


def starts(home: Path) -> int:
    return len((home / "starts").read_text().splitlines())


def is_read(pipe: Path) -> bool:
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@contextmanager
def held_open(pipe: Path, run: Run) -> Iterator[None]:
    """Wait until a process reads from a pipe, and keep the pipe open without data."""
    with ExitStack() as ends:

        def is_open() -> bool:
            with suppress(OSError):  # no reader yet
                ends.callback(os.close, os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                return True
            return False

        wait_until(is_open, WAIT_S, "the server's reading", lambda: run.view)
        yield
