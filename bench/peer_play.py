"""One play of scenario S by a library in processes of its own: what is seen from outside.

The server looks at the calls, `/proc` at the tool's processes; the library itself says only when it
was asked to stop, when it had, and what it finds on the disk in a new process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from threading import Timer
from typing import Any, Literal, NamedTuple

from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.processes import ROOT, line, tell
from tests.recipes.live import commands_alive

__all__ = ["STOP_S", "WORDS_BEFORE", "WORD_S", "Library", "Played", "play"]

WORDS_BEFORE = 60
WORD_S = 0.03
WAIT_S = 60
"""What a process gets to begin, and to be done when it is resumed."""
STOP_S = 10
"""What a stop gets; the process is killed then."""

_WORDS = [f"w{number}" for number in range(10_000)]
_ANSWERS = {name: f"{name}'s answer" for name in "abc"}


class Library(NamedTuple):
    """A library.

    Attributes:
        name: Its distribution.
        module: Its module in `libraries`.
        python: The interpreter that has it.
        answer: The tool by which its agents answer; "" when they just say it.
        tool: What it calls c's tool.
    """

    name: str
    module: str
    python: str
    answer: str = ""
    tool: str = "work"

    def version(self) -> str:
        """Find which version is installed; "" when it is not, or something that it needs."""
        code = (
            "import sys; from importlib import import_module, metadata\n"
            "import_module(sys.argv[2])\n"
            "print(metadata.version(sys.argv[1]), file=sys.__stdout__)"
        )
        if not Path(self.python).exists():
            return ""
        command = [self.python, "-c", code, self.name, self._path]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()

    @contextmanager
    def process(self, verb: str, url: str, root: Path) -> Iterator[subprocess.Popen[str]]:
        """Give a process in which it begins, or resumes; killed at the end."""
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        pipes = {"stdin": pipe, "stdout": pipe, "stderr": nowhere}
        command = [self.python, "-m", self._path, verb, url, str(root)]
        with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
            try:
                yield process
            finally:
                process.kill()

    @property
    def _path(self) -> str:
        return f"bench.libraries.{self.module}"


class Played(NamedTuple):
    """What was seen of a play. Times are milliseconds from the stop; the words are b's.

    Attributes:
        closed: The last stream, as the server saw it; inf when not within `STOP_S`.
        back: The caller has control again, and all is saved; inf when not within `STOP_S`.
        has_answer: a's is on disk.
        words: Those on disk, of those sent.
        is_alive: The tool's process, when control was back.
        resent: Of the two finished model calls, those made again when it was resumed.
        ran_again: The tool.
        works: All three answered in the end.
    """

    closed: float
    back: float
    has_answer: bool
    words: str
    is_alive: bool
    resent: int
    ran_again: bool
    works: bool


def play(library: Library, how: Literal["stop", "kill"]) -> Played:
    """Begin, stop when b has said some words, and resume in a new process."""
    with ModelServer() as server, tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        begun, let_go = root / "begun", root / "go"
        work = f"cd {root}; echo >> {begun}; [ -e {let_go} ] || sleep 30"
        _script(server, library, work)
        with library.process("begin", server.url, root) as process:
            server.wait_chunks(WORDS_BEFORE, "b", WAIT_S)
            wait_until(begun.exists, what="c's tool")
            asked, back = _stop(process) if how == "stop" else _kill(process)
            alive = commands_alive(root)
            closed = _closed(server, asked)
            _end(alive)
        server.wait_closed()
        before = server.requests
        let_go.touch()
        server.script("b", _answer(library, "b"))
        with library.process("resume", server.url, root) as process:
            saved, done = _told(process) or {}, _told(process)
        return Played(
            closed=closed,
            back=(back - asked) * 1000,
            has_answer=saved.get("a") == _ANSWERS["a"],
            words=_kept(saved.get("b", ""), before),
            is_alive=bool(alive),
            resent=len({r.model for r in server.requests[len(before) :] if _is_resent(r)}),
            ran_again=len(begun.read_text().splitlines()) > 1,
            works=done == _ANSWERS,
        )


def _stop(process: subprocess.Popen[str]) -> tuple[float, float]:
    tell(process)
    return float(line(process)), _told(process, STOP_S) or inf


def _kill(process: subprocess.Popen[str]) -> tuple[float, float]:
    asked = time.monotonic()
    process.kill()
    process.wait()
    return asked, time.monotonic()


def _closed(server: ModelServer, asked: float) -> float:
    """Wait for the last stream's end; after how many milliseconds it was, inf when too late."""
    with suppress(TimeoutError):
        server.wait_closed(STOP_S)
    took = [(each.closed_at or inf) - asked for each in server.requests]
    return max(took) * 1000 if max(took) < STOP_S else inf


def _told(process: subprocess.Popen[str], wait_s: float = WAIT_S) -> Any:
    """Read its next line; None when it ends or hangs before."""
    late = Timer(wait_s, process.kill)
    late.start()
    try:
        return json.loads(line(process) or "null")
    finally:
        late.cancel()


def _end(processes: list[str]) -> None:
    for each in processes:
        with suppress(ProcessLookupError):
            os.kill(int(each.split()[0]), signal.SIGKILL)


def _kept(saved: str, before: list[Request]) -> str:
    """Word how many of b's words are saved; what else may stand there counts as none."""
    (sent,) = (each.chunks_sent for each in before if each.model == "b")
    kept = len(set(saved.split()) & set(_WORDS))
    return "all" if kept == sent else f"{kept / sent:.0%}"


# What the models answer


def _script(server: ModelServer, library: Library, work: str) -> None:
    call = Reply(tool_calls=(ToolCall(library.tool, {"command": work}),))
    server.script("a", _answer(library, "a"))
    server.script("b", Reply(text=" ".join(_WORDS), words_per_second=1 / WORD_S))
    server.script("c", lambda request: _next(request, call, _answer(library, "c")))


def _answer(library: Library, name: str) -> Reply:
    if not library.answer:
        return Reply(text=_ANSWERS[name])
    return Reply(tool_calls=(ToolCall(library.answer, {"content": _ANSWERS[name]}),))


def _next(request: Request, call: Reply, answer: Reply) -> Reply:
    """Call the tool, then answer; refuse what OpenAI refuses, a call without its result."""
    if not _calls(request):
        return call
    results = {m["tool_call_id"] for m in request.messages if m["role"] == "tool"}
    is_open = not _calls(request) <= results
    return Reply(status=400, error="A tool call has no result.") if is_open else answer


def _is_resent(request: Request) -> bool:
    """Whether a model is asked for what it has said before: a's answer, or c's call."""
    return request.model == "a" or (request.model == "c" and not _calls(request))


def _calls(request: Request) -> set[str]:
    return {call["id"] for m in request.messages for call in m.get("tool_calls") or ()}
