"""Locks that show that a process is alive: it holds its lock until it exits."""

from __future__ import annotations

import os
import sys

from filelock import FileLock, Timeout

from nb_agents.disk.entry import OUT_OF_RESOURCES

PROBE_S = 0.05
"""A process that only checks a lock holds it far more briefly, so it is not taken for the owner."""


def is_held(lock: FileLock, probe_s: float = PROBE_S) -> bool:
    """Return whether this process or another holds a lock.

    When this process is out of file descriptors, the answer is True: callers check a living owner
    again, but record a dead one for good.

    Args:
        lock: The lock.
        probe_s: Seconds for which a lock must be held to count as its owner's; with 0, another
            process that is only checking may be mistaken for the owner.
    """
    if not os.path.exists(lock.lock_file):  # a check must not recreate a deleted lock or directory
        return False
    try:
        lock.acquire(timeout=probe_s, poll_interval=PROBE_S / 10)
    except Timeout:
        return True
    except OSError as exc:
        return exc.errno in OUT_OF_RESOURCES or _is_held_by_reading(lock.lock_file)
    lock.release()
    return False


def _is_held_by_reading(path: str) -> bool:
    """Return whether a lock is held whose file may only be read, such as another user's."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as exc:
        return exc.errno in OUT_OF_RESOURCES
    try:
        # A shared lock: NFS grants an exclusive one only to processes that may write.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False
