"""Locks that show that a process is alive: it holds its lock until it exits."""

from __future__ import annotations

import fcntl
import os

from filelock import FileLock

from nb_agents.disk.entry import OUT_OF_RESOURCES

PROBE_S = 0.05
"""Time within which a check lets go of a lock: who holds it for longer is the owner."""


def is_held(lock: FileLock) -> bool:
    """Return whether this process or another holds a lock.

    When this process is out of file descriptors, the answer is True: callers check a living owner
    again, but record a dead one for good.
    """
    if not os.path.exists(lock.lock_file):  # a check must not recreate a deleted lock or directory
        return False
    try:
        # It need not be written: it may be another user's.
        file = os.open(lock.lock_file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as exc:
        return exc.errno in OUT_OF_RESOURCES
    try:
        # Those who check at the same time share it, and none takes another for the owner.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False
