"""The sweeps that have ended in this process, which has their rows and functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nb_agents.extensions.sweeps.sweep_handle import SweepHandle

MAX_ENDED = 20
"""Maximum number of ended sweeps whose rows stay in memory."""

Restart = Callable[[bool], "SweepHandle"]
"""Runs the remaining rows of a sweep and, on request, the failed ones."""

_ended: dict[Path, Restart] = {}
_lock = Lock()


def keep_ended(path: Path, restart: Restart) -> None:
    """Remember how to continue a sweep that has ended.

    Args:
        path: The sweep's directory.
        restart: Continues it.
    """
    with _lock:
        _ended.pop(path, None)
        _ended[path] = restart
        if len(_ended) > MAX_ENDED:
            del _ended[next(iter(_ended))]


def find_ended(path: Path) -> Restart | None:
    """Return a function that continues a sweep, or None if this process did not run it."""
    return _ended.get(path)
