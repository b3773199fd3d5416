"""What an agent may write outside its workspace, and what of that stays as it is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["NEVER_WRITTEN", "WritablePath"]

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
