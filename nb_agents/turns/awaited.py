"""Records which runs the main thread of this process waits for, such as a cell with ``--wait``."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_awaited = Counter[Path]()


@contextmanager
def waiting_for(turn: Path) -> Iterator[None]:
    """Record in the block that this thread waits for a run. Only the main thread is recorded.

    Args:
        turn: The turn's directory.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _awaited[turn] += 1
    try:
        yield
    finally:
        _awaited[turn] -= 1


def is_awaited(turn: Path) -> bool:
    """Return whether the main thread waits for a run, so its cell ends only after the run.

    Args:
        turn: The turn's directory.
    """
    return _awaited[turn] > 0
