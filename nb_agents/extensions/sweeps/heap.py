"""Makes Python's garbage collector run less often, and on fewer objects, during a sweep.

By default, it would examine the roughly 200,000 objects of imported modules, and all objects of the
notebook, about every seventy rows, which takes a sixth of a sweep's time. The young generation
would be collected every few hundred objects, but each row creates thousands that stay in use.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

YOUNG = 10_000
"""Number of new objects before the youngest generation is collected.

Python's default is 700 or 2,000.
"""

_lock = threading.Lock()
_active_blocks = 0
_undo: Callable[[], None] = lambda: None  # noqa: E731


@contextmanager
def less_garbage_collection() -> Iterator[None]:
    """Exclude existing objects from garbage collection during the block, and collect less often.

    Garbage among the existing objects is collected after the block. Blocks can overlap. If the
    program uses `gc.freeze` or changes the threshold itself, its settings are respected.
    """
    global _active_blocks, _undo
    with _lock:
        _active_blocks += 1
        if _active_blocks == 1:
            _undo = _collect_less()
    try:
        yield
    finally:
        with _lock:
            _active_blocks -= 1
            if _active_blocks == 0:
                _undo()


def _collect_less() -> Callable[[], None]:
    original, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    changed = (max(original[0], YOUNG), *original[1:]) if original[0] else original  # 0 is off
    gc.set_threshold(*changed)
    if not is_frozen:
        gc.freeze()

    def undo() -> None:
        if gc.get_threshold() == changed:
            gc.set_threshold(*original)
        if not is_frozen:
            gc.unfreeze()

    return undo


def _reset_after_fork() -> None:
    """Undo the settings in a forked process, where no sweep runs."""
    global _lock, _active_blocks
    if _active_blocks:
        _undo()
    _lock, _active_blocks = threading.Lock(), 0


os.register_at_fork(after_in_child=_reset_after_fork)
