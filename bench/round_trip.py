"""The response time of a cell while twenty agents stream in its kernel or another process.

A machine of two cores answers later when other processes do any work. What a detached run costs
the kernel that follows it is compared with one that this kernel knows nothing of. The page is
JupyterLab's with our extension, or one that has the kernel send it what its widget draws.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import NamedTuple

from bench.notebook import START, draw_from_disk, live_notebook, seconds, stop_and_wait
from bench.server import BenchServer
from bench.table import p95, print_table, verdict
from tests.kernel.driver import Kernel

AGENTS = 20
WORDS_PER_SECOND = 50
CELLS = 100
ROUNDS = 4
CLI = (sys.executable, "-m", "nb_agents.cli")


class Kind(NamedTuple):
    """What goes on while cells are run.

    Attributes:
        begin, end: Make it continue.
        next_to: The kinds that it is compared with, and how many times as long cells may take.
    """

    begin: Callable[[Kernel], object]
    end: Callable[[Kernel], object]
    next_to: Mapping[str, float | None]


def main(server: BenchServer) -> None:
    server.set_pace(WORDS_PER_SECOND)
    times: dict[str, list[float]] = {name: [] for name in KINDS}
    with live_notebook(server.url, AGENTS) as kernel:
        kernel.run("%load_ext nb_agents")
        names = [*KINDS]
        for turn in range(-1, ROUNDS):
            for name in names:
                KINDS[name].begin(kernel)
                if name != "idle":
                    server.wait_streaming(AGENTS)
                took = [seconds(kernel, "1 + 1") for _ in range(CELLS)]
                KINDS[name].end(kernel)
                if turn >= 0:  # the first time pays for what only a first run pays, too: imports
                    times[name] += took
            names = [*names[1:], names[0]]  # or one would always come behind the same other
    title = (
        f"round_trip: milliseconds of `1 + 1`, {AGENTS} agents x {WORDS_PER_SECOND} words/s, "
        f"{ROUNDS} x {CELLS} cells of each kind in turn"
    )
    head = ("agents", "median", "p95", "greatest", "next to", "ratio", "aim", "")
    print_table(title, head, [*_rows(times)])


def _elsewhere(kernel: Kernel) -> None:
    _call(kernel, "run", "--detach", "--config", "team.json", "--session", "apart", "Write.")


def _stop_elsewhere(kernel: Kernel) -> None:
    _call(kernel, "stop", "apart", "--now")


def _call(kernel: Kernel, *words: str) -> None:
    subprocess.run([*CLI, *words], cwd=kernel.cwd, capture_output=True, check=True)


def _nothing(kernel: Kernel) -> None: ...


def _start(kernel: Kernel) -> None:
    seconds(kernel, START)
    draw_from_disk(kernel)


def _start_widget(kernel: Kernel) -> None:
    seconds(kernel, START)


def _detach(kernel: Kernel) -> None:
    seconds(kernel, START.replace("\n", " --detach\n", 1))
    draw_from_disk(kernel)


KINDS = {
    "idle": Kind(_nothing, _nothing, {}),
    "streaming": Kind(_start, stop_and_wait, {"idle": 1.5}),
    "streaming, a widget": Kind(_start_widget, stop_and_wait, {"idle": None}),
    "elsewhere": Kind(_elsewhere, _stop_elsewhere, {"idle": None}),
    "detached": Kind(_detach, stop_and_wait, {"elsewhere": 1.1, "idle": 1.1}),
}


def _rows(times: dict[str, list[float]]) -> Iterator[list[str]]:
    for name, kind in KINDS.items():
        if not kind.next_to:
            yield [name, *_times(times[name]), "", "", "", ""]
        for other, aim in kind.next_to.items():
            ratio = median(times[name]) / median(times[other])
            told = ["", ""] if aim is None else [f"<= {aim}", verdict(ratio <= aim)]
            yield [name, *_times(times[name]), other, f"{ratio:.2f}", *told]


def _times(values: list[float]) -> list[str]:
    return [f"{1000 * value:.1f}" for value in (median(values), p95(values), max(values))]
