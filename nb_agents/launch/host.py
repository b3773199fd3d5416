"""The process of a detached run: ``python -m nb_agents.launch.host``, started by `launch.detach`.

It reads a job from stdin, replies with the turn's directory or an error as a line of JSON, and
exits when its run has ended.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nb_agents.config.spec import use_start_directory
from nb_agents.errors import UserError
from nb_agents.launch.here import asking_before_start
from nb_agents.masking import safe_errors
from nb_agents.session.lookup import with_origin
from nb_agents.session.ownership import using_mark
from nb_agents.turns.handle import RunHandle
from nb_agents.turns.live_runs import save_with_retries
from nb_agents.unicode import json_text

DISK_S = 3600.0
"""Seconds during which saving the end of a run is retried while the disk is full or fails."""


SIGNALLED = "its process received SIGTERM"
"""The reason of the stop when the system ends the run's process, as at a shutdown."""


def main() -> None:
    """Start the run of the job on stdin and wait until it ends."""
    atexit.register(gc.freeze)  # as in the command line's process
    job = sys.stdin.buffer.read()
    if os.fork():
        # Orphan the run's process: a kernel ends its children when it shuts down.
        os._exit(0)
    sys.argv[0] = "detached"  # the process's name in the list of live runs
    try:
        run = carry_out(job)
    except UserError as exc:
        _reply({"error": str(exc)})
        return
    _reply({"path": str(run.path)})
    _stop_at_signals(run)
    run.wait(raise_on_stop=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    save_with_retries(run, DISK_S)


@safe_errors
def carry_out(
    job: bytes, ask: Callable[[Path, str], object] = lambda path, run_id: None
) -> RunHandle:
    """Start the run that another process requested.

    Args:
        job: A pickled `Job`.
        ask: Called before the run starts, as in `asking_before_start`.

    Raises:
        UserError: The run can't start.
    """
    request, mark, origin, directory, handle = pickle.loads(job)
    with (
        use_start_directory(directory),
        using_mark(mark),
        with_origin(origin),
        asking_before_start(ask),
    ):
        run: RunHandle = request.load().begin(handle)
        return run


def _reply(answer: dict[str, str]) -> None:
    """Reply to the waiting process, and close its pipes."""
    sys.stdout.write(json_text(answer))
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _stop_at_signals(run: RunHandle) -> None:
    """Stop and save the run on SIGTERM. Ignore the terminal's signals."""

    def end(*_: Any) -> None:
        run.stop(True, reason=SIGNALLED, source="parent")

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
