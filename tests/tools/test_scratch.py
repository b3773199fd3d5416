"""Temporary directories are removed after the end of their process, even after a kill."""

import os
from pathlib import Path

import pytest

from tests.kit.processes import ScratchFolder, environment, remove_leftovers
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
    """A directory that is the target of a link."""
    path = tmp_path / "others"
    path.mkdir(mode=0o750)
    (path / "kept").touch()
    return path


def _leave_one(place: Path, others: Path) -> None:
    """Let a process create a directory and kill it; until then its directory must remain."""
    with python(LEAVE, place, others) as process:
        assert line(process) == "ready"
        before = os.listdir(place)
        remove_leftovers()
        assert os.listdir(place) == before
        process.kill()
        process.wait()


def test_directory_is_private_and_removed_with_its_contents(place: Path) -> None:
    folder = ScratchFolder()
    assert [p.stat().st_mode & 0o777 for p in (folder.path, folder.path.parent)] == [0o700] * 2
    (folder.path / "file").touch()
    remove_leftovers()
    assert (folder.path / "file").exists()
    folder.remove()
    assert os.listdir(place) == []


def test_only_directories_of_killed_processes_are_removed(place: Path, others: Path) -> None:
    strange = [place / "nb_agents_notes.txt", place / "other", place / "nb_agents_dir"]
    strange[0].touch()
    strange[1].mkdir()
    strange[2].mkdir()
    (place / "nb_agents_link").symlink_to(others)
    (others / environment._LOCK).touch()
    _leave_one(place, others)
    # Run as a user to whom permissions apply; the owner has removed them.
    output(REMOVE, place, before=BOUND_BY_PERMISSIONS)
    assert set(os.listdir(place)) == {p.name for p in strange} | {"nb_agents_link"}
    assert (others / "kept").exists() and others.stat().st_mode & 0o777 == 0o750


def test_first_run_of_the_next_kernel_removes_leftovers(place: Path, others: Path) -> None:
    _leave_one(place, others)
    assert len(os.listdir(place)) == 1
    with python(RUN, place, place.parent / "sessions") as process:
        assert line(process) == "done"
    assert os.listdir(place) == []


def test_unreadable_directory_is_skipped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PLACE", str(place / "missing"))
    remove_leftovers()
