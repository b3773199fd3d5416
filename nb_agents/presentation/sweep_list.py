"""Sweeps of all processes, and those on disk, a line each."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from nb_agents.presentation import text
from nb_agents.runs import registry
from nb_agents.runs.finding import runs
from nb_agents.runs.run import Run
from nb_agents.session.layout import session_root

SWEEP_HEADS = ("sweep", "status", "complete", "failed", "tokens", "cost", "task")


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
    from nb_agents.sweeps.sweep_reader import SweepReader

    reader = SweepReader(path)
    is_live = not reader.is_over
    reader.read()
    view = reader.view_of((), is_live)
    asked = str(reader.about.get("task") or reader.about.get("recipe") or "")
    done = f"{view.completed} of {view.total}"
    used = (text.tokens(view.tokens), text.cost(view.cost))
    return (path.name, view.state, done, str(view.failed), *used, text.clip(asked, 60))
