"""Writable paths outside of the workspace, and the protected paths in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nb_agents.process.writable import NEVER_WRITTEN, WritablePath
from tests.kit.tools import Toolbox, ToolResult, Workspace


class Project:
    """A project that an agent may write, except ``locked`` and ``config.yaml``."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.path = self.root / "project"
        self.own = self.root / "own"
        for folder in ("locked/deep", "inner/locked", "given"):
            (self.path / folder).mkdir(parents=True)
        for file in ("a.txt", "config.yaml", "locked/deep/x", "inner/locked/x", "given/x"):
            (self.path / file).write_text("old")
        (self.root / "single.txt").write_text("old")
        (self.root / "beside.txt").write_text("old")
        protected = [
            Path("locked"),
            Path("config.yaml"),
            self.path / "inner" / "locked",
            Path("no"),
        ]
        writable = [WritablePath(self.path, protected), WritablePath(self.root / "single.txt")]
        self.tools = Toolbox(
            Workspace(self.own, {}, [self.path / "given", self.path], writable).tools()
        )

    async def call(self, tool: str, path: str, **args: str) -> ToolResult:
        return await self.tools.call(tool, {"path": str(self.path / path), **args})

    def contents(self) -> dict[str, str]:
        files = [p for p in self.root.rglob("*") if p.is_file() and not p.is_symlink()]
        return {p.relative_to(self.root).as_posix(): p.read_text() for p in files}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("write_file", {"content": "new"}),
    ("edit_file", {"old": "old", "new": "new"}),
    ("delete_file", {}),
]


async def test_writable_path_is_written_by_absolute_path(project: Project) -> None:
    for tool, args in CHANGES[:2]:
        (project.path / "a.txt").write_text("old")
        assert not (await project.call(tool, "a.txt", **args)).is_error
        assert (project.path / "a.txt").read_text() == "new"
    assert not (await project.call("write_file", "new/b.txt", content="new")).is_error
    assert await project.call("read_file", "new/b.txt") == "new"
    assert not (await project.call("delete_file", "a.txt")).is_error
    assert not (project.path / "a.txt").exists()


async def test_writable_file_does_not_make_its_directory_writable(project: Project) -> None:
    single = str(project.root / "single.txt")
    for _ in range(2):
        assert not (await project.call("write_file", single, content="new")).is_error
        assert await project.call("read_file", single) == "new"
        assert not (await project.call("delete_file", single)).is_error
    before = project.contents()
    for path in ("beside.txt", "other.txt", "single.txt/x", "../x"):
        assert (await project.call("write_file", str(project.root / path), content="x")).is_error
    (project.root / "single.txt").symlink_to("beside.txt")
    assert (await project.call("write_file", single, content="new")).is_error
    assert (await project.call("read_file", single)).is_error
    assert project.contents() == before


PROTECTED = [
    "config.yaml",
    "locked",
    "locked/deep/x",
    "locked/new",
    "locked/../config.yaml",
    "LOCKED/x",
    "inner/locked/x",
    "no",
    "no/x",
    "given/x",
    "link/x",
    "link_to_file",
    "moved/locked/x",
    *(f"{name}/x" for name in sorted(NEVER_WRITTEN)),
    "given/.git/hooks/x",
    ".GIT/x",
    ".env",
]


@pytest.mark.parametrize(("tool", "args"), CHANGES, ids=[name for name, _ in CHANGES])
@pytest.mark.parametrize("path", PROTECTED)
async def test_protected_paths_cannot_be_changed(
    project: Project, path: str, tool: str, args: dict[str, str]
) -> None:
    (project.path / "link").symlink_to("locked/deep")
    (project.path / "link_to_file").symlink_to("config.yaml")
    # A shell command may move a protected file and put another one there.
    (project.path / "inner").rename(project.path / "moved")
    (project.path / "inner" / "locked").mkdir(parents=True)
    before = project.contents()
    assert (await project.call(tool, path, **args)).is_error
    assert project.contents() == before
    assert sorted(os.listdir(project.path)) == sorted(
        ["a.txt", "config.yaml", "locked", "inner", "given", "link", "link_to_file", "moved"]
    )


async def test_protected_paths_can_be_read(project: Project) -> None:
    for path in ("config.yaml", "locked/deep/x", "given/x"):
        assert await project.call("read_file", path) == "old"
    assert "locked/deep/x  3" in await project.call("list_files", "")


async def test_context_path_replaced_by_a_link_is_not_followed(project: Project) -> None:
    (project.root / "secret").mkdir()
    (project.root / "secret" / "x").write_text("secret")
    (project.path / "given").rename(project.path / "was")
    (project.path / "given").symlink_to(project.root / "secret")
    for tool in ("read_file", "list_files"):
        assert "secret" not in await project.call(tool, "given/x")
        assert (await project.call(tool, "given/x")).is_error


async def test_nested_writable_path_replaced_by_a_link_is_not_followed(
    tmp_path: Path,
) -> None:
    outer, inner, secret = tmp_path / "outer", tmp_path / "outer" / "inner", tmp_path / "secret"
    inner.mkdir(parents=True)
    secret.mkdir()
    tools = Toolbox(
        Workspace(tmp_path / "own", {}, [], [WritablePath(outer), WritablePath(inner)]).tools()
    )
    for make in (lambda: None, lambda: (inner.rmdir(), inner.symlink_to(secret))):
        make()
        await tools.call("write_file", {"path": str(inner / "x"), "content": "new"})
        (inner / "x").unlink(missing_ok=True)
    assert os.listdir(secret) == []


async def test_nothing_outside_is_written_without_writable_paths(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    tools = Toolbox(Workspace(tmp_path / "own", {}, [tmp_path / "given"]).tools())
    told = await tools.call("write_file", {"path": f"{tmp_path}/given/x", "content": "x"})
    assert told.is_error and "can only be read" in told
    own = await tools.call("write_file", {"path": f"{tmp_path}/own/x", "content": "x"})
    assert not own.is_error
