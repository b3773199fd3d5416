"""How quickly a cell answers while twenty agents stream in its kernel, or detached from it."""

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
STARTS = {"streaming": START, "detached": START.replace("\n", " --detach\n", 1)}
RATIOS = {"streaming": 1.5, "detached": 1.1}


def main(server: BenchServer) -> None:
    server.set_pace(WORDS_PER_SECOND)
    times: dict[str, list[float]] = {"idle": [], **{name: [] for name in STARTS}}
    with live_notebook(server.url, AGENTS) as kernel:
        kernel.run("%load_ext nb_agents")
        for start in STARTS.values():
            _start(kernel, server, start)
            stop_and_wait(kernel)
        for _ in range(ROUNDS):
            times["idle"] += _round_trips(kernel)
            for name, start in STARTS.items():
                _start(kernel, server, start)
                times[name] += _round_trips(kernel)
                stop_and_wait(kernel)
    title = (
        f"round_trip: milliseconds of `1 + 1`, {AGENTS} agents x {WORDS_PER_SECOND} words/s, "
        f"{ROUNDS} x {CELLS} cells of each kind in turn"
    )
    rows = [["idle", *_times(times["idle"]), "", "", ""]]
    for name, aim in RATIOS.items():
        ratio = median(times[name]) / median(times["idle"])
        rows.append(
            [name, *_times(times[name]), f"{ratio:.2f}", f"<= {aim}", verdict(ratio <= aim)]
        )
    print_table(title, ("kernel", "median", "p95", "greatest", "ratio", "aim", ""), rows)


def _start(kernel: Kernel, server: BenchServer, start: str) -> None:
    """Start a team; the first time that pays for what only a first run pays, too: imports."""
    seconds(kernel, start)
    server.wait_streaming(AGENTS)


def _round_trips(kernel: Kernel) -> list[float]:
    return [seconds(kernel, "1 + 1") for _ in range(CELLS)]


def _times(values: list[float]) -> list[str]:
    return [f"{1000 * value:.1f}" for value in (median(values), p95(values), max(values))]
