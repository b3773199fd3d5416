"""From an immediate stop to the last closed connection, and to the turn complete on disk."""

from __future__ import annotations

import asyncio
import json
import time
from statistics import median
from typing import NamedTuple

from tests.bench.clients import bare_streams, live_team
from tests.bench.server import BenchServer
from tests.bench.table import paired_ratio, print_table, spread, verdict

SIZES = (3, 10, 100)
REPEATS = 11
WORDS_PER_SECOND = 20
CLOSED_RATIO = 2.0
ON_DISK_S = 0.25


class Stopped(NamedTuple):
    """Seconds from the stop of a team."""

    to_closed: float
    to_disk: float


def main(server: BenchServer) -> None:
    server.set_pace(WORDS_PER_SECOND)
    rows = [_row(server, size) for size in SIZES]
    print_table(
        f"stop: seconds from an immediate stop, streams of {WORDS_PER_SECOND} words/s, "
        f"median of {REPEATS} (least-greatest)",
        ("agents", "all closed", "bare", "ratio", "aim", "", "on disk", "aim", ""),
        rows,
    )


def _row(server: BenchServer, size: int) -> list[str]:
    bare: list[float] = []
    teams: list[Stopped] = []
    for _ in range(REPEATS):
        bare.append(asyncio.run(_stop_bare(server, size)))
        teams.append(_stop_team(server, size))
    closed, on_disk = [t.to_closed for t in teams], [t.to_disk for t in teams]
    ratio = paired_ratio(closed, bare)
    is_quick = median(on_disk) <= ON_DISK_S
    return [
        *(str(size), spread(closed, 4), spread(bare, 4)),
        *(f"{ratio:.1f}", f"<= {CLOSED_RATIO}", verdict(ratio <= CLOSED_RATIO)),
        *(spread(on_disk), f"<= {ON_DISK_S}", verdict(is_quick)),
    ]


async def _stop_bare(server: BenchServer, size: int) -> float:
    async with bare_streams(server.url, size) as tasks:
        await asyncio.to_thread(server.wait_streaming, size)
        # Asked from another thread, as every stop of a run is.
        asked = await asyncio.to_thread(_cancel, tasks, asyncio.get_running_loop())
        await asyncio.wait(tasks)
        return await asyncio.to_thread(server.last_close) - asked


def _cancel(tasks: list[asyncio.Task[None]], loop: asyncio.AbstractEventLoop) -> float:
    asked = time.monotonic()
    loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
    return asked


def _stop_team(server: BenchServer, size: int) -> Stopped:
    with live_team(server.url, size) as run:
        server.wait_streaming(size)
        asked, asked_ns = time.monotonic(), time.time_ns()
        run.stop(now=True)
        run.wait(raise_on_stop=False)
        file = run.path / "metadata.json"
        assert json.loads(file.read_text())["run_status"] == "cancelled"
        # A rename changes the ctime: that moment is when readers see the new file.
        return Stopped(server.last_close() - asked, (file.stat().st_ctime_ns - asked_ns) / 1e9)
