"""Runs of other processes, which are read and controlled only by the turn's directory."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from subprocess import Popen
from threading import Thread

import pytest

import nb_agents
from nb_agents import events as ev
from nb_agents.errors import SessionBusyError, UserError
from nb_agents.options import RunOptions
from tests.kit.runs import Run, find_live, live_turns, reader
from tests.kit.sessions import TurnPaths, read_journal
from tests.model_server import wait_until
from tests.processes import suspend
from tests.team_kit import read_line, script

WRITER = """
import nb_agents
from nb_agents.testing import *
gate = Gate()
model = ScriptedModel(Turn(text="words so far ", gate=gate), Answer("A's"))
other = ScriptedModel(Turn(text="more ", gate=gate), Answer("B's"))
run = nb_agents.start("the task", scripted_team(a=model, b=other))
gate.wait_reached(2)
print(run.path, flush=True)
for line in iter(input, "end"):
    if line == "open":
        gate.open()
    elif line == "ask":
        print(run.wait_for_input("which one?"), flush=True)
    elif line == "gate":
        print(run.wait_for_approval("may it be?").approved, flush=True)
"""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for an answer as long as a busy machine takes."""
    monkeypatch.setattr(reader, "ANSWER_S", 60.0)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Popen[str]]:
    with script(WRITER, tmp_path) as process:
        yield process


@pytest.fixture
def run(writer: Popen[str]) -> Run:
    path = Path(read_line(writer).strip())
    return next(run for run in nb_agents.runs() if run.path == path)


def tell(process: Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def test_run_of_another_process_shows_its_state_and_process(run: Run, writer: Popen[str]) -> None:
    assert run.status == "in-progress"
    wait_until(lambda: {a.partial for a in run.view.agents.values()} == {"words so far ", "more "})
    assert f"script.py (pid {writer.pid})" in run.where
    # Sessions are named by the second: one of a test before may have the name, in another root.
    root = run.path.parents[1]
    assert find_live(run.session, root) is find_live(f"{run.session}/1", root) is run
    assert run in nb_agents.runs()


@pytest.mark.parametrize("now", [False, True])
def test_stop_of_a_run_in_another_process_saves_its_text(
    run: Run, writer: Popen[str], now: bool
) -> None:
    result = run.stop(now, reason="wrong path", source="cli")
    assert (result.changed, result.status) == (True, "stopping-now" if now else "stopping")
    assert run.stop(now).changed is False
    tell(writer, "open")
    run.wait(200, raise_on_stop=False)
    assert run.status == "cancelled"
    stop = run.view.stop
    assert stop and (stop.source, stop.reason) == ("cli", "wrong path")
    assert {a.unsubmitted for a in run.view.agents.values()} == {"words so far ", "more "}
    assert run.stop().status == "finished"


def test_stop_of_one_agent_in_another_process(run: Run) -> None:
    assert run.stop(True, "a").changed
    wait_until(lambda: run.view.agents["a"].outcome)
    assert run.status == "in-progress"
    with pytest.raises(UserError, match="has no agent 'nobody'"):
        run.stop(agent="nobody")


def test_pause_message_and_unpause_of_a_run_in_another_process(
    run: Run, writer: Popen[str]
) -> None:
    run.pause()
    assert run.view.is_paused
    run.say("and mind the tables")
    assert run.resume() is run
    assert not run.view.is_paused
    assert "and mind the tables" in [said.text for said in events(run, ev.UserMessage)]
    tell(writer, "open")
    assert run.wait(200) in ("A's", "B's")


def test_answer_to_a_question_of_a_run_in_another_process(run: Run, writer: Popen[str]) -> None:
    tell(writer, "ask")
    wait_until(lambda: run.view.gates)
    run.answer("the second")
    assert read_line(writer) == "the second\n"
    tell(writer, "gate")
    wait_until(lambda: run.view.gates)
    run.approve()
    assert read_line(writer) == "True\n"
    with pytest.raises(UserError, match="is not waiting for an approval"):
        run.approve()


def test_subscriber_to_a_run_in_another_process_gets_all_changes(
    run: Run, writer: Popen[str]
) -> None:
    shown: list[str] = []
    run.subscribe(lambda view: shown.append(view.status))
    tell(writer, "open")
    run.wait(200)
    wait_until(lambda: shown[-1:] == ["completed"])


def test_command_to_a_dead_writer_is_reported_and_removed(run: Run, writer: Popen[str]) -> None:
    suspend(writer.pid)  # it takes nothing any more
    commands = TurnPaths(run.path).commands

    results: list[str] = []
    asking = Thread(target=lambda: results.append(run.stop().status))
    asking.start()
    wait_until(lambda: list(commands.glob("*.json")))
    writer.kill()
    asking.join(200)
    assert results == ["finished"]
    assert list(commands.iterdir()) == []
    assert run.is_over and run.status == "cancelled" and run.view.stop is None
    assert run.path not in [turn.paths.path for turn in live_turns()]
    with pytest.raises(UserError, match="is over"):
        run.say("too late")


def test_invalid_command_file_is_removed(run: Run, writer: Popen[str]) -> None:
    commands = TurnPaths(run.path).commands
    commands.mkdir(exist_ok=True)
    bad = ["", "{", "[]", '{"kind": "Nothing", "data": {}}', '{"kind": "Say", "data": 1}']
    bad += ['{"kind": "StopRequest", "data": {"level": 9, "source": "x"}}', "9" * 300_000]
    for number, text in enumerate(bad):
        (commands / f"{number}.json").write_text(text)
    (commands / "link.json").symlink_to("/etc/passwd")
    wait_until(lambda: not list(commands.glob("*.json")))
    assert run.status == "in-progress" and run.view.stop is None
    assert run.stop(True).changed


def test_two_processes_cannot_write_one_turn(run: Run) -> None:
    options = RunOptions(session_root=run.path.parents[1])
    for take in (nb_agents.resume, partial(nb_agents.start, "another task")):
        with pytest.raises(SessionBusyError, match="is already running"):
            take(session=run.session, options=options)


def events(run: Run, kind: type[ev.Event]) -> list[ev.Event]:
    return [e for e in read_journal(run.path / "events.jsonl").events if isinstance(e, kind)]
