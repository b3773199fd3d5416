"""Locks that show that a process is there: it holds one for as long as it lives."""

from __future__ import annotations

import os

from filelock import FileLock, Timeout

__all__ = ["PROBE_S", "is_held"]

PROBE_S = 0.05
"""Whoever only looks holds the lock for far less, so it is not taken for an owner."""


def is_held(lock: FileLock, probe_s: float = PROBE_S) -> bool:
    """Whether a process (this one or another) holds a lock.

    Args:
        lock: The lock.
        probe_s: Seconds until a lock that is held counts as its owner's; with 0 another one who
            looks may be taken for it, for a moment.
    """
    if not os.path.exists(lock.lock_file):  # to look must make neither it nor a deleted place anew
        return False
    try:
        lock.acquire(timeout=probe_s, poll_interval=PROBE_S / 10)
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False
