"""Removes set-user-id and set-group-id bits from files that an agent's processes created.

Anybody who executes such a file gets the permissions of its owner, the user of nb_agents. Links are
not followed. Directories keep the bits, which only determine the group of new files.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from anyio import move_on_after, to_thread

from nb_agents.process.writable import NEVER_WRITTEN

_SPECIAL = stat.S_ISUID | stat.S_ISGID
_LIST = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_RDONLY
_NAME = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW
_MAX_DEPTH = 100
"""Maximum depth of the search; deeper directories become inaccessible to other users."""
_TICK_NS = 20_000_000
"""How far a file system's clock may lag, in nanoseconds."""
_DROP_S = 1.0
"""Seconds that a stop waits for the bits to be removed.

After that, the thread continues in the background.
"""


@asynccontextmanager
async def without_special_bits(
    workspace: Path | None, users: Sequence[Path] = ()
) -> AsyncIterator[None]:
    """Remove set-user-id and set-group-id bits after a block that runs processes.

    Args:
        workspace: The workspace of the processes, or None if they work in the user's project.
        users: User paths that the processes can write to. Files in them that already had the bits
            are not changed.
    """
    since_ns = time.time_ns() - _TICK_NS

    def drop() -> None:
        if workspace is not None:
            drop_special_bits(workspace)
        for path in users:
            drop_special_bits(path, since_ns, NEVER_WRITTEN)

    try:
        yield
    finally:
        with move_on_after(_DROP_S, shield=True):
            await to_thread.run_sync(drop, abandon_on_cancel=True)


def drop_special_bits(path: Path, since_ns: int = 0, leaving_out: Container[str] = ()) -> None:
    """Remove set-user-id and set-group-id from a file, or from all files in a directory.

    Files that can't be changed are skipped. They belong to another user, who set the bits.

    Args:
        path: The file or directory.
        since_ns: Time in Unix nanoseconds; files whose status changed earlier are skipped.
        leaving_out: Names of directories that are not searched.
    """
    with suppress(OSError):
        above = os.open(path.parent, _LIST)
        try:
            _drop(path.name, above, since_ns, leaving_out, 0)
        finally:
            os.close(above)


def _drop(name: str, above: int, since_ns: int, leaving_out: Container[str], depth: int) -> None:
    with suppress(OSError):  # the file was removed, or belongs to another user
        status = os.stat(name, dir_fd=above, follow_symlinks=False)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            if depth > _MAX_DEPTH:
                _set_mode(name, above, mode & 0o700)
            elif name.casefold() not in leaving_out:
                _search(name, above, mode, since_ns, leaving_out, depth)
        elif stat.S_ISREG(status.st_mode) and mode & _SPECIAL and status.st_ctime_ns >= since_ns:
            _set_mode(name, above, mode & ~_SPECIAL)


def _search(
    name: str, above: int, mode: int, since_ns: int, leaving_out: Container[str], depth: int
) -> None:
    # Others may be able to execute files in a directory that its owner can't list.
    is_closed = mode & 0o500 != 0o500
    if is_closed:
        _set_mode(name, above, mode | 0o500)
    try:
        folder = os.open(name, _LIST, dir_fd=above)
        try:
            for each in os.listdir(folder):
                _drop(each, folder, since_ns, leaving_out, depth + 1)
        finally:
            os.close(folder)
    finally:
        if is_closed:
            _set_mode(name, above, mode)


def _set_mode(name: str, folder: int, mode: int) -> None:
    """Set a file's permissions, without following a link that may have replaced the file."""
    if os.chmod in os.supports_follow_symlinks:
        os.chmod(name, mode, dir_fd=folder, follow_symlinks=False)
        return
    file = os.open(name, _NAME, dir_fd=folder)
    try:
        if not stat.S_ISLNK(os.fstat(file).st_mode):
            os.chmod(f"/proc/self/fd/{file}", mode)
    finally:
        os.close(file)
