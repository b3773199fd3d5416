"""Agents of others, from npm, on the local model server: what a stop and a kill leave of each.

Of the table agent × (stream, tool in flight, open question) × (graceful, at once, kill -9) a few
cases run each time; `make acp` runs all.
"""

import json
import os
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.runs.run import Run
from tests import processes
from tests.acp.test_acp_runner import events, journals, processes_with, start, team, words
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.team_kit import finish

VENV = Path(__file__).parents[2] / ".venv"
IS_ALL = os.environ.get("NB_AGENTS_TEST_ACP") == "all"
SHELLS = ("Bash", "bash", "run_shell_command", "exec_command")


class Program(NamedTuple):
    """A program as npm installs it, and how it is told of the model server."""

    name: str
    model: str = "m"
    path: str = "/v1"


PROGRAMS = {
    "claude_code": Program("claude-agent-acp", "claude-sonnet-4-5", ""),
    "codex": Program("codex-acp"),
    "copilot": Program("copilot"),
    "gemini_cli": Program("gemini", "gemini-2.5-flash", ""),
    "opencode": Program("opencode"),
    "qwen_code": Program("qwen"),
}
ASKS_NOTHING = "codex"
FEW = {
    ("gemini_cli", "stream", "at once"),
    ("qwen_code", "tool", "at once"),
    ("gemini_cli", "question", "graceful"),
    ("qwen_code", "stream", "kill"),
}


def case(kind: str, at: str, how: str) -> Any:
    """A case of the table, skipped where its program can't be had."""
    reason = f"{PROGRAMS[kind].name} is not installed (npm)."
    marks = [] if place_of(kind) else [pytest.mark.skip(reason=reason)]
    return pytest.param(kind, at, how, marks=marks, id=f"{kind}-{at}-{how}")


def place_of(kind: str) -> str:
    found = [*VENV.glob(f"agents-*/node_modules/.bin/{PROGRAMS[kind].name}")]
    return str(found[0]) if found else ""


def model(at: str, command: str) -> Any:
    """What the model says: many words, or a call of the program's shell."""

    def reply(request: Request) -> Reply:
        if not request.tool_names:  # titles and other side calls
            return Reply(text="A title")
        asked = json.dumps(request.body)
        if "go on with it" in asked or command in asked:
            return Reply(text="All done.")
        if at == "stream":
            text = " ".join(f"w{number}" for number in range(400))
            return Reply(text=text, words_per_second=20)
        shell = next(name for name in request.tool_names if name in SHELLS)
        args: dict[str, Any] = {"command": command, "description": "Wait"}
        if shell == "exec_command":
            args = {"cmd": command}
        elif shell == "run_shell_command" and request.protocol == "openai":
            args["is_background"] = False
        return Reply(text="I go. ", tool_calls=(ToolCall(shell, args),))

    return reply


def spec(kind: str, at: str, server: ModelServer) -> dict[str, Any]:
    program = PROGRAMS[kind]
    rules = [{"match": "run_command", "action": "ask"}] if at == "question" else []
    backend = {
        "type": kind,
        "command": place_of(kind),
        "model": program.model,
        "base_url": server.url.removesuffix("/v1") + program.path,
        "api_key": "k-0123456789",
        "tool_policy": rules,
    }
    return {"agents": [{"id": "ada", "backend": backend}]}


def is_there(path: Path, at: str) -> bool:
    """Whether a run has come to the point at which it is to be stopped."""
    if at == "tool":
        return bool(list(path.rglob("held")))
    told = journals(path)
    return "approval_asked" in told if at == "question" else told.count("text_streamed") >= 3


TABLE = [
    case(kind, at, how)
    for kind in PROGRAMS
    for at in ("stream", "tool", "question")
    for how in ("graceful", "at once", "kill")
    if (kind, at) != (ASKS_NOTHING, "question") and (IS_ALL or (kind, at, how) in FEW)
]


@pytest.mark.parametrize("kind, at, how", TABLE)
def test_a_stop_leaves_no_process_and_all_words_and_a_resume_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, at: str, how: str
) -> None:
    monkeypatch.setenv("PATH", f"{VENV / 'bin'}:{os.environ['PATH']}")
    mark = f"sleep {random.random() * 1e6:.3f}"
    # A graceful stop waits for the tool: it ends by itself then.
    command = f"touch held kept; {'sleep 2' if how == 'graceful' else f'{mark} & {mark}'}"
    with ModelServer(default=model(at, command)) as server:
        given = spec(kind, at, server)
        if how == "kill":
            kill(tmp_path, given, at)
        else:
            stop(tmp_path, given, at, now=how == "at once", server=server)
        wait_until(lambda: not processes_with(str(tmp_path)) and not processes_with(mark))
        wait_until(lambda: server.open_count == 0)
        if at == "tool":
            assert list(tmp_path.rglob("kept"))
        options = RunOptions(session_root=tmp_path)
        if how != "graceful":
            again = nb_agents.resume(None, TeamSpec.model_validate(given), options=options)
            finish(again)
            assert again.status == "completed"
            assert str(again.result).endswith("All done.")
            if at == "stream":
                prompts = json.dumps([request.body for request in server.requests])
                assert "You had begun to write, and were cut" in prompts


def stop(root: Path, given: dict[str, Any], at: str, *, now: bool, server: ModelServer) -> None:
    run = start(root, team(*given["agents"]))
    wait_until(lambda: is_there(root, at) or run.view.is_over)
    run.stop(now=now)
    finish(run)
    assert run.status == "cancelled" or not now
    if now and at == "stream":
        [request] = [each for each in server.requests if each.tool_names and each.chunks_sent > 3]
        assert request.closed_by == "client"
        assert_all_words_are_kept(run, request)


def assert_all_words_are_kept(run: Run, request: Request) -> None:
    """The words that arrived are journalled; at most three were on their way within a program."""
    told = [word for word in words(run).split() if word[0] == "w" and word[1:].isdigit()]
    assert told == [f"w{number}" for number in range(len(told))]
    assert request.chunks_sent - 3 <= len(told) <= request.chunks_sent
    assert len(events(run, ev.ModelCut)) == 1


def kill(root: Path, given: dict[str, Any], at: str) -> None:
    code = (
        "import json, sys, nb_agents\n"
        "from nb_agents import RunOptions, TeamSpec\n"
        "team = TeamSpec.model_validate(json.loads(sys.argv[2]))\n"
        "run = nb_agents.start('the task', team, options=RunOptions(session_root=sys.argv[1]))\n"
        "run.wait()\n"
    )
    with processes.python(code, root, json.dumps(given)) as kernel:
        wait_until(lambda: is_there(root, at))
        kernel.kill()
