"""Sweeps of all processes, and those on disk, a line each; and the interrupts that stop one."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Thread

from nb_agents.presentation import text
from nb_agents.runs import registry
from nb_agents.runs.finding import runs
from nb_agents.runs.run import Run
from nb_agents.session.layout import SWEEP_FILE, session_root
from nb_agents.session.views import read_json

__all__ = ["SWEEP_HEADS", "live_work", "place_of", "pressed", "sweep_row", "sweep_rows"]

SWEEP_HEADS = ("sweep", "status", "done", "failed", "tokens", "cost", "task")


def live_work(
    root: str | os.PathLike[str] | None = None,
) -> tuple[list[Run], dict[Path, str]]:
    """Return the live runs, with a sweep in the place of its rows' runs.

    Args:
        root: A session root that limits the list; by default all roots.

    Returns:
        The runs that are on no row of a sweep, and each live sweep's directory with where it lives.
    """
    from nb_agents.sweeps.manifest import is_live_sweep, sweep_of

    alone, rows, sweeps = list[Run](), defaultdict[Path, list[Run]](list), dict[Path, str]()
    place = None if root is None else session_root(root).resolve()
    for run in runs(root):
        path = sweep_of(run.path)
        if path is None:
            alone.append(run)
        elif not run.is_over:
            rows[path].append(run)
    for path, at_work in rows.items():
        if is_live_sweep(path):
            sweeps[path] = at_work[0].where
        else:  # they are asked once more: a sweep ends after its rows
            alone += [run for run in at_work if not run.is_over]
    groups = [each.path.resolve() for each in registry.groups()]
    here = {path: "here" for path in groups if place is None or path.parent == place}
    return alone, sweeps | here


def place_of(run: Run) -> str:
    """Return where a run lives, with its session root where that is not this directory's."""
    where, root = run.where or "here", run.path.parents[1]
    return where if root == session_root() else f"{where}, in {text.shown_path(root)}"


def sweep_rows(root: Path) -> list[tuple[str, ...]]:
    """Return a row of `SWEEP_HEADS` for each sweep below a session root."""
    from nb_agents.sweeps.manifest import sweep_paths

    return [sweep_row(path) for path in sweep_paths(root)]


def sweep_row(path: Path) -> tuple[str, ...]:
    """Return a sweep's row of `SWEEP_HEADS`."""
    from nb_agents.sweeps.manifest import is_live_sweep, read_results

    about, results = read_json(path / SWEEP_FILE), read_results(path).values()
    done = sum(result.status == "completed" for result in results)
    failed = sum(result.status == "failed" for result in results)
    costs = [result.cost for result in results]
    cost = None if None in costs else sum(each for each in costs if each is not None)
    total = about.get("rows", 0)
    is_complete = done + failed == total
    state = "running" if is_live_sweep(path) else "complete" if is_complete else "incomplete"
    asked = str(about.get("task") or about.get("recipe") or "")
    tokens = text.tokens(sum(result.tokens for result in results))
    row = (path.name, state, f"{done} of {total}", str(failed), tokens, text.cost(cost))
    return (*row, text.clip(asked, 60))


def pressed(path: Path) -> Callable[[], None]:
    """Return what takes the interrupts of who waits for a sweep: the first stops it, then at once.

    Args:
        path: The directory of a sweep that another process works on.
    """
    from nb_agents.sweeps.manifest import stop_sweep

    presses = count()

    def press() -> None:
        now = next(presses) > 0
        # Elsewhere, as it writes to the disk.
        Thread(target=stop_sweep, args=(path, now, "interrupt", "interrupted")).start()

    return press
