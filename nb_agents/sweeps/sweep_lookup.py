"""Finding the sweep that a person means, of this process or of another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from nb_agents.runs.finding import live_runs_of_here, runs_elsewhere_of_here
from nb_agents.runs.registry import find_group, group_at
from nb_agents.session.layout import session_root
from nb_agents.sweeps.manifest import is_sweep, sweep_of
from nb_agents.sweeps.sweep_handle import SweepHandle
from nb_agents.sweeps.sweep_reader import SweepReader


def open_sweep(path: Path) -> SweepHandle | None:
    """Return the sweep in a directory, of this process or another, or over; None without one."""
    if (here := group_at(path)) is not None:
        return cast(SweepHandle, here)
    return SweepReader(path) if is_sweep(path) else None


def find_sweep(name: str, root: str | os.PathLike[str] | None = None) -> SweepHandle | None:
    """Return the sweep that the user refers to; None if there is none.

    Args:
        name: The sweep's name; "" means the one that this process started last, else the only one
            of here that runs in another process.
        root: A session root that limits the search. By default a name means a sweep of this
            process, else one in this directory's root.

    Raises:
        UserError: This process runs several sweeps of that name.
    """
    if (group := find_group(name, root)) is not None:
        return cast(SweepHandle, group)
    if name:
        return open_sweep(session_root(root) / name)
    if live_runs_of_here(root):
        return None
    sweeps = {sweep_of(run.path) for run in runs_elsewhere_of_here(root)}
    path = sweeps.pop() if len(sweeps) == 1 else None
    return None if path is None else open_sweep(path)
