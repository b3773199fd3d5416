"""Ten thousand sessions on disk and a thousand live turns in one process; see docs/scale.md.

Times are of this process's CPU, which other work on the machine does not lengthen, unless they are
called seconds on the clock.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import nb_agents
from bench.server import BenchServer
from bench.table import print_table, spread
from nb_agents import RunOptions, TeamSpec
from nb_agents.testing import Answer, Call, ScriptedModel, Turn, scripted_team
from tests.kit.cards import text
from tests.kit.runs import live_turns
from tests.kit.servers import MAX_LISTED
from tests.kit.sessions import LISTED, find_session, load_session, sessions_in
from tests.kit.sweeps import PruneSpec, prune
from tests.kit.verbs import session_facts

SESSIONS = 10_000
LIVE = 1_000
REPEATS = 3
SPAN_S = 10.0


def main(server: BenchServer) -> None:
    with tempfile.TemporaryDirectory() as place:
        _print_one(Path(place))
        _print_lists(Path(place))
    with tempfile.TemporaryDirectory() as place:
        _print_live(server, Path(place))


def _print_one(place: Path) -> None:
    synced = _counting_syncs()
    write = Turn(calls=(Call("write_file", {"path": "a.txt", "content": "kept"}),))
    team = scripted_team(a=ScriptedModel(write, Answer("word " * 200)))
    options = RunOptions(session_root=place / "one")
    nb_agents.start("Why is the sky blue?", team, "one", options=options).wait()
    found = [place / "one" / "one", *(place / "one" / "one").rglob("*")]
    stats = [path.lstat() for path in found]
    rows = [
        ["files, directories and links (inodes)", str(len(found))],
        ["bytes", str(sum(s.st_size for p, s in zip(found, stats, strict=True) if p.is_file()))],
        ["bytes in blocks on the disk", str(sum(s.st_blocks * 512 for s in stats))],
        ["fsyncs", str(len(synced))],
    ]
    print_table("scale: one session of one agent that writes a file and answers", ("", ""), rows)


def _counting_syncs() -> list[int]:
    calls, fsync = list[int](), os.fsync

    def counted(fd: int) -> None:
        calls.append(fd)
        fsync(fd)

    os.fsync = counted
    return calls


def _print_lists(place: Path) -> None:
    root = place / "many"
    for number in range(SESSIONS):
        session = root / f"session_20260101_{number:06}"
        shutil.copytree(place / "one" / "one", session, symlinks=True)
        os.utime(session / "turn_1" / "events.jsonl", (number, number))
    looks: dict[str, Callable[[], object]] = {
        "sessions in order of their last use": lambda: sessions_in(root),
        "one session by its name": lambda: find_session(root, "session_20260101_000007"),
        f"%agents sessions ({LISTED} of them)": lambda: [
            text.session_row(load_session(path)) for path in sessions_in(root).by_use[:LISTED]
        ],
        f"GET /sessions ({MAX_LISTED} of them)": lambda: [
            asdict(session_facts(path)) for path in sessions_in(root).by_use[:MAX_LISTED]
        ],
        "%agents prune, which counts all": lambda: prune(root, PruneSpec(1e9, is_dry_run=True)),
    }
    rows = [[name, f"{_cold(look):.2f}", spread(_cpu(look), 2)] for name, look in looks.items()]
    head = ("look", "seconds on the clock, cold", "seconds of CPU, warm")
    print_table(f"scale: {SESSIONS} sessions in one root; {_memory_mb():.0f} MB", head, rows)


def _cold(look: Callable[[], object]) -> float:
    """Measure one read with a cold disk cache; NaN if this user may not drop the cache."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return float("nan")
    began = time.perf_counter()
    look()
    return time.perf_counter() - began


def _cpu(look: Callable[[], object]) -> list[float]:
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        look()
        taken.append(time.process_time() - began)
    return taken


def _print_live(server: BenchServer, place: Path) -> None:
    server.set_pace(0.02)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    backend: dict[str, Any] = {"type": "openai", "model": "m", "base_url": server.url}
    agents = [{"id": "a", "backend": {**backend, "api_key": "k"}}]
    team = TeamSpec.model_validate({"agents": agents})
    before = _memory_mb()
    began, cpu = time.perf_counter(), time.process_time()
    options = RunOptions(session_root=place)
    runs = [nb_agents.start("t", team, options=options) for _ in range(LIVE)]
    server.wait_streaming(LIVE, 1)
    begun_s, begun_cpu = time.perf_counter() - began, time.process_time() - cpu
    idle = _idle_percent()
    listed = _cpu(live_turns)
    files = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    memory = _memory_mb() - before
    began = time.perf_counter()
    for run in runs:
        run.stop(now=True)
    closed = server.last_close()
    for run in runs:
        run.wait(raise_on_stop=False)
    over = time.perf_counter() - began
    rows = [
        ["begin them all, seconds", f"{begun_s:.1f} ({begun_cpu:.1f} of CPU)"],
        ["percent of a core while they wait", f"{idle:.0f}"],
        ["list the live ones, seconds of CPU", f"{median(listed):.2f}"],
        ["open files", f"{files} (limit by default: {soft})"],
        ["threads", str(threads)],
        ["memory, MB", f"{memory:.0f}"],
        ["stop all at once: last stream closed after, seconds", f"{closed - began:.1f}"],
        ["stop all at once: all saved after, seconds", f"{over:.1f}"],
    ]
    print_table(f"scale: {LIVE} live turns of one agent in one process", ("", ""), rows)


def _idle_percent() -> float:
    began = time.process_time()
    time.sleep(SPAN_S)
    return 100 * (time.process_time() - began) / SPAN_S


def _memory_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
