"""Computes the changes that a rewind makes to files, as line counts and diffs."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import printable_name
from nb_agents.snapshots.store import SnapshotStore
from nb_agents.snapshots.tree import DamagedError, TreeEntry
from nb_agents.unicode import well_formed, without_controls

MAX_FILES = 200
"""Maximum number of files listed by name. The others are only counted."""
MAX_BYTES = 200_000
"""Size limit for comparing a file line by line."""
MAX_DIFF_CHARS = 20_000


class FileChange(NamedTuple):
    """The change that a rewind makes to a file.

    Attributes:
        path: The workspace and the path in it, or an absolute path for a user file. Printable.
        what: Whether the file is restored ("back"), removed ("gone") or changed.
        plus, minus: Number of added and removed lines. -1 if they can't be counted.
        diff: The unified diff, or "" if there is none.
    """

    path: str
    what: Literal["back", "gone", "changed"]
    plus: int
    minus: int
    diff: str


def file_changes(store: SnapshotStore, tree: str, workspace: Path) -> Iterator[FileChange]:
    """Yield the changes that restoring a tree makes to a workspace, sorted by path.

    Args:
        store: The session's snapshots.
        tree: The id of the tree to restore.
        workspace: The current workspace.

    Raises:
        OSError: The tree is missing, or the workspace can't be read.
    """
    then, now = store.read_tree(tree), store.scan(workspace)
    for path in sorted({*then, *now}):
        old, new = now.get(path), then.get(path)
        if _is_other(old, new):
            yield change_of(store, f"{workspace.name}/{path}", workspace, path, old, new)


def _is_other(old: TreeEntry | None, new: TreeEntry | None) -> bool:
    kinds = {each.kind for each in (old, new) if each is not None}
    if kinds == {"d"}:
        return old is None or new is None
    if old is None or new is None or "x" in kinds:
        return (old is None or new is None) and kinds != {"x"}
    return (old.kind, old.mode, old.value) != (new.kind, new.mode, new.value)


def change_of(
    store: SnapshotStore,
    name: str,
    root: Path,
    path: str,
    old: TreeEntry | None,
    new: TreeEntry | None,
) -> FileChange:
    """Return the change that a rewind makes to a file.

    Args:
        store: The session's snapshots.
        name: The file's name for the user.
        root: The directory that contains the file.
        path: The file's path relative to it. No component may be a link.
        old: The current entry, or None if there is none.
        new: The entry after the rewind, or None if the file will be removed.

    Raises:
        DamagedError: The stored file was changed after it was saved.
    """
    kind: Literal["back", "gone", "changed"] = "changed"
    if old is None or new is None:
        kind = "back" if old is None else "gone"
    shown_name = printable_name(name)
    try:
        before = _lines(old, lambda: _read(root, path))
        after = _lines(new, lambda: store.read_blob(new) if new else b"")
    except DamagedError:
        raise
    except (OSError, ValueError):
        return FileChange(shown_name, kind, -1, -1, "")
    names = f"now/{shown_name}", f"then/{shown_name}"
    lines = [*difflib.unified_diff(before, after, *names, lineterm="", n=3)]
    plus = sum(line.startswith("+") for line in lines[2:])
    minus = sum(line.startswith("-") for line in lines[2:])
    return FileChange(shown_name, kind, plus, minus, "\n".join(lines)[:MAX_DIFF_CHARS])


def _read(root: Path, path: str) -> bytes:
    with Directory.at(root, follows_links=False) as opened:
        return opened.read(path, MAX_BYTES, follow=False)


def _lines(entry: TreeEntry | None, read: Callable[[], bytes]) -> list[str]:
    """Return the lines of a file, or an empty list for anything else.

    Raises:
        ValueError: The file is too large or not text.
    """
    if entry is None or entry.kind != "f":
        return []
    if entry.size > MAX_BYTES:
        raise ValueError("too large")
    data = read()
    if b"\0" in data:
        raise ValueError("not text")
    return [without_controls(well_formed(line)) for line in data.decode().splitlines()]
