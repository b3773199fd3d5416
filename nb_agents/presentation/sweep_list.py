"""The runs and sweeps of all processes."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from nb_agents.presentation import text
from nb_agents.runs import registry
from nb_agents.runs.finding import runs
from nb_agents.runs.run import Run
from nb_agents.session.layout import session_root


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
