"""The process of a detached run: ``python -m nb_agents.launch.host``, started by `launch.detach`.

It reads a job from stdin, answers with the turn's directory or an error as a line of JSON, and
exits when its run is over.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nb_agents.config.spec import started_in
from nb_agents.errors import UserError
from nb_agents.launch.here import asking_before_start
from nb_agents.masking import safe_errors
from nb_agents.runs.live_runs import save_patiently
from nb_agents.runs.run import Run
from nb_agents.session.lookup import acting_for
from nb_agents.session.ownership import handed

DISK_S = 3600.0
"""How long a disk that refuses the end of a run is tried."""


def main() -> None:
    """Start the run of the job on stdin, and wait for its end."""
    atexit.register(gc.freeze)  # as the command line does
    job = sys.stdin.buffer.read()
    if os.fork():
        # Orphan the run's process, as a kernel ends its children when it shuts down.
        os._exit(0)
    sys.argv[0] = "detached"  # the process's name in the list of live runs
    try:
        run = carry_out(job)
    except UserError as exc:
        _answer({"error": str(exc)})
        return
    _answer({"path": str(run.path)})
    _stop_at_signals(run)
    run.wait(raise_on_stop=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    save_patiently(run, DISK_S)


@safe_errors
def carry_out(job: bytes, ask: Callable[[Path, str], object] = lambda path, run_id: None) -> Run:
    """Start the run that another process requests.

    Args:
        job: A pickled `Job`.
        ask: Called before the run starts, as in `asking_before_start`.

    Raises:
        UserError: The run can't start.
    """
    request, mark, origin, place = pickle.loads(job)
    with started_in(place), handed(mark), acting_for(origin), asking_before_start(ask):
        run: Run = request.load().begin()
        return run


def _answer(answer: dict[str, str]) -> None:
    """Answer the waiting process, and close the pipes to it and the log of a failed start."""
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _stop_at_signals(run: Run) -> None:
    """Stop the run, and so save it, on SIGTERM; ignore the terminal's signals."""

    def end(*_: Any) -> None:
        run.stop(True, reason="its process was told to end", source="parent")

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
