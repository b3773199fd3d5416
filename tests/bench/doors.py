"""From a press of each door until the run's writer has the stop, beside a bare control message."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from tests.bench.server import BenchServer
from tests.bench.table import print_table, spread
from tests.kernel.doors import ELSEWHERE, OF_THE_KERNEL, REPLY_S, Doors, open_doors, stops
from tests.kernel.notebook import play
from tests.model_server import ModelServer
from tests.server.conftest import jupyter_server

REPEATS = 5


def main(_: BenchServer) -> None:
    """Press each door of idle kernels, several times in turn."""
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
        [door, spread(values, 1), f"{median(values) / bare:.1f}"]
        for door, (_, *values) in took.items()  # the first one pays for imports
    ]
    print_table(
        f"doors: milliseconds from a press until the stop is in the journal, median of {REPEATS} "
        "(least-greatest); for a bare control message until its reply. The command line starts a "
        f"Python, the plugin waits {REPLY_S:g} s for the kernel first",
        ("door", "ms", "ratio"),
        rows,
    )


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
