"""Saves a finished run that could not be written to disk, before its command exits.

In a terminal, the user chooses what to do. Otherwise saving is retried for a while. If it still
fails, the command's output is the only copy.
"""

from __future__ import annotations

import sys

from nb_agents.cli.printing import warn
from nb_agents.errors import StorageError
from nb_agents.turns.handle import RunHandle
from nb_agents.turns.live_runs import save_with_retries

PATIENCE_S = 60.0
"""Seconds during which saving is retried without a terminal."""

_ASK = (
    "Enter: try again · a directory: save the session there · q: give up. "
    "Unsaved data is lost when this command ends."
)


def save(run: RunHandle, *, asks: bool) -> bool:
    """Save a finished run if a part of it is not on disk yet.

    Args:
        asks: Whether to ask the user what to do. Otherwise, saving is retried.

    Returns:
        Whether everything is saved, in the run's directory or in one that the user chose.
    """
    if not run.is_unsaved:
        return True
    if asks:
        return _ask(run)
    warn(f"Run {run.session} is not completely saved. Trying again for {PATIENCE_S:g} s.")
    try:
        is_saved = save_with_retries(run, PATIENCE_S)
    except KeyboardInterrupt:
        is_saved = False
    result = "everything is saved" if is_saved else "not saved; this output is the only copy"
    warn(f"Run {run.session}: {result}.")
    return is_saved


def _ask(run: RunHandle) -> bool:
    why = "The run is not completely saved, because of a disk error."
    while True:
        warn(f"{why} {_ASK}")
        try:
            word = sys.stdin.readline()
        except KeyboardInterrupt:
            word = ""
        if not word or word.strip() == "q":
            return False
        try:
            if word.strip() in ("", "r"):
                run.save()
                warn("Everything is saved.")
            else:
                there = run.save_elsewhere(word.strip())
                warn(f"Saved in {there}. To continue it, add --session-root {there.parent}.")
            return True
        except StorageError as exc:
            why = str(exc)
