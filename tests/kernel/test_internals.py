"""One test for each internal part of ipykernel that `nb_agents.jupyter.kernel` uses.

When an ipykernel release changes one of them, the test with its name fails. SIGINT dispositions are
read from /proc, because code in a cell sees the cell's own handler.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.driver import Kernel
from tests.kernel.notebook import Notebook, assert_stopped_gracefully
from tests.model_server import ModelServer

STOP_REQUEST = "nb_agents_stop_request"
SAVED = "type(get_ipython().kernel.saved_sigint_handler).__name__"
SLEEP = "import time\nprint('begun', flush=True)\ntime.sleep(30)"


@pytest.fixture
def bare() -> Iterator[Kernel]:
    """A kernel without extensions."""
    with Kernel() as kernel:
        yield kernel


def wait_stopped(notebook: Notebook) -> None:
    """Assert that an interrupt of the idle kernel stops a run."""
    turn = notebook.start_held()
    notebook.kernel.interrupt()
    turn.wait_stop("requested")
    assert_stopped_gracefully(turn, notebook.server, "interrupt")


# saved_sigint_handler


def test_saved_sigint_handler_survives_later_cells(notebook: Notebook) -> None:
    for _ in range(3):
        notebook.kernel.run("1 + 1")
    assert notebook.kernel.run("raise ValueError").error
    assert notebook.kernel.eval(SAVED) == "_IdleInterrupt"
    wait_stopped(notebook)


@pytest.mark.parametrize(
    "replace",
    [
        "get_ipython().kernel.saved_sigint_handler = signal.SIG_IGN",
        "signal.signal(signal.SIGINT, lambda *_: None)",
    ],
)
def test_saved_sigint_handler_is_restored_after_another_library_replaced_it(
    notebook: Notebook, replace: str
) -> None:
    assert notebook.kernel.run(f"import signal\n{replace}").status == "ok"
    assert notebook.kernel.eval(SAVED) == "_IdleInterrupt"
    wait_stopped(notebook)


def test_previous_handler_is_called_without_runs(bare: Kernel) -> None:
    bare.run(
        "hits = []\n"
        "def mine(number, frame): hits.append(number)\n"
        "get_ipython().kernel.saved_sigint_handler = mine"
    )
    bare.run("%load_ext nb_agents")
    bare.interrupt()
    bare.wait_until(lambda: bare.eval("hits") == [2], 60, "the other library's handler")
    bare.run("%unload_ext nb_agents")
    bare.interrupt()
    bare.wait_until(lambda: bare.eval("hits") == [2, 2], 60, "the handler that was put back")


def test_handler_survives_many_comm_messages(notebook: Notebook) -> None:
    turn = notebook.start_held()
    comm = notebook.panel(turn).comm_id
    for page in range(20):
        notebook.kernel.send_custom(comm, {"type": "mounted", "page": str(page)})
    assert notebook.kernel.eval(SAVED) == "_IdleInterrupt"
    notebook.kernel.interrupt()
    turn.wait_stop("requested")


# control_handlers


def test_control_handlers_answer_while_a_cell_blocks(notebook: Notebook) -> None:
    blocked = notebook.kernel.send(SLEEP)
    notebook.kernel.wait_stdout(blocked, "begun")
    reply = notebook.kernel.control(STOP_REQUEST, {"run": "none"})
    assert (reply["status"], reply["is_unknown"]) == ("ok", True)
    assert notebook.kernel.outputs_of(blocked).is_busy
    notebook.kernel.interrupt()
    notebook.kernel.result(blocked)


@pytest.mark.parametrize("content", [{}, {"run": None}, {"run": ["r1"], "immediate": "yes"}])
def test_malformed_control_message_stops_nothing(
    notebook: Notebook, content: dict[str, object]
) -> None:
    turn = notebook.start_held()
    reply = notebook.kernel.control(STOP_REQUEST, content)
    assert reply["refusal"] == "The message does not specify a run."
    assert turn.events("stop_requested") == []


# The comm's route


def test_subshell_receives_comm_messages_of_a_page(notebook: Notebook) -> None:
    """ipykernel 7.4 itself routes them to the main shell, which is busy."""
    turn = notebook.start_held()
    comm = notebook.panel(turn).comm_id
    subshell = notebook.kernel.create_subshell()
    blocked = notebook.kernel.send(SLEEP)
    notebook.kernel.wait_stdout(blocked, "begun")
    told = notebook.kernel.send_custom(comm, {"type": "mounted", "page": "p"}, subshell)
    states = lambda: notebook.kernel.outputs_of(told)._states  # noqa: E731
    notebook.kernel.wait_until(lambda: states() == ["busy", "idle"], seen=states)
    assert notebook.kernel.outputs_of(blocked).is_busy
    notebook.kernel.interrupt()
    notebook.kernel.result(blocked)


def test_stop_sent_behind_a_busy_cell_is_received(notebook: Notebook) -> None:
    turn = notebook.start_held()
    blocked = notebook.kernel.send(SLEEP)
    notebook.kernel.wait_stdout(blocked, "begun")
    notebook.press(turn)
    turn.wait_stop("requested")
    assert notebook.kernel.outputs_of(blocked).is_busy
    notebook.kernel.interrupt()
    notebook.kernel.result(blocked)
    assert_stopped_gracefully(turn, notebook.server, "widget")


def test_panel_of_the_busy_cell_can_send_messages(notebook: Notebook) -> None:
    notebook.server.hold(after=3)
    code = f"get_ipython().run_cell_magic('agents', '--config {notebook.team}', 'Count.')\n{SLEEP}"
    cell = notebook.kernel.send(code)
    turn = notebook.turn_of(cell)
    notebook.kernel.wait_stdout(cell, "begun")
    notebook.press(turn)
    turn.wait_stop("requested")
    assert notebook.kernel.outputs_of(cell).is_busy
    notebook.kernel.interrupt()
    notebook.kernel.result(cell)


# The wake-up descriptor


def test_interrupt_ends_an_awaiting_cell_immediately(notebook: Notebook) -> None:
    """Otherwise the interrupt takes effect after the sleep, which is longer than the timeout."""
    cell = notebook.kernel.send(
        "import asyncio\nprint('begun', flush=True)\nawait asyncio.sleep(300)"
    )
    notebook.kernel.wait_stdout(cell, "begun")
    error = notebook.kernel.interrupt_cell(cell)
    assert error
    assert error.ename in ("CancelledError", "KeyboardInterrupt")


# Loading

AT_START = "c.InteractiveShellApp.extensions = ['nb_agents']"


@pytest.mark.skipif(sys.platform != "linux", reason="reads the signal mask in /proc")
def test_loaded_at_kernel_start(server: ModelServer, tmp_path: Path) -> None:
    with Kernel(ipython_config=AT_START, cold=True) as kernel:
        notebook = Notebook(kernel, server, tmp_path)
        # Before the first cell, ipykernel ignores SIGINT and nb_agents does not.
        status = Path(f"/proc/{kernel.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        assert int(caught.split()[1], 16) & (1 << (2 - 1))
        wait_stopped(notebook)


def test_interrupt_before_the_first_cell_has_no_effect() -> None:
    with Kernel(ipython_config=AT_START) as kernel:
        kernel.interrupt()
        assert kernel.run("1 + 1").value == "2"
        kernel.interrupt()
        assert kernel.run("%agents").status == "ok"


HELD_IMPORTS = """
import os, sys, threading, time

def hold(event, args):
    if event == "import" and threading.current_thread().name == "nb_agents imports":
        while not os.path.exists({may_go_on!r}):
            time.sleep(0.01)

sys.addaudithook(hold)
"""


def test_user_cells_wait_for_background_imports_and_agent_cells_do_not(
    server: ModelServer, tmp_path: Path
) -> None:
    may_go_on = tmp_path / "may_go_on"
    with Kernel(cold=True) as kernel:
        notebook = Notebook(kernel, server, tmp_path)
        kernel.run(HELD_IMPORTS.format(may_go_on=str(may_go_on)))
        kernel.run("%load_ext nb_agents")
        turn = notebook.start()
        theirs = kernel.send("print('openai' in sys.modules)")
        kernel.wait_busy(theirs)
        may_go_on.touch()
        assert kernel.result(theirs).stdout == "True\n"
        turn.wait_over()
        assert turn.answer == "The team's final answer."


def test_loading_twice_has_no_effect(server: ModelServer, tmp_path: Path) -> None:
    with Kernel() as kernel:
        notebook = Notebook(kernel, server, tmp_path)
        callbacks = "len(get_ipython().events.callbacks['post_run_cell'])"
        before = kernel.eval(callbacks)
        kernel.run("%load_ext nb_agents")
        once = kernel.eval(callbacks)
        result = kernel.run("%load_ext nb_agents\n%reload_ext nb_agents\n%reload_ext nb_agents")
        assert (result.status, result.stderr) == ("ok", "")
        assert kernel.eval(callbacks) == once > before
        # One press makes one stop, not three.
        turn = notebook.start_held()
        kernel.interrupt()
        turn.wait_stop("requested")
        assert_stopped_gracefully(turn, server, "interrupt")
        shown = kernel.run("raise_it = 1\nrun = __import__('nb_agents').runs()[0]\nrun.wait()")
        assert len(shown.displays) == 1


def test_calling_the_load_hook_again_has_no_effect(bare: Kernel) -> None:
    callbacks = "len(get_ipython().events.callbacks['post_run_cell'])"
    bare.run("%load_ext nb_agents")
    once = bare.eval(callbacks)
    bare.run("import nb_agents\nnb_agents.load_ipython_extension(get_ipython())")
    assert bare.eval(callbacks) == once


def test_unload_removes_handlers_but_runs_continue(server: ModelServer, tmp_path: Path) -> None:
    with Kernel() as kernel:
        notebook = Notebook(kernel, server, tmp_path)
        kernel.run("%load_ext nb_agents")
        turn = notebook.start_held("--out run")
        assert kernel.run("%unload_ext nb_agents").status == "ok"
        assert "agents" in str(kernel.run("%agents").stderr)  # not found
        kernel.interrupt()
        assert kernel.run("run.is_over").value == "False"
        assert turn.events("stop_requested") == []
        assert not kernel.eval(f"{STOP_REQUEST!r} in get_ipython().kernel.control_handlers")
        # The visible panel still works, because its widget is alive.
        assert kernel.run("%load_ext nb_agents").status == "ok"
        kernel.interrupt()
        turn.wait_stop("requested")
        assert_stopped_gracefully(turn, server, "interrupt")


def test_agents_thread_yields_to_cells_sooner_while_loaded(bare: Kernel) -> None:
    before = bare.eval("__import__('sys').getswitchinterval()")
    bare.run("%load_ext nb_agents\n%reload_ext nb_agents")
    assert bare.eval("__import__('sys').getswitchinterval()") < before
    bare.run("%unload_ext nb_agents")
    assert bare.eval("__import__('sys').getswitchinterval()") == before


def test_streams_are_read_less_often_while_a_cell_runs(bare: Kernel) -> None:
    rests = "__import__('nb_agents.models.reading').models.reading.rest_s(20, 1, 1) > 0"
    bare.run("%load_ext nb_agents")
    assert bare.run(f"print({rests})").stdout.strip() == "True"
    assert bare.eval(rests) is False
    assert bare.run(f"print({rests})\n1 / 0").stdout.strip() == "True"
    assert bare.eval(rests) is False
    bare.run("%unload_ext nb_agents")
    assert bare.run(f"print({rests})").stdout.strip() == "False"


def test_unload_shows_a_stopped_run_as_ipython_does(bare: Kernel) -> None:
    bare.run("%load_ext nb_agents\n%unload_ext nb_agents")
    shown = bare.run("raise ValueError('mine')")
    assert shown.error
    assert shown.error.traceback


def test_other_errors_keep_their_traceback(notebook: Notebook) -> None:
    error = notebook.kernel.run("1 / 0").error
    assert error
    assert "ZeroDivisionError" in "".join(error.traceback)


def test_other_custom_exception_handlers_still_work(bare: Kernel) -> None:
    bare.run(
        "def mine(shell, kind, exc, trace, tb_offset=None):\n"
        "    print('shown by mine:', exc)\n"
        "get_ipython().set_custom_exc((KeyError,), mine)"
    )
    bare.run("%load_ext nb_agents")
    assert "shown by mine: 'x'" in bare.run("raise KeyError('x')").stdout
