"""The time from an immediate stop to the last closed connection and to the saved turn.

Also next to live turns of other processes, as their long journals must not slow a stop.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.clients import bare_streams, live_team
from bench.server import BenchServer
from bench.table import paired_ratio, print_table, spread, verdict
from nb_agents import events as ev
from tests.kit.cells import handle_page_request
from tests.kit.runs import LOOK_S, LiveTurn, Run, announce, attach, find_live
from tests.kit.sessions import Journal, TurnPaths

SIZES = (3, 10, 100)
REPEATS = 11
WORDS_PER_SECOND = 20
CLOSED_RATIO = 2.0
ON_DISK_S = 0.25
NEIGHBOURS = (0, 3, 50)
EVENTS = 100_000
BESIDE_REPEATS = 41
BESIDE_RATIO = 1.1


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

    _print_beside(server)


def _print_beside(server: BenchServer) -> None:
    """Measure stops next to other live turns, one count after the other."""
    seconds: dict[tuple[str, int], list[float]] = {}
    with TemporaryDirectory() as folder:
        journal = _long_journal(Path(folder))
        for _ in range(BESIDE_REPEATS):
            for count in NEIGHBOURS:
                with _live_beside(journal, count):
                    for name, door in _DOORS.items():
                        seconds.setdefault((name, count), []).append(_stop_beside(server, door))
    rows = []
    for (name, count), took in sorted(seconds.items()):
        ratio = paired_ratio(took, seconds[name, 0])
        aim = (f"<= {BESIDE_RATIO}", verdict(ratio <= BESIDE_RATIO))
        if name == _BY_DISK:  # any time between two looks, whoever else is live
            aim = (f"<= {LOOK_S} s", verdict(median(took) <= LOOK_S))
        rows.append([name, str(count), spread(took, 4), f"{ratio:.2f}", *aim])
    print_table(
        f"stop: seconds from a click to the end of the request, beside live turns of {EVENTS:,} "
        f"events each, median of {BESIDE_REPEATS} (least-greatest)",
        ("door", "others", "request's end", "ratio", "aim", ""),
        rows,
    )


def _by_panel(run: Run) -> None:
    handle_page_request("stop", {"run": run.id, "immediate": True})


def _by_path(run: Run) -> None:
    """Stop it as the server does, which knows a run by its directory alone."""
    attach(run.path).stop(True)


def _by_name(run: Run) -> None:
    """Stop it as `%agents stop NAME` does."""
    find_live(run.session).stop(True)


_BY_DISK = "REST"
_DOORS: dict[str, Callable[[Run], None]] = {
    "panel": _by_panel,
    "%agents stop NAME": _by_name,
    _BY_DISK: _by_path,
}


def _stop_beside(server: BenchServer, door: Callable[[Run], None]) -> float:
    with live_team(server.url, 1) as run:
        server.wait_streaming(1)
        asked = time.monotonic()
        door(run)
        run.wait(raise_on_stop=False)
        return server.last_close() - asked


def _long_journal(folder: Path) -> Path:
    path = folder / "events.jsonl"
    journal = Journal(path)
    agents = (ev.AgentInfo(id="a", model="m"),)
    journal.append(ev.TurnStarted(session="s", turn=1, task="t", agents=agents, timeout_s=0))
    for number in range(EVENTS):
        journal.append(ev.TextStreamed(agent="a", call=1, channel="text", text=f"word {number} "))
    journal.close()
    return path


@contextmanager
def _live_beside(journal: Path, count: int) -> Iterator[None]:
    """Let so many turns be live within the block, each with this journal."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        for number in range(count):
            paths = TurnPaths(Path(folder, f"session_{number}", "turn_1"))
            paths.path.mkdir(parents=True)
            os.link(journal, paths.journal)
            stack.enter_context(paths.lock())
            turn = LiveTurn(str(paths.path), "r1", os.getpid(), "host", "other.ipynb")
            stack.callback(announce(turn))
        yield


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
