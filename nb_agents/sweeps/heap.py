"""Lets Python's collector pass over what was there before a sweep, while it works.

All that the imports made, some 200,000 objects, and all that the notebook holds would be gone
through again for each seventy rows or so: a sixth of a sweep's time.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["passed_over"]

_lock = threading.Lock()
_within = 0
_is_ours = False


@contextmanager
def passed_over() -> Iterator[None]:
    """Have no garbage looked for within the block among what is there at its beginning.

    Garbage of before is found after it. Blocks may overlap; where a program has frozen its heap by
    itself, it stays as it is.
    """
    global _within, _is_ours
    with _lock:
        _within += 1
        if _within == 1 and not gc.get_freeze_count():
            _is_ours = True
            gc.freeze()
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0 and _is_ours:
                _is_ours = False
                gc.unfreeze()


def _forget() -> None:
    """In a forked process, in which no sweep works."""
    global _lock, _within, _is_ours
    if _is_ours:
        gc.unfreeze()
    _lock, _within, _is_ours = threading.Lock(), 0, False


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)
