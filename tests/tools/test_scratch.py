"""Temporary directories: gone with their process, whichever way that ends."""

import os
from pathlib import Path

import pytest

from nb_agents.process import environment
from nb_agents.process.environment import ScratchFolder, remove_leftovers
from tests.processes import BOUND_BY_PERMISSIONS, line, output, python

LEAVE = """
import os, signal, sys
from nb_agents.process import environment
environment.PLACE = sys.argv[1]
folder = environment.ScratchFolder()
(folder.path / "deep").mkdir()
(folder.path / "deep" / "file").touch()
(folder.path / "link").symlink_to(sys.argv[2])
for name in ("deep", "."):
    os.chmod(folder.path / name, 0)
print("ready", flush=True)
signal.pause()
"""


REMOVE = """
import sys
from nb_agents.process import environment
environment.PLACE = sys.argv[1]
environment.remove_leftovers()
"""


RUN = """
import sys
import nb_agents
from nb_agents.process import environment
from nb_agents.testing import Answer, ScriptedModel, scripted_team
environment.PLACE = sys.argv[1]
team = scripted_team(a=ScriptedModel(Answer("done")))
options = nb_agents.RunOptions(session_root=sys.argv[2])
print(nb_agents.start("t", team, options=options).wait(), flush=True)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setattr(environment, "PLACE", str(path))
    return path


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A directory that a link leads to."""
    path = tmp_path / "others"
    path.mkdir(mode=0o750)
    (path / "kept").touch()
    return path


def _leave_one(place: Path, others: Path) -> None:
    """Let a process make a directory and die of kill -9; while it lives, its directory stays."""
    with python(LEAVE, place, others) as process:
        assert line(process) == "ready"
        before = os.listdir(place)
        remove_leftovers()
        assert os.listdir(place) == before
        process.kill()
        process.wait()


def test_a_directory_is_this_users_alone_and_goes_with_all_that_is_in_it(place: Path) -> None:
    folder = ScratchFolder()
    assert [p.stat().st_mode & 0o777 for p in (folder.path, folder.path.parent)] == [0o700] * 2
    (folder.path / "file").touch()
    remove_leftovers()
    assert (folder.path / "file").exists()
    folder.remove()
    assert os.listdir(place) == []


def test_what_a_killed_process_left_is_removed_and_nothing_else(place: Path, others: Path) -> None:
    strange = [place / "nb_agents_notes.txt", place / "other", place / "nb_agents_dir"]
    strange[0].touch()
    strange[1].mkdir()
    strange[2].mkdir()
    (place / "nb_agents_link").symlink_to(others)
    (others / environment._LOCK).touch()
    _leave_one(place, others)
    # As somebody whom the permissions bind: its owner had taken them away.
    output(REMOVE, place, before=BOUND_BY_PERMISSIONS)
    assert set(os.listdir(place)) == {p.name for p in strange} | {"nb_agents_link"}
    assert (others / "kept").exists() and others.stat().st_mode & 0o777 == 0o750


def test_the_next_kernels_first_run_removes_what_a_killed_one_left(
    place: Path, others: Path
) -> None:
    _leave_one(place, others)
    assert len(os.listdir(place)) == 1
    with python(RUN, place, place.parent / "sessions") as process:
        assert line(process) == "done"
    assert os.listdir(place) == []


def test_a_place_that_can_not_be_read_holds_up_nobody(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "PLACE", str(place / "missing"))
    remove_leftovers()
