"""Scans a directory: the status of each entry, without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import NamedTuple

from nb_agents.disk.entry import TEMP

ExcludedNames = Callable[[str, Collection[str]], Collection[str]]
"""Takes a directory's prefix and the names in it, and returns the names to leave out."""


_LIST = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_RDONLY

_MAX_DEPTH = 100


class Status(NamedTuple):
    """The status of a path. As long as it is the same, the content is considered unchanged."""

    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


Statuses = dict[str, tuple[int, int, int, int, int]]
"""The status of each entry of a directory, by name. Plain tuples, because millions are compared."""


class Folder(NamedTuple):
    """A directory visited by `walk`.

    Attributes:
        folder: Its descriptor, open until the walk continues, or -1 if it could not be opened.
        prefix: Its path and "/", or "" for the root.
        statuses: The status of each entry.
        unreadable: Why its entries could not be read, or "".
    """

    folder: int
    prefix: str
    statuses: Statuses
    unreadable: str = ""


read_status = attrgetter("st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")

_status = methodcaller("stat", follow_symlinks=False)


def walk(root: Path, leaves_out: ExcludedNames | None = None) -> Iterator[Folder]:
    """Yield a directory and all directories in it, parents first, without following links.

    Only a directory and its parents are open at a time, because there may be thousands of
    directories.
    """
    yield from _walk_in(Folder(os.open(root, _LIST), "", {}), leaves_out)


def _walk_in(opened: Folder, leaves_out: ExcludedNames | None) -> Iterator[Folder]:
    try:
        looks = read_statuses(opened.folder)
        if leaves_out is not None:
            for left_out in leaves_out(opened.prefix, looks.keys()):
                del looks[left_out]
        yield opened._replace(statuses=looks)
        inner = [name for name, look in looks.items() if stat.S_ISDIR(look[0])]
        for name in inner:
            subfolder = None if name.endswith(TEMP) else _open_folder(name, opened)
            if subfolder is not None and subfolder.folder < 0:
                yield subfolder
            elif subfolder is not None:
                yield from _walk_in(subfolder, leaves_out)
    finally:
        os.close(opened.folder)


def measure(root: Path, leaves_out: ExcludedNames) -> tuple[int, int]:
    """Return the number of paths in a directory tree, and the total size of its files."""
    looks = [look for each in walk(root, leaves_out) for look in each.statuses.values()]
    return len(looks), sum(look[1] for look in looks if stat.S_ISREG(look[0]))


def read_statuses(folder: int) -> Statuses:
    """Return the status of each entry of an open directory, without a Python loop for speed."""
    with os.scandir(folder) as scanned:
        entries = [*scanned]
    try:
        statuses = [*map(read_status, map(_status, entries))]
        return dict(zip([entry.name for entry in entries], statuses, strict=True))
    except FileNotFoundError:  # an entry was deleted in the meantime
        looks: Statuses = {}
        for entry in entries:
            with suppress(FileNotFoundError):
                looks[entry.name] = read_status(_status(entry))
        return looks


def _open_folder(name: str, above: Folder) -> Folder | None:
    """Open a subdirectory of an open directory. Returns None if it is no longer a directory."""
    prefix = f"{above.prefix}{name}/"
    if prefix.count("/") > _MAX_DEPTH:
        return Folder(-1, prefix, {}, "a directory nested too deeply")
    try:
        return Folder(os.open(name, _LIST, dir_fd=above.folder), prefix, {})
    except PermissionError:
        return Folder(-1, prefix, {}, "a directory that can't be read")
    except (FileNotFoundError, NotADirectoryError):
        return (
            None  # replaced by a writer that is still running; there is another scan after it ends
        )
