"""Copying a workspace to where a resumed turn works: by reflink where the filesystem has it."""

from __future__ import annotations

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
        target: The new turn's; its files are replaced. Symlinks stay symlinks.

    Raises:
        OSError: The disk refused.
    """
    if source.is_dir():
        shutil.copytree(
            source,
            target,
            symlinks=True,
            ignore_dangling_symlinks=True,
            copy_function=_copy,
            dirs_exist_ok=True,
        )


def _copy(source: str, target: str) -> str:
    if _reflink(source, target):
        shutil.copystat(source, target)
        return target
    return str(shutil.copy2(source, target))


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
