"""Every door, both levels, every state of the kernel: how soon a stop is felt, printed by state.

Each run is stopped by one door alone, first gracefully and then at once; what its journal says of
both stops is a cell of the table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.doors import ELSEWHERE, OF_THE_KERNEL, Doors, open_doors, stops
from tests.kernel.notebook import Notebook, Turn
from tests.model_server import ModelServer, wait_until
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
    """Keep the kernel busy; in Python until the end of the block, in C for its own time.

    Gives the cell that does so, or "".
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
    # Not for its "busy": that comes before its code, and from who holds the GIL perhaps after it.
    wait_until(begun.exists, 60, "the cell's code to begin")
    yield cell
    flag.touch()


def felt(doors: Doors, state: str, door: str, turn: Turn, flag: Path) -> str:
    """Stop a run gracefully and then at once; say how soon its writer took each."""
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
    """Interrupt a kernel that has something else to do; the run goes on, and is ended by REST."""
    with busy(doors.notebook, state, flag) as cell:
        doors.press(door, turn, False)
        if cell:
            assert doors.notebook.kernel.result(cell).status == "error"
    doors.press("REST", turn, True)
    turn.wait_over()
    assert {source for _, source, _ in stops(turn)} == {"rest"}
    return "the cell alone" if state != "detached" else "goes on"


def all_over(doors: Doors) -> dict[str, str]:
    """Let a kernel die whose run is at work; say what each door tells of it."""
    turn = doors.notebook.start_held()
    doors.notebook.kernel.kill()
    told = dict.fromkeys(OF_THE_KERNEL, "no kernel")
    for door in ELSEWHERE:
        doors.press(door, turn, True)
        said = doors.said.pop(door)()
        assert "over" in said or "kernel died" in said, said
        told[door] = "over, words kept"
    assert stops(turn) == []
    assert all(turn.streamed().values())
    return told


def each_alone(doors: Doors, state: str, place: Path) -> dict[str, str]:
    """Stop a run by each door alone; say how soon it was felt."""
    told = {}
    for door in DOORS:
        turn = doors.notebook.start_held("--detach" if state == "detached" else "")
        ways = left_alone if door == "■" and state != "idle" else felt
        told[door] = ways(doors, state, door, turn, place / f"{door} {state}")
    return told


@pytest.mark.parametrize("state", STATES)
@pytest.mark.timeout(900)
def test_every_door_stops_a_run_whatever_its_kernel_does(
    doors: Doors, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = all_over(doors) if state == "dead" else each_alone(doors, state, tmp_path)
    assert set(told) == set(DOORS)
    with capsys.disabled():
        print(f"\nThe kernel is {state}: s from a press until the writer has it, gentle / at once")
        print("\n".join(f"{door:>18}  {told[door]}" for door in DOORS))
