"""Trees are removed regardless of their permissions, without anything outside them."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nb_agents.disk.removal import remove_tree
from tests.processes import BOUND_BY_PERMISSIONS, output

REMOVE = """
import sys
from pathlib import Path
from nb_agents.disk.removal import remove_tree
remove_tree(Path(sys.argv[1]))
"""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.mkdir(mode=0o500)
    return path


def test_tree_without_permissions_is_removed_without_following_links(
    tmp_path: Path, outside: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "b" / "c").mkdir(parents=True)
    (tree / "a" / "b" / "file").touch()
    (tree / "a" / "link").symlink_to(outside)
    for name in ("a/b/c", "a/b", "a"):
        (tree / name).chmod(0)
    output(REMOVE, tree, before=BOUND_BY_PERMISSIONS)
    assert not tree.exists()
    assert outside.stat().st_mode & 0o777 == 0o500


def test_directory_replaced_by_a_link_changes_no_permissions_elsewhere(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    walk = os.fwalk

    def swapping(path: Path) -> Iterator[Any]:
        for found in walk(path):
            (tree / "a").rmdir()
            (tree / "a").symlink_to(outside)
            yield found

    monkeypatch.setattr(os, "fwalk", swapping)
    remove_tree(tree)
    assert not tree.exists()
    assert outside.stat().st_mode & 0o777 == 0o500


def test_removing_a_very_deep_tree_does_not_raise(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    path.mkdir()
    here = os.open(path, os.O_RDONLY)
    for _ in range(2_000):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        remove_tree(path)
    finally:
        subprocess.run(["rm", "-rf", path], check=True)  # pytest's clean-up can't remove it
