"""How quickly a cell answers while twenty agents stream in its kernel."""

from __future__ import annotations

from statistics import median

from tests.bench.notebook import START, live_notebook, seconds, stop_and_wait
from tests.bench.server import BenchServer
from tests.bench.table import p95, print_table, verdict
from tests.kernel.driver import Kernel

AGENTS = 20
WORDS_PER_SECOND = 50
CELLS = 100
ROUNDS = 3
RATIO = 1.5


def main(server: BenchServer) -> None:
    server.set_pace(WORDS_PER_SECOND)
    idle: list[float] = []
    streaming: list[float] = []
    with live_notebook(server.url, AGENTS) as kernel:
        kernel.run("%load_ext nb_agents")
        _start_and_stop(kernel, server)
        for _ in range(ROUNDS):
            idle += [seconds(kernel, "1 + 1") for _ in range(CELLS)]
            seconds(kernel, START)
            server.wait_streaming(AGENTS)
            streaming += [seconds(kernel, "1 + 1") for _ in range(CELLS)]
            stop_and_wait(kernel)
    ratio = median(streaming) / median(idle)
    rows = [
        ["idle", *_times(idle), "", "", ""],
        ["streaming", *_times(streaming), f"{ratio:.2f}", f"<= {RATIO}", verdict(ratio <= RATIO)],
    ]
    title = (
        f"round_trip: milliseconds of `1 + 1`, {AGENTS} agents x {WORDS_PER_SECOND} words/s, "
        f"{ROUNDS} x {CELLS} cells of each kind in turn"
    )
    print_table(title, ("kernel", "median", "p95", "greatest", "ratio", "aim", ""), rows)


def _start_and_stop(kernel: Kernel, server: BenchServer) -> None:
    """Pay once for what only a first run pays: imports."""
    seconds(kernel, START)
    server.wait_streaming(AGENTS)
    stop_and_wait(kernel)


def _times(values: list[float]) -> list[str]:
    return [f"{1000 * value:.1f}" for value in (median(values), p95(values), max(values))]
