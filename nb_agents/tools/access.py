"""What an agent may write outside its workspace, and when: while it presents, or works alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nb_agents.tools.writable import WritablePath

__all__ = ["MAX_LOOKED_AT", "Mounts", "WriteAccess", "entries", "mounts_of"]

MAX_LOOKED_AT = 100_000
MAX_READ_ONLY = 500
"""What a sandbox can be told to keep read-only: bubblewrap takes 9000 arguments."""


@dataclass
class WriteAccess:
    """The places that one agent may write besides its workspace.

    Attributes:
        paths: These.
        is_open: Whether it may now.
    """

    paths: Sequence[WritablePath] = ()
    is_open: bool = False

    @property
    def now(self) -> Sequence[WritablePath]:
        """The places that it may write now."""
        return self.paths if self.is_open else ()


class Mounts(NamedTuple):
    """What a sandbox shows of such places.

    Attributes:
        writable: Shown so that they can be written.
        read_only: Shown read-only, within those.
    """

    writable: tuple[Path, ...] = ()
    read_only: tuple[Path, ...] = ()


def mounts_of(place: WritablePath) -> Mounts:
    """Say how a sandbox shows a place, so that what is protected stays as it is.

    Args:
        place: A file or directory.

    Returns:
        Nothing to be written when that can't be promised: what is protected is not there yet, or
        is a link, or there is too much of it.
    """
    if not all(os.path.lexists(place.path / each) for each in place.protected):
        return Mounts()
    read_only = []
    for number, (path, found, is_protected) in enumerate(entries(place)):
        if number >= MAX_LOOKED_AT:
            return Mounts()
        if not is_protected:
            continue
        read_only.append(path)
        if stat.S_ISLNK(found.st_mode) or len(read_only) > MAX_READ_ONLY or path == place.path:
            return Mounts()
    # A directory around what is protected could be moved away with it. What is mounted can't be.
    around = {
        parent
        for path in read_only
        for parent in path.parents
        if parent != place.path and parent.is_relative_to(place.path)
    }
    return Mounts((place.path, *sorted(around)), tuple(read_only))


def entries(place: WritablePath) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Give what there is in a place: its path, its status, and whether it is protected.

    What is below something protected is left out. No link is followed.

    Args:
        place: A file or directory.
    """
    waiting = [(place.path, tuple[str, ...]())]
    while waiting:
        path, names = waiting.pop()
        try:
            found = path.lstat()
            is_protected = place.is_protected(names, found)
            inner = os.listdir(path) if stat.S_ISDIR(found.st_mode) and not is_protected else []
        except OSError:  # gone since, or not ours to read
            continue
        yield path, found, is_protected
        waiting += [(path / name, (*names, name)) for name in inner]
