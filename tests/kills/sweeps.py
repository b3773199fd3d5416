"""Sweeps on a cluster with random kills of workers, nannies, scheduler and kernel.

``python -m tests.kills.sweeps [COUNT [SEED]]`` plays many and prints what came of their rows.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from nb_agents import events as ev
from tests.dask_cluster import WAIT_S, Dask
from tests.kit.sessions import read_journal
from tests.model_server import ModelServer, Reply, Request
from tests.processes import python

__all__ = ["KINDS", "Arena", "Ended", "arena"]

Kind = Literal["worker", "nanny", "scheduler", "kernel"]
KINDS: tuple[Kind, ...] = ("worker", "nanny", "scheduler", "kernel")

ROWS = 40
COUNT = 200
MAX_CALLS = 6
"""Maximum number of calls of the same sweep until its rows are complete."""

_ROW = re.compile(r"row-\d+-row")
_KERNEL = """
import sys, nb_agents
url, root, address, rows = sys.argv[1:]
backend = {"type": "vllm", "model": "m", "base_url": url, "api_key": "k"}
team = nb_agents.TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
options = nb_agents.RunOptions(session_root=root, cluster=address)
task = "row-{{value}}-row"
nb_agents.map(range(int(rows)), task, team, name="s", limit=20, options=options).wait()
"""


@dataclass
class Ended:
    """The result of a sweep.

    Attributes:
        kills: The kinds of killed processes, in order.
        lines: Number of rows by the status of their last result.
        errors: The errors of failed rows.
        calls: Number of calls of the sweep.
        finished_twice: Rows with more than one recorded call.
        again_ms: For each complete reply that was requested again, the time in milliseconds from
            its end to the kill.
    """

    kills: list[Kind] = field(default_factory=list)
    lines: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    finished_twice: int = 0
    again_ms: list[float] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether all rows are complete and none has two recorded calls."""
        return self.lines == {"completed": ROWS} and not self.finished_twice


class Arena:
    """A model server, and a cluster that is repaired after each kill."""

    def __init__(self, server: ModelServer, place: Path) -> None:
        self._server = server
        self._place = place
        self._count = 0
        self._dask = self._new_cluster()

    def close(self) -> None:
        self._dask.close()

    def play(self, kinds: Sequence[Kind], chance: random.Random) -> Ended:
        """Run a sweep with kills, and repeat it until its rows are complete."""
        self._count += 1
        root, seen = self._place / f"sweep-{self._count}", len(self._server.requests)
        ended, killed_at = Ended(), list[float]()
        left = list(kinds)
        while ended.calls < MAX_CALLS and not self._is_done(root):
            ended.calls += 1
            with python(_KERNEL, self._server.url, root, self._dask.address, ROWS) as kernel:
                while left and self._waits(kernel, seen, chance):
                    ended.kills.append(left.pop(0))
                    self._kill(ended.kills[-1], kernel, chance)
                    killed_at.append(time.monotonic())
                kernel.wait(WAIT_S)
            self._mend()
        self._server.wait_closed()
        self._judge(ended, root, self._server.requests[seen:], killed_at)
        return ended

    def _waits(self, kernel: subprocess.Popen[str], seen: int, chance: random.Random) -> bool:
        """Wait until some rows have started. Return whether the kernel is alive."""
        wanted = seen + chance.randrange(-5, ROWS)
        while kernel.poll() is None and len(self._server.requests) < wanted:
            time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            kernel.wait(chance.uniform(0, 0.5))
        return kernel.poll() is None

    def _kill(self, kind: Kind, kernel: subprocess.Popen[str], chance: random.Random) -> None:
        match kind:
            case "kernel":
                kernel.kill()
            case "scheduler":
                self._dask.scheduler.kill()
            case "nanny":
                self._dask.nanny.kill()
                self._dask.start_nanny()
            case "worker":
                with suppress(ProcessLookupError, OSError):
                    os.kill(chance.choice([*self._dask.pids.values()] or [-1]), signal.SIGKILL)

    def _mend(self) -> None:
        if self._dask.scheduler.poll() is not None:
            self._dask.close()
            self._dask = self._new_cluster()
        self._dask.client.wait_for_workers(1, timeout=WAIT_S)

    def _new_cluster(self) -> Dask:
        folder = self._place / f"dask-{time.monotonic_ns()}"
        return Dask(folder)

    def _is_done(self, root: Path) -> bool:
        return sum(_last_lines(root)[0].values()) == ROWS

    def _judge(
        self, ended: Ended, root: Path, requests: Sequence[Request], killed_at: Sequence[float]
    ) -> None:
        ended.lines, ended.errors = _last_lines(root)
        for row in (root / "s").glob("row*"):
            events = [e for t in row.glob("turn_*/events.jsonl") for e in read_journal(t).events]
            ended.finished_twice += sum(isinstance(e, ev.ModelFinished) for e in events) > 1
        whole = [r for r in requests if r.closed_by == "server"]
        rows = [_row(r) for r in whole]
        for number, request in enumerate(whole):
            at = request.closed_at or 0.0
            if rows[number] in rows[number + 1 :] and (later := [t for t in killed_at if t > at]):
                ended.again_ms.append(1000 * (later[0] - at))


def _row(request: Request) -> str:
    found = _ROW.search(request.prompt)
    return found[0] if found else ""


def _last_lines(root: Path) -> tuple[Counter[str], Counter[str]]:
    """Count the last results of the rows by status, and collect their errors."""
    last: dict[str, tuple[str, str]] = {}
    with suppress(OSError):
        for line in (root / "s" / "rows.jsonl").read_text().splitlines():
            with suppress(ValueError, KeyError):
                note = json.loads(line)
                last[note["row"]] = note["status"], note["error"]
    done = [each for each in last.values() if each[0] in ("completed", "failed")]
    return Counter(status for status, _ in done), Counter(error for _, error in done if error)


@contextmanager
def arena(place: Path) -> Iterator[Arena]:
    reply = Reply(" ".join(f"w{n}" for n in range(8)), words_per_second=20)
    with ModelServer(default=reply) as server:
        made = Arena(server, place)
        try:
            yield made
        finally:
            made.close()


def main() -> None:
    given = [int(each) for each in sys.argv[1:]]
    count, seed = (*given, *(COUNT, 0)[len(given) :])
    chance = random.Random(seed)
    kills, plays = Counter[str](), list[Ended]()
    with TemporaryDirectory() as place, arena(Path(place)) as here:
        for number in range(count):
            kinds = chance.choices(KINDS, (4, 1, 1, 2), k=chance.randint(1, 3))
            plays.append(here.play(kinds, chance))
            kills.update(plays[-1].kills)
            if not plays[-1].is_right:
                print(number, plays[-1], flush=True)
            if number % 10 == 9 or number == count - 1:
                print(_told(plays, kills), flush=True)


def _told(plays: Sequence[Ended], kills: Counter[str]) -> str:
    again = [ms for play in plays for ms in play.again_ms]
    return (
        f"{len(plays)} sweeps of {ROWS} rows, {dict(kills)} killed: "
        f"{sum(p.is_right for p in plays)} right, "
        f"{sum(p.lines['completed'] for p in plays)} rows complete, "
        f"{sum(p.lines['failed'] for p in plays)} failed, "
        f"{sum(p.finished_twice for p in plays)} with two recorded calls; "
        f"{len(again)} replies sent whole and not read at a kill"
        + (f" ({max(again):.0f} ms at most)" if again else "")
    )


if __name__ == "__main__":
    main()
