"""Temporary directories that are removed also when their process was killed: by the next start.

Each has a lock beside what it is for, which its process holds; the operating system frees that when
the process dies, also by ``kill -9``. A free lock says that nobody needs the directory any more.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["ScratchFolder", "remove_leftovers"]

PLACE = "/tmp"
"""Not the person's own TMPDIR: the name of a socket has at most 107 bytes. Source: unix(7)."""
_PREFIX = "nb_agents_"
_NEW = ".new_nb_agents_"
_LOCK = "owner.lock"


class ScratchFolder:
    """A new temporary directory, which only this user may enter.

    Attributes:
        path: The directory.
    """

    def __init__(self) -> None:
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=PLACE)).resolve()
        self._lock = _lock_of(new)
        self._lock.acquire()
        # It has its name once it is locked: before, another process would take it for a leftover.
        self._outer = new.rename(new.with_name(_PREFIX + new.name.removeprefix(_NEW)))
        self.path = self._outer / "d"
        self.path.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove the directory with all that is in it; may block."""
        _remove(self._outer)
        self._lock.release()


def remove_leftovers() -> None:
    """Remove the directories of this user's processes that have died; may block."""
    for path in _directories():
        lock = _lock_of(path)
        with suppress(OSError, Timeout), lock.acquire(blocking=False):
            _remove(path)


def _directories() -> Iterator[Path]:
    with suppress(OSError), os.scandir(PLACE) as entries:
        for entry in entries:
            # Anybody may make directories there, and links of that name.
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_ours and os.path.exists(os.path.join(entry.path, _LOCK)):
                    yield Path(entry.path)


def _lock_of(path: Path) -> FileLock:
    return FileLock(path / _LOCK, thread_local=False)


def _remove(path: Path) -> None:
    """Remove a tree, also where an agent took the right to do so."""
    for folder, names, _ in os.walk(path):
        for name in (os.path.join(folder, name) for name in names):
            if not os.path.islink(name):
                with suppress(OSError):
                    os.chmod(name, 0o700)
    shutil.rmtree(path, ignore_errors=True)
