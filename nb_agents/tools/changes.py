"""What changed in the places outside its workspace that an agent may write."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from nb_agents.tools.access import MAX_LOOKED_AT, entries
from nb_agents.tools.writable import WritablePath

__all__ = ["Changes", "compare", "look"]

Looks = Mapping[str, tuple[int, int, int]]
"""Each file's inode, size and time of change, by its absolute name."""


class Changes(NamedTuple):
    """Absolute names of files, sorted.

    Attributes:
        made: Those that are new.
        changed: Those with other content, as far as size and time tell.
        deleted: Those that are gone.
    """

    made: tuple[str, ...]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]


def look(places: Sequence[WritablePath]) -> Looks:
    """Look at some places, at most at `MAX_LOOKED_AT` files; follows no link.

    Of what is protected it is seen whether it is there.

    Args:
        places: The places.
    """
    seen = (each for place in places for each in entries(place))
    found = {}
    for path, it, is_protected in islice(seen, MAX_LOOKED_AT):
        if stat.S_ISDIR(it.st_mode):
            if is_protected:
                found[str(path)] = (it.st_ino, 0, 0)
        else:
            found[str(path)] = (it.st_ino, it.st_size, it.st_mtime_ns)
    return found


def compare(before: Looks, after: Looks) -> Changes:
    """Say what changed between two looks.

    Args:
        before: The first.
        after: The second.
    """
    both = before.keys() & after.keys()
    return Changes(
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(name for name in both if before[name] != after[name])),
        tuple(sorted(before.keys() - after.keys())),
    )
