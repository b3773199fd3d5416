"""The runs that this process started."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from nb_agents.errors import StorageError
from nb_agents.loop import at_shutdown
from nb_agents.runs.run import Run
from nb_agents.session import layout
from nb_agents.session.views import read_json

SAVED_S = 2.0
"""How long to wait for an ended turn to be saved before its session counts as busy."""

SAVE_AGAIN_S = 1.0
"""Interval at which a disk that has refused something is tried again."""

SHUTDOWN_S = 2.0
"""ipykernel gets SIGTERM 2.5 s after a shutdown request. Source: jupyter_client manager.py."""

SHUTDOWN = "the kernel or process is shutting down"

MAX_OVER = 50
"""Ended runs that are kept in the list; the handle of an older one can still be used."""

# Separates threads that start runs at the same moment.
_lock = threading.Lock()
_runs: dict[Path, Run] = {}


def remember(run: Run) -> Run:
    """Add a run that this process started, here or in another one, to the list, and return it.

    It stays in the list after its end, as its functions and options are known only here.
    """
    with _lock:
        _runs[run.path] = run
        _prune()
    return run


def _prune() -> None:
    """Drop the oldest runs that are over and saved, which can be read from disk."""
    # Only the oldest are checked, as that reads the disk for a run in another process.
    for run in tuple(_runs.values())[: max(0, len(_runs) - MAX_OVER)]:
        if run.is_over and not run.is_unsaved:
            run.release()
            del _runs[run.path]


def _forget() -> None:
    """Clear the list in a forked child, as the runs are the parent's."""
    global _lock
    _lock = threading.Lock()
    _runs.clear()


os.register_at_fork(after_in_child=_forget)


def wait_until_saved(session: Path) -> None:
    """Wait briefly until the ended turns of a session in this process are saved.

    A turn whose saving failed is saved again, as its missing part would otherwise be repeated.

    Args:
        session: The session's directory.

    Raises:
        StorageError: A turn still can't be saved.
    """
    for run in begun_runs():
        if run.where or run.path.parent != session or not run.view.is_over:
            continue
        with suppress(TimeoutError):
            run.wait(SAVED_S, raise_on_stop=False)
        if run.is_unsaved:
            run.save()


def save_patiently(run: Run, limit_s: float) -> bool:
    """Save a run that is over, and try again while the disk refuses it.

    Args:
        run: The run.
        limit_s: Seconds after which to give up.

    Returns:
        Whether all of it is on the disk.
    """
    deadline = time.monotonic() + limit_s
    while run.is_unsaved and time.monotonic() < deadline:
        with suppress(StorageError, TimeoutError):
            run.save(max(0.0, deadline - time.monotonic()))
            break
        time.sleep(SAVE_AGAIN_S)
    return not run.is_unsaved


def begun_runs() -> tuple[Run, ...]:
    """Return the runs that this process started, here or in another process, oldest first."""
    return tuple(_runs.values())


def live_runs() -> tuple[Run, ...]:
    """Return the runs in this process that are not over, oldest first."""
    return tuple(run for run in begun_runs() if not run.where and not run.is_over)


def owner_of(session: Path) -> str:
    """Return a description of the process that runs a session, as far as it is known."""
    if here := [r for r in live_runs() if r.path.parent == session]:
        return f"run {here[0].id} in this kernel"
    try:
        owner = read_json(layout.turns_of(session)[-1].metadata)["owner"]
    except LookupError:
        owner = ""
    return f"another process, {owner}" if owner else "another process"


def stop_runs() -> None:
    """Stop all runs immediately, as the process is ending, and wait until they are saved.

    Returns after `SHUTDOWN_S` at the latest; a run's journal is on disk in any case.
    """
    live = live_runs()
    for run in live:
        run.stop(True, reason=SHUTDOWN, source="parent")
    deadline = time.monotonic() + SHUTDOWN_S
    for run in live:
        with suppress(TimeoutError):
            run.wait(max(0.0, deadline - time.monotonic()), raise_on_stop=False)
    for run in begun_runs():
        if run.is_unsaved:  # the disk may have space now
            with suppress(TimeoutError, StorageError):
                run.save(max(0.0, deadline - time.monotonic()))


# Here, so that no run can be remembered by a process that does not stop it at its end.
at_shutdown(stop_runs)
