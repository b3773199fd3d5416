"""Removes old rows of sweeps.

The ``rows.jsonl`` of a sweep is kept, so that repeating the sweep does not run any row twice. Only
rows with a result in it are removed.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from filelock import Timeout

from nb_agents.extensions.sweeps.manifest import is_live_sweep, owner_lock
from nb_agents.extensions.sweeps.sweep_file import sweep_paths
from nb_agents.extensions.sweeps.sweep_fold import fold_notes
from nb_agents.session.prune import Pruning


def prune_sweeps(root: Path, pruning: Pruning) -> None:
    """Remove the old rows of the sweeps in a session root."""
    for sweep in sweep_paths(root):
        if is_live_sweep(sweep):
            pruning.done.live += 1
            continue
        try:
            with nullcontext() if pruning.spec.is_dry_run else owner_lock(sweep).acquire(timeout=0):
                pruning.done.rows += _prune_rows(sweep, pruning)
        except Timeout:  # a process has just started it
            pruning.done.live += 1
        except OSError as exc:
            pruning.done.unread.append(f"Sweep {sweep.name} was not removed: {exc.strerror}.")


def _prune_rows(sweep: Path, pruning: Pruning) -> int:
    results = fold_notes(sweep).results
    rows = pruning.old(sweep)
    recorded = [row for row in rows if row.name in results]
    pruning.done.not_noted += len(rows) - len(recorded)
    return sum([pruning.remove(row) for row in recorded])
