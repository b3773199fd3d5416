"""The runs that this process started."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from nb_agents.errors import StorageError
from nb_agents.loop import at_shutdown
from nb_agents.session import layout
from nb_agents.session.views import read_json
from nb_agents.turns.handle import RunHandle

_Handle = TypeVar("_Handle", bound=RunHandle)

SAVED_S = 2.0
"""Seconds to wait for an ended turn to be saved before its session is considered busy."""

SAVE_AGAIN_S = 1.0
"""Seconds between attempts to save."""

SHUTDOWN_S = 2.0
"""Time limit of a shutdown in seconds. ipykernel gets SIGTERM 2.5 s after a shutdown request.

Source: jupyter_client manager.py.
"""

SHUTDOWN = "the kernel or process is shutting down"

MAX_OVER = 50
"""Maximum number of ended runs in the list. Handles of older runs remain usable."""

# Needed because several threads may start runs at the same time.
_lock = threading.Lock()
_runs: dict[Path, RunHandle] = {}


def remember(run: _Handle) -> _Handle:
    """Add a run to the list of runs that this process started. Returns the run.

    It stays in the list after it has ended, because only this process has its functions and
    options.
    """
    with _lock:
        _runs[run.path] = run
        _prune()
    return run


def _prune() -> None:
    """Drop the oldest runs that have ended and are saved, because they can be read from disk."""
    # Only the oldest, because checking a run in another process reads the disk.
    for run in tuple(_runs.values())[: max(0, len(_runs) - MAX_OVER)]:
        if run.is_over and not run.is_unsaved:
            run.release()
            del _runs[run.path]


def _clear_after_fork() -> None:
    """Clear the list in a forked child process, because the runs belong to the parent."""
    global _lock
    _lock = threading.Lock()
    _runs.clear()


os.register_at_fork(after_in_child=_clear_after_fork)


def wait_until_saved(session: Path) -> None:
    """Wait briefly until this process has saved the ended turns of a session.

    If saving a turn failed, it is tried again. Otherwise a resume would repeat the missing part.

    Args:
        session: The session's directory.

    Raises:
        StorageError: A turn still can't be saved.
    """
    for run in started_runs():
        if run.where or run.path.parent != session or not run.view.is_over:
            continue
        with suppress(TimeoutError):
            run.wait(SAVED_S, raise_on_stop=False)
        if run.is_unsaved:
            run.save()


def save_with_retries(run: RunHandle, limit_s: float) -> bool:
    """Save a run that has ended, and retry while saving fails.

    Args:
        limit_s: Seconds after which to stop retrying.

    Returns:
        Whether the run is saved completely.
    """
    deadline = time.monotonic() + limit_s
    while run.is_unsaved and time.monotonic() < deadline:
        with suppress(StorageError, TimeoutError):
            run.save(max(0.0, deadline - time.monotonic()))
            break
        time.sleep(SAVE_AGAIN_S)
    return not run.is_unsaved


def started_runs() -> tuple[RunHandle, ...]:
    """Return the runs that this process started, here or in another process, oldest first."""
    return tuple(_runs.values())


def live_runs() -> tuple[RunHandle, ...]:
    """Return the runs in this process that have not ended, oldest first."""
    return tuple(run for run in started_runs() if not run.where and not run.is_over)


def owner_of(session: Path) -> str:
    """Return a description of the run or process that is using a session."""
    if session_runs := [r for r in live_runs() if r.path.parent == session]:
        return f"run {session_runs[0].id} in this kernel"
    try:
        owner = read_json(layout.turns_of(session)[-1].metadata)["owner"]
    except LookupError:
        owner = ""
    return f"another process, {owner}" if owner else "another process"


def stop_runs() -> None:
    """Stop all runs immediately, because the process is ending, and wait until they are saved.

    Waits for at most `SHUTDOWN_S`. Journals are on disk even if that is too short.
    """
    live = live_runs()
    for run in live:
        run.stop(True, reason=SHUTDOWN, source="parent")
    deadline = time.monotonic() + SHUTDOWN_S
    for run in live:
        with suppress(TimeoutError):
            run.wait(max(0.0, deadline - time.monotonic()), raise_on_stop=False)
    for run in started_runs():
        if run.is_unsaved:  # the disk may have space now
            with suppress(TimeoutError, StorageError):
                run.save(max(0.0, deadline - time.monotonic()))


# Registered in this module, so that every process with a list of runs stops them when it exits.
at_shutdown(stop_runs)
