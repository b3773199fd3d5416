"""Runs recipes with scripted models and real commands and files, and reads the results."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import ScriptedModel, Turn, scripted_team
from tests.kit.models import Backend, PydanticBackend
from tests.kit.runs import Run
from tests.kit.sessions import TurnPaths, read_journal
from tests.model_server import wait_until
from tests.team_kit import WAIT_S

__all__ = [
    "Echo",
    "all_events",
    "answering",
    "begin",
    "commands_alive",
    "files_of",
    "hold",
    "let_go",
    "over",
    "ran",
    "resume",
    "wait_for_gate",
    "wait_for_step",
    "wait_held",
    "write",
]

HEAD = "name: {name}\ndescription: d\nversion: 1.0.0\n"


def write(root: Path, body: str, name: str = "main") -> Path:
    """Write a recipe file, from its `steps:` or `stages:`."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"{name}.yaml"
    path.write_text(HEAD.format(name=name) + body)
    return path


class Echo(PydanticBackend):
    """A model without memory: the same prompt gives the same answer in any process.

    A prompt that begins with "Draft" is answered with a tool call first.
    """

    def __init__(self) -> None:
        super().__init__(FunctionModel(stream_function=self._speak), "echo")

    async def _speak(self, messages: list[ModelMessage], info: Any) -> AsyncIterator[Any]:
        prompt = str(messages[0].parts[1].content)  # type: ignore[union-attr]
        said = sum(isinstance(m, ModelResponse) for m in messages)
        word = prompt.split()[0]
        if word == "Draft" and not said:
            args = {"path": "draft.md", "content": prompt}
            yield {0: DeltaToolCall("write_file", json.dumps(args), tool_call_id="w")}
        else:
            yield f"{word}-{crc32(prompt.encode()) % 10_000}"


def answering(*texts: str) -> ScriptedModel:
    """Return a model that gives these answers, and repeats the last one forever."""
    return ScriptedModel(*(Turn(text=text) for text in texts))


def begin(
    path: Path,
    model: Backend | None = None,
    context: Mapping[str, Any] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    **given: Any,
) -> Run:
    """Start a recipe in the session "s", next to its file."""
    team = scripted_team(None, worker=model or Echo())
    options = RunOptions(**{"session_root": path.parent / "sessions", **given})
    return nb_agents.start(
        config=team, session="s", recipe=path, context=context, tools=tools, options=options
    )


def resume(run: Run, model: Backend | None = None, recipe: Path | None = None) -> Run:
    """Resume a run."""
    return run.resume(scripted_team(None, worker=model) if model else None, recipe=recipe)


def over(run: Run) -> Run:
    """Wait until a run ends."""
    run.wait(WAIT_S, raise_on_stop=False)
    return run


def all_events(session: Path) -> list[Any]:
    """Return the events of all turns of a session, in order."""
    turns = sorted(session.glob("turn_*"), key=lambda p: int(p.name[5:]))
    return [e for t in turns for e in read_journal(t / "events.jsonl").events]


def ran(run: Run) -> list[str]:
    """Return the addresses of the agent and command steps that began in a run's turn, in order."""
    found = read_journal(run.path / "events.jsonl").events
    return [e.step for e in found if isinstance(e, ev.StepStarted) and e.unit in ("agent", "bash")]


def files_of(run: Run | TurnPaths) -> Mapping[str, str]:
    """Return the contents of the files in a turn's workspaces."""
    root = run.path / "workspaces"
    return {p.relative_to(root).as_posix(): p.read_text() for p in root.rglob("*") if p.is_file()}


def wait_for_gate(run: Run, count: int = 1) -> list[str]:
    """Wait until `count` gates are open, and return their addresses."""
    wait_until(lambda: len(run.view.gates) >= count or run.is_over, WAIT_S, f"{count} gate(s)")
    assert run.status == "awaiting", run.view
    return list(run.view.gates)


def wait_for_step(run: Run, address: str) -> None:
    """Wait until a step has begun."""
    wait_until(lambda: address in run.view.steps, WAIT_S, address, lambda: list(run.view.steps))


def hold(name: str) -> str:
    """Return a command that reports its start, then waits for `let_go`."""
    return f"touch {name}.begun; until [ -e {name}.go ]; do sleep 0.02; done; echo {name}"


def wait_held(run: Run, *names: str) -> None:
    """Wait until the commands of `hold` have started."""
    for name in names:
        begun = run.path / "workspaces" / run.view.recipe / f"{name}.begun"
        wait_until(lambda begun=begun: begun.exists(), WAIT_S, name, lambda: run.view)


def let_go(run: Run, *names: str) -> None:
    """Let waiting commands end. Commands of a stopped run end when it is resumed."""
    for name in names:
        # A stop may have removed the workspace: then no command waits.
        with suppress(FileNotFoundError):
            (run.path / "workspaces" / run.view.recipe / f"{name}.go").touch()


_PF_EXITING = 0x4
"""The flag of a process that is being removed. Source: Linux, include/linux/sched.h."""


def commands_alive(root: Path) -> list[str]:
    """Return the processes that work in a directory below `root` and are not being killed."""
    alive, parent = [], os.path.realpath(root)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) != os.getpid():
            with suppress(OSError):
                where = os.readlink(f"/proc/{pid}/cwd")
                if f"{where}/".startswith(f"{parent}/") and not _is_ending(pid):
                    alive.append(f"{pid} in {where}")
    return alive


def _is_ending(pid: str) -> bool:
    """Return whether a process was killed, although the kernel may not have removed it yet.

    A process can't ignore SIGKILL. While the signal is pending, the process runs no more of its
    code, but on a busy machine it stays listed for a while. So it was not forgotten.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    pending = [int(mask, 16) for mask in re.findall(r"^S[ih][gd]Pnd:\s+(\w+)", status, re.M)]
    flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
    is_killed = any(mask & 1 << (signal.SIGKILL - 1) for mask in pending)
    return is_killed or bool(flags & _PF_EXITING)
