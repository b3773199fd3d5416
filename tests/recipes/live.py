"""Runs recipes for real: scripted models, real commands, real files; and looks at what was left."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.models.backend import Backend, PydanticBackend
from nb_agents.runs.run import Run
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import TurnPaths
from nb_agents.testing import ScriptedModel, Turn, scripted_team
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
    """A model without a memory: the same prompt gives the same answer, in any process.

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
    """Make a model that says these texts, the last for ever."""
    return ScriptedModel(*(Turn(text=text) for text in texts))


def begin(
    path: Path,
    model: Backend | None = None,
    context: Mapping[str, Any] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    **given: Any,
) -> Run:
    """Start a recipe with these options; its session is "s", beside the file."""
    team = scripted_team(None, worker=model or Echo())
    options = RunOptions(**{"session_root": path.parent / "sessions", **given})
    return nb_agents.start(
        config=team, session="s", recipe=path, context=context, tools=tools, options=options
    )


def resume(run: Run, model: Backend | None = None, recipe: Path | None = None) -> Run:
    """Go on with a run."""
    return run.resume(scripted_team(None, worker=model) if model else None, recipe=recipe)


def over(run: Run) -> Run:
    """Wait for a run's end."""
    run.wait(WAIT_S, raise_on_stop=False)
    return run


def all_events(session: Path) -> list[Any]:
    """The events of all turns of a session, in order."""
    turns = sorted(session.glob("turn_*"), key=lambda p: int(p.name[5:]))
    return [e for t in turns for e in read_journal(t / "events.jsonl").events]


def ran(run: Run) -> list[str]:
    """Addresses of the agents' and commands' steps that began in a run's turn, in order."""
    found = read_journal(run.path / "events.jsonl").events
    return [e.step for e in found if isinstance(e, ev.StepStarted) and e.unit in ("agent", "bash")]


def files_of(run: Run | TurnPaths) -> Mapping[str, str]:
    """What is in the files of a turn's workspaces."""
    root = run.path / "workspaces"
    return {p.relative_to(root).as_posix(): p.read_text() for p in root.rglob("*") if p.is_file()}


def wait_for_gate(run: Run, count: int = 1) -> list[str]:
    """Wait until gates are open: their addresses."""
    wait_until(lambda: len(run.view.gates) >= count or run.is_over, WAIT_S, f"{count} gate(s)")
    assert run.status == "awaiting", run.view
    return list(run.view.gates)


def wait_for_step(run: Run, address: str) -> None:
    """Wait until a step has begun."""
    wait_until(lambda: address in run.view.steps, WAIT_S, address, lambda: list(run.view.steps))


def hold(name: str) -> str:
    """A command that says that it has begun, and ends when it may: see `let_go`."""
    return f"touch {name}.begun; until [ -e {name}.go ]; do sleep 0.02; done; echo {name}"


def wait_held(run: Run, *names: str) -> None:
    """Wait until commands are held."""
    for name in names:
        begun = run.path / "workspaces" / run.view.recipe / f"{name}.begun"
        wait_until(lambda begun=begun: begun.exists(), WAIT_S, name, lambda: run.view)


def let_go(run: Run, *names: str) -> None:
    """Let commands end that are held; of a run that was stopped, when it is resumed."""
    for name in names:
        (run.path / "workspaces" / run.view.recipe / f"{name}.go").touch()


def commands_alive(root: Path) -> list[str]:
    """The processes that work in a directory below `root`."""
    alive = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                where = os.readlink(process / "cwd")
            except OSError:
                continue
            if Path(where).is_relative_to(os.path.realpath(root)):
                alive.append(f"{process.name} in {where}")
    return alive
