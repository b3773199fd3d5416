"""The entry points with which tests and benchmarks stop a run of a kernel."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import nb_agents
from tests import processes
from tests.kernel.driver import Kernel
from tests.kernel.notebook import Notebook, Turn
from tests.model_server import ModelServer
from tests.server.conftest import JupyterServer

__all__ = ["ELSEWHERE", "OF_THE_KERNEL", "REPLY_S", "Doors", "open_doors", "stops"]

REPLY_S = 0.3
"""Seconds that the plugin waits for the kernel; see js/src/doors.ts."""

OF_THE_KERNEL = ("cell", "panel", "panel, shell only", "■")
"""Some front ends use neither the control channel nor subshells."""
ELSEWHERE = ("other kernel", "command line", "REST", "plugin", "client")


class Doors:
    """All ways to stop a run of a kernel. None of them waits for the end."""

    def __init__(
        self, notebook: Notebook, other: Kernel, jupyter: JupyterServer, client: nb_agents.Client
    ) -> None:
        self.notebook, self.other, self.jupyter, self.client = notebook, other, jupyter, client
        self.said: dict[str, Callable[[], str]] = {}

    def press(self, door: str, turn: Turn, now: bool) -> None:
        """Request a stop; `said` contains the reply later."""
        flag = " --now" if now else ""
        kernel = self.notebook.kernel
        match door:
            case "cell":
                kernel.send(f"%agents stop {turn.run}{flag}")
            case "panel":
                kernel._send(
                    "control", "nb_agents_stop_request", {"run": turn.run, "immediate": now}
                )
                self.notebook.press(turn, now=now)
            case "panel, shell only":
                self.notebook.press(turn, now=now)
            case "■":
                kernel.interrupt()
            case "other kernel":
                cell = self.other.send(f"%agents stop {turn.name}{flag}")
                self.said[door] = lambda: self.notebook.text(self.other.result(cell))
            case "command line":
                words = ["stop", turn.name, "--session-root", str(self.notebook.root)]
                self._in_thread(door, lambda: self._in_terminal(*words, *flag.split()))
            case "REST":
                self._in_thread(door, lambda: self._post(turn, now))
            case "client":
                self._in_thread(door, lambda: self._by_client(turn, now))
            case "plugin":
                self._in_thread(door, lambda: self._as_the_plugin(turn, now))

    def _in_thread(self, door: str, ask: Callable[[], str]) -> None:
        told: list[str] = []
        thread = Thread(target=lambda: told.append(ask()))
        thread.start()

        def said() -> str:
            thread.join()
            return told[0]

        self.said[door] = said

    def _in_terminal(self, *words: str) -> str:
        argv = [sys.executable, "-m", "nb_agents.cli", *words]
        return processes.run(argv).stdout

    def _post(self, turn: Turn, now: bool) -> str:
        path = f"runs/{self.jupyter.name(turn.path)}/stop"
        return json.dumps(self.jupyter.post(path, {"immediate": now}).json())

    def _by_client(self, turn: Turn, now: bool) -> str:
        result = self.client.stop(self.jupyter.name(turn.path), now=now)
        return "over" if result.status == "finished" else result.status

    def _as_the_plugin(self, turn: Turn, now: bool) -> str:
        """Send the request to the server, as a page does if the kernel has not replied in time."""
        time.sleep(REPLY_S)
        return self._post(turn, now)


@contextmanager
def open_doors(jupyter: JupyterServer, server: ModelServer) -> Iterator[Doors]:
    """Open a notebook and another kernel in the directory that a server serves."""
    place = jupyter.sessions.parent
    place.mkdir(exist_ok=True)
    with Kernel(cwd=place) as kernel, Kernel(cwd=place) as other:
        for each in (kernel, other):
            assert each.run("%load_ext nb_agents").status == "ok"
        notebook = Notebook(kernel, server, place)
        Notebook(other, server, place)
        with nb_agents.Client(jupyter.base, jupyter.token) as client:
            yield Doors(notebook, other, jupyter, client)


def stops(turn: Turn) -> list[tuple[str, str, float]]:
    """Return the level, entry point and time of each stop of the whole turn."""
    found = [e for e in turn.events("stop_requested") if not e["agent"]]
    return [(e["level"], e["source"], e["at"]) for e in found]
