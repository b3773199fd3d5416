"""Locks that show that a process is alive: it holds its lock until it exits.

A lock may be in a directory that others can write to, such as another user's session. Therefore
only regular files are opened, because a link could lead to any other file.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Any

import filelock

from nb_agents.disk.entry import OUT_OF_RESOURCES, open_descriptor

PROBE_S = 0.05
"""Maximum time in seconds that a check holds a lock. Whoever holds it longer is the owner."""


class FileLock(filelock.FileLock):
    """A lock on a file, which is created when the lock is first acquired.

    Acquiring it raises `OSError` if the file is a link, a pipe or a directory, regardless of what
    filelock does with those.
    """

    def acquire(self, *args: Any, **named: Any) -> Any:
        """Acquire the lock. Takes the same arguments as `filelock.FileLock.acquire`."""
        # If the file can't be read, filelock raises the error.
        with suppress(FileNotFoundError, PermissionError):
            os.close(open_descriptor(self.lock_file))
        return super().acquire(*args, **named)


def is_held(lock: FileLock) -> bool:
    """Return whether this or another process holds a lock.

    Returns True if this process is out of file descriptors, because callers check a live owner
    again but record a dead one permanently.
    """
    if not os.path.exists(lock.lock_file):  # a check must not recreate a deleted lock or directory
        return False
    try:
        # Read-only, because the file may belong to another user.
        file = os.open(lock.lock_file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as exc:
        return exc.errno in OUT_OF_RESOURCES
    try:
        # Ignore a lock file that is not the directory owner's: its owner could hold it forever.
        folder = os.stat(os.path.dirname(os.path.abspath(lock.lock_file)))
        if os.fstat(file).st_uid != folder.st_uid:
            return False
        # A shared lock, so that concurrent checks do not mistake each other for the owner.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False
