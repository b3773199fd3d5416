"""A session's snapshots have a total limit, and sparse files stay sparse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nb_agents.snapshots.quota import NoSpaceError, SnapshotSpace
from tests.kit.processes import WritablePath
from tests.kit.sessions import copy_tree
from tests.kit.snapshots import SNAPSHOTS, Index, LocationScan, SnapshotStore, UserFiles

MB = 1_000_000
SPARSE = 50 * MB


def disk_bytes(root: Path) -> int:
    """Return the disk space that the files in a directory use."""
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.is_file())


def make_sparse(path: Path, text: bytes = b"start") -> None:
    """Write a sparse file, with text at the start and in the middle."""
    with open(path, "wb") as file:
        file.write(text)
        file.seek(SPARSE // 2)
        file.write(text)
        file.truncate(SPARSE)


def store_of(root: Path, total: int, limit: int = 100 * MB) -> SnapshotStore:
    return SnapshotStore(root, limit, space=SnapshotSpace(root / SNAPSHOTS, total))


def test_sparse_files_stay_sparse_when_they_are_saved_restored_and_copied(tmp_path: Path) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    work.mkdir()
    for number in range(4):
        make_sparse(work / f"{number}", b"%d" % number)
    assert disk_bytes(work) < MB
    tree = store.snapshot(work, Index()).new_index.tree_id
    assert store.checkout(tree, tmp_path / "restored") == ()
    assert copy_tree(work, tmp_path / "copy") == ()
    for folder in ("restored", "copy"):
        for path in (tmp_path / folder).iterdir():
            assert path.read_bytes() == (work / path.name).read_bytes()
    for name in (SNAPSHOTS, "restored", "copy"):
        assert disk_bytes(tmp_path / name) < 2 * MB, name


def test_files_beyond_the_total_limit_are_named_and_no_file_exceeds_it(tmp_path: Path) -> None:
    work, store = tmp_path / "work", store_of(tmp_path, 3 * MB)
    work.mkdir()
    for number in range(10):
        (work / f"{number}").write_bytes(os.urandom(MB // 2))
    kept = store.snapshot(work, Index())
    assert len(kept.not_stored) == 5
    assert {each.partition(" ")[2] for each in kept.not_stored} == {
        "(no space left for 500,000 bytes in the session's snapshots)"
    }
    assert store.space.rejected_bytes == MB // 2
    assert disk_bytes(tmp_path / SNAPSHOTS) <= 3 * MB
    assert len(store.checkout(kept.new_index.tree_id, tmp_path / "restored")) == 5


@pytest.mark.parametrize("size", [MB // 2, 4 * MB])
def test_content_that_is_saved_already_needs_no_space(tmp_path: Path, size: int) -> None:
    work, store = tmp_path / "work", store_of(tmp_path, size * 3 // 2)
    work.mkdir()
    data = os.urandom(size)
    for number in range(20):
        (work / f"{number}").write_bytes(data)
    assert store.snapshot(work, Index()).not_stored == ()
    assert size < store.space.used < size + MB // 10


def test_sparse_files_count_by_their_size(tmp_path: Path) -> None:
    work, store = tmp_path / "work", store_of(tmp_path, 5 * SPARSE // 2)
    work.mkdir()
    for number in range(4):
        make_sparse(work / f"{number}", b"%d" % number)
    assert len(store.snapshot(work, Index()).not_stored) == 2


def test_a_file_that_changes_again_and_again_does_not_exceed_the_limit(tmp_path: Path) -> None:
    work, store, known = tmp_path / "work", store_of(tmp_path, 3 * MB), Index()
    work.mkdir()
    for _ in range(6):
        (work / "file").write_bytes(os.urandom(MB))
        kept = store.snapshot(work, known)
        known = kept.new_index
    assert len(kept.not_stored) == 1
    assert store.space.used <= 3 * MB
    (work / "file").unlink()
    assert store.snapshot(work, known).changed == ("file",)


def test_another_process_counts_existing_storage(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "one").write_bytes(os.urandom(MB))
    assert store_of(tmp_path, 2 * MB).snapshot(work, Index()).not_stored == ()
    (work / "two").write_bytes(os.urandom(MB))
    again = store_of(tmp_path, 2 * MB)
    assert len(again.snapshot(work, Index()).not_stored) == 1


def test_trees_count_too(tmp_path: Path) -> None:
    work, store = tmp_path / "work", store_of(tmp_path, 500)
    work.mkdir()
    for number in range(20):
        (work / f"{number}").touch()
    with pytest.raises(NoSpaceError):
        store.snapshot(work, Index())


def test_copies_of_user_files_count_until_they_are_deleted(tmp_path: Path) -> None:
    place = WritablePath(tmp_path / "site")
    place.path.mkdir()
    (place.path / "file").write_bytes(os.urandom(MB))
    own = UserFiles(tmp_path / "s", total=2 * MB)
    known, _ = own.scan(place, LocationScan())
    (place.path / "file").write_bytes(os.urandom(MB))
    known, [change] = own.scan(place, known)
    assert change.after is not None and change.after.kind == "x"
    own.delete_copies()
    assert own.store.space.used < MB
