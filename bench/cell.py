"""How long a cell with `%%agents` takes: it starts a team of three and returns."""

from __future__ import annotations

from statistics import median

from bench.notebook import START, live_notebook, seconds, stop_and_wait
from bench.server import BenchServer
from bench.table import print_table, spread, verdict
from tests.kernel.driver import Kernel

AGENTS = 3
KERNELS = 3
WARM = 10
WARM_S = 0.15
FIRST_S = 0.3
_IS_IMPORTED = "hasattr(__import__('sys').modules.get('openai.resources.chat.chat'), 'AsyncChat')"


def main(server: BenchServer) -> None:
    server.set_pace(20)
    at_once, later, warm = [], [], []
    for _ in range(KERNELS):
        at_once.append(_first(server, wait=False))
        later.append(_first(server, wait=True, then=warm))
    rows = [
        _row("first, at once after %load_ext", at_once, FIRST_S),
        _row("first, when its imports are done", later, FIRST_S),
        _row("warm", warm, WARM_S),
    ]
    title = (
        f"cell: seconds from sending %%agents to the end of the cell, {AGENTS} agents; "
        f"median of {KERNELS} kernels, warm: {len(warm)} cells (least-greatest)"
    )
    print_table(title, ("cell", "seconds", "aim", ""), rows)


def _row(kind: str, taken: list[float], aim_s: float) -> list[str]:
    return [kind, spread(taken), f"<= {aim_s}", verdict(median(taken) <= aim_s)]


def _first(server: BenchServer, *, wait: bool, then: list[float] | None = None) -> float:
    with live_notebook(server.url, AGENTS) as kernel:
        kernel.run("%load_ext nb_agents")
        if wait:
            kernel.wait_until(lambda: kernel.eval(_IS_IMPORTED))
        first = seconds(kernel, START)
        stop_and_wait(kernel)
        if then is not None:
            then += [_one(kernel) for _ in range(WARM)]
        return first


def _one(kernel: Kernel) -> float:
    took = seconds(kernel, START)
    stop_and_wait(kernel)
    return took
