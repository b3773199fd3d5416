"""The kernel driver sees what a front end would see, and reaches a busy kernel."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.driver import Kernel, KernelDied

BLOCK = "import time\nprint('begun', flush=True)\ntime.sleep(30)"


@pytest.fixture(scope="module")
def shared() -> Iterator[Kernel]:
    with Kernel() as kernel:
        yield kernel


@pytest.fixture
def kernel(shared: Kernel) -> Kernel:
    shared.run("%reset -f")
    return shared


def test_a_cell_returns_its_outputs(kernel: Kernel) -> None:
    result = kernel.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert (result.status, result.stdout, result.stderr) == ("ok", "out\n", "err\n")
    assert (result.value, result.error, result.is_complete) == ("42", None, True)


def test_an_error_is_returned(kernel: Kernel) -> None:
    error = kernel.run("1 / 0").error
    assert error
    assert (error.ename, error.evalue) == ("ZeroDivisionError", "division by zero")


def test_displays_and_their_updates_are_collected_after_the_cell_ended(kernel: Kernel) -> None:
    result = kernel.run(
        "import threading\n"
        "handle = display({'text/plain': 'first'}, raw=True, display_id='card')\n"
        "go = threading.Event()\n"
        "def later():\n"
        "    go.wait(10); handle.update({'text/plain': 'second'}, raw=True)\n"
        "threading.Thread(target=later).start()"
    )
    assert [(d.data["text/plain"], d.display_id) for d in result.displays] == [("first", "card")]
    assert kernel.shown("card") == result.displays[0]
    updating = kernel.run("go.set()").msg_id

    def text() -> str:
        shown = kernel.shown("card")
        return shown.data["text/plain"] if shown else ""

    kernel.wait_until(lambda: text() == "second", what="the update")
    updates = kernel.outputs_of(updating).updates + kernel.outputs_of(result.msg_id).updates
    assert [update.data["text/plain"] for update in updates] == ["second"]


def test_eval_returns_values_and_leaves_no_trace(kernel: Kernel) -> None:
    kernel.run("found = {'a': [1, None, 'x\\'y'], 'long': list(range(3000))}")
    before = kernel.eval("get_ipython().execution_count")
    assert kernel.eval("found") == {"a": [1, None, "x'y"], "long": list(range(3000))}
    assert kernel.eval("get_ipython().execution_count") == before
    with pytest.raises(ValueError, match="NameError"):
        kernel.eval("lost")


def test_an_interrupt_reaches_a_blocked_cell(kernel: Kernel) -> None:
    blocked = kernel.send(BLOCK)
    kernel.wait_stdout(blocked, "begun")
    queued = kernel.send("1")
    kernel.interrupt()
    error = kernel.result(blocked).error
    assert error and error.ename == "KeyboardInterrupt"
    # The kernel aborts requests that have arrived; on a busy machine a later one may run.
    assert kernel.result(queued).status in ("aborted", "ok")


def test_a_blocked_kernel_answers_on_control_and_on_a_subshell(kernel: Kernel) -> None:
    kernel.run("seen = []")
    subshell = kernel.create_subshell()
    blocked = kernel.send(BLOCK)
    kernel.wait_stdout(blocked, "begun")
    assert kernel.control("kernel_info_request")["status"] == "ok"
    assert kernel.eval("seen", subshell_id=subshell) == []
    with pytest.raises(TimeoutError, match=r"for the cell to end; saw .*begun"):
        kernel.result(blocked, timeout_s=0.1)
    kernel.interrupt()
    assert kernel.result(blocked).status == "error"


def test_a_widget_is_pressed_and_followed(kernel: Kernel) -> None:
    kernel.run(
        "import ipywidgets\n"
        "button, label = ipywidgets.Button(description='Go'), ipywidgets.Label('not yet')\n"
        "button.on_click(lambda _: setattr(label, 'value', 'pressed'))"
    )
    kernel.press(kernel.find_comm(description="Go").comm_id)
    assert kernel.find_comm(value="pressed").is_open
    kernel.run("label.close()")
    assert not [c for c in kernel.comms.values() if c.is_open and c.state.get("value") == "pressed"]


def test_input_is_asked_and_answered(kernel: Kernel) -> None:
    asking = kernel.send("name = input('who? ')")
    kernel.wait_until(lambda: kernel.input_prompts, what="the prompt")
    assert kernel.input_prompts == ["who? "]
    kernel.answer_input("me")
    assert kernel.result(asking).status == "ok"
    assert kernel.eval("name") == "me"


def test_kernel_detects_headless_mode(kernel: Kernel, tmp_path: Path) -> None:
    look = "(get_ipython().kernel._allow_stdin, __import__('os').getenv('JPY_SESSION_NAME'))"
    kernel.run(f"here = {look}")
    assert kernel.eval("here") == (True, str(kernel.cwd / "notebook.ipynb"))
    with Kernel(tmp_path, {"COLOUR": "red"}, headless=True) as other:
        other.run(f"import os; here = {look}, os.getcwd(), os.environ['COLOUR']")
        assert other.eval("here") == ((False, None), str(tmp_path), "red")


def test_restart_clears_state_and_kill_is_noticed() -> None:
    with Kernel(ipython_config="c.InteractiveShellApp.exec_lines = ['at_start = 1']") as kernel:
        pid = kernel.pid
        kernel.run("x = 1")
        kernel.restart()
        assert kernel.pid != pid
        assert kernel.eval("('x' in globals(), at_start)") == (False, 1)
        blocked = kernel.send(BLOCK)
        kernel.wait_busy(blocked)
        kernel.kill()
        assert not kernel.is_alive
        with pytest.raises(KernelDied, match=f"code -{signal.SIGKILL.value}"):
            kernel.result(blocked)
        kernel.restart(now=True)
        assert kernel.run("1").value == "1"
        pid = kernel.pid
        assert kernel.shutdown() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_shutdown_runs_exit_handlers(tmp_path: Path) -> None:
    with Kernel(tmp_path, cold=True) as kernel:
        kernel.run("import atexit, pathlib; atexit.register(pathlib.Path('bye').touch)")
        kernel.shutdown()
        assert (tmp_path / "bye").exists()
