"""Sweeps as they stand, in the words in which runs are told, too."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from nb_agents.jupyter import text
from nb_agents.jupyter.sweep_state import standing, sweep_title
from nb_agents.sweeps.manifest import ROWS, is_live_sweep
from nb_agents.sweeps.sweep_reader import SweepReader
from nb_agents.sweeps.sweep_view import SweepView

__all__ = ["SweepOnDisk", "sweep_on_disk", "told_sweep"]


class SweepOnDisk(NamedTuple):
    """What the files of a sweep say, without the rows at work.

    Attributes:
        view: How it stands.
        changed_at: When a row ended or began last, in Unix seconds; None before the first.
    """

    view: SweepView
    changed_at: float | None


def sweep_on_disk(path: Path) -> SweepOnDisk:
    """Read how a sweep stands.

    Args:
        path: Its directory.
    """
    is_live = is_live_sweep(path)
    try:
        known = os.lstat(path / ROWS)
    except OSError:
        return _read(path, 0, 0, is_live)
    return _read(path, known.st_mtime_ns, known.st_size, is_live)


@lru_cache(maxsize=1000)
def _read(path: Path, changed_ns: int, size: int, is_live: bool) -> SweepOnDisk:
    """Read it once for each state of its file, which may be long."""
    reader = SweepReader(path)
    reader.read()
    return SweepOnDisk(reader.view({}, is_live, time.time()), reader.changed_at)


def told_sweep(
    name: str, path: Path, view: SweepView, changed_at: float | None = None
) -> dict[str, Any]:
    """Say how a sweep stands.

    Args:
        name: What it is called.
        path: Its directory.
        view: How it stands.
        changed_at: When it changed last, in Unix seconds.
    """
    state = standing(view)
    return {
        "id": name,
        "session": path.name,
        "turn": None,
        "task": text.clip(sweep_title(path), 300),
        "status": "awaiting" if view.waiting else state,
        "state": state,
        "says": _says(view),
        "is_live": not view.is_over,
        "updated_at": changed_at,
        "tokens": view.tokens,
        "cost": view.cost,
        "rows": {"total": view.total, "done": view.completed, "failed": view.failed},
    }


def _says(view: SweepView) -> str:
    known = [f"{view.completed + view.failed} of {view.total} rows"]
    known += [f"{view.failed} failed"] if view.failed else []
    waits = "waits" if view.waiting == 1 else "wait"
    known += [f"{view.waiting} {waits} for you"] if view.waiting else []
    return " · ".join(known)
