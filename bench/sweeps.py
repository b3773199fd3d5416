"""Sweeps of many rows: rows per second compared with the bare SDK, and memory.

Each runs in a separate process, so that their memory is separate. Also a sweep that is killed half
way: the same call continues it, and repeats only calls in flight.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.server import BenchServer
from bench.table import print_table, verdict
from tests.kit.sweeps import fold_notes, sweep_paths
from tests.model_server import ModelServer, Reply, ToolCall, wait_until

ROWS = 500
MANY_ROWS = 2_000
LIMIT = 25
ROWS_PER_S = 30
MEMORY_MB = 250

_ROOT = Path(__file__).parents[1]
_HEAD = """
import asyncio, json, resource, sys, time
url, place, count, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
"""
SWEEP = """
import nb_agents
team = nb_agents.TeamSpec.model_validate({"agents": [{"id": "a", "backend": {
    "type": "openai", "model": "instant", "base_url": url, "api_key": "k"}}]})
began = time.perf_counter()
sweep = nb_agents.map(range(count), "row-{{value}}-row", team, limit=limit,
                      options=nb_agents.RunOptions(session_root=place))
done = sweep.wait().completed
"""
BARE = """
from openai import AsyncOpenAI
began = time.perf_counter()
async def ask(client, slots, row):
    async with slots:
        asked = [{"role": "user", "content": str(row)}]
        stream = await client.chat.completions.create(model="instant", messages=asked, stream=True)
        async for chunk in stream:
            pass
async def main():
    async with AsyncOpenAI(base_url=url, api_key="k") as client:
        slots = asyncio.Semaphore(limit)
        await asyncio.gather(*(ask(client, slots, row) for row in range(count)))
asyncio.run(main())
done = count
"""
_TAIL = """
took = time.perf_counter() - began
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([done, took, memory]))
"""


def main(server: BenchServer) -> None:
    answer = ToolCall("new_answer", {"content": "A short answer."})
    with ModelServer(default=Reply(tool_calls=(answer,))) as instant:
        sweep, bare = (figures(instant.url, script) for script in (SWEEP, BARE))
        many = figures(instant.url, SWEEP, MANY_ROWS)
    rows = []
    each = (("nb_agents.map", sweep), ("nb_agents.map", many), ("the bare SDK", bare))
    for name, (done, took, memory) in each:
        rows.append([name, f"{done:.0f}", f"{done / took:.0f}", f"{memory:.0f}"])
    is_met = sweep[0] / sweep[1] >= ROWS_PER_S and max(sweep[2], many[2]) <= MEMORY_MB
    aim = f"aim: {ROWS_PER_S} rows/s within {MEMORY_MB} MB: {verdict(is_met)}"
    title = f"sweeps: {ROWS} rows, {LIMIT} at a time, an instant server; {aim}"
    print_table(title, ("", "rows", "rows/s", "MB at most"), rows)
    _print_killed(Reply(tool_calls=(answer,)))


def _print_killed(reply: Reply) -> None:
    """Kill a sweep half way, continue it with the same call, and count the requests per row."""
    with ModelServer(default=reply) as instant, TemporaryDirectory() as place:
        argv = _argv(SWEEP, instant.url, place)
        with subprocess.Popen(argv, cwd=_ROOT, stdout=subprocess.DEVNULL) as killed:
            wait_until(lambda: _noted(Path(place)) >= ROWS // 2, 120)
            killed.kill()
        instant.wait_closed()
        before, noted = len(instant.requests), _noted(Path(place))
        subprocess.run(argv, cwd=_ROOT, capture_output=True, check=True)
        asked = Counter(
            re.findall(r"row-\d+-row", str(request.messages))[0] for request in instant.requests
        )
        done = _noted(Path(place))
    twice = sum(count == 2 for count in asked.values())
    more = sum(count > 2 for count in asked.values())
    is_met = done == len(asked) == ROWS and twice <= LIMIT and not more
    rows = [
        ["rows noted, and calls made, when it was killed", f"{noted}, {before}"],
        ["rows complete in the end", str(done)],
        ["calls made in the end", str(asked.total())],
        [f"rows asked twice: in flight at the kill (at most {LIMIT})", str(twice)],
        ["rows asked more often", str(more)],
    ]
    title = f"sweeps: {ROWS} rows, killed half way and gone on with: {verdict(is_met)}"
    print_table(title, ("", ""), rows)


def _noted(place: Path) -> int:
    return sum(
        result.status == "completed"
        for path in sweep_paths(place)
        for result in fold_notes(path).results.values()
    )


def _argv(script: str, url: str, place: str, rows: int = ROWS) -> list[str]:
    return [sys.executable, "-c", _HEAD + script + _TAIL, url, place, str(rows), str(LIMIT)]


def figures(url: str, script: str, rows: int = ROWS) -> tuple[float, float, float]:
    """Run a script; give how many rows it did, the seconds it took, and its memory in MB."""
    with TemporaryDirectory() as place:
        argv = _argv(script, url, place, rows)
        done = subprocess.run(argv, cwd=_ROOT, capture_output=True, text=True, check=True)
    count, took, memory = json.loads(done.stdout)
    return count, took, memory
