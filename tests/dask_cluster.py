"""A Dask scheduler and its workers, as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed import Client

from tests.model_server import wait_until

__all__ = ["Dask", "dask"]

WAIT_S = 120


class Dask:
    """A scheduler and its workers.

    Args:
        workers: How many, each a process with a nanny.
        places: Turns that each takes at a time; None leaves it to the one thread of each.
        before: A command that the workers are started by.

    Attributes:
        folder: Where the scheduler and the workers keep their files.
    """

    def __init__(self, folder: Path, workers: int, places: int | None, before: list[str]) -> None:
        folder.mkdir(exist_ok=True)
        self._file = folder / "scheduler.json"
        self.folder = folder
        dask = [sys.executable, "-m", "dask"]
        file = ["--scheduler-file", str(self._file)]
        plain = ["--host", "127.0.0.1", "--no-dashboard"]
        self.scheduler = self._start([*dask, "scheduler", *file, *plain, "--port", "0"])
        wait_until(self._file.exists, WAIT_S)
        resources = [] if places is None else ["--resources", f"nb_agents={places}"]
        many = ["--nworkers", str(workers), "--nthreads", "1", *resources]
        here = ["--local-directory", str(folder)]
        self._workers = self._start([*before, *dask, "worker", *file, *plain, *many, *here])
        self.client = Client(scheduler_file=str(self._file), timeout=WAIT_S)
        self.client.wait_for_workers(workers, timeout=WAIT_S)
        self.address = self.client.scheduler.address

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=self.folder, stderr=subprocess.DEVNULL)

    @property
    def pids(self) -> dict[str, int]:
        """Of the workers' processes, by their addresses."""
        found: dict[str, int] = self.client.run(os.getpid)
        return found

    def close(self) -> None:
        try:
            self.client.close(timeout=1)
        finally:
            for process in (self._workers, self.scheduler):
                process.kill()  # the workers end when their parent has
                process.wait(WAIT_S)


@contextmanager
def dask(
    folder: Path, workers: int = 2, places: int | None = 10, before: list[str] | None = None
) -> Iterator[Dask]:
    made = Dask(folder, workers, places, before or [])
    try:
        yield made
    finally:
        made.close()
