"""The directory that a run is started in: what a file means by "here".

A worker that begins a run for another process stands in a directory of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

__all__ = ["start_place", "started_in"]

_place: ContextVar[Path | None] = ContextVar("nb_agents_start_place", default=None)


def start_place() -> Path:
    """Return the directory that the run is started in; the process's own unless another is set."""
    return _place.get() or Path.cwd()


@contextmanager
def started_in(place: Path) -> Iterator[None]:
    """Let runs that begin within the block be started in a directory.

    Args:
        place: It, absolute.
    """
    reset = _place.set(place)
    try:
        yield
    finally:
        _place.reset(reset)
