"""Every entry point at each level, in a live kernel: files on disk and requests to the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.driver import Kernel
from tests.kernel.notebook import (
    HELD,
    TURN_MIME,
    Notebook,
    Turn,
    assert_stopped_gracefully,
    assert_stopped_now,
    write_team,
)
from tests.model_server import ModelServer

STOP_REQUEST = "nb_agents_stop_request"
SLEEP = "import time\nprint('begun', flush=True)\ntime.sleep(120)"
AWAIT = "import asyncio\nprint('begun', flush=True)\nawait asyncio.sleep(120)"
NEST = "import nest_asyncio; nest_asyncio.apply()"


@pytest.fixture(scope="module", params=["plain", "nest_asyncio"])
def either(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """A plain kernel, and one in which the user has applied nest_asyncio."""
    with Kernel() as kernel:
        assert kernel.run("%load_ext nb_agents").status == "ok"
        if request.param == "nest_asyncio":
            assert kernel.run(NEST).status == "ok"
        yield kernel


@pytest.fixture
def both(either: Kernel, server: ModelServer, tmp_path: Path) -> Iterator[Notebook]:
    """A notebook in each of these kernels."""
    notebook = Notebook(either, server, tmp_path)
    yield notebook
    notebook.end_all()


def level(now: bool) -> str:
    return "immediate" if now else "requested"


def assert_stopped(turn: Turn, server: ModelServer, source: str, now: bool) -> None:
    turn.wait_stop(level(now))
    (assert_stopped_now if now else assert_stopped_gracefully)(turn, server, source)


def told(turn: Turn, changed: bool, status: str) -> dict[str, Any]:
    """Return the reply to a stop."""
    facts = {"run": turn.run, "changed": changed, "status": status}
    return {"status": "ok", "facts": facts, "refusal": "", "is_unknown": False}


# The panel


@pytest.mark.parametrize("now", [False, True])
def test_button_by_control_message(both: Notebook, now: bool) -> None:
    turn = both.start_held()
    reply = both.kernel.control(STOP_REQUEST, {"run": turn.run, "immediate": now})
    status = "stopping-now" if now else "stopping"
    assert reply == told(turn, True, status)
    assert_stopped(turn, both.server, "widget", now)


@pytest.mark.parametrize("now", [False, True])
def test_button_by_control_message_while_a_cell_blocks(both: Notebook, now: bool) -> None:
    turn = both.start_held()
    blocked = both.kernel.send(SLEEP)
    both.kernel.wait_stdout(blocked, "begun")
    both.kernel.control(STOP_REQUEST, {"run": turn.run, "immediate": now})
    assert_stopped(turn, both.server, "widget", now)
    assert both.kernel.outputs_of(blocked).is_busy
    assert both.kernel.interrupt_cell(blocked)


@pytest.mark.parametrize("now", [False, True])
def test_button_by_widget_message(both: Notebook, now: bool) -> None:
    turn = both.start_held()
    both.press(turn, now=now)
    assert_stopped(turn, both.server, "widget", now)


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("busy", [SLEEP, AWAIT], ids=["sleep", "await"])
def test_button_by_widget_message_while_a_cell_blocks(
    notebook: Notebook, busy: str, now: bool
) -> None:
    turn = notebook.start_held()
    blocked = notebook.kernel.send(busy)
    notebook.kernel.wait_stdout(blocked, "begun")
    notebook.press(turn, now=now)  # on the shell channel, as from VS Code and Colab
    assert_stopped(turn, notebook.server, "widget", now)
    assert notebook.kernel.outputs_of(blocked).is_busy
    assert notebook.kernel.interrupt_cell(blocked)


def test_the_panels_two_messages_are_one_stop(notebook: Notebook) -> None:
    turn = notebook.start_held()
    notebook.press(turn)
    turn.wait_stop()
    reply = notebook.kernel.control(STOP_REQUEST, {"run": turn.run, "immediate": False})
    assert reply == told(turn, False, "stopping")
    assert_stopped_gracefully(turn, notebook.server, "widget")
    reply = notebook.kernel.control(STOP_REQUEST, {"run": turn.run, "immediate": True})
    assert reply == told(turn, False, "finished")


def test_a_second_press_raises_the_level(notebook: Notebook) -> None:
    turn = notebook.start_held()
    notebook.press(turn)
    turn.wait_stop("requested")
    assert not turn.is_over
    notebook.press(turn, now=True)
    turn.wait_stop("immediate")
    assert_stopped_now(turn, notebook.server, "widget")


def test_stop_of_an_unknown_run_is_reported(notebook: Notebook) -> None:
    reply = notebook.kernel.control(STOP_REQUEST, {"run": "nobody", "immediate": True})
    assert reply["is_unknown"] and "No run named 'nobody'" in reply["refusal"]


# The interrupt of an idle kernel


def test_idle_interrupt_stops_a_run(both: Notebook) -> None:
    turn = both.start_held()
    both.kernel.interrupt()
    assert_stopped(turn, both.server, "interrupt", False)


def test_two_idle_interrupts_stop_a_run_immediately(both: Notebook) -> None:
    turn = both.start_held()
    both.kernel.interrupt()
    turn.wait_stop("requested")
    assert not turn.is_over
    both.kernel.interrupt()
    assert_stopped(turn, both.server, "interrupt", True)


def test_an_idle_interrupt_stops_every_run(notebook: Notebook) -> None:
    first = notebook.start_held()
    second = notebook.start_held()
    notebook.kernel.interrupt()
    first.wait_stop("requested")
    second.wait_stop("requested")
    notebook.kernel.interrupt()
    for turn in (first, second):
        turn.wait_over()
        stops = [(e["level"], e["source"]) for e in turn.events("stop_requested")]
        assert stops == [("requested", "interrupt"), ("immediate", "interrupt")]
        assert turn.partial_answers["ada"]["partial_text"] == HELD
    assert set(notebook.server.endings()) == {"client"}


def test_idle_interrupt_without_runs_has_no_effect(notebook: Notebook) -> None:
    notebook.kernel.interrupt()
    assert notebook.kernel.run("1 + 1").value == "2"


# The interrupt of a cell that waits. A cell that shows the stopped run's card has no traceback.

WAITING = {
    "magic --wait": None,
    "%agents wait": "%agents wait",
    "run.wait()": "run.wait()",
    "await run": "await run",
}


def waiting_cell(notebook: Notebook, how: str) -> Turn:
    """Start a held run and a cell that waits for it; `cell` of the turn is the waiting cell."""
    if WAITING[how] is None:
        notebook.server.hold(after=3)
        turn = notebook.send("--wait")
        turn.wait_streamed()
        return turn
    turn = notebook.start_held("--out run")
    cell = notebook.kernel.send(WAITING[how] or "")
    notebook.kernel.wait_busy(cell)
    wait_for_handler(notebook.kernel)
    return Turn(turn.path, turn.run, cell)


def wait_for_handler(kernel: Kernel) -> None:
    """Wait until the run's signal handler is installed, so the cell is waiting."""
    subshell = kernel.create_subshell()
    handler = "getattr(__import__('signal').getsignal(2), '__module__', '')"
    ours = lambda: kernel.eval(handler, subshell_id=subshell) == "nb_agents.loop"  # noqa: E731
    kernel.wait_until(ours, 60, "the waiting cell's handler")


def assert_ended_cleanly(notebook: Notebook, cell: str, how: str) -> None:
    result = notebook.kernel.result(cell)
    if how in ("magic --wait", "%agents wait"):
        assert result.status == "ok", result
        shown = [d for d in [*result.displays, *result.updates] if TURN_MIME in d.data]
    else:
        assert result.error
        assert result.error.ename == "RunCancelled"
        assert result.error.traceback == []
        shown = [d for d in result.displays if TURN_MIME in d.data]
        assert shown[-1].data[TURN_MIME]["state"] == "stopped"
    assert shown
    assert "Traceback" not in notebook.text(result)


@pytest.mark.parametrize("how", WAITING)
def test_interrupt_of_a_waiting_cell(both: Notebook, how: str) -> None:
    turn = waiting_cell(both, how)
    both.kernel.interrupt()
    turn.wait_stop("requested")
    assert both.kernel.outputs_of(turn.cell).is_busy
    assert_stopped_gracefully(turn, both.server, "interrupt")
    assert_ended_cleanly(both, turn.cell, how)


@pytest.mark.parametrize("how", WAITING)
def test_two_interrupts_of_a_waiting_cell(both: Notebook, how: str) -> None:
    turn = waiting_cell(both, how)
    both.kernel.interrupt()
    turn.wait_stop("requested")
    assert both.kernel.outputs_of(turn.cell).is_busy
    both.kernel.interrupt()
    assert_stopped(turn, both.server, "interrupt", True)
    assert_ended_cleanly(both, turn.cell, how)


def test_cells_after_a_stopped_magic_still_run(notebook: Notebook) -> None:
    turn = waiting_cell(notebook, "magic --wait")
    behind = notebook.kernel.send("'behind'")
    notebook.kernel.interrupt()
    turn.wait_stop()
    notebook.server.release()
    assert notebook.kernel.result(behind).value == "'behind'"


# The interrupt of any other busy cell


@pytest.mark.parametrize("busy", [SLEEP, AWAIT], ids=["sleep", "await"])
def test_interrupt_of_another_cell_does_not_stop_runs(both: Notebook, busy: str) -> None:
    turn = both.start_held()
    cell = both.kernel.send(busy)
    both.kernel.wait_stdout(cell, "begun")
    error = both.kernel.interrupt_cell(cell)
    assert error
    assert error.ename in ("KeyboardInterrupt", "CancelledError")
    both.server.release()
    turn.wait_over()
    assert turn.metadata["run_status"] == "completed"
    assert turn.events("stop_requested") == []


# The magic


@pytest.mark.parametrize("now", [False, True])
def test_stop_magic_stops_the_run(notebook: Notebook, now: bool) -> None:
    turn = notebook.start_held()
    result = notebook.kernel.run(f'%agents stop {"--now" if now else ""} --reason "wrong path"')
    assert f"Run {turn.run} is stopping" in notebook.text(result)
    assert_stopped(turn, notebook.server, "magic", now)
    assert turn.events("stop_requested")[0]["reason"] == "wrong path"
    again = notebook.kernel.run(f"%agents stop {turn.run}")
    assert "is already over (stopped); nothing was changed" in notebook.text(again)


def test_stop_magic_names_a_run(notebook: Notebook) -> None:
    first = notebook.start_held()
    second = notebook.start_held()
    notebook.kernel.run(f"%agents stop {first.run} --now")
    first.wait_over()
    assert not second.is_over
    notebook.server.release()
    second.wait_over()
    assert second.metadata["run_status"] == "completed"


@pytest.mark.parametrize("now", [False, True])
def test_stop_magic_of_one_agent(notebook: Notebook, now: bool) -> None:
    turn = notebook.start_held()
    result = notebook.kernel.run(f"%agents stop --agent Ben {'--now' if now else ''}")
    assert "Agent Ben of run" in notebook.text(result)
    turn.wait_stop(level(now), agent="Ben")
    notebook.server.release()
    turn.wait_over()
    assert turn.metadata["run_status"] == "completed"
    notebook.server.wait_closed()
    assert [r.closed_by for r in notebook.server.requests if r.model == "m2"] == [
        "client" if now else "server"
    ]
    [ended] = [e for e in turn.events("agent_ended") if e["agent"] == "Ben"]
    assert ended["outcome"] == ("killed" if now else "stopped")


# Python


@pytest.mark.parametrize("now", [False, True])
def test_run_stop_stops_the_run(notebook: Notebook, now: bool) -> None:
    turn = notebook.start_held("--out run")
    result = notebook.kernel.run(f"run.stop(now={now}, reason='enough')")
    assert (
        result.value
        == f"StopResult(changed=True, status='{'stopping-now' if now else 'stopping'}')"
    )
    assert_stopped(turn, notebook.server, "api", now)
    assert turn.events("stop_requested")[0]["reason"] == "enough"


def test_run_cancel_waits_until_everything_is_saved(both: Notebook) -> None:
    turn = both.start_held("--out run")
    cell = both.kernel.send("result = await run.cancel('why')\nresult.changed, str(run.status)")
    both.kernel.wait_busy(cell)
    turn.wait_stop("requested")
    assert both.kernel.outputs_of(cell).is_busy
    assert_stopped_gracefully(turn, both.server, "api")
    assert both.kernel.result(cell).value == "(True, 'cancelled')"
    assert turn.events("stop_requested")[0]["reason"] == "why"


# Time


def test_timeout_option(notebook: Notebook) -> None:
    notebook.server.hold(after=3)
    turn = notebook.start("--orchestrator-timeout 4")
    turn.wait_streamed()
    assert_stopped(turn, notebook.server, "timeout", False)
    reason = turn.events("stop_requested")[0]["reason"]
    assert reason == "time limit of 4 s reached"


def test_timeout_of_the_team_file(notebook: Notebook) -> None:
    write_team(
        notebook.team,
        notebook.server,
        "timeout_settings:\n  orchestrator_timeout_seconds: 4",
    )
    notebook.server.hold(after=3)
    turn = notebook.start()
    turn.wait_streamed()
    assert_stopped(turn, notebook.server, "timeout", False)


def test_graceful_stop_becomes_immediate_after_the_grace_time(notebook: Notebook) -> None:
    notebook.server.hold(after=3)
    cell = notebook.kernel.send(
        "import nb_agents\n"
        "from nb_agents.options import CancelPolicy, RunOptions\n"
        "options = RunOptions(cancel=CancelPolicy(grace_timeout_s=0.4))\n"
        f"run = nb_agents.start('Count.', {str(notebook.team)!r}, options=options)\n"
        "print(run.path)"
    )
    turn = Turn(Path(notebook.kernel.result(cell).stdout.strip()))
    turn.wait_streamed()
    notebook.kernel.run("run.stop()")
    turn.wait_stop("requested")
    turn.wait_stop("immediate")
    assert_stopped_now(turn, notebook.server, "api")
