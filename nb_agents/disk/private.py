"""Creates files and directories that only their owner can use, regardless of the umask.

A session contains the output of agents and tools, and locks that determine whether a turn is live.
Therefore nb_agents creates all files that it stores for itself with the modes defined here. In
directories that an agent can write to, use `Directory` with ``is_private``, which follows no links.
Files in a workspace have the permissions that agents gave them, in a directory that no other user
can enter.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from nb_agents.disk.lock import FileLock

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_folder(path: Path, *, exist_ok: bool = True) -> Path:
    """Create a directory and its missing parents, and return its path.

    Args:
        path: The directory.
        exist_ok: Whether the directory may already exist.

    Raises:
        FileExistsError: It exists and ``exist_ok`` is false, or the path is not a directory.
        OSError: It can't be created.
    """
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        if path == path.parent:
            break
        path = path.parent
    if not missing and not exist_ok:
        os.mkdir(path)  # raises the system's error
    for each in reversed(missing):
        try:
            os.mkdir(each, FOLDER_MODE)
        except FileExistsError:  # another process was first, or it is not a directory
            if each == missing[0] and not (exist_ok and os.path.isdir(each)):
                raise
    return missing[0] if missing else path


def open_private(path: str | os.PathLike[str], mode: str, **options: Any) -> IO[Any]:
    """Open a file as `open` does. If it is created, only its owner can read or write it."""
    return open(path, mode, opener=_open, **options)


def write_private(path: Path, data: str | bytes) -> None:
    """Write a file. If it is created, only its owner can read it. Text is encoded as UTF-8.

    Raises:
        OSError: The file can't be written.
    """
    with open_private(path, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def private_lock(path: Path, timeout: float = -1) -> FileLock:
    """Return a lock on a file that no other user can open, so that no other user can hold it.

    A file that an earlier version created as readable for others becomes private.

    Args:
        path: The lock file.
        timeout: Seconds to wait for the lock. -1 waits without a limit.
    """
    with suppress(OSError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
            os.chmod(path, FILE_MODE)
    return FileLock(path, timeout, mode=FILE_MODE, thread_local=False)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
