"""Copies agents' workspaces, with reflinks where the file system supports them.

Links are copied as links and never followed. Unreadable entries, pipes, sockets and devices are
skipped and reported.
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

_PIECE_BYTES = 1 << 20
_HOLE = bytes(1 << 16)
"""A block of zeros.

Such blocks are written as holes, so that the copy of a sparse file is sparse.
"""
_SMALL_BYTES = 16_000
"""Size up to which copying a file is faster than a reflink."""
_FICLONE = 0x40049409
"""The Linux ioctl that shares a file's blocks. Source: ioctl_ficlone(2)."""


def copy_file(
    old: IO[bytes], new: IO[bytes], size: int, see: Callable[[bytes], object] = lambda piece: None
) -> None:
    """Copy at most ``size`` bytes of a file, which may grow in the meantime.

    Args:
        old: The file to read.
        new: The file to write.
        size: The maximum number of bytes.
        see: Called with each chunk of data.
    """
    while size > 0 and (data := old.read(min(size, _PIECE_BYTES))):
        new.write(data)
        see(data)
        size -= len(data)


def copy_workspaces(
    source: Path, target: Path, leaving_out: Container[str] = ()
) -> tuple[str, ...]:
    """Copy the workspaces of one turn to another.

    Args:
        source: The old turn's ``workspaces``. If it is missing, nothing is copied. Workspaces that
            are links are not copied.
        target: The new turn's ``workspaces``.
        leaving_out: The names of workspaces that are not copied.

    Returns:
        Descriptions of the skipped entries.

    Raises:
        OSError: A write failed. The copy is incomplete.
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
        source: The directory, which must not be a link.
        target: The destination, created if missing. Existing files are not replaced.
        is_wanted: Returns whether to copy an entry.
        leaving_out: Paths that are not copied, including everything in them.

    Returns:
        Descriptions of the skipped entries.

    Raises:
        OSError: The directory does not exist, or a write failed.
    """
    left_out: list[str] = []
    with Directory.made(target) as new, Directory.at(source) as old:
        # Grouped, so that each target directory is opened once and not once per file.
        selected = filter(is_wanted, old.walk(leaving_out=leaving_out))
        for path, entries in groupby(selected, lambda entry: entry.above):
            with new.inner(path) as folder:
                for entry in entries:
                    _copy(entry, folder, left_out)
    return tuple(left_out)


def skipped_notice(left_out: Sequence[str]) -> tuple[str, ...]:
    """Return a notice that lists the skipped entries. Empty if there are none."""
    return (f"Not copied: {join_names(left_out)}.",) if left_out else ()


def _copy(entry: DirEntry, new: Directory, left_out: list[str]) -> None:
    try:
        if entry.kind == "folder":
            # Other users keep their permissions. The owner needs all permissions to fill the copy.
            new.make(entry.name, stat.S_IMODE(entry.stat.st_mode) & 0o777 | 0o700)
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
        new_file = new.new_descriptor(entry.name)
        try:
            _fill(old, new_file)
        finally:
            os.close(new_file)
    finally:
        os.close(old)


def _fill(old: int, new: int) -> None:
    status = os.fstat(old)
    if status.st_size <= _SMALL_BYTES or not _reflink(old, new):
        copy_bytes(old, new, status.st_size)
    # Owner and set-user-id are not copied, because the copy belongs to the user who resumes.
    os.fchmod(new, stat.S_IMODE(status.st_mode) & 0o777)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))


def copy_bytes(
    old: int, new: int, count: int, see: Callable[[bytes], object] = lambda piece: None
) -> int:
    """Copy up to a number of bytes from one descriptor to another.

    Args:
        old: The descriptor to read from.
        new: The descriptor to write to.
        count: The number of bytes.
        see: Called with each chunk of data, such as the `update` method of a hash.

    Returns:
        The number of bytes that are missing because the file is shorter than ``count``.
    """
    while count > 0 and (data := os.read(old, min(count, _PIECE_BYTES))):
        count -= len(data)
        see(data)
        write_sparse(new, data)
    end_sparse(new)
    return count


def write_sparse(file: int, data: bytes) -> None:
    """Write to a new file, with holes for long runs of zeros. Call `end_sparse` at the end."""
    if data.count(0) < len(_HOLE):
        _write(file, data)
        return
    for start in range(0, len(data), len(_HOLE)):
        part = data[start : start + len(_HOLE)]
        if part == _HOLE[: len(part)]:
            os.lseek(file, len(part), os.SEEK_CUR)
        else:
            _write(file, part)


def end_sparse(file: int) -> None:
    """Set the size of a file that `write_sparse` wrote, which may end with a hole."""
    os.ftruncate(file, os.lseek(file, 0, os.SEEK_CUR))


def _write(file: int, data: bytes) -> None:
    while data:  # a write may be partial, such as on a full disk
        data = data[os.write(file, data) :]


def _reflink(old: int, new: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        fcntl.ioctl(new, _FICLONE, old)
    except OSError:
        return False
    return True
