"""A live kernel with a team file, for the benchmarks that need one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.clients import team
from tests.kernel.driver import Kernel
from tests.kit.cells import DRAWN_REQUEST

__all__ = ["START", "draw_from_disk", "live_notebook", "seconds", "stop_and_wait"]

START = "%%agents --config team.json\nWrite at length."
_STOP = "%agents stop --now\n%agents wait"


@contextmanager
def live_notebook(url: str, agents: int) -> Iterator[Kernel]:
    """Yield a kernel whose directory has a team file with this many agents."""
    with Kernel(cold=True) as kernel:
        (kernel.cwd / "team.json").write_text(json.dumps(team(url, agents)))
        yield kernel


def seconds(kernel: Kernel, code: str) -> float:
    """Run a cell that must succeed; seconds until all of its output is here."""
    began = time.perf_counter()
    result = kernel.run(code, timeout_s=60)
    took = time.perf_counter() - began
    assert result.status == "ok", result.error
    return took


def draw_from_disk(kernel: Kernel) -> None:
    """Be JupyterLab with our extension: draw the latest run without its kernel."""
    states = [comm.state.get("state", {}) for comm in kernel.comms.values() if comm.is_open]
    [shown] = [f"{state['session']}/{state['turn']}" for state in states if "turn" in state]
    kernel.control(DRAWN_REQUEST, {"shown": shown})


def stop_and_wait(kernel: Kernel) -> None:
    """End the latest run."""
    seconds(kernel, _STOP)
