"""Snapshots are exact after any changes, by tools or in a shell."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kit.snapshots import Index, SnapshotStore
from tests.snapshots.test_store import State, state

PATHS = ["a", "b", "c", "d/a", "d/b", "d/e/a", "e/a"]
TOOLS = ("write", "remove")
SHELL = ("write", "remove", "move", "remove tree", "link")
STEP = st.tuples(
    st.booleans(), st.sampled_from(SHELL), st.sampled_from(PATHS), st.sampled_from(PATHS)
)


def change(root: Path, what: str, path: str, other: str, number: int) -> None:
    """Change a workspace; impossible changes are ignored."""
    target, second = root / path, root / other
    try:
        match what:
            case "write":
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(f"{path} {number}")
            case "remove":
                target.unlink()
            case "move":
                second.parent.mkdir(parents=True, exist_ok=True)
                target.rename(second)
            case "remove tree":
                shutil.rmtree(target.parent if target.parent != root else root / "d")
            case "link":
                target.symlink_to(other)
    except OSError:
        pass


# A tool writes a file that a shell renames afterwards.
RENAMED = [
    (True, "write", "a", "a"),
    (False, "move", "a", "b"),
    (True, "write", "c", "c"),
    (False, "write", "d/a", "d/a"),
]


@settings(max_examples=30, deadline=None)
@given(st.lists(STEP, max_size=14), st.integers(0, 3))
@example(RENAMED, 0)
@example([(True, "write", "d/e/a", "a"), (False, "remove", "d/e/a", "a")], 1)
def test_each_snapshot_of_random_changes_is_restored_exactly(
    steps: list[tuple[bool, str, str, str]], copied_after: int
) -> None:
    with TemporaryDirectory() as folder:
        root, store = Path(folder, "work"), SnapshotStore(Path(folder))
        root.mkdir()
        index = store.snapshot(root, Index()).new_index
        moments: list[tuple[str, State]] = []
        for number, (by_tool, what, path, other) in enumerate(steps):
            is_tool = by_tool and what in TOOLS
            change(root, what, path, other, number)
            index = store.snapshot(root, index, [path] if is_tool else None).new_index
            moments.append((index.tree_id, state(root)))
            if number == copied_after:  # a resume starts from a restored tree
                index = store.read_index(index.tree_id)
        for number, (tree, held) in enumerate(moments):
            assert store.checkout(tree, Path(folder, str(number))) == ()
            assert state(Path(folder, str(number))) == held, number
