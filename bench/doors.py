"""The time from a stop at each entry point until the run's writer has it, and to list runs."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import nb_agents
from bench.server import BenchServer
from bench.table import print_table, spread, verdict
from tests.kernel.doors import ELSEWHERE, OF_THE_KERNEL, REPLY_S, Doors, open_doors, stops
from tests.kernel.notebook import play
from tests.model_server import ModelServer
from tests.server.conftest import jupyter_server
from tests.turns.test_many_processes import PROCESSES, RUNS, all_held

REPEATS = 5
AIM_MS = dict.fromkeys(("other kernel", "REST", "client"), 150)
"""Entry points of other processes that are already running."""
LIST_AIM_S = 0.2


def main(_: BenchServer) -> None:
    """Use the entry points, and list runs."""
    _print_doors()
    _print_list()


def _print_doors() -> None:
    """Use each entry point of idle kernels several times in turn."""
    took: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as home,
        ModelServer(default=play) as server,
        jupyter_server(Path(home)) as jupyter,
        open_doors(jupyter, server) as doors,
    ):
        for _ in range(REPEATS + 1):
            took.setdefault("bare control message", []).append(_bare_ms(doors))
            for door in (*OF_THE_KERNEL, *ELSEWHERE):
                took.setdefault(door, []).append(_press_ms(doors, door))
    bare = median(took["bare control message"][1:])
    rows = [
        [door, spread(values, 1), f"{median(values) / bare:.1f}", *_aimed(door, median(values))]
        for door, (_, *values) in took.items()  # the first one pays for imports
    ]
    print_table(
        f"doors: milliseconds from a press until the stop is in the journal, median of {REPEATS} "
        "(least-greatest); for a bare control message until its reply. The command line starts a "
        f"Python, the plugin waits {REPLY_S:g} s for the kernel first",
        ("door", "ms", "ratio", "aim", ""),
        rows,
    )


def _aimed(door: str, took_ms: float) -> tuple[str, str]:
    aim = AIM_MS.get(door)
    return ("", "") if aim is None else (f"<= {aim}", verdict(took_ms <= aim))


def _print_list() -> None:
    """List the runs of many processes, as one does that has looked at none of them before."""
    with tempfile.TemporaryDirectory() as root, all_held(Path(root)) as writers:
        took = [_list_s() for _ in range(REPEATS + 1)]
        for run in nb_agents.runs():
            run.stop(now=True)
        writers.wait(60)
    aimed = f"<= {LIST_AIM_S}"
    print_table(
        f"doors: seconds in which {PROCESSES * RUNS} live runs of {PROCESSES} processes are listed",
        ("look", "s", "aim", ""),
        [
            ["the first", spread(took[:1]), aimed, verdict(took[0] <= LIST_AIM_S)],
            ["later", spread(took[1:]), aimed, verdict(median(took[1:]) <= LIST_AIM_S)],
        ],
    )


def _list_s() -> float:
    began = time.perf_counter()
    found = nb_agents.runs()
    took_s = time.perf_counter() - began
    assert sum(run.status == "in-progress" for run in found) == PROCESSES * RUNS
    return took_s


def _bare_ms(doors: Doors) -> float:
    began = time.perf_counter()
    doors.notebook.kernel.control("kernel_info_request")
    return 1000 * (time.perf_counter() - began)


def _press_ms(doors: Doors, door: str) -> float:
    turn = doors.notebook.start_held()
    began = time.time()
    doors.press(door, turn, False)
    turn.wait_stop()
    [(_, _, at)] = stops(turn)
    if door in doors.said:
        doors.said.pop(door)()
    doors.notebook.server.release()
    turn.wait_over()
    return 1000 * (at - began)
