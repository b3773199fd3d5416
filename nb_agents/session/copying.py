"""Copying a workspace to where a resumed turn works: by reflink where the filesystem has it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

__all__ = ["copy_workspaces"]

_FICLONE = 0x40049409
"""Linux's ioctl that shares a file's blocks. Source: ioctl_ficlone(2)."""


def copy_workspaces(source: Path, target: Path) -> None:
    """Copy the workspaces of one turn into another's.

    Args:
        source: The old turn's ``workspaces``; one that is missing has nothing to copy.
        target: The new turn's; its files are replaced. Symlinks stay symlinks; what is neither
            file, directory nor symlink (a pipe, a socket) can't be copied and is left out.

    Raises:
        OSError: The disk refused; the first refusal ends it, as a full disk stays full.
    """
    if not source.is_dir():
        return
    target.mkdir(parents=True, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            place = target / entry.name
            if entry.is_symlink():
                place.symlink_to(os.readlink(entry.path))
            elif entry.is_dir():
                copy_workspaces(Path(entry.path), place)
            elif entry.is_file():
                _copy(entry.path, str(place))


def _copy(source: str, target: str) -> None:
    if _reflink(source, target):
        shutil.copystat(source, target)
    else:
        shutil.copy2(source, target)


def _reflink(source: str, target: str) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    import fcntl

    try:
        with open(source, "rb") as old, open(target, "wb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
    except OSError:
        return False
    return True
