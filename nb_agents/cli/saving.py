"""Keep a command alive while the disk refuses a part of its run, which has ended.

In a terminal it asks, elsewhere it tries again for a while; what is lost then stands in its output.
"""

from __future__ import annotations

import sys

from nb_agents.cli.printing import warn
from nb_agents.errors import StorageError
from nb_agents.runs.live_runs import save_patiently
from nb_agents.runs.run import Run

PATIENCE_S = 60.0
"""How long saving is retried without a terminal, seconds."""

_ASK = (
    "Enter: try again · a directory: save the session there · q: give it up. "
    "What is not saved is lost when this command ends."
)


def save(run: Run, *, asks: bool) -> bool:
    """Save a run that is over and that the disk has refused.

    Args:
        run: The run.
        asks: Whether a person can be asked.

    Returns:
        Whether it is saved: in its own place, or where the person said.
    """
    if not run.is_unsaved:
        return True
    if asks:
        return _ask(run)
    warn(f"Not all of run {run.session} is on the disk. Trying again for {PATIENCE_S:g} s.")
    try:
        is_saved = save_patiently(run, PATIENCE_S)
    except KeyboardInterrupt:
        is_saved = False
    result = "everything is on the disk" if is_saved else "what is printed here is all that is left"
    warn(f"Run {run.session}: {result}.")
    return is_saved


def _ask(run: Run) -> bool:
    why = "Not all of it is on the disk, which refused."
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
                warn("Everything is on the disk.")
            else:
                there = run.save_elsewhere(word.strip())
                warn(f"Saved in {there}: add --session-root {there.parent} to go on with it.")
            return True
        except StorageError as exc:
            why = str(exc)
