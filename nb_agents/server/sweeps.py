"""Sweeps as they stand, by what is on disk: their own files, and the journals of rows at work."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from nb_agents.jupyter import text
from nb_agents.receipt import total_cost
from nb_agents.session.views import read_json
from nb_agents.sweeps.manifest import ABOUT, ROWS, is_live_sweep, read_results
from nb_agents.view import RunView

__all__ = ["told_sweep"]


def told_sweep(name: str, path: Path, live: Sequence[RunView] = ()) -> dict[str, Any]:
    """Say how a sweep stands.

    Args:
        name: What it is called.
        path: Its directory.
        live: Its rows at work.
    """
    about, ended = read_json(path / ABOUT), _ended(path)
    total = rows if isinstance(rows := about.get("rows"), int) else ended.done + ended.failed
    waiting = sum(bool(view.gates) for view in live)
    is_live = is_live_sweep(path)
    is_complete = ended.done + ended.failed >= total
    state = _live_state(live) if is_live else "complete" if is_complete else "stopped"
    costs = [ended.cost, *map(total_cost, live)]
    return {
        "id": name,
        "session": path.name,
        "turn": None,
        "task": text.clip(str(about.get("task") or Path(str(about.get("recipe"))).name), 300),
        "status": "awaiting" if waiting else state,
        "state": state,
        "says": _says(ended, total, waiting),
        "is_live": is_live,
        "updated_at": ended.at,
        "tokens": ended.tokens + sum(a.tokens for view in live for a in view.agents.values()),
        "cost": None if None in costs else sum(cost or 0.0 for cost in costs),
        "rows": {"total": total, "done": ended.done, "failed": ended.failed},
    }


class _Ended(NamedTuple):
    """The rows of a sweep that ended.

    Attributes:
        at: When the last one did, in Unix seconds; None before the first.
        done, failed: How many ended so.
        tokens: Used by all of them.
        cost: US dollars, or None when a model's price is unknown.
    """

    at: float | None = None
    done: int = 0
    failed: int = 0
    tokens: int = 0
    cost: float | None = 0.0


def _ended(path: Path) -> _Ended:
    try:
        known = os.lstat(path / ROWS)
    except OSError:
        return _Ended()
    is_file = stat.S_ISREG(known.st_mode)  # not a link, which may lead to a device
    return _count(path, known.st_mtime_ns, known.st_size) if is_file else _Ended()


@lru_cache(maxsize=1000)
def _count(path: Path, changed_ns: int, size: int) -> _Ended:
    """Count how rows ended, once for each state of their file: it may be long."""
    ended = read_results(path).values()
    statuses = Counter(result.status for result in ended)
    costs = [result.cost for result in ended]
    return _Ended(
        changed_ns / 1e9,
        statuses["completed"],
        statuses["failed"],
        sum(result.tokens for result in ended),
        None if None in costs else sum(cost or 0.0 for cost in costs),
    )


def _live_state(live: Sequence[RunView]) -> str:
    # A stop of the sweep is one of each row at work.
    return "stopping" if live and all(view.stop for view in live) else "running"


def _says(ended: _Ended, total: int, waiting: int) -> str:
    known = [f"{ended.done + ended.failed} of {total} rows"]
    known += [f"{ended.failed} failed"] if ended.failed else []
    known += [f"{waiting} {'waits' if waiting == 1 else 'wait'} for you"] if waiting else []
    return " · ".join(known)
