"""Copies are complete, share blocks where possible, and follow no links."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path

import pytest

from nb_agents.session import copying
from nb_agents.session.copying import copy_tree, copy_workspaces, skipped_notice
from tests.kit.disk import entry


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "ada" / "empty").mkdir(parents=True)
    (source / "ada" / "run.sh").write_text("echo")
    (source / "ada" / "run.sh").chmod(0o6751)
    os.utime(source / "ada" / "run.sh", ns=(1_000, 2_000))
    (source / "ada" / "python").symlink_to("/usr/bin/python3")
    (source / "ada" / "latest").symlink_to("empty", target_is_directory=True)
    return source


def test_copy_contains_files_directories_and_links(source: Path, tmp_path: Path) -> None:
    assert copy_workspaces(source, tmp_path / "copy") == ()
    copy = tmp_path / "copy" / "ada"
    assert sorted(os.listdir(copy)) == ["empty", "latest", "python", "run.sh"]
    assert (copy / "empty").is_dir() and not (copy / "empty").is_symlink()
    assert os.readlink(copy / "python") == "/usr/bin/python3"
    assert os.readlink(copy / "latest") == "empty"
    about = (copy / "run.sh").stat()
    # A copied program does not get the permissions of the user who copies it.
    assert (about.st_mode & 0o7777, about.st_mtime_ns) == (0o751, 2_000)
    assert (copy / "run.sh").read_text() == "echo"


@pytest.mark.skipif(sys.platform != "linux", reason="reflinks are Linux's")
@pytest.mark.parametrize("can", [True, False])
def test_file_is_copied_by_reflink_if_supported(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can: bool
) -> None:
    asked = []

    def ioctl(new: int, request: int, old: int) -> None:
        asked.append(request)
        if not can:
            raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    monkeypatch.setattr(copying, "_SMALL_BYTES", 0)
    copy_tree(source, tmp_path / "copy")
    assert asked == [0x40049409]
    # This ioctl does nothing, so that the copy would be empty if its success were trusted.
    assert (tmp_path / "copy" / "ada" / "run.sh").read_text() == ("" if can else "echo")


def test_entries_that_cannot_be_copied_are_reported(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(source / "ada" / "pipe")
    os.mkfifo(source / "pipe")
    real = entry._open_if_file

    def forbidden(name: str, folder: int) -> object:
        if name == "run.sh":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(name, folder)

    monkeypatch.setattr(entry, "_open_if_file", forbidden)
    left_out = copy_workspaces(source, tmp_path / "copy")
    assert left_out == (
        "pipe (a pipe)",
        "ada/pipe (a pipe)",
        "ada/run.sh (can't be read: Permission denied)",
    )
    assert skipped_notice(left_out) == (f"Not copied: {', '.join(left_out)}.",)
    assert sorted(os.listdir(tmp_path / "copy" / "ada")) == ["empty", "latest", "python"]
    assert skipped_notice(()) == ()


def test_workspace_that_is_a_link_is_not_copied(source: Path, tmp_path: Path) -> None:
    (source / "ben").symlink_to("/etc")
    copy_workspaces(source, tmp_path / "copy")
    assert os.listdir(tmp_path / "copy") == ["ada"]
    (source.parent / "link").symlink_to(source)
    with pytest.raises(OSError):
        copy_tree(source.parent / "link", tmp_path / "other")


def test_a_turn_without_workspaces_has_nothing_to_copy(tmp_path: Path) -> None:
    assert copy_workspaces(tmp_path / "nothing", tmp_path / "copy") == ()


def test_disk_error_ends_the_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copying, "_fill", full)
    with pytest.raises(OSError, match="No space left"):
        copy_workspaces(source, tmp_path / "copy")


def test_copy_of_a_growing_file_ends(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"0123456789")
    with open(tmp_path / "log", "rb") as old, open(tmp_path / "copy", "wb") as new:
        copying.copy_file(old, new, 4)
    assert (tmp_path / "copy").read_bytes() == b"0123"
