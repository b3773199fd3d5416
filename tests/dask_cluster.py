"""A Dask scheduler and its workers, as separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client

from tests.model_server import wait_until
from tests.warm import WarmProcess

__all__ = ["Dask", "dask"]

WAIT_S = 120
_ROOT = Path(__file__).parent.parent


class Dask:
    """A scheduler and its workers.

    Args:
        workers: How many, each a process with a nanny.
        places: Turns that each takes at a time; None leaves it to the one thread of each.
        before: A command that the workers are started by.
        state: Their users' state directory, if it is another.

    Attributes:
        folder: Where the scheduler and the workers keep their files.
        nanny: The process that starts and restarts the workers.
    """

    def __init__(
        self,
        folder: Path,
        workers: int = 2,
        places: int | None = 10,
        before: Sequence[str] = (),
        state: Path | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._file = folder / "scheduler.json"
        self.folder = folder
        self._state = {} if state is None else {"XDG_STATE_HOME": str(state)}
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._begin(workers, places, before)
        except BaseException:
            self._end_processes()
            raise

    def _begin(self, workers: int, places: int | None, before: Sequence[str]) -> None:
        dask = [sys.executable, "-m", "dask"]
        file = ["--scheduler-file", str(self._file)]
        plain = ["--host", "127.0.0.1", "--no-dashboard"]
        self.scheduler = self._start([*dask, "scheduler", *file, *plain, "--port", "0"])
        wait_until(self._file.exists, WAIT_S)
        resources = [] if places is None else ["--resources", f"nb_agents={places}"]
        many = ["--nworkers", str(workers), "--nthreads", "1", *resources]
        here = ["--local-directory", str(self.folder)]
        # Workers are forked from what has imported all: starts are not the point.
        forks = ["--preload-nanny", "tests.dask_forks"]
        self._nanny = [*before, *dask, "worker", *file, *plain, *many, *here, *forks]
        self.start_nanny()
        self.client = Client(scheduler_file=str(self._file), timeout=WAIT_S)
        self.client.wait_for_workers(workers, timeout=WAIT_S)
        self.address = self.client.scheduler.address

    def start_nanny(self) -> None:
        """Start workers."""
        self.nanny = self._start(self._nanny, **self._state)

    def _start(self, command: list[str], **env: str) -> subprocess.Popen[bytes]:
        start = WarmProcess if command[0] == sys.executable else subprocess.Popen
        process = start(command, cwd=self.folder, env=_env() | env, stderr=subprocess.DEVNULL)
        self._processes.append(process)
        return process

    def _end_processes(self) -> None:
        for process in reversed(self._processes):
            process.kill()  # the workers end when their parent has
            process.wait(WAIT_S)

    @property
    def pids(self) -> dict[str, int]:
        """Of the workers' processes, by their addresses."""
        found: dict[str, int] = self.client.run(os.getpid)
        return found

    def close(self) -> None:
        try:
            self.client.close(timeout=1)
        finally:
            self._end_processes()


def _env() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    forks = {"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver"}
    return {**os.environ, **forks, "PYTHONPATH": path}


@contextmanager
def dask(folder: Path, *args: Any, **kwargs: Any) -> Iterator[Dask]:
    made = Dask(folder, *args, **kwargs)
    try:
        yield made
    finally:
        made.close()
