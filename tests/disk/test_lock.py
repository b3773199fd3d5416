"""Checking locks without permission to acquire them or without free descriptors."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nb_agents.disk.lock import FileLock, is_held
from tests.processes import BOUND_BY_PERMISSIONS, output

LOOK = """
import sys
from nb_agents.disk.lock import FileLock, is_held
print(is_held(FileLock(sys.argv[1])))
"""

LOOK_WITHOUT_FILES = """
import os, resource, sys
from nb_agents.disk.lock import FileLock, is_held
lock = FileLock(sys.argv[1])
before = is_held(lock)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
without = is_held(lock)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print([before, without, is_held(lock)])
"""


@pytest.fixture
def lock(tmp_path: Path) -> FileLock:
    made = FileLock(tmp_path / "owner.lock")
    with made:
        pass
    return made


@pytest.mark.parametrize("held", [True, False])
def test_is_held_gives_the_same_result_for_a_read_only_lock(lock: FileLock, held: bool) -> None:
    path = Path(lock.lock_file)
    if held:
        lock.acquire()
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert output(LOOK, path, before=BOUND_BY_PERMISSIONS) == f"{held}\n"
    finally:
        path.parent.chmod(0o755)


@pytest.mark.parametrize("held", [True, False])
def test_is_held_is_true_without_free_file_descriptors(lock: FileLock, held: bool) -> None:
    if held:
        lock.acquire()
    assert output(LOOK_WITHOUT_FILES, lock.lock_file) == f"{[held, True, held]}\n"


def test_missing_lock_is_not_held_and_not_created(tmp_path: Path) -> None:
    assert not is_held(FileLock(tmp_path / "owner.lock"))
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no shared locks")
def test_concurrent_checks_do_not_see_each_other_as_owner(
    lock: FileLock,
) -> None:
    """With many concurrent checks, the lock is open at any time."""

    def look(_: int) -> bool:
        return is_held(lock)

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(look, range(2_000)))
