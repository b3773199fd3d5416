"""Paths outside the workspace that an agent may write, and the protected parts of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

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
"""Names that are read-only anywhere in a writable path: programs run their contents, or they belong
to nb_agents. Source: DEFAULT_EXCLUDED_DIRS in massgen 0.1.97's filesystem_manager/_constants.py.
"""

MAX_LOOKED_AT = 100_000
MAX_COPIED_BYTES = 2_000_000_000
"""Files and bytes up to which a place is looked at, and copied."""
MAX_READ_ONLY = 500
"""Read-only mounts per writable path: bubblewrap takes 9000 arguments."""


@dataclass(frozen=True)
class WritablePath:
    """A file or directory outside the workspace that an agent may write.

    Create it when a run starts, in a worker thread: it records the inodes of protected files, which
    therefore stay protected when a shell moves them.

    Attributes:
        path: The file or directory, absolute; links in it are resolved.
        protected: Paths that may not be changed, absolute or relative to ``path``, in addition to
            `NEVER_WRITTEN`. Paths outside ``path`` are ignored.

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
        places = {place for each in self.protected for place in _with_target(real / each)}
        names = {_folded(p.relative_to(real).parts) for p in places if p.is_relative_to(real)}
        object.__setattr__(self, "path", real)
        object.__setattr__(self, "_names", frozenset(names))
        object.__setattr__(self, "_files", frozenset(_identities(places)))

    @property
    def protected_names(self) -> frozenset[str]:
        """The protected paths below it but for `NEVER_WRITTEN`, in casefolded letters."""
        return frozenset("/".join(names) for names in self._names)

    def is_protected(self, names: tuple[str, ...], found: os.stat_result | None = None) -> bool:
        """Return whether a file may not be changed.

        Args:
            names: Its path components beneath `path`.
            found: Its status; None when there is none yet.
        """
        folded = _folded(names)
        is_known = found is not None and (found.st_dev, found.st_ino) in self._files
        is_below = any(folded[: len(each)] == each for each in self._names)
        return is_known or is_below or not NEVER_WRITTEN.isdisjoint(folded)


def _with_target(path: Path) -> Iterator[Path]:
    """Yield a path and, when it is a link, its target."""
    yield Path(os.path.normpath(path))
    yield Path(os.path.realpath(path))


def _folded(names: Iterable[str]) -> tuple[str, ...]:
    # Some file systems ignore case; on others this protects one more spelling.
    return tuple(name.casefold() for name in names)


def _identities(places: Iterable[Path]) -> Iterator[tuple[int, int]]:
    for place in places:
        with suppress(OSError):  # a missing file is protected by its name
            found = place.lstat()
            yield found.st_dev, found.st_ino


@dataclass
class WriteAccess:
    """An agent's access to paths outside its workspace.

    Attributes:
        paths: The paths.
        is_open: Whether the agent may write them now.
    """

    paths: Sequence[WritablePath] = ()
    is_open: bool = False

    @property
    def now(self) -> Sequence[WritablePath]:
        """The paths that the agent may write now."""
        return self.paths if self.is_open else ()


class Mounts(NamedTuple):
    """The mounts of a sandbox for a writable path.

    Attributes:
        writable: Paths mounted writable.
        read_only: Paths within those that are mounted read-only.
    """

    writable: tuple[Path, ...] = ()
    read_only: tuple[Path, ...] = ()


def mounts_of(place: WritablePath) -> Mounts:
    """Return the mounts that make a path writable and keep its protected parts read-only.

    Returns:
        No mounts when protection can't be guaranteed: a protected path does not exist yet or is a
        link, or there are too many files.
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
    # A parent of a protected file could be moved together with it; a mount point can't be.
    around = {
        parent
        for path in read_only
        for parent in path.parents
        if parent != place.path and parent.is_relative_to(place.path)
    }
    return Mounts((place.path, *sorted(around)), tuple(read_only))


def entries(place: WritablePath) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Yield the path and status of each file in a place, and whether it is protected.

    Protected directories are not descended into, and links are not followed.
    """
    waiting = [(place.path, tuple[str, ...]())]
    while waiting:
        path, names = waiting.pop()
        try:
            found = path.lstat()
            is_protected = place.is_protected(names, found)
            inner = os.listdir(path) if stat.S_ISDIR(found.st_mode) and not is_protected else []
        except OSError:  # deleted since, or unreadable
            continue
        yield path, found, is_protected
        waiting += [(path / name, (*names, name)) for name in inner]
