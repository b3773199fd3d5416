"""Copying agents' workspaces, by reflink where the file system supports it.

Links are copied as links and never followed. Entries that can't be read, and those that are neither
file, directory nor link, are skipped and reported.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Callable, Container, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO

from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import DirEntry, RefusedError, join_names, printable_name

_PIECE_BYTES = 1_000_000
_SMALL_BYTES = 16_000
"""Size up to which sharing a file's blocks costs more than copying them."""
_FICLONE = 0x40049409
"""The Linux ioctl that shares a file's blocks. Source: ioctl_ficlone(2)."""


def copy_workspaces(
    source: Path, target: Path, leaving_out: Container[str] = ()
) -> tuple[str, ...]:
    """Copy the workspaces of one turn into another's.

    Args:
        source: The old turn's ``workspaces``; if missing, nothing is copied.
        target: The new turn's ``workspaces``. A link in the place of a workspace is not copied.
        leaving_out: The names of workspaces that are not copied.

    Returns:
        Descriptions of the skipped entries.

    Raises:
        OSError: A write failed; the copy ends there, as a full disk stays full.
    """
    if not source.is_dir():
        return ()

    def is_wanted(entry: DirEntry) -> bool:
        return entry.kind != "link" or bool(entry.depth)

    return copy_tree(source, target, is_wanted, leaving_out)


def copy_tree(
    source: Path,
    target: Path,
    is_wanted: Callable[[DirEntry], bool] = lambda entry: True,
    leaving_out: Container[str] = (),
) -> tuple[str, ...]:
    """Copy the contents of a directory.

    Args:
        source: The directory; it may not be a link.
        target: The destination, created if missing. Existing files are not replaced.
        is_wanted: Returns whether to copy an entry.
        leaving_out: Paths that are not copied, with all that is below.

    Returns:
        Descriptions of the skipped entries.

    Raises:
        OSError: There is no such directory, or a write failed.
    """
    left_out: list[str] = []
    target.mkdir(parents=True, exist_ok=True)
    with Directory.at(source) as old, Directory.at(target) as new:
        # Each directory is opened once, not again for each of its files.
        found = filter(is_wanted, old.walk(leaving_out=leaving_out))
        for path, entries in groupby(found, lambda entry: entry.above):
            with new.inner(path) as folder:
                for entry in entries:
                    _copy(entry, folder, left_out)
    return tuple(left_out)


def not_copied(left_out: Sequence[str]) -> tuple[str, ...]:
    """Return a notice that names what a copy lacks, if anything."""
    return (f"Not copied: {join_names(left_out)}.",) if left_out else ()


def copy_file(old: IO[bytes], new: IO[bytes], size: int) -> None:
    """Copy at most ``size`` bytes of a file, which may grow in the meantime."""
    while size > 0 and (data := old.read(min(size, _PIECE_BYTES))):
        new.write(data)
        size -= len(data)


def _copy(entry: DirEntry, new: Directory, left_out: list[str]) -> None:
    try:
        if entry.kind == "folder":
            new.make(entry.name)
        elif entry.kind == "link":
            new.link(entry.name, entry.target())
        elif entry.kind == "file":
            _copy_file(entry, new)
        else:
            left_out.append(entry.about)
    except RefusedError as exc:
        left_out.append(f"{printable_name(entry.path)} ({exc.strerror})")


def _copy_file(entry: DirEntry, new: Directory) -> None:
    old = entry.descriptor()
    try:
        made = new.new_descriptor(entry.name)
        try:
            _fill(old, made)
        finally:
            os.close(made)
    finally:
        os.close(old)


def _fill(old: int, new: int) -> None:
    found = os.fstat(old)
    if found.st_size <= _SMALL_BYTES or not _reflink(old, new):
        copy_bytes(old, new, found.st_size)
    # Owner and set-user-id are not copied: the copy belongs to the user who resumes.
    os.fchmod(new, stat.S_IMODE(found.st_mode) & 0o777)
    os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))


def copy_bytes(old: int, new: int, count: int) -> int:
    """Copy up to a number of bytes from one descriptor to another; return how many are missing."""
    while count > 0 and (data := os.read(old, min(count, _PIECE_BYTES))):
        count -= len(data)
        while data:  # a full disk takes a part before it says so
            data = data[os.write(new, data) :]
    return count


def _reflink(old: int, new: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        fcntl.ioctl(new, _FICLONE, old)
    except OSError:
        return False
    return True
