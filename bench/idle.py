"""The CPU time of a live run that waits for its models."""

from __future__ import annotations

import time
from statistics import median

from bench.clients import Show, live_team
from bench.server import BenchServer
from bench.table import print_table, spread, verdict

AGENTS = 3
REPEATS = 5
SPAN_S = 5.0
PERCENT = 0.2


def main(server: BenchServer) -> None:
    server.set_pace(0.001)
    rows = [
        _row(server, "on a page that draws from the disk", lambda run: lambda view: None),
        _row(server, "on a page that draws the widget"),
    ]
    print_table(
        f"idle: percent of a core that a live run of {AGENTS} agents takes without news, "
        f"median of {REPEATS} times {SPAN_S:g} s (least-greatest)",
        ("run", "percent", "aim", ""),
        rows,
    )


def _row(server: BenchServer, name: str, show: Show | None = None) -> list[str]:
    with live_team(server.url, AGENTS, show):
        server.wait_streaming(AGENTS, 1)
        _percent()  # what came with the start
        values = [_percent() for _ in range(REPEATS)]
    return [name, spread(values), f"<= {PERCENT}", verdict(median(values) <= PERCENT)]


def _percent() -> float:
    """Measure a span; this thread sleeps through it."""
    began = time.process_time()
    time.sleep(SPAN_S)
    return 100 * (time.process_time() - began) / SPAN_S
