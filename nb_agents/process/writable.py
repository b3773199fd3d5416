"""What an agent may write outside its workspace, when, and what of that stays as it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "MAX_LOOKED_AT",
    "Mounts",
    "NEVER_WRITTEN",
    "WritablePath",
    "WriteAccess",
    "entries",
    "mounts_of",
]

NEVER_WRITTEN = frozenset(
    {
        ".ds_store",
        ".env",
        ".gemini",
        ".git",
        ".massgen",
        ".mypy_cache",
        ".nb_agents",
        ".pytest_cache",
        ".ruff_cache",
        ".venv",
        "__pycache__",
        "massgen_logs",
        "node_modules",
        "venv",
    }
)
"""Names that are read-only wherever they stand in a writable path: programs run what is in them, or
it is ours. Source: DEFAULT_EXCLUDED_DIRS in massgen 0.1.97's filesystem_manager/_constants.py.
"""

MAX_LOOKED_AT = 100_000
MAX_READ_ONLY = 500
"""What a sandbox can be told to keep read-only: bubblewrap takes 9000 arguments."""


@dataclass(frozen=True)
class WritablePath:
    """A file or directory outside the workspace that an agent may write, by its absolute name.

    It is made when a run starts, in a worker thread: it looks what there is, so that what a shell
    moves later stays protected under its new name.

    Attributes:
        path: The file or directory; real afterwards.
        protected: What of it stays as it is, relative to it or absolute; `NEVER_WRITTEN` does
            anyway. What lies elsewhere is left out.

    Example:
        >>> WritablePath(Path("/srv/site"), [Path("config.yaml")]).is_protected(("config.yaml",))
        True
    """

    path: Path
    protected: Sequence[Path] = ()
    _names: frozenset[tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _files: frozenset[tuple[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        real = Path(os.path.realpath(self.path))
        places = {place for each in self.protected for place in _meant(real / each)}
        names = {_folded(p.relative_to(real).parts) for p in places if p.is_relative_to(real)}
        object.__setattr__(self, "path", real)
        object.__setattr__(self, "_names", frozenset(names))
        object.__setattr__(self, "_files", frozenset(_identities(places)))

    def is_protected(self, names: tuple[str, ...], found: os.stat_result | None = None) -> bool:
        """Tell whether something may not be changed.

        Args:
            names: Where it is, beneath `path`.
            found: What is there, if anything.
        """
        folded = _folded(names)
        is_known = found is not None and (found.st_dev, found.st_ino) in self._files
        is_below = any(folded[: len(each)] == each for each in self._names)
        return is_known or is_below or not NEVER_WRITTEN.isdisjoint(folded)


def _meant(path: Path) -> Iterator[Path]:
    """Give a name, and what it leads to when it is a link."""
    yield Path(os.path.normpath(path))
    yield Path(os.path.realpath(path))


def _folded(names: Iterable[str]) -> tuple[str, ...]:
    # On some disks SRC is src; on the others, one name more is protected.
    return tuple(name.casefold() for name in names)


def _identities(places: Iterable[Path]) -> Iterator[tuple[int, int]]:
    for place in places:
        with suppress(OSError):  # what is not there is protected by its name
            found = place.lstat()
            yield found.st_dev, found.st_ino


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
