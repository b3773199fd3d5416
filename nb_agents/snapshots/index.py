"""The index of a workspace: its state at the last snapshot."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from nb_agents.snapshots.tree import TreeEntry
from nb_agents.snapshots.working_tree import Status, Statuses

RACY_NS = 20_000_000
"""Age in nanoseconds below which an equal modification time does not prove equal content.

The clocks of file systems are coarse.
"""

RACY: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
"""Replaces the status of an entry that changed too recently. The next scan reads it again."""


@dataclass
class Index:
    """The state of a workspace at its last snapshot, so that the next one reads only changes.

    Attributes:
        entries: The entries of the last snapshot.
        statuses: The status of each entry, by directory (its path and "/", or "" for the root).
        checked_out: Files that were restored from `tree`. Only their times are compared.
        tree_id: The id of the tree, or "" before the first snapshot.
        depth: Number of trees that the tree builds on.
    """

    entries: dict[str, TreeEntry] = field(default_factory=dict)
    statuses: dict[str, Statuses] = field(default_factory=dict)
    checked_out: frozenset[str] = frozenset()
    tree_id: str = ""
    depth: int = 0


class Snapshot(NamedTuple):
    """A snapshot of a workspace.

    Attributes:
        new_index: The index of this snapshot.
        changed: Paths that were added, changed or removed since the previous snapshot, sorted.
        not_stored: Descriptions of changed files that are not stored.
    """

    new_index: Index
    changed: tuple[str, ...]
    not_stored: tuple[str, ...]


def remove_paths(
    deleted_paths: Iterable[str], prefix: str, now: Index, names: dict[str, None]
) -> None:
    """Remove deleted paths from a tree."""
    for name in deleted_paths:
        if now.entries.pop(prefix + name, None) is not None:
            names[prefix + name] = None


def remove_below(prefix: str, now: Index, names: dict[str, None]) -> None:
    """Remove the contents of a former directory from a tree."""
    remove_paths([path for path in now.entries if path.startswith(prefix)], "", now, names)
    for folder in [each for each in now.statuses if each.startswith(prefix)]:
        del now.statuses[folder]


def is_folder(entry: TreeEntry | None) -> bool:
    """Return whether an entry is a directory."""
    return entry is not None and entry.kind == "d"


def is_copy(entry: TreeEntry, look: Status) -> bool:
    """Return whether a restored file still has the mode, size and time of its entry."""
    current = stat.S_IMODE(look.mode) & 0o777, look.size, look.mtime_ns
    return stat.S_ISREG(look.mode) and entry[:2] + entry[3:] == ("f", *current)
