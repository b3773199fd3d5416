"""Symbolic links that are swapped with directories while files are opened.

Each test has an agent's process exchange names of its workspace all the while, so that what is true
when a path is looked at is not when it is opened.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.processes import WritablePath
from tests.kit.sessions import MANIFEST, TurnPaths, copy_workspaces, export_session, workspace_files
from tests.kit.tools import Toolbox, Workspace
from tests.swapping import swapping

SECRET = "the secret of outside"
ROUNDS = 200


class Raced:
    """A session with a workspace in which ``a`` and ``file`` are links to the outside by turns."""

    def __init__(self, root: Path) -> None:
        self.session = root / "session"
        self.paths = TurnPaths(self.session / "turn_1")
        self.own = self.paths.workspaces / "ada"
        self.outside = root / "outside"
        for folder in (self.own / "a", self.outside):
            folder.mkdir(parents=True)
        (self.own / "a" / "x").write_text("inside")
        (self.own / "file").write_text("inside")
        for name in ("x", "secret"):
            (self.outside / name).write_text(SECRET)
        (self.own / "b").symlink_to(self.outside, target_is_directory=True)
        (self.own / "link").symlink_to(self.outside / "secret")
        self.pairs = (
            (self.own / "a", self.own / "b"),
            (self.own / "file", self.own / "link"),
        )

    def beyond(self) -> dict[str, Any]:
        """Return the state of the files outside, except access times."""
        found: dict[str, Any] = {}
        for path in [self.outside, *self.outside.iterdir()]:
            about = path.lstat()
            data = path.read_bytes() if path.is_file() else b""
            found[path.name] = (data, about.st_ino, about.st_mtime_ns, about.st_ctime_ns)
        return found


@pytest.fixture
def raced(tmp_path: Path) -> Iterator[Raced]:
    made = Raced(tmp_path)
    before = made.beyond()
    yield made
    assert made.beyond() == before


CALLS = [
    ("read_file", {"path": "a/x"}),
    ("read_file", {"path": "file"}),
    ("read_file", {"path": "{own}/a/x"}),
    ("list_files", {}),
    ("list_files", {"path": "a"}),
    ("write_file", {"path": "a/x", "content": "inside"}),
    ("write_file", {"path": "a/new", "content": "inside"}),
    ("write_file", {"path": "file", "content": "inside"}),
    ("edit_file", {"path": "a/x", "old": "e", "new": "e"}),
    ("edit_file", {"path": "file", "old": "e", "new": "e"}),
    ("delete_file", {"path": "a/secret"}),
    ("delete_file", {"path": "a/new"}),
    ("delete_file", {"path": "a/x"}),
    ("write_file", {"path": "a/x", "content": "inside"}),
]


async def test_file_tools_do_not_leave_the_workspace(
    raced: Raced, caplog: pytest.LogCaptureFixture
) -> None:
    tools = Toolbox(Workspace(raced.own).tools())
    said, done = [], 0
    with swapping(*raced.pairs):
        for _ in range(ROUNDS):
            for name, args in CALLS:
                filled = {key: value.format(own=raced.own) for key, value in args.items()}
                result = await tools.call(name, filled)
                done += not result.is_error
                said.append(str(result))
    assert done > ROUNDS  # it is no use to refuse everything
    assert caplog.messages == []  # nor to fail for reasons that a tool does not know
    assert not [each for each in said if SECRET in each or "secret  " in each]


def test_file_lists_do_not_leave_the_workspace(raced: Raced) -> None:
    with swapping(*raced.pairs):
        listed = [workspace_files(raced.paths, ["ada"]) for _ in range(ROUNDS)]
    found = {f.path for each in listed for f in each.files}
    assert found  # what is swapped may be something else at each look
    assert found <= {"a/x", "b/x", "file", "link"}


def test_copies_do_not_leave_the_workspace(raced: Raced, tmp_path: Path) -> None:
    with swapping(*raced.pairs):
        for number in range(ROUNDS):
            copy_workspaces(raced.paths.workspaces, tmp_path / "copies" / str(number))
    for folder, _, names in os.walk(tmp_path / "copies"):
        for path in (Path(folder, name) for name in names):
            assert path.is_symlink() or path.read_text() == "inside"


def test_exports_do_not_leave_the_workspace(raced: Raced, tmp_path: Path) -> None:
    with swapping(*raced.pairs):
        made = [export_session(raced.session, tmp_path / f"{n}.zip") for n in range(ROUNDS)]
    for each in made:
        archive = zipfile.ZipFile(each.path)
        names = [name for name in archive.namelist() if not name.endswith(("/", MANIFEST))]
        files = {name: archive.read(name) for name in names}
        assert set(files.values()) <= {b"inside"}
        assert not any("secret" in name for name in files)


async def test_protected_file_is_not_changed_under_another_name(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in ("free", "locked"):
        (project / name).mkdir(parents=True)
        (project / name / "x").write_text(name)
    writable = [WritablePath(project, [Path("locked")])]
    tools = Toolbox(Workspace(tmp_path / "own", {}, [], writable).tools())
    inode = (project / "locked").stat().st_ino
    done = 0
    with swapping((project / "free", project / "locked")):
        for number in range(ROUNDS):
            for name in ("free", "locked"):
                for file in ("x", str(number)):
                    path = str(project / name / file)
                    result = await tools.call("write_file", {"path": path, "content": "changed"})
                    done += not result.is_error
                await tools.call("delete_file", {"path": str(project / name / "x")})
    assert done > ROUNDS // 10
    (locked,) = (path for path in project.iterdir() if path.stat().st_ino == inode)
    assert {path.name: path.read_text() for path in locked.iterdir()} == {"x": "locked"}
