"""What going back changes in the files of a workspace, in lines."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from nb_agents.disk.entry import printable_name
from nb_agents.session.snapshots import KeptPath, SnapshotStore
from nb_agents.unicode import well_formed, without_controls

MAX_FILES = 200
"""Files that are listed; more are counted."""
MAX_BYTES = 200_000
"""Size over which a file's lines are not compared."""
MAX_DIFF_CHARS = 20_000


class FileChange(NamedTuple):
    """What becomes of a file.

    Attributes:
        path: Its workspace and its path there; absolute of the person's own. Printable.
        what: Whether it is there again, is gone, or holds something else.
        plus, minus: Lines more and less than now; -1 where they can't be counted.
        diff: Those lines, as a unified diff; "" where there is none.
    """

    path: str
    what: Literal["back", "gone", "changed"]
    plus: int
    minus: int
    diff: str


def file_changes(store: SnapshotStore, tree: str, workspace: Path) -> Iterator[FileChange]:
    """Yield what a workspace's files become when it is laid as a tree says, by path.

    Args:
        store: The session's kept files.
        tree: The tree.
        workspace: The workspace as it is now.

    Raises:
        OSError: The tree is missing, or the workspace can't be read.
    """
    then, now = store.tree(tree), store.look(workspace)
    for path in sorted({*then, *now}):
        old, new = now.get(path), then.get(path)
        if _is_other(old, new):
            yield change_of(store, f"{workspace.name}/{path}", workspace / path, old, new)


def _is_other(old: KeptPath | None, new: KeptPath | None) -> bool:
    kinds = {each.kind for each in (old, new) if each is not None}
    if kinds == {"d"}:
        return old is None or new is None
    if old is None or new is None or "x" in kinds:
        return (old is None or new is None) and kinds != {"x"}
    return (old.kind, old.mode, old.value) != (new.kind, new.mode, new.value)


def change_of(
    store: SnapshotStore, name: str, place: Path, old: KeptPath | None, new: KeptPath | None
) -> FileChange:
    """Return what becomes of a file.

    Args:
        store: The session's kept files.
        name: Its name for the user.
        place: Where it is.
        old: What is there; None for nothing.
        new: What will be.
    """
    what: Literal["back", "gone", "changed"] = "changed"
    if old is None or new is None:
        what = "back" if old is None else "gone"
    shown = printable_name(name)
    try:
        before = _lines(old, lambda: place.read_bytes())
        after = _lines(new, lambda: store.read(new) if new else b"")
    except (OSError, ValueError):
        return FileChange(shown, what, -1, -1, "")
    names = f"now/{shown}", f"then/{shown}"
    lines = [*difflib.unified_diff(before, after, *names, lineterm="", n=3)]
    plus = sum(line.startswith("+") for line in lines[2:])
    minus = sum(line.startswith("-") for line in lines[2:])
    return FileChange(shown, what, plus, minus, "\n".join(lines)[:MAX_DIFF_CHARS])


def _lines(entry: KeptPath | None, read: Callable[[], bytes]) -> list[str]:
    """Return the lines of a file; of anything else none.

    Raises:
        ValueError: It is no text, or too large.
    """
    if entry is None or entry.kind != "f":
        return []
    if entry.size > MAX_BYTES:
        raise ValueError("too large")
    data = read()
    if b"\0" in data:
        raise ValueError("no text")
    return [without_controls(well_formed(line)) for line in data.decode().splitlines()]
