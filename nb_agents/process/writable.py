"""Paths outside the workspace that an agent may write to, and their protected parts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nb_agents.disk.names import composed

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
"""Names that are read-only anywhere in a writable path, because programs run their contents or they
belong to nb_agents. Source: DEFAULT_EXCLUDED_DIRS in massgen 0.1.97's
filesystem_manager/_constants.py.
"""

MAX_SCANNED_FILES = 100_000
"""Maximum number of files in a writable path that is scanned or copied."""
MAX_COPIED_BYTES = 2_000_000_000
"""Maximum total size of the files in a writable path that is scanned or copied."""
MAX_READ_ONLY = 500
"""Maximum number of read-only mounts per writable path; bubblewrap accepts 9000 arguments."""


@dataclass(frozen=True)
class WritablePath:
    """A file or directory outside the workspace that an agent may write to.

    Create it in a worker thread when a run starts. It records the inodes of protected files, so
    that they stay protected when a shell moves them.

    Attributes:
        path: The absolute path of the file or directory, with links resolved.
        protected: Paths that may not be changed, in addition to `NEVER_WRITTEN`; absolute or
            relative to ``path``. Paths outside ``path`` are ignored.

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
        paths = {path for each in self.protected for path in _with_target(real / each)}
        names = {_folded(p.relative_to(real).parts) for p in paths if p.is_relative_to(real)}
        object.__setattr__(self, "path", real)
        object.__setattr__(self, "_names", frozenset(names))
        object.__setattr__(self, "_files", frozenset(_identities(paths)))

    @property
    def protected_names(self) -> frozenset[str]:
        """The casefolded relative paths in `protected`, without `NEVER_WRITTEN`."""
        return frozenset("/".join(names) for names in self._names)

    def is_protected(self, names: tuple[str, ...], status: os.stat_result | None = None) -> bool:
        """Return whether a file may not be changed.

        Args:
            names: The file's path components relative to `path`.
            status: The file's `os.stat_result`, or None if it does not exist.
        """
        folded = _folded(names)
        is_known = status is not None and (status.st_dev, status.st_ino) in self._files
        is_below = any(folded[: len(each)] == each for each in self._names)
        return is_known or is_below or not NEVER_WRITTEN.isdisjoint(folded)


def _with_target(path: Path) -> Iterator[Path]:
    """Yield a path, and the path with its links resolved."""
    yield Path(os.path.normpath(path))
    yield Path(os.path.realpath(path))


def _folded(names: Iterable[str]) -> tuple[str, ...]:
    # Some file systems ignore case and Unicode normal forms. On others, this protects some names
    # unnecessarily.
    return tuple(composed(name).casefold() for name in names)


def _identities(paths: Iterable[Path]) -> Iterator[tuple[int, int]]:
    for path in paths:
        with suppress(OSError):  # a missing file is protected by its name
            status = path.lstat()
            yield status.st_dev, status.st_ino


@dataclass
class WriteAccess:
    """An agent's access to paths outside its workspace.

    Attributes:
        paths: The paths that the agent may be allowed to write to.
        is_open: Whether the agent may write to them now.
    """

    paths: Sequence[WritablePath] = ()
    is_open: bool = False

    @property
    def now(self) -> Sequence[WritablePath]:
        """The paths that the agent may write to now."""
        return self.paths if self.is_open else ()


class Mounts(NamedTuple):
    """The mounts of a sandbox for a writable path.

    Attributes:
        writable: Paths that are mounted as writable.
        read_only: Paths in them that are mounted as read-only.
    """

    writable: tuple[Path, ...] = ()
    read_only: tuple[Path, ...] = ()


def mounts_of(location: WritablePath) -> Mounts:
    """Return the mounts that make a path writable, except for its protected parts.

    Returns:
        No mounts if protection can't be guaranteed, because a protected path does not exist or is a
        link, or because there are too many files.
    """
    if not all(os.path.lexists(location.path / each) for each in location.protected):
        return Mounts()
    read_only = []
    for number, (path, status, is_protected) in enumerate(entries(location)):
        if number >= MAX_SCANNED_FILES:
            return Mounts()
        if not is_protected:
            continue
        read_only.append(path)
        if stat.S_ISLNK(status.st_mode) or len(read_only) > MAX_READ_ONLY or path == location.path:
            return Mounts()
    # Parents of protected files are mounted, too: a mount point can't be moved, so the file can't
    # be moved with its parent.
    around = {
        parent
        for path in read_only
        for parent in path.parents
        if parent != location.path and parent.is_relative_to(location.path)
    }
    return Mounts((location.path, *sorted(around)), tuple(read_only))


def entries(location: WritablePath) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Yield the path and status of each file in a writable path, and whether it is protected.

    The contents of protected directories are not included, and links are not followed.
    """
    waiting = [(location.path, tuple[str, ...]())]
    while waiting:
        path, names = waiting.pop()
        try:
            status = path.lstat()
            is_protected = location.is_protected(names, status)
            inner = os.listdir(path) if stat.S_ISDIR(status.st_mode) and not is_protected else []
        except OSError:  # deleted in the meantime, or unreadable
            continue
        yield path, status, is_protected
        waiting += [(path / name, (*names, name)) for name in inner]
