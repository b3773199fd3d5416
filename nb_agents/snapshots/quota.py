"""Limits the total size of a session's snapshots.

A size limit for single files is not enough: many large files, or one file that is overwritten again
and again, could fill the disk. Therefore the sizes of all stored objects are added up. Sparse files
count with their full size. Content that is already stored needs no space. A tenth of the limit is
reserved for trees, so that files without space can still be listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Literal

from nb_agents.disk.entry import RefusedError

TOTAL_BYTES = 10_000_000_000
"""Default limit of the total size of a session's snapshots, in bytes."""


class NoSpaceError(RefusedError):
    """Raised when the total size of the snapshots would exceed its limit."""


class SnapshotSpace:
    """Counts the bytes of a session's snapshots. Methods block and are thread-safe.

    Args:
        root: The directory of the session's snapshots.
        limit: Maximum size of the directory in bytes.

    Attributes:
        rejected_bytes: Size of the first object for which there was no space, or None.
    """

    def __init__(self, root: Path, limit: int = TOTAL_BYTES) -> None:
        self.limit = limit
        self.rejected_bytes: int | None = None
        self._root = root
        self._used: int | None = None
        self._lock = Lock()

    @property
    def used(self) -> int:
        """The number of bytes in use."""
        with self._lock:
            return self._measured()

    def reserve(self, size: int, kind: Literal["file", "tree", "required"] = "file") -> bool:
        """Reserve space for an object.

        Args:
            size: The object's size in bytes. A negative number releases space.
            kind: The kind of object. For "required", the limit is ignored.

        Returns:
            Whether there was enough space.
        """
        limit = self.limit if kind == "tree" else self.limit * 9 // 10
        with self._lock:
            used = self._measured()
            if size > 0 and used + size > limit and kind != "required":
                self.rejected_bytes = size if self.rejected_bytes is None else self.rejected_bytes
                return False
            self._used = used + size
            return True

    def remeasure(self) -> None:
        """Measure the directory again before the next object, after files were removed."""
        with self._lock:
            self._used = None

    def _measured(self) -> int:
        if self._used is None:
            # A file with several hard links, such as one that two stores share, counts once.
            self._used = sum(
                {status.st_ino: status.st_size for status in _files(self._root)}.values()
            )
        return self._used


def _files(folder: str | Path) -> Iterator[os.stat_result]:
    try:
        with os.scandir(folder) as scanned:
            entries = [*scanned]
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path)
        else:
            try:
                yield entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # another process removed it
                continue
