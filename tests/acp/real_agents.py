"""Stops or kills external agents from npm on the local model server, and measures the result.

Tests play a few cases, `python -m tests.acp` all.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from tests import processes
from tests.kit.programs import PROGRAM_TYPES
from tests.kit.sessions import read_journal
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.team_kit import finish

VENV = Path(__file__).parents[2] / ".venv"
SHELLS = ("Bash", "bash", "run_shell_command", "exec_command")

State = Literal["stream", "tool", "question"]
Stop = Literal["graceful", "at once", "kill"]
STATES: tuple[State, ...] = ("stream", "tool", "question")
STOPS: tuple[Stop, ...] = ("graceful", "at once", "kill")

WORDS = {"graceful": 100}
"""Words of a stream, 20 a second: a graceful stop waits for its end, others never see it."""


class Program(NamedTuple):
    """An external agent installed by npm, and how it gets the address of the model server."""

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

NO_STATE: dict[tuple[str, str], str] = {
    ("codex", "question"): "it has full access inside our sandbox and never asks for permission",
}
"""States that a program has not, and why."""


class Case(NamedTuple):
    """A cell of the table: an agent, its state, and how it is stopped."""

    kind: str
    at: State
    how: Stop


CASES = [
    Case(*each)
    for each in itertools.product(PROGRAMS, STATES, STOPS)
    if (each[0], each[1]) not in NO_STATE
]


@dataclass
class Outcome:
    """What a case has shown; times are seconds.

    Attributes:
        wire: The model's protocol.
        first_request_s: From the start of the run to the program's first request with tools.
        closed_s: From the stop to the end of the model's connection; None if none was open.
        ended_s: From the stop to the end of the last process.
        left: Processes that lived on.
        sent: Words that the model server had sent, in a stream.
        journalled: Words of these in the journal.
        is_in_order: Whether these are the first that were sent.
        keeps_files: Whether the file is there that the tool had written.
        status: Of the stopped run; "killed" after a kill.
        answer: Of a stopped run that had completed.
        usage: Whether the program told what it used, of a prompt that ended.
        resumed: Status of the resumed run; "" where nothing was left to do.
        goes_on_by: How the resumed run continues.
        is_told: Whether its model has got the words that were cut, from the program or from us.
    """

    wire: str = ""
    first_request_s: float = 0.0
    closed_s: float | None = None
    ended_s: float = 0.0
    left: list[str] = field(default_factory=list)
    sent: int = 0
    journalled: int = 0
    is_in_order: bool = True
    keeps_files: bool | None = None
    status: str = ""
    answer: str = ""
    usage: bool = False
    resumed: str = ""
    goes_on_by: Literal["", "its session", "our note"] = ""
    is_told: bool | None = None


def place_of(kind: str) -> str:
    """Return the path of a program installed by npm, or ""."""
    found = [*VENV.glob(f"agents-*/node_modules/.bin/{PROGRAMS[kind].name}")]
    return str(found[0]) if found else ""


def version_of(kind: str) -> str:
    """Return the version of a program's package."""
    package = PROGRAM_TYPES[kind].package
    [file] = VENV.glob(f"agents-*/node_modules/{package}/package.json")
    return str(json.loads(file.read_text("utf-8"))["version"])


def play(case: Case, root: Path, words: int | None = None) -> Outcome:
    """Play a case and return what was seen.

    Args:
        case: The case.
        root: An empty directory.
        words: Of a stream: after how many the server is silent, so that none is on its way when all
            are in the journal and the stop comes.
    """
    mark = f"sleep {random.random() * 1e6:.3f}"
    # A graceful stop waits for the tool: it ends by itself then.
    command = f"touch held kept; {'sleep 2' if case.how == 'graceful' else f'{mark} & {mark}'}"
    # These agents have their own order of messages.
    model = _model(case, command, words)
    with ModelServer(default=model, checks_order=False) as server:
        seen, given = Outcome(), _spec(case, server)
        began = time.monotonic()
        is_there = partial(_is_there, root, case.at, words)
        stopped = (_kill if case.how == "kill" else _stop)(case, root, given, seen, is_there)
        seen.left = _last(lambda: processes_of(root, mark))
        seen.ended_s = time.monotonic() - stopped
        _look_at_requests(case, root, server, seen, began, stopped)
        if case.at == "tool":
            seen.keeps_files = bool(_files(root, "kept"))
        if seen.status != "completed":
            _resume(case, root, given, seen, server)
        return seen


def _last(living: Callable[[], list[str]]) -> list[str]:
    """Wait until no process is left, and return those that are left after 20 s."""
    with suppress(TimeoutError):
        wait_until(lambda: not living(), 20)
    return living()


def _model(case: Case, command: str, words: int | None) -> Any:
    """Return the model's reply: a long text, or a call of the agent's shell."""

    def reply(request: Request) -> Reply:
        if not request.tool_names:  # titles and other side calls
            return Reply(text="A title")
        asked = json.dumps(request.body)
        if "You were interrupted during your work" in asked or command in asked:
            return Reply(text="All done.")
        if case.at == "stream":
            text = " ".join(f"w{number}" for number in range(WORDS.get(case.how, 400)))
            return Reply(text=text, words_per_second=20, hang_after=words)
        shell = next(name for name in request.tool_names if name in SHELLS)
        args: dict[str, Any] = {"command": command, "description": "Wait"}
        if shell == "exec_command":
            args = {"cmd": command}
        elif shell == "run_shell_command" and request.protocol == "openai":
            args["is_background"] = False
        return Reply(text="I go. ", tool_calls=(ToolCall(shell, args),))

    return reply


def _spec(case: Case, server: ModelServer) -> dict[str, Any]:
    program = PROGRAMS[case.kind]
    rules = [{"match": "run_command", "action": "ask"}] if case.at == "question" else []
    backend = {
        "type": case.kind,
        "command": place_of(case.kind),
        "model": program.model,
        "base_url": server.url.removesuffix("/v1") + program.path,
        "api_key": "k-0123456789",
        "tool_policy": rules,
    }
    return {"agents": [{"id": "ada", "backend": backend}]}


def _files(root: Path, name: str) -> list[Path]:
    """Find a file in the workspace, because external agents change files elsewhere at any time."""
    return [*root.glob(f"session_*/*/workspaces/ada/{name}")]


def _is_there(root: Path, at: State, words: int | None) -> bool:
    """Return whether a run has reached the state for the stop."""
    if words is not None:
        return len(_words(root)) == words
    if at == "tool":
        return bool(_files(root, "held"))
    told = _journals(root)
    return "approval_asked" in told if at == "question" else told.count("text_streamed") >= 3


def _journals(root: Path) -> str:
    return "".join(path.read_text("utf-8") for path in root.glob("session_*/*/events.jsonl"))


def _stop(
    case: Case, root: Path, given: dict[str, Any], seen: Outcome, is_there: Callable[[], bool]
) -> float:
    """Start a run, stop it and wait for its end. Returns the time of the stop."""
    options = RunOptions(session_root=root)
    run = nb_agents.start("the task", TeamSpec.model_validate(given), options=options)
    wait_until(lambda: is_there() or run.view.is_over)
    stopped = time.monotonic()
    run.stop(now=case.how == "at once")
    finish(run)
    seen.status = run.status
    seen.answer = str(run.result) if run.status == "completed" else ""
    return stopped


def _kill(
    case: Case, root: Path, given: dict[str, Any], seen: Outcome, is_there: Callable[[], bool]
) -> float:
    """Start a run in its own process and kill that. Returns the time of the kill."""
    code = (
        "import json, sys, nb_agents\n"
        "from nb_agents import RunOptions, TeamSpec\n"
        "team = TeamSpec.model_validate(json.loads(sys.argv[2]))\n"
        "run = nb_agents.start('the task', team, options=RunOptions(session_root=sys.argv[1]))\n"
        "run.wait()\n"
    )
    with processes.python(code, root, json.dumps(given)) as kernel:
        wait_until(is_there)
        stopped = time.monotonic()
        kernel.kill()
    seen.status = "killed"
    return stopped


def _look_at_requests(
    case: Case, root: Path, server: ModelServer, seen: Outcome, began: float, stopped: float
) -> None:
    """Record the server's requests, and compare its text with the journal."""
    with suppress(TimeoutError):
        wait_until(lambda: server.open_count == 0, 20)
    asked = [request for request in server.requests if request.tool_names]
    seen.wire, seen.first_request_s = asked[0].protocol, asked[0].opened_at - began
    ends = [each.closed_at or time.monotonic() for each in server.requests]
    if case.how != "graceful" and (late := [end - stopped for end in ends if end > stopped]):
        seen.closed_s = max(late)
    if case.at == "stream":
        told = [word for word in _words(root) if word[0] == "w" and word[1:].isdigit()]
        [request] = [each for each in asked if each.chunks_sent > 3]
        seen.sent, seen.journalled = request.chunks_sent, len(told)
        seen.is_in_order = told == [f"w{number}" for number in range(len(told))]


def _words(root: Path) -> list[str]:
    texts = [each.text for each in _events(root, ev.TextStreamed) if each.channel == "text"]
    return "".join(texts).split()


def _events(root: Path, kind: type[Any]) -> Iterable[Any]:
    for path in sorted(root.glob("session_*/*/events.jsonl")):
        yield from (each for each in read_journal(path).events if isinstance(each, kind))


def _resume(
    case: Case, root: Path, given: dict[str, Any], seen: Outcome, server: ModelServer
) -> None:
    before = {each.session for each in _events(root, ev.SessionBound)}
    asked = len(server.requests)
    options = RunOptions(session_root=root)
    again = finish(nb_agents.resume(None, TeamSpec.model_validate(given), options=options))
    is_done = again.status == "completed" and str(again.result).endswith("All done.")
    seen.resumed = "completed" if is_done else f"{again.status}: {again.result}"
    journal = read_journal(again.path / "events.jsonl").events
    bound = [each.session for each in journal if isinstance(each, ev.SessionBound)]
    seen.goes_on_by = "its session" if bound and bound[-1] in before else "our note"
    ended = [each for each in journal if isinstance(each, ev.ModelFinished)]
    seen.usage = any(each.usage.input_tokens for each in ended)
    if case.at == "stream":
        told = json.dumps([each.body for each in server.requests[asked:]])
        seen.is_told = "You were interrupted while you wrote" in told and "w0 w1" in told


def processes_of(root: Path, *marks: str) -> list[str]:
    """Return the command lines of processes that work for a run.

    Args:
        root: Its session root, which each has in its command line or its variables.
        marks: Texts in the command lines of what its tools start.
    """
    texts = [str(root).encode(), *(mark.encode() for mark in marks)]
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (place / "cmdline").read_bytes().replace(b"\0", b" ")
            told = line + (place / "environ").read_bytes()
            if any(text in told for text in texts) and place.name != str(os.getpid()):
                found.append(line.decode(errors="replace"))
    return found
