"""The sweeps that have ended in this process, which has their rows and functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nb_agents.extensions.sweeps.source import Row
    from nb_agents.extensions.sweeps.sweep_handle import SweepHandle

MAX_ENDED = 20
"""Maximum number of ended sweeps whose rows stay in memory."""

Restart = Callable[[bool], "SweepHandle"]
"""Runs the remaining rows of a sweep and, on request, the failed ones."""


class EndedSweep(NamedTuple):
    """A sweep that has ended in this process.

    Attributes:
        restart: Continues it.
        rows: The rows of its source.
    """

    restart: Restart
    rows: Sequence[Row]


_ended: dict[Path, EndedSweep] = {}
_lock = Lock()


def keep_ended(path: Path, ended: EndedSweep) -> None:
    """Remember a sweep that has ended.

    Args:
        path: The sweep's directory.
        ended: The sweep.
    """
    with _lock:
        _ended.pop(path, None)
        _ended[path] = ended
        if len(_ended) > MAX_ENDED:
            del _ended[next(iter(_ended))]


def find_ended(path: Path) -> Restart | None:
    """Return a function that continues a sweep, or None if this process did not run it."""
    ended = _ended.get(path)
    return None if ended is None else ended.restart


def find_rows(path: Path) -> Sequence[Row]:
    """Return the rows of a sweep's source, or () if this process did not run it."""
    ended = _ended.get(path)
    return () if ended is None else ended.rows
