"""Cancelling sessions from other processes, in any state and with torn files."""

import signal
from pathlib import Path

import pytest

import nb_agents
from nb_agents import events as ev
from nb_agents.errors import UnknownSessionError, UserError
from nb_agents.options import CancelPolicy
from nb_agents.testing import Answer, Gate, ScriptedModel
from tests.kit.runs import CancellationStatus, Run
from tests.kit.sessions import SessionStore
from tests.model_server import wait_until
from tests.processes import output
from tests.recipes.live import begin, commands_alive, hold, let_go, ran, resume, wait_held, write
from tests.team_kit import WAIT_S, events, finish, read_line, script, start

NONE, REQUESTED, IMMEDIATE, CANCELLED = CancellationStatus
CUT = "True Stopping now: work in progress is interrupted. "
"""The start of the output; the status follows, which may already be the final one."""

BODY = f"""
steps:
- {{id: one, type: bash, output: one, command: "{hold("one")}"}}
- {{id: two, type: bash, output: two, command: "echo two"}}
"""

ASK = """
import sys
from nb_agents.session.commands import SessionStore
root, session, *more = sys.argv[1:]
store = SessionStore(root)
for word in more:
    done = store.request_cancellation(
        session, immediate=word == "now", source="cli", reason="from afar"
    )
    print(done.changed, done.message, store.get_cancellation_status(session).name)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of a recipe with a blocked first step."""
    run = begin(write(tmp_path, BODY))
    wait_held(run, "one")
    return run


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "sessions")


def ask(tmp_path: Path, *words: str) -> list[str]:
    """Request a cancellation in a separate process, and return its output."""
    return output(ASK, tmp_path / "sessions", "s", *words).splitlines()


def wait_felt(run: Run, level: str) -> None:
    """Wait until a run has noticed a stop."""
    wait_until(lambda: run.view.stop and run.view.stop.level == level, WAIT_S, level)


def test_another_process_stops_a_run_gracefully(
    run: Run, store: SessionStore, tmp_path: Path
) -> None:
    assert ask(tmp_path, "please") == ["True Stopping after the work in progress. REQUESTED"]
    wait_felt(run, "requested")
    assert store.is_cancellation_requested("s")
    assert not store.is_immediate_cancellation("s")
    let_go(run, "one")
    finish(run)
    assert store.get_cancellation_status("s") is CANCELLED
    assert dict(run.receipt.steps) == {"one": "finished", "two": "never started"}
    assert (run.receipt.source, run.receipt.reason) == ("cli", "from afar")
    assert [e.level for e in events(run, ev.StopRequested)] == ["requested"]
    again = finish(resume(run))
    assert (again.result, ran(again)) == ({"one": "one", "two": "two"}, ["two"])


def test_another_process_stops_a_run_immediately(
    run: Run, store: SessionStore, tmp_path: Path
) -> None:
    [told] = ask(tmp_path, "now")
    assert told.removesuffix("IMMEDIATE").removesuffix("CANCELLED") == CUT
    finish(run)
    assert commands_alive(tmp_path) == []
    assert dict(run.receipt.steps) == {"one": "killed", "two": "never started"}
    assert store.get_cancellation_status("s") is CANCELLED


def test_second_request_makes_the_stop_immediate_and_a_third_changes_nothing(
    run: Run, store: SessionStore, tmp_path: Path
) -> None:
    told = ask(tmp_path, "please", "please")
    assert told[1].removesuffix("IMMEDIATE").removesuffix("CANCELLED") == CUT
    finish(run)
    assert [e.level for e in events(run, ev.StopRequested)][-1] == "immediate"
    assert ask(tmp_path, "please", "now") == [
        "False Session s is already cancelled. CANCELLED",
        "False Session s is already cancelled. CANCELLED",
    ]


def test_stops_from_the_handle_and_from_files_are_equivalent(run: Run, store: SessionStore) -> None:
    run.stop()
    assert store.get_cancellation_status("s") is REQUESTED
    assert store.request_cancellation("s") == (
        True,
        "Stopping now: work in progress is interrupted.",
    )
    assert store.get_cancellation_status("s") in (IMMEDIATE, CANCELLED)
    assert store.request_cancellation("s", immediate=True).changed is False
    finish(run)
    assert run.receipt.source == "api"


def test_team_can_be_stopped_through_files(tmp_path: Path) -> None:
    gate = Gate()
    run = start(tmp_path, a=ScriptedModel(Answer("one", gate=gate)))
    gate.wait_reached()
    store = SessionStore(tmp_path)
    assert store.request_cancellation(run.session, immediate=True).changed
    finish(run)
    assert run.status == "cancelled"
    assert store.get_cancellation_status(run.session) is CANCELLED


def test_request_returns_the_veto(tmp_path: Path) -> None:
    gate = Gate()
    policy = CancelPolicy(before_cancel=lambda request: False)
    run = start(tmp_path, policy, a=ScriptedModel(Answer("one", gate=gate)))
    gate.wait_reached()
    store = SessionStore(tmp_path)
    assert store.request_cancellation(run.session) == (
        False,
        f"Session {run.session} was not stopped: vetoed.",
    )
    assert store.get_cancellation_status(run.session) is NONE
    gate.open()
    assert finish(run).status == "completed"


def test_stop_from_any_entry_point_reads_as_cancelled(run: Run, store: SessionStore) -> None:
    assert store.get_cancellation_status("s") is NONE
    run.stop(now=True)
    finish(run)
    assert not (run.path / "stop.json").exists()
    assert store.get_cancellation_status("s") is CANCELLED


def test_a_resumed_session_can_be_cancelled_again(run: Run, store: SessionStore) -> None:
    store.request_cancellation("s", immediate=True)
    finish(run)
    again = resume(run)
    wait_held(again, "one")
    assert store.get_cancellation_status("s") is NONE
    assert store.request_cancellation("s", immediate=True).changed
    finish(again)
    assert again.status == "cancelled"


def test_finished_session_cannot_be_cancelled(run: Run, store: SessionStore) -> None:
    let_go(run, "one")
    finish(run)
    told = "Session s is not running. Nothing to do."
    assert store.request_cancellation("s") == (False, told)
    assert not store.is_cancellation_requested("s")
    assert not (run.path / "stop.json").exists()


def test_unknown_session_has_no_status(store: SessionStore) -> None:
    assert store.get_cancellation_status("nobody") is NONE
    assert not store.is_cancellation_requested("nobody")
    assert not store.is_immediate_cancellation("nobody")
    for asks in (store.request_cancellation, store.clear_cancellation, store.mark_cancelled):
        with pytest.raises(UnknownSessionError):
            asks("nobody")


def test_a_session_without_a_turn_has_no_status(tmp_path: Path) -> None:
    (tmp_path / "sessions/empty").mkdir(parents=True)
    store = SessionStore(tmp_path / "sessions")
    assert store.get_cancellation_status("empty") is NONE
    with pytest.raises(UnknownSessionError):
        store.request_cancellation("empty")


@pytest.mark.parametrize(
    "torn",
    [
        b"",
        b'{"level": "immed',
        b"\xff\xfe",
        b"[]",
        b"7",
        b'{"level": 3}',
        b'{"level": "immediate"}',
        b'{"level": "cancelled"}',
    ],
)
def test_only_a_command_file_stops_a_run(run: Run, store: SessionStore, torn: bytes) -> None:
    (run.path / "stop.json").write_bytes(torn)
    assert store.get_cancellation_status("s") is NONE
    let_go(run, "one")
    finish(run)
    assert run.status == "completed"


def test_clear_cancellation(run: Run, store: SessionStore) -> None:
    store.request_cancellation("s")
    with pytest.raises(UserError, match="can't be undone"):
        store.clear_cancellation("s")
    let_go(run, "one")
    finish(run)
    assert store.get_cancellation_status("s") is CANCELLED
    store.clear_cancellation("s")
    assert store.get_cancellation_status("s") is NONE
    assert finish(resume(run)).status == "completed"


def test_mark_cancelled_when_no_process_runs(run: Run, store: SessionStore) -> None:
    with pytest.raises(UserError, match="Use request_cancellation instead"):
        store.mark_cancelled("s")
    run.stop(now=True)
    finish(run)
    store.mark_cancelled("s", cancelled_at_step="one")
    assert store.get_cancellation_status("s") is CANCELLED


def test_project_path_selects_the_sessions(tmp_path: Path) -> None:
    root = tmp_path / "project/.nb_agents/sessions"
    run = begin(write(tmp_path, BODY), session_root=root)
    wait_held(run, "one")
    store = SessionStore()
    project = tmp_path / "project"
    assert store.request_cancellation("s", project, immediate=True).changed
    finish(run)
    assert store.get_cancellation_status("s", project) is CANCELLED


DIES = """
from pathlib import Path
from tests.recipes.live import begin, wait_held
run = begin(Path("main.yaml"), session_root="sessions")
wait_held(run, "one")
print("held", flush=True)
run.wait()
"""


def test_a_process_that_died_was_not_cancelled(tmp_path: Path) -> None:
    write(tmp_path, BODY)
    with script(DIES, tmp_path) as process:
        assert read_line(process) == "held\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_until(lambda: not commands_alive(tmp_path), WAIT_S, "the command's end")
    store = SessionStore(tmp_path / "sessions")
    assert store.get_cancellation_status("s") is NONE
    assert not store.request_cancellation("s").changed
    store.mark_cancelled("s", cancelled_at_step="one")
    assert store.get_cancellation_status("s") is CANCELLED


def test_amplifier_program_can_catch_the_stop_of_a_recipe(run: Run, store: SessionStore) -> None:
    """Names, states, and the exception with session, level and step are Amplifier's."""
    from tests.kit.recipes import CancellationRequestedError, CancellationStatus

    def check(session_id: str, step: str) -> None:
        status = store.get_cancellation_status(session_id)
        if status in (CancellationStatus.REQUESTED, CancellationStatus.IMMEDIATE):
            is_immediate = status == CancellationStatus.IMMEDIATE
            raise CancellationRequestedError(session_id, is_immediate, step)

    check("s", "one")
    store.request_cancellation("s", immediate=False)
    with pytest.raises(CancellationRequestedError, match=r"s was stopped \(graceful\) at step 'o"):
        check("s", "one")
    let_go(run, "one")
    with pytest.raises(nb_agents.CancellationRequestedError) as stopped:
        run.wait(WAIT_S)
    told = stopped.value
    assert (told.session_id, told.is_immediate, told.current_step) == ("s", False, "two")
    assert store.get_cancellation_status("s") is nb_agents.CancellationStatus.CANCELLED
