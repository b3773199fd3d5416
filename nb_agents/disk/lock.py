"""Locks that show that a process is there: it holds one for as long as it lives."""

from __future__ import annotations

import os
import sys

from filelock import FileLock, Timeout

from nb_agents.disk.entry import LACKING

__all__ = ["PROBE_S", "is_held"]

PROBE_S = 0.05
"""Whoever only looks holds the lock for far less, so it is not taken for an owner."""


def is_held(lock: FileLock, probe_s: float = PROBE_S) -> bool:
    """Whether a process (this one or another) holds a lock.

    Args:
        lock: The lock.
        probe_s: Seconds until a lock that is held counts as its owner's; with 0 another one who
            looks may be taken for it, for a moment.

    Returns:
        As asked. Who has no file left to look with is told that it is held: that its owner has died
        is said for good, and that it lives is asked again.
    """
    if not os.path.exists(lock.lock_file):  # to look must make neither it nor a deleted place anew
        return False
    try:
        lock.acquire(timeout=probe_s, poll_interval=PROBE_S / 10)
    except Timeout:
        return True
    except OSError as exc:
        return exc.errno in LACKING or _is_held_by_reading(lock.lock_file)
    lock.release()
    return False


def _is_held_by_reading(path: str) -> bool:
    """Whether somebody holds a lock whose file may only be read, such as another user's."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as exc:
        return exc.errno in LACKING
    try:
        # A shared one, as NFS gives no other to who may not write.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False
