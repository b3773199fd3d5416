"""Python cells: persistent state, stops, and untrusted messages."""

import base64
import itertools
import os
import re
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from anyio import create_task_group, to_thread
from anyio.lowlevel import checkpoint

from nb_agents.tools import python as cells_module
from nb_agents.tools.python import Plot, PythonCells, decode_png, next_number, save_plots
from tests.kit.processes import environment, fork_server
from tests.kit.tools import MAX_SHOWN_CHARS, Confinement, ToolError, python_kernel
from tests.model_server import wait_until
from tests.processes import line, python
from tests.tools.sandboxes import Place, both, place, sandboxed
from tests.tools.test_process import Family

__all__ = ["place"]

PNG = b"\x89PNG\r\n\x1a\nrest"
SHOW = "from IPython.display import display; "
UNSTOPPABLE = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready")
while True: pass
"""


@pytest.fixture
async def cells(place: Place) -> AsyncIterator[PythonCells]:
    made = PythonCells(place.sandbox())
    yield made
    await made.close()


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PythonCells]:
    """One interpreter for tests whose cells don't affect those of other tests."""
    made = PythonCells(Place(tmp_path_factory.mktemp("shared"), False).sandbox())
    yield made
    await made.close()


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give interrupted cells more time to end, for a busy machine."""
    monkeypatch.setattr(cells_module, "_INTERRUPT_GRACE_S", 60)


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the directory that contains only the directories of this test's interpreters."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(environment, "PLACE", folder)
        yield Path(folder)


@pytest.fixture
def family(place: Place) -> Iterator[Family]:
    made = Family(place.workspace)
    yield made
    made.close()


def alive(family: Family) -> str:
    return f"alive = open({str(family.fifo)!r}, 'w')\n"


async def stop_when_ready(cells: PythonCells, place: Place, code: str) -> None:
    start = len(place.heard)
    async with create_task_group() as tasks:
        tasks.start_soon(cells.run_python, code)
        await to_thread.run_sync(wait_until, lambda: "ready\n" in place.heard[start:])
        tasks.cancel_scope.cancel()


# Cells


@both
async def test_variables_persist_and_the_last_value_is_the_result(
    place: Place, cells: PythonCells
) -> None:
    assert await cells.run_python("import math\nx = 20") == "(no output)"
    assert await cells.run_python("print('é'); math.sqrt(x + 5)") == "é\n5.0"
    assert await cells.run_python("x;") == "(no output)"
    assert await cells.run_python("import os; os.getcwd()") == repr(str(place.workspace))
    assert place.heard == f"é\n5.0\n{str(place.workspace)!r}\n"


async def test_cell_works_like_a_notebook_cell(shared: PythonCells) -> None:
    assert await shared.run_python("import asyncio\nawait asyncio.sleep(0, 'slept')") == "'slept'"
    assert await shared.run_python("!echo from a command") == "from a command"
    assert await shared.run_python(SHOW + "display({1: 2}); 3") == "{1: 2}\n3"


async def test_traceback_has_no_internal_frames(shared: PythonCells) -> None:
    said = await shared.run_python("print('before')\ndef f():\n    1 / 0\nf()")
    assert said.startswith("before\nTraceback (most recent call last):\n")
    assert said.endswith("ZeroDivisionError: division by zero")
    assert ".py" not in said and "\x1b" not in said
    assert "SyntaxError" in await shared.run_python("1 +")
    assert "NameError" in await shared.run_python("missing")


async def test_output_reaches_the_panel_while_the_cell_runs(
    place: Place, cells: PythonCells
) -> None:
    code = "import os\nprint('ready')\nwhile not os.path.exists('go'): pass\nprint('end')"
    async with create_task_group() as tasks:
        tasks.start_soon(cells.run_python, code)
        await to_thread.run_sync(wait_until, lambda: "ready\n" in place.heard)
        assert "end" not in place.heard
        (place.workspace / "go").touch()
    assert place.heard == "ready\nend\n"


@both
async def test_output_of_a_cells_commands_is_read(cells: PythonCells) -> None:
    for number in range(5):
        # In one piece, because `print` writes the line break separately.
        write = "import os, sys; sys.stdout.write('a\\n')"
        code = f"{write}; os.system('echo o{number}; echo e{number} >&2'); 'b'"
        said = await cells.run_python(code)
        assert sorted(said.split()) == ["'b'", "a", f"e{number}", f"o{number}"]


async def test_output_of_an_earlier_cells_thread_is_not_lost(shared: PythonCells) -> None:
    await shared.run_python(
        "import threading; go = threading.Event(); done = threading.Event()\n"
        "def run():\n    go.wait(); print('late', flush=True); done.set()\n"
        "threading.Thread(target=run).start()"
    )
    assert await shared.run_python("go.set(); done.wait(); 1") == "late\n1"


async def test_input_is_not_available(shared: PythonCells) -> None:
    assert "input requests" in await shared.run_python("input()")


async def test_parallel_calls_run_one_after_the_other(shared: PythonCells) -> None:
    await shared.run_python("seen = []")
    async with create_task_group() as tasks:
        for number in range(3):
            code = f"seen.append({number}); import time; time.sleep(0.01); seen.append({number})"
            tasks.start_soon(shared.run_python, code)
    pairs = eval(await shared.run_python("seen"))
    assert pairs[0::2] == pairs[1::2] and sorted(pairs) == [0, 0, 1, 1, 2, 2]


async def test_two_agents_have_two_interpreters(place: Place, cells: PythonCells) -> None:
    other = PythonCells(place.sandbox())
    try:
        await cells.run_python("x = 1")
        assert "NameError" in await other.run_python("x")
    finally:
        await other.close()


# The end of a cell


@both
@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    "code",
    [
        "print('ready')\nwhile True: pass",
        "import time; print('ready'); time.sleep(1000)",
        "import subprocess; print('ready'); subprocess.run(['sleep', '1000'])",
        "import asyncio; print('ready'); await asyncio.sleep(1000)",
    ],
    ids=["busy", "asleep", "command", "await"],
)
async def test_stop_interrupts_a_cell_and_keeps_variables(
    place: Place, cells: PythonCells, code: str
) -> None:
    await cells.run_python("x = 1")
    await stop_when_ready(cells, place, code)
    assert await cells.run_python("x + 1") == "2"
    assert place.kept()[0].read_text().startswith("ready\n")


@both
async def test_cell_that_ignores_a_stop_is_ended_and_the_next_reports_it(
    place: Place, cells: PythonCells, family: Family
) -> None:
    start = "import subprocess; subprocess.Popen(['sleep', '1000'], pass_fds=[alive.fileno()])\n"
    await stop_when_ready(cells, place, alive(family) + start + UNSTOPPABLE)
    assert family.is_gone()
    said = await cells.run_python("1 + 1")
    assert said == "[Python was restarted: the variables and imports of earlier cells are lost.]\n2"
    assert await cells.run_python("1 + 1") == "2"


@pytest.mark.usefixtures("patience")
async def test_an_interrupt_that_had_no_effect_is_sent_again(
    place: Place, cells: PythonCells
) -> None:
    forever = "    while True: pass"
    await cells.run_python("x = 1")
    deaf = f"print('ready')\ntry:\n{forever}\nexcept KeyboardInterrupt:\n{forever}"
    await stop_when_ready(cells, place, deaf)
    assert await cells.run_python("x") == "1"


async def test_stop_before_the_cell_starts_keeps_variables(
    place: Place, cells: PythonCells
) -> None:
    await cells.run_python("x = 1")
    async with create_task_group() as tasks:
        tasks.start_soon(cells.run_python, "while True: pass")
        tasks.cancel_scope.cancel()
    assert await cells.run_python("x") == "1"


async def test_stop_while_python_starts_leaves_no_process(
    place: Place, family: Family, folders: Path
) -> None:
    cells = PythonCells(place.sandbox())
    async with create_task_group() as tasks:
        tasks.start_soon(cells.run_python, alive(family))
        await to_thread.run_sync(wait_until, lambda: os.listdir(folders))
        tasks.cancel_scope.cancel()
    assert family.is_gone()
    assert os.listdir(folders) == []
    assert await cells.run_python("1") == "1"
    await cells.close()


async def test_timeout_is_reported_with_the_output(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = PythonCells(place.sandbox(), timeout_s=2)
    with monkeypatch.context() as patient:
        patient.setattr(cells_module, "_INTERRUPT_GRACE_S", 60)
        said = await cells.run_python("x = 1\nprint('so far')\nwhile True: pass")
    assert said.startswith("so far\nTraceback") and "KeyboardInterrupt" in said
    assert said.endswith(
        "[The cell took more than 2 s and was interrupted. Its variables are kept.]"
    )
    assert await cells.run_python("x") == "1"
    said = await cells.run_python(UNSTOPPABLE)
    assert said == (
        "ready\n[The cell took more than 2 s and could not be interrupted, so Python was ended.]"
    )
    assert "Python was restarted" in await cells.run_python("1")
    await cells.close()


@both
@pytest.mark.parametrize("code", ["import os; os._exit(7)", "import ctypes; ctypes.string_at(0)"])
async def test_exit_of_python_is_reported_and_the_next_cell_restarts_it(
    cells: PythonCells, code: str
) -> None:
    await cells.run_python("1")  # messages between cells are not part of its last output
    ended = await cells.run_python(f"print('last')\n{code}")
    assert re.fullmatch(r"(last\n)?\[Python ended: exit code -?\d+\]", ended)
    assert (await cells.run_python("2")).endswith("earlier cells are lost.]\n2")


@both
async def test_cell_over_the_memory_limit_fails_and_keeps_variables(
    place: Place,
) -> None:
    cells = PythonCells(place.sandbox(limits={"memory_mb": 700}))
    assert await cells.run_python("x = 1") == "(no output)"
    assert "MemoryError" in await cells.run_python("y = bytearray(900_000_000)")
    assert await cells.run_python("x") == "1"
    await cells.close()


@both
async def test_cell_over_the_process_limit_is_reported_and_python_restarts(
    place: Place,
) -> None:
    cells = PythonCells(place.sandbox(limits={"processes": 60}))
    many = "import subprocess, time\n"
    many += "for _ in range(100): subprocess.Popen(['sleep', '1000'])\ntime.sleep(1000)"
    assert await cells.run_python(many) == (
        "[Python ended: it had more than 60 processes and threads (its limit `processes`)]"
    )
    assert (await cells.run_python("2")).endswith("earlier cells are lost.]\n2")
    await cells.close()


@both
async def test_close_ends_all_processes_of_cells(cells: PythonCells, family: Family) -> None:
    code = "import os, subprocess, sys\nchild = subprocess.Popen(['sleep', '1000'], "
    await cells.run_python(
        alive(family) + code + "pass_fds=[alive.fileno()], start_new_session=True)"
    )
    assert not family.is_gone()
    await cells.close()
    assert family.is_gone()


async def test_no_file_socket_or_directory_remains(place: Place, folders: Path) -> None:
    # Each interpreter takes an idle supervisor that earlier tests have left.
    if fork_server._server is not None:
        fork_server._close_if_idle(fork_server._server)

    async def once() -> None:
        cells = PythonCells(place.sandbox())
        await cells.run_python("1")
        await cells.close()

    await once()
    files = len(os.listdir("/dev/fd"))
    await once()
    assert len(os.listdir("/dev/fd")) == files
    assert os.listdir(folders) == []


STARTER = """
import sys, anyio
from pathlib import Path
from nb_agents.config.tools import ToolKeys
from nb_agents.process import environment
from nb_agents.tools.base import ToolContext
from nb_agents.tools.python import PythonCells
from nb_agents.tools.sandbox import Sandbox
folder, environment.PLACE, mode, code = sys.argv[1:]
root = Path(folder)
tell = lambda text: print(text, end="", flush=True)
context = ToolContext("a", root, [], root, root / "kept", [], tell)
box = Sandbox(context, ToolKeys(sandbox=mode == "True"))
anyio.run(PythonCells(box).run_python, code)
"""


@both
def test_interpreter_ends_with_the_kernel(place: Place, family: Family, folders: Path) -> None:
    code = alive(family) + UNSTOPPABLE
    with python(STARTER, place.workspace, folders, place.is_sandboxed, code) as starter:
        assert line(starter) == "ready"
        assert not family.is_gone()
        assert len(os.listdir(folders)) == 1
        environment.remove_leftovers()
        assert len(os.listdir(folders)) == 1
        starter.kill()
        family.wait_gone()
        starter.wait()
    environment.remove_leftovers()
    assert os.listdir(folders) == []


async def test_failed_start_of_python_is_explained(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_kernel, "_LAUNCH", ["-m", "no_such_module"])
    cells = PythonCells(place.sandbox())
    with pytest.raises(ToolError, match="Python could not be started: exit code 1: .*no_such"):
        await cells.run_python("1")


@sandboxed
async def test_python_that_cannot_be_confined_is_not_run(place: Place) -> None:
    box = place.sandbox()
    box.confinement = Confinement(program="/no/such/bwrap")
    cells = PythonCells(box)
    with pytest.raises(ToolError, match="could not be started: the sandbox can.t be used"):
        await cells.run_python("1")


# Plots


@both
async def test_figures_are_saved_as_png_files_in_the_workspace(
    place: Place, cells: PythonCells
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the plots")
    said = await cells.run_python(
        "import matplotlib.pyplot as plt\n"
        "plt.plot([1, 2]); plt.show(); print('between'); plt.figure(); plt.plot([2, 1]);"
    )
    assert "[plot: plots/cell_1_1.png]\nbetween\n" in said
    assert said.endswith("[plot: plots/cell_1_2.png]")
    for name in ("cell_1_1.png", "cell_1_2.png"):
        assert (place.workspace / "plots" / name).read_bytes().startswith(PNG[:8])


def show_png(data: bytes = PNG) -> str:
    text = base64.b64encode(data).decode()
    return f"display({{'image/png': {text!r}, 'text/plain': 'a picture'}}, raw=True); "


async def test_image_numbers_are_unique(place: Place, cells: PythonCells) -> None:
    (place.workspace / "plots").mkdir()
    (place.workspace / "plots" / "cell_2_1.png").write_bytes(b"of an earlier turn")
    assert await cells.run_python(SHOW + show_png() * 2) == (
        "[plot: plots/cell_1_1.png]\n[plot: plots/cell_1_2.png]"
    )
    assert await cells.run_python(show_png()) == "[plot: plots/cell_3_1.png]"
    assert (place.workspace / "plots" / "cell_3_1.png").read_bytes() == PNG


async def test_invalid_image_is_shown_as_text(place: Place, cells: PythonCells) -> None:
    assert await cells.run_python(SHOW + show_png(b"<script>")) == "a picture"
    assert not (place.workspace / "plots").exists()


async def test_number_of_images_per_cell_is_limited(place: Place, cells: PythonCells) -> None:
    said = await cells.run_python(f"{SHOW}\nfor _ in range(25): {show_png()}")
    assert said.count("[plot: ") == 20 and said.count("A plot was not saved") == 5
    assert len(list((place.workspace / "plots").iterdir())) == 20


async def test_images_are_not_written_through_a_symlink(place: Place, cells: PythonCells) -> None:
    said = await cells.run_python(
        f"{SHOW}import os; os.symlink({str(place.given)!r}, 'plots'); {show_png()}"
    )
    assert "[Plots could not be saved: " in said
    assert [path.name for path in place.given.iterdir()] == ["data.txt"]


def test_existing_file_or_link_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    target = tmp_path / "target"
    (tmp_path / "plots" / "cell_1_1.png").symlink_to(target)
    with pytest.raises(FileExistsError):
        save_plots(tmp_path, [Plot("cell_1_1.png", PNG)])
    assert not target.exists()


def test_next_number_is_unused(tmp_path: Path) -> None:
    assert next_number(tmp_path, 4) == 5
    (tmp_path / "plots").mkdir()
    for name in ("cell_5_1.png", "cell_6_1.png", "other", "cell_x_1.png"):
        (tmp_path / "plots" / name).touch()
    assert next_number(tmp_path, 4) == 7


@pytest.mark.parametrize("value", [None, 5, "", "é", "a", "AAAA", ["x"], "A" * 20_000_000])
def test_invalid_png_is_none(value: object) -> None:
    assert decode_png(value) is None


# Untrusted


async def test_long_output_is_saved_whole_and_the_model_gets_start_and_end(
    place: Place, cells: PythonCells
) -> None:
    said = await cells.run_python("for n in range(100_000): print(n)\n'the result'")
    assert len(said) < MAX_SHOWN_CHARS + 500
    assert said.startswith("0\n1\n") and said.endswith("\n99999\n'the result'")
    (kept,) = place.kept()
    assert f"the full output is in {kept}]" in said and kept.name == "python_1.txt"
    assert kept.read_text().splitlines()[50_000] == "50000"


@pytest.mark.usefixtures("patience")
async def test_endless_output_ends_the_cell_but_keeps_variables(
    cells: PythonCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells_module, "MAX_OUTPUT_CHARS", 1_000_000)
    said = await cells.run_python("x = 1\nwhile True: print('y' * 1000)")
    assert len(said) < MAX_SHOWN_CHARS + 500
    assert said.endswith("[The cell wrote too much and was interrupted. Its variables are kept.]")
    assert await cells.run_python("x") == "1"


async def test_many_messages_do_not_block_other_tasks(place: Place) -> None:
    interpreter = python_kernel.PythonInterpreter(place.sandbox())
    turns, heard_in = itertools.count(), list[int]()
    turn = 0

    async def count() -> None:
        nonlocal turn
        while True:
            turn = next(turns)
            await checkpoint()

    def hear(message: python_kernel.Message) -> bool:
        if message.parent == request:
            if not heard_in:
                wait_until((place.workspace / "written").exists)
            heard_in.append(turn)
        return True

    try:
        await interpreter.start()
        async with create_task_group() as tasks:
            tasks.start_soon(count)
            code = "for n in range(100): print(n, flush=True)\nopen('written', 'w').close()"
            request = interpreter.begin(code)
            await interpreter.follow(request, hear)
            tasks.cancel_scope.cancel()
    finally:
        await interpreter.close()
    assert len(set(heard_in)) == len(heard_in) > 10


@pytest.mark.usefixtures("patience")
async def test_oversized_message_is_dropped_and_the_next_cell_works(cells: PythonCells) -> None:
    said = await cells.run_python("x = 1\nprint('y' * 20_000_000)")
    assert said == "[The cell wrote too much and was interrupted. Its variables are kept.]"
    assert await cells.run_python("print('on'); x") == "on\n1"


async def test_binary_output_is_text(shared: PythonCells) -> None:
    code = r"import os, sys; sys.stdout.write('a\x00\x1b[31mb\udc80\n')"
    assert (await shared.run_python(code)).startswith("a\0b")
    code = r"import subprocess; subprocess.run(['printf', r'\xff\xfe\n']);"
    assert "\ufffd" in await shared.run_python(code)


FORGE = """
from ipykernel.kernelapp import IPKernelApp
app = IPKernelApp.instance()
def forge(kind, content, parent=None):
    app.session.send(app.iopub_socket, kind, content,
                     parent=parent or get_ipython().kernel.get_parent())
for content in ({}, {"text": 5}, {"data": []}, {"data": {"text/plain": {}}}, {"traceback": 7}):
    for kind in ("stream", "display_data", "error", "status", "execute_result", "nonsense"):
        forge(kind, content)
forge("stream", {"text": "from another\\n"}, {"header": {"msg_id": "other"}, "msg_id": "other"})
app.iopub_socket.send_multipart([b"no", b"message"])
app.iopub_socket.send_multipart([b"<IDS|MSG>", b"bad signature", b"{}", b"{}", b"{}", b"{}"])
"""


async def test_invalid_messages_are_ignored(cells: PythonCells) -> None:
    assert await cells.run_python(FORGE + "print('said')") == "from another\nsaid"
    assert await cells.run_python("1") == "1"


@both
async def test_secrets_are_not_in_its_environment(
    place: Place, cells: PythonCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-2")
    monkeypatch.setenv("INNOCENT", "sk-1")
    code = "import os; print(os.environ, open('/proc/self/environ').read() if os.path.exists("
    assert "sk-" not in await cells.run_python(code + "'/proc/self/environ') else '')")


@both
async def test_sandboxed_python_sees_only_its_agents_files(
    place: Place, cells: PythonCells
) -> None:
    code = "import os; [os.path.exists(p) for p in {!r}]"
    paths = [str(place.given / "data.txt"), str(place.peer), str(Path(__file__))]
    seen = await cells.run_python(code.format(paths))
    assert seen == ("[True, False, False]" if place.is_sandboxed else "[True, True, True]")


async def test_only_the_user_can_enter_the_socket_directory(shared: PythonCells) -> None:
    folder = Path(eval(await shared.run_python("import os; os.environ['IPYTHONDIR']"))).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_invalid_code_is_reported_to_the_model(shared: PythonCells) -> None:
    (tool,) = shared.tools()
    assert tool.name == "run_python"
    result = await tool.call({"code": "'\ud800'"})
    assert result.is_error and "a lone surrogate" in result
    assert (await tool.call({"code": "1"})) == "1"
