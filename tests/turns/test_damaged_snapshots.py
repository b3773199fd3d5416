"""Snapshots that were changed on disk: a rewind reports them and restores none of them."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nb_agents.errors import UserError
from tests.kit.snapshots import DamagedError, Index, SnapshotStore, TreeEntry, file_changes
from tests.snapshots.test_store import state
from tests.turns.test_rewind_user_files import Played, site

__all__ = ["site"]


@contextmanager
def swapped(path: Path) -> Iterator[None]:
    """Replace a file's bytes with others of the same size and time within the block."""
    before, times = path.read_bytes(), path.stat()
    path.write_bytes(b"\xff" * len(before))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    try:
        yield
    finally:
        path.write_bytes(before)


def saved_files(session: Path) -> list[Path]:
    """Return all non-empty files of the snapshots."""
    found = (session / "snapshots").rglob("*")
    return sorted(path for path in found if path.is_file() and path.stat().st_size)


def test_no_saved_file_that_was_changed_is_restored(tmp_path: Path, site: Path) -> None:
    played = Played(tmp_path, site)
    session, end = played.run.path.parent, state(site)
    refused: list[str] = []
    for path in saved_files(session):
        name = str(path.relative_to(session))
        with swapped(path):
            before = state(tmp_path)
            try:
                played.run.preview_rewind(1)
                again = played.back(1)
            except UserError as exc:
                assert f"{name} is damaged" in str(exc) and "from a backup" in str(exc)
                assert state(tmp_path) == before, name
                refused.append(path.parent.name)
            else:  # it was not needed
                assert (again.result, state(site)) == (played.run.result, end)
    assert "trees" in refused and len(refused) > 5


READS: dict[str, Callable[[SnapshotStore, str, Path], object]] = {
    "tree": lambda store, tree, to: store.read_tree(tree),
    "index": lambda store, tree, to: store.read_index(tree),
    "lay": lambda store, tree, to: store.checkout(tree, to / str(time.time_ns())),
    "read": lambda store, tree, to: [*map(store.read_blob, files(store, tree))],
    "check": lambda store, tree, to: [*map(store.verify_blob, files(store, tree))],
    "preview": lambda store, tree, to: [*file_changes(store, tree, to)],
}


def files(store: SnapshotStore, tree: str) -> list[TreeEntry]:
    return [entry for entry in store.read_tree(tree).values() if entry.kind == "f"]


@pytest.mark.parametrize("part", ["trees", "files"])
@pytest.mark.parametrize("read", READS)
def test_every_reader_of_saved_files_verifies_them(tmp_path: Path, read: str, part: str) -> None:
    work, empty, store = tmp_path / "work", tmp_path / "empty", SnapshotStore(tmp_path)
    for folder in (work, empty):
        folder.mkdir()
    (work / "small").write_text("small\n")
    known = store.snapshot(work, Index()).new_index
    (work / "large").write_bytes(os.urandom(3_000_000))
    tree = store.snapshot(work, known).new_index.tree_id
    for path in (tmp_path / "snapshots" / part).rglob("*"):
        if path.is_file() and not (part == "files" and read in ("tree", "index")):
            with swapped(path):
                if read == "preview" and path.stat().st_size > 1_000:
                    continue  # its lines are not shown
                with pytest.raises(DamagedError, match=f"snapshots/{part}/.* is damaged"):
                    READS[read](store, tree, empty)
    restored = [path for path in empty.rglob("*") if path.is_file()]
    assert not [path for path in restored if b"\xff\xff" in path.read_bytes()[:100]]
