"""How soon a stop takes effect, by entry point, level and state of the kernel, as a table.

Each run is stopped by one entry point, first gracefully and then immediately. The table shows both
stops from its journal. The tests below cover front ends other than JupyterLab.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.doors import ELSEWHERE, OF_THE_KERNEL, Doors, open_doors, stops
from tests.kernel.driver import Kernel
from tests.kernel.notebook import AGENTS, HELD, TURN_MIME, Notebook, Turn
from tests.kernel.test_notebook import wait_frozen
from tests.kernel.test_stops import SLEEP
from tests.kernel.test_tools import use_team
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.server.conftest import JupyterServer, jupyter_server

GIL_S = 5

QUEUED = ("cell",)
DOORS = (*OF_THE_KERNEL, *ELSEWHERE)
STATES = ("idle", "busy in Python", "holding the GIL", "dead", "detached")


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    with jupyter_server(tmp_path_factory.mktemp("jupyter")) as server:
        yield server


@pytest.fixture
def doors(jupyter: JupyterServer, server: ModelServer) -> Iterator[Doors]:
    with open_doors(jupyter, server) as doors:
        yield doors


@contextmanager
def busy(notebook: Notebook, state: str, flag: Path) -> Iterator[str]:
    """Keep the kernel busy, in Python until the end of the block, or in C for a fixed time.

    Yields the id of the cell, or "".
    """
    hold = {
        "busy in Python": f"import os\nwhile not os.path.exists({str(flag)!r}): pass",
        "holding the GIL": f"import ctypes\nctypes.PyDLL(None).sleep({GIL_S})",
    }.get(state)
    if hold is None:
        yield ""
        return
    begun = flag.with_suffix(".begun")
    cell = notebook.kernel.send(f"open({str(begun)!r}, 'x').close()\n{hold}")
    # Don't wait for "busy", which is sent before the code runs and may be late if C holds the GIL.
    wait_until(begun.exists, 60, "the cell's code to begin")
    yield cell
    flag.touch()


def felt(doors: Doors, state: str, door: str, turn: Turn, flag: Path) -> str:
    """Stop a run gracefully and then immediately. Return how soon each stop took effect."""
    told = []
    with busy(doors.notebook, state, flag):
        for level, now in (("requested", False), ("immediate", True)):
            began = time.time()
            doors.press(door, turn, now)
            if state == "busy in Python" and door in QUEUED:
                flag.touch()  # it waits for the cell
            turn.wait_stop(level)
            found = next(at for each, _, at in stops(turn) if each == level)
            told.append(f"{found - began:.2f}")
            if door in doors.said:
                doors.said.pop(door)()
    turn.wait_over()
    assert all(turn.streamed().values())
    assert turn.metadata["run_status"] == "cancelled"
    is_queued = state == "busy in Python" and door in QUEUED
    return "behind that cell" if is_queued else " / ".join(told)


def left_alone(doors: Doors, state: str, door: str, turn: Turn, flag: Path) -> str:
    """Interrupt a busy kernel; the run continues and is ended by REST."""
    with busy(doors.notebook, state, flag) as cell:
        doors.press(door, turn, False)
        if cell:
            assert doors.notebook.kernel.result(cell).status == "error"
    doors.press("REST", turn, True)
    turn.wait_over()
    assert {source for _, source, _ in stops(turn)} == {"rest"}
    return "the cell alone" if state != "detached" else "goes on"


def all_over(doors: Doors) -> dict[str, str]:
    """Kill a kernel during its run. Return what each entry point shows."""
    turn = doors.notebook.start_held()
    doors.notebook.kernel.kill()
    told = dict.fromkeys(OF_THE_KERNEL, "no kernel")
    for door in ELSEWHERE:
        doors.press(door, turn, True)
        said = doors.said.pop(door)()
        assert "over" in said or "kernel died" in said, said
        told[door] = "over, words saved"
    assert stops(turn) == []
    assert all(turn.streamed().values())
    return told


def each_alone(doors: Doors, state: str, place: Path) -> dict[str, str]:
    """Stop a run by each entry point. Return how soon each stop took effect."""
    told = {}
    for door in DOORS:
        turn = doors.notebook.start_held("--detach" if state == "detached" else "")
        ways = left_alone if door == "■" and state != "idle" else felt
        told[door] = ways(doors, state, door, turn, place / f"{door} {state}")
    return told


@pytest.mark.parametrize("state", STATES)
@pytest.mark.timeout(900)
def test_every_entry_point_stops_a_run_in_every_kernel_state(
    doors: Doors, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = all_over(doors) if state == "dead" else each_alone(doors, state, tmp_path)
    assert set(told) == set(DOORS)
    with capsys.disabled():
        print(f"\nThe kernel is {state}: s from a press until the writer has it, gentle / at once")
        print("\n".join(f"{door:>18}  {told[door]}" for door in DOORS))


# Front ends with widgets that use only the shell channel, without a subshell

CLIENTS: dict[str, Callable[[Kernel], object]] = {
    "like VS Code": Kernel.shutdown,
    "like Colab, which asks a kernel for nothing": Kernel.kill,
}
"""Ways to end a kernel."""


@pytest.mark.parametrize("client", CLIENTS)
def test_front_end_with_only_the_shell_channel_reaches_its_runs(
    open_notebook: Callable[..., Notebook], client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = open_notebook()
    told = {
        **of_a_busy_cell(notebook),
        "■, idle": of_an_idle_kernel(notebook),
        "the kernel's end": of_its_end(notebook, CLIENTS[client], open_notebook),
    }
    assert all(told.values())
    with capsys.disabled():
        print(f"\nA front end {client}")
        print("\n".join(f"{what:>20}  {became}" for what, became in told.items()))


def of_a_busy_cell(notebook: Notebook) -> dict[str, str]:
    """Press each button of the panels while a cell runs, then interrupt it. Return the effects."""
    asking, held = start_asking(notebook), notebook.start_held()
    blocked = notebook.kernel.send(SLEEP)
    notebook.kernel.wait_stdout(blocked, "begun")
    told = {}

    def press(turn: Turn, **content: object) -> None:
        message = {"run": turn.run, "id": f"of {turn.run}", **content}
        notebook.kernel.send_custom(notebook.panel(turn).comm_id, message)

    press(held, type="say", text="And be brief.")
    said = lambda: notebook.panel(held).state["state"]["said"]  # noqa: E731
    told["a text, busy"] = notebook.kernel.wait_until(said, 60, "the text on the panel")["text"]
    assert held.events("said")
    [gate] = notebook.panel(asking).state["state"]["gates"]
    press(asking, type="approve", gate=gate["id"])
    told["Approve, busy"] = wait_frozen(notebook, asking).data[TURN_MIME]["state"]
    notebook.press(held)
    told["Stop, busy"] = wait_chip(notebook, held, "Stopping")
    notebook.press(held, now=True)
    told["Stop now, busy"] = wait_frozen(notebook, held).data[TURN_MIME]["state"]
    assert [e["partial_text"] for e in held.partial_answers.values()] == [HELD] * 3
    assert notebook.kernel.outputs_of(blocked).is_busy
    error = notebook.kernel.interrupt_cell(blocked)
    assert error
    told["■, busy"] = f"the cell alone: {error.ename}"
    return told


def start_asking(notebook: Notebook) -> Turn:
    """Start one agent with a call that needs approval; the model's streams are never held."""
    team = notebook.team
    policy = [{"match": "run_command", "action": "ask"}]
    use_team(notebook, enable_mcp_command_line=True, tool_policy=policy)
    call = ToolCall("run_command", {"command": "echo made"})
    answer = ToolCall("new_answer", {"content": "It is made."})
    notebook.server.script("m", Reply(tool_calls=(call,)), Reply(tool_calls=(answer,)))
    notebook.server.hold(after=1000, model="m")
    turn = notebook.start()
    wait_chip(notebook, turn, "awaiting approval")
    notebook.team = team
    return turn


def wait_chip(notebook: Notebook, turn: Turn, begin: str) -> str:
    """Wait until the panel's chip starts with a text, and return it."""
    chip = lambda: str(notebook.panel(turn).state["state"]["chip"])  # noqa: E731
    notebook.kernel.wait_until(lambda: chip().startswith(begin), 60, f"the chip {begin!r}", chip)
    return chip()


def of_an_idle_kernel(notebook: Notebook) -> str:
    """Interrupt twice and return what the user sees."""
    turn = notebook.start_held()
    notebook.kernel.interrupt()
    chip = wait_chip(notebook, turn, "Stopping")
    notebook.kernel.interrupt()
    return f"{chip}, then {wait_frozen(notebook, turn).data[TURN_MIME]['state']}"


def of_its_end(
    notebook: Notebook, end: Callable[[Kernel], object], open_notebook: Callable[..., Notebook]
) -> str:
    """End the kernel during a run and return what the next kernel reports."""
    turn = notebook.start_held()
    end(notebook.kernel)
    notebook.server.wait_closed()
    assert turn.streamed() == dict.fromkeys(AGENTS, HELD)
    later = open_notebook(load=False)
    cells = ("%load_ext nb_agents", f"%agents show {turn.session}")
    said = [later.text(later.kernel.run(cell)).strip() for cell in cells]
    return " / ".join(each.partition("\n")[0] for each in said if each)
