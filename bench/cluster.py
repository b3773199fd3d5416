"""A cluster on this machine: rows per second, a stop, and the scheduler's traffic."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nb_agents
from bench.server import BenchServer
from bench.sweeps import BARE, SWEEP, figures
from bench.table import print_table, spread
from nb_agents import RunOptions, TeamSpec
from tests.dask_cluster import Dask, dask
from tests.kit.runs import Run
from tests.kit.sweeps import Sweep
from tests.model_server import ModelServer, Reply, ToolCall, wait_until

ROWS = 200
PLACES = 25
WORKERS = (1, 2, 4)
ANSWER_WORDS = 20
REPEATS = 5
STREAM_S = 5.0
_BYTES_ACKED = 120
"""Where the kernel's `struct tcp_info` has the bytes sent, and after them those received."""
WAITING = 200


def main(server: BenchServer) -> None:
    """Measure the rows of a sweep, then one run's stop and its way through the scheduler."""
    text = "word " * ANSWER_WORDS
    answer = Reply(tool_calls=(ToolCall("new_answer", {"content": text}),))
    with ModelServer(default=answer) as instant:
        rows = [_rows("one kernel", *figures(instant.url, SWEEP, ROWS)[:2])]
        rows += [_on_workers(instant.url, count) for count in WORKERS]
        rows.append(_rows("the bare SDK", *figures(instant.url, BARE, ROWS)[:2]))
    print_table(
        f"cluster: {ROWS} rows of {ANSWER_WORDS} words, {PLACES} at a time for each worker, an "
        "instant server; workers that are warm",
        ("", "rows/s", "words/s"),
        rows,
    )
    _print_one_run(server)
    _print_waiting(server)


def _rows(name: str, done: float, took: float) -> list[str]:
    return [name, f"{done / took:.0f}", f"{ANSWER_WORDS * done / took:.0f}"]


def _team(url: str, model: str) -> TeamSpec:
    backend = {"type": "openai", "model": model, "base_url": url, "api_key": "k"}
    return TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})


def _on_workers(url: str, workers: int) -> list[str]:
    with TemporaryDirectory() as place, dask(Path(place), workers, PLACES) as made:
        options = RunOptions(session_root=Path(place) / "sessions", cluster=made.client)

        def sweep(name: str, count: int) -> Sweep:
            limit = workers * PLACES
            team = _team(url, "instant")
            return nb_agents.map(
                range(count), "{{value}}", team, name=name, limit=limit, options=options
            )

        sweep("warm", 2 * workers).wait()
        began = time.perf_counter()
        done = sweep("measured", ROWS).wait().completed
        return _rows(f"{workers} workers", done, time.perf_counter() - began)


def _print_one_run(server: BenchServer) -> None:
    with TemporaryDirectory() as place, dask(Path(place), 1, PLACES) as made:
        options = RunOptions(session_root=Path(place) / "sessions", cluster=made.client)
        team = _team(server.url, "paced")

        def begin(pace: float) -> Run:
            server.set_pace(pace)
            run = nb_agents.start("the task", team, options=options)
            server.wait_streaming(1)
            return run

        _stop_ms(begin(50), server)  # includes the imports
        stops = [_stop_ms(begin(50), server) for _ in range(REPEATS)]
        idle = _carried(made, lambda: time.sleep(STREAM_S))
        run = begin(500)
        before = run.view.seq
        streaming = _carried(made, lambda: time.sleep(STREAM_S))
        words = STREAM_S * 500
        assert run.view.seq > before
        run.stop(True)
        run.wait(raise_on_stop=False)
    rows = [
        ["from a stop at once until the connection is closed, ms", spread(stops, 0)],
        [f"bytes through the scheduler in {STREAM_S:g} s, idle", f"{idle:.0f}"],
        [f"the same while {words:.0f} words are streamed", f"{streaming:.0f}"],
        ["more, for each word", f"{max(0.0, streaming - idle) / words:.1f}"],
    ]
    print_table(f"cluster: one run, median of {REPEATS} (least-greatest)", ("", ""), rows)


def _print_waiting(server: BenchServer) -> None:
    """Measure the scheduler's load by runs that wait for a worker."""
    rows = []
    with TemporaryDirectory() as place, dask(Path(place), 1, places=1) as made:
        options = RunOptions(session_root=Path(place) / "sessions", cluster=made.client)
        for waiting in (1, WAITING):
            server.set_pace(1)
            sweep = nb_agents.map(
                range(waiting + 1),
                "{{value}}",
                _team(server.url, "paced"),
                name=f"waiting-{waiting}",
                limit=waiting + 1,
                options=options,
            )
            server.wait_streaming(1)
            tickets = sweep.path / ".tickets"
            wait_until(lambda: len([*tickets.iterdir()]) == waiting, 120)  # noqa: B023
            used = _cpu_s_of(made.scheduler.pid)
            carried = _carried(made, lambda: time.sleep(STREAM_S))
            used = _cpu_s_of(made.scheduler.pid) - used
            rows.append([str(waiting), f"{100 * used / STREAM_S:.0f}", f"{carried / STREAM_S:.0f}"])
            sweep.stop(True)
            sweep.wait()
    heads = ("waiting", "the scheduler, % of a core", "bytes through it a second")
    print_table("cluster: runs that wait for a place", heads, rows)


def _cpu_s_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stop_ms(run: Run, server: BenchServer) -> float:
    asked = time.monotonic()
    run.stop(True)
    closed = server.last_close()
    run.wait(raise_on_stop=False)
    return 1000 * (closed - asked)


def _carried(made: Dask, during: Callable[[], Any]) -> float:
    """Return how many bytes the scheduler's connections carry meanwhile, in and out."""
    before = made.client.run_on_scheduler(_bytes_by_socket)
    during()
    after: dict[Any, int] = made.client.run_on_scheduler(_bytes_by_socket)
    return sum(count - before.get(name, 0) for name, count in after.items())


def _bytes_by_socket() -> dict[Any, int]:
    """Return what each TCP connection of this process has carried; /proc counts no sockets."""
    found = dict[Any, int]()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as each:
            told = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            ends = (each.getsockname(), each.getpeername())  # a listener has no peer
            found[ends] = sum(struct.unpack_from("=QQ", told, _BYTES_ACKED))
    return found
