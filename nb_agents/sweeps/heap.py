"""Has Python's collector look less often and at less, while a sweep works.

All that the imports made, some 200,000 objects, and all that the notebook holds would be gone
through again for each seventy rows or so: a sixth of a sweep's time. New objects would be gone
through by the hundred, of which each row makes thousands, nearly all of them in use.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["YOUNG", "collecting_less"]

YOUNG = 10_000
"""New objects after which the collector looks at them; Python's own number is 700, or 2,000."""

_lock = threading.Lock()
_within = 0
_undo: Callable[[], None] = lambda: None  # noqa: E731


@contextmanager
def collecting_less() -> Iterator[None]:
    """Have no garbage looked for within the block among what is there at its beginning.

    Garbage of before is found after it. Blocks may overlap; where a program has frozen its heap by
    itself, or set how often is looked, it stays as it is.
    """
    global _within, _undo
    with _lock:
        _within += 1
        if _within == 1:
            _undo = _collect_less()
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0:
                _undo()


def _collect_less() -> Callable[[], None]:
    before, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    ours = (max(before[0], YOUNG), *before[1:]) if before[0] else before  # 0 is never
    gc.set_threshold(*ours)
    if not is_frozen:
        gc.freeze()

    def undo() -> None:
        if gc.get_threshold() == ours:
            gc.set_threshold(*before)
        if not is_frozen:
            gc.unfreeze()

    return undo


def _forget() -> None:
    """In a forked process, in which no sweep works."""
    global _lock, _within
    if _within:
        _undo()
    _lock, _within = threading.Lock(), 0


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)
