"""Whether somebody holds a lock, for those who may not take it or can't look."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from nb_agents.disk.lock import is_held
from tests.processes import BOUND_BY_PERMISSIONS, output

LOOK = """
import sys
from filelock import FileLock
from nb_agents.disk.lock import is_held
print(is_held(FileLock(sys.argv[1])))
"""

LOOK_WITHOUT_FILES = """
import os, resource, sys
from filelock import FileLock
from nb_agents.disk.lock import is_held
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
def test_who_may_only_read_is_told_the_same_as_who_may_write(lock: FileLock, held: bool) -> None:
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
def test_who_has_no_file_left_to_look_with_takes_no_owner_for_dead(
    lock: FileLock, held: bool
) -> None:
    if held:
        lock.acquire()
    assert output(LOOK_WITHOUT_FILES, lock.lock_file) == f"{[held, True, held]}\n"


def test_a_lock_that_nobody_has_made_is_held_by_nobody_and_not_made(tmp_path: Path) -> None:
    assert not is_held(FileLock(tmp_path / "owner.lock"))
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no shared locks")
def test_who_checks_is_not_taken_for_the_owner_by_who_checks_at_the_same_time(
    lock: FileLock,
) -> None:
    """With many at once, one has it open at any moment."""

    def look(_: int) -> bool:
        return is_held(lock)

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(look, range(2_000)))
