"""Removes a directory tree that another process may change at the same time."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

_NAMED = os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)


def remove_tree(path: Path) -> None:
    """Remove a directory and its contents, even if permissions are missing.

    Links are not followed. Files that can't be removed are skipped without an error.
    """
    with suppress(OSError, RecursionError):
        for _, names, _, folder in os.fwalk(path):
            for name in names:
                with suppress(OSError):
                    _unlock(name, folder)
    with suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)


def _unlock(name: str, folder: int) -> None:
    """Give the owner all permissions on a subdirectory of an open directory. Links are skipped."""
    if os.chmod in os.supports_follow_symlinks:  # macOS
        os.chmod(name, 0o700, dir_fd=folder, follow_symlinks=False)
        return
    descriptor = os.open(name, _NAMED, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)  # fchmod does not accept O_PATH descriptors
    finally:
        os.close(descriptor)
