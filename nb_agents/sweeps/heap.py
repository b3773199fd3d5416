"""Running Python's garbage collector less often, and on fewer objects, during a sweep.

Otherwise the 200,000 objects or so that imports created, and all of the notebook's, would be
examined again about every seventy rows, which takes a sixth of a sweep's time. Young objects would
be collected after a few hundred, while each row creates thousands, nearly all of them in use.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

YOUNG = 10_000
"""New objects before a collection of the youngest generation; Python's default is 700 or 2,000."""

_lock = threading.Lock()
_within = 0
_undo: Callable[[], None] = lambda: None  # noqa: E731


@contextmanager
def less_garbage_collection() -> Iterator[None]:
    """Exclude existing objects from garbage collection within the block, and collect less often.

    Garbage among the existing objects is found after the block. Blocks may overlap; a program's own
    `gc.freeze` or changed threshold is respected.
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
    ours = (max(before[0], YOUNG), *before[1:]) if before[0] else before  # 0 disables collection
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
    """Undo the settings in a forked process, where no sweep runs."""
    global _lock, _within
    if _within:
        _undo()
    _lock, _within = threading.Lock(), 0


os.register_at_fork(after_in_child=_forget)
