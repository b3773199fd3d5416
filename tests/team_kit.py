"""Runs of scripted teams for tests: start them, hold them at a point, read their files."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import NbAgentsError
from nb_agents.options import CancelPolicy
from nb_agents.testing import ScriptedModel, scripted_team
from tests import processes
from tests.kit.models import Backend
from tests.kit.runs import Run, ensure_loop, live_turns, post
from tests.kit.sessions import TurnPaths, load_session, past_events, read_journal
from tests.kit.teams import TeamSpec
from tests.kit.tools import Tool, Workspace
from tests.kit.views import fold
from tests.model_server import wait_until
from tests.warm import WarmProcess

WAIT_S = 200.0
ROOT = Path(__file__).parent.parent
# Or one that is ahead would vote over its own answer alone, and be asked to once more.
BOTH_ANSWER_FIRST = {"defer_voting_until_all_answered": True}


def start(
    root: Path, policy: CancelPolicy | None = None, timeout: float | None = None, **models: Backend
) -> Run:
    """Start a team of these models on a task, sessions below `root`."""
    team = scripted_team(None, **models)
    return nb_agents.start(
        "the task", team, options=RunOptions(session_root=root, timeout=timeout, cancel=policy)
    )


def start_by_rules(
    root: Path,
    models: dict[str, Backend],
    timeouts: dict[str, Any] | None = None,
    policy: CancelPolicy | None = None,
    *,
    debug: bool = False,
    **orchestrator: Any,
) -> Run:
    """Start a team of these models with these settings of a team file."""
    team = team_by_rules(models, timeouts, **orchestrator)
    return nb_agents.start(
        "the task", team, options=RunOptions(session_root=root, cancel=policy, debug=debug)
    )


def team_by_rules(
    models: dict[str, Backend], timeouts: dict[str, Any] | None = None, **orchestrator: Any
) -> TeamSpec:
    """A team of these models with these settings of a team file."""
    agents = [
        {"id": agent, "backend": {"type": "python", "instance": model}}
        for agent, model in models.items()
    ]
    return TeamSpec.model_validate(
        {"agents": agents, "orchestrator": orchestrator, "timeout_settings": timeouts or {}}
    )


@contextmanager
def loop_held() -> Iterator[None]:
    """Let the loop of all runs do nothing within the block: what is called there comes first."""
    go_on = threading.Event()
    ensure_loop()
    post(go_on.wait, 60)
    try:
        yield
    finally:
        go_on.set()


def finish(run: Run) -> Run:
    """Wait for the end, whatever it is, and check that disk and memory tell the same."""
    run.wait(WAIT_S, raise_on_stop=False)
    told = read_journal(run.path / "events.jsonl")
    assert told.warnings == ()
    assert [e.seq for e in told.events] == list(range(1, len(told.events) + 1))
    assert isinstance(told.events[0], ev.TurnStarted)
    kinds = [event.kind for event in told.events]
    assert kinds.count("turn_ended") == 1
    # Late commands are answered behind the end, and files listed; who can't list them ends without.
    assert {*kinds[kinds.index("turn_ended") + 1 :]} <= {"command_answered", "files_listed"}
    # Including the events of the turns that this one resumed.
    assert fold(past_events(TurnPaths(run.path))).agents == run.view.agents
    assert fold(told.events).stop == run.view.stop
    assert metadata(run)["run_status"] == run.status
    assert load_session(run.path.parent).turns[-1].view.status == run.status
    for agent in run.view.agents.values():
        assert not agent.in_flight
    assert "running" not in [tool.outcome for tool in run.view.tools]
    return run


def outcome(run: Run) -> str | NbAgentsError:
    """Wait for a run. Return the answer or the error."""
    try:
        return run.wait(WAIT_S)
    except NbAgentsError as exc:
        return exc


def events(run: Run, *kinds: type[Any]) -> list[Any]:
    """The journal's events of these kinds, in order; of all kinds by default."""
    found = read_journal(run.path / "events.jsonl").events
    return [e for e in found if not kinds or isinstance(e, kinds)]


def metadata(run: Run) -> dict[str, Any]:
    """Return the content of metadata.json."""
    data: dict[str, Any] = json.loads((run.path / "metadata.json").read_text(encoding="utf-8"))
    return data


def outcomes(run: Run) -> dict[str, str]:
    """Return the outcome of each agent from the receipt."""
    return {agent: each.outcome for agent, each in run.receipt.agents.items()}


def give_tools(monkeypatch: pytest.MonkeyPatch, *functions: Callable[..., Any]) -> None:
    """Give agents these tools instead of the tools for files."""
    monkeypatch.setattr(Workspace, "tools", lambda self: [Tool(each) for each in functions])


def prompt(model: ScriptedModel, request: int) -> str:
    """Everything that a model read in one of its requests."""
    parts = [part for message in model.requests[request] for part in message.parts]
    return "\n".join(str(getattr(part, "content", "")) for part in parts)


@contextmanager
def script(source: str, root: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python script in a process of its own, in `root`; it is dead at the end.

    With options of Python it is a new process, otherwise it is forked from a warm process.
    """
    path = root / "script.py"
    path.write_text(source, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NB_AGENTS_SESSIONS": str(root / "sessions")}
    pipe = subprocess.PIPE
    command = [sys.executable, *options, str(path)]
    start = subprocess.Popen if options else WarmProcess
    with start(
        command, cwd=root, env=env, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line that a script prints, or what it says in its despair."""
    assert process.stderr is not None
    return processes.read_line(process) or process.stderr.read()


def wait_others_ended() -> None:
    """Wait until no other process is at work: those of tests before may be about to end."""
    mine = os.getpid()
    wait_until(lambda: all(turn.pid == mine for turn in live_turns()), WAIT_S, "their end")


def kill_writers(place: Path) -> None:
    """Kill the other processes that write turns below a place."""
    for turn in live_turns():
        if turn.paths.path.is_relative_to(place) and turn.pid != os.getpid():
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(turn.pid, signal.SIGKILL)


def journal_text(root: Path) -> str:
    """Return the lines of all journals below a session root."""
    return "".join(path.read_text() for path in root.rglob("events.jsonl"))


def streamed_text(root: Path) -> str:
    """Return the text that the agents of all turns below a session root have streamed."""
    turns = [TurnPaths(path.parent) for path in root.rglob("events.jsonl")]
    texts = [e for turn in turns for e in past_events(turn) if isinstance(e, ev.TextStreamed)]
    return "".join(e.text for e in texts if e.channel == "text")


def sessions(root: Path) -> list[Path]:
    """Return the session directories that scripts created in `root`."""
    return sorted(p for p in (root / "sessions").iterdir() if p.is_dir())
