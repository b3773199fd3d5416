"""Path lookups in a directory never reach anything outside it."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.disk.directory import MAX_DEPTH, Directory, read_file
from tests.kit.disk import RefusedError, join_names, printable_name
from tests.kit.disk import entry as entries

NAMES = ("a", "b", "c")
TEXTS = st.lists(st.sampled_from([*NAMES, "..", ".", "", "no"]), min_size=1, max_size=5)
PATHS = TEXTS.map("/".join).filter(lambda path: path and not path.startswith("/"))
TREES = st.lists(
    st.tuples(
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join),
        st.sampled_from(["file", "folder", "pipe"]) | PATHS,
    ),
    max_size=8,
)


def make(root: Path, tree: list[tuple[str, str]]) -> None:
    """Create a directory tree; a value that is not a kind is the text of a link."""
    for path, kind in tree:
        place = root / path
        with suppress(OSError):  # the name is taken, or the link is broken
            if not Path(os.path.realpath(place.parent)).is_relative_to(root):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "file":
                with open(place, "x") as file:
                    file.write(path)
            elif kind == "folder":
                place.mkdir()
            elif kind == "pipe":
                os.mkfifo(place)
            else:
                place.symlink_to(kind)


RESOLVE_BENEATH = 8
RESOLVE_NO_SYMLINKS = 4


def beneath(root: Path, path: str, resolve: int = RESOLVE_BENEATH) -> os.stat_result | None:
    """Return what Linux finds at a path with RESOLVE_BENEATH; None if nothing.

    Source: openat2(2), whose number is 437 on every machine.
    """
    how = struct.pack("QQQ", os.O_PATH, 0, resolve)
    folder = os.open(root, os.O_RDONLY)
    try:
        found = ctypes.CDLL(None, use_errno=True).syscall(
            437, folder, path.encode(), how, ctypes.c_size_t(len(how))
        )
    finally:
        os.close(folder)
    if found < 0:
        assert ctypes.get_errno() in (
            errno.ENOENT,
            errno.ENOTDIR,
            errno.ELOOP,
            errno.EXDEV,
        ), os.strerror(ctypes.get_errno())
        return None
    try:
        return os.fstat(found)
    finally:
        os.close(found)


def has_openat2() -> bool:
    try:
        return sys.platform == "linux" and beneath(Path("/"), "usr") is not None
    except AssertionError:  # an old kernel, or a container without permission
        return False


HAS_OPENAT2 = has_openat2()


def found(root: Path, path: str, *, follows_links: bool = True) -> tuple[str, bytes] | None:
    """Return the kind and content of a path, as `Directory` finds them."""
    with Directory.real(root, follows_links=follows_links) as directory:
        try:
            kind = directory.kind(path)
            return kind, directory.read(path) if kind == "file" else b""
        except OSError:
            return None


def descriptors() -> set[str]:
    """Return the open descriptors of the test's files; other threads open and close others."""
    return {each for each in os.listdir("/dev/fd") if "/pytest-of-" in _target(each)}


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/dev/fd/{descriptor}")
    except OSError:  # closed meanwhile, like the descriptor of the listing itself
        return ""


@given(TREES, PATHS)
def test_lookup_agrees_with_openat2_resolve_beneath(
    tmp_path_factory: pytest.TempPathFactory, tree: list[tuple[str, str]], path: str
) -> None:
    root = tmp_path_factory.mktemp("any").resolve() / "root"
    root.mkdir()
    (root.parent / "a").write_text("outside")
    make(root, tree)
    before = descriptors()
    kind_and_data = found(root, path)
    assert descriptors() == before
    if kind_and_data is not None:
        kind, data = kind_and_data
        assert (root / path).resolve().is_relative_to(root)
        assert kind != "file" or data == (root / path).read_bytes() != b"outside"
    if HAS_OPENAT2:
        expected = beneath(root, path)
        kind = None if expected is None else entries.kind_of(expected.st_mode)
        assert (kind_and_data and kind_and_data[0]) == kind


@given(TREES, PATHS)
def test_without_links_lookup_is_the_same_if_links_are_not_followed(
    tmp_path_factory: pytest.TempPathFactory, tree: list[tuple[str, str]], path: str
) -> None:
    root = tmp_path_factory.mktemp("any").resolve() / "root"
    root.mkdir()
    make(root, tree)
    before = descriptors()
    kind_and_data = found(root, path, follows_links=False)
    assert descriptors() == before
    if HAS_OPENAT2:
        expected = beneath(root, path, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
        kind = None if expected is None else entries.kind_of(expected.st_mode)
        assert (kind_and_data and kind_and_data[0]) == kind


@pytest.mark.parametrize("verb", ["inner", "make", "replace", "status", "target"])
def test_inner_directory_follows_links_like_its_parent(tmp_path: Path, verb: str) -> None:
    (tmp_path / "outer" / "real").mkdir(parents=True)
    (tmp_path / "outer" / "link").symlink_to("real")
    (tmp_path / "outer" / "real" / "a").symlink_to("b")
    with Directory.at(tmp_path, follows_links=False) as outer, outer.inner("outer") as inner:
        changes: dict[str, Callable[[], object]] = {
            "inner": lambda: inner.inner("link"),
            "make": lambda: inner.make("link/new"),
            "replace": lambda: inner.replace("link/new", b""),
            "status": lambda: inner.status("link/a"),
            "target": lambda: inner.target("link/a"),
        }
        with pytest.raises(RefusedError, match="goes through a symlink"):
            changes[verb]()
        assert (inner.kind("link", follow=False), inner.target("real/a")) == ("link", "b")
        assert stat.S_ISLNK(inner.status("real/a").st_mode)
    assert os.listdir(tmp_path / "outer" / "real") == ["a"]


@given(TREES, PATHS, st.sampled_from(["replace", "create", "make", "remove", "link"]))
def test_no_path_changes_a_file_outside(
    tmp_path_factory: pytest.TempPathFactory, tree: list[tuple[str, str]], path: str, verb: str
) -> None:
    root = tmp_path_factory.mktemp("any").resolve() / "root"
    root.mkdir()
    for name in NAMES:
        (root.parent / name).mkdir()
        (root.parent / name / "a").write_text("outside")
    make(root, tree)
    changes: dict[str, Callable[[Directory], object]] = {
        "replace": lambda directory: directory.replace(path, b"new"),
        "create": lambda directory: directory.create(path).close(),
        "make": lambda directory: directory.make(path),
        "remove": lambda directory: directory.remove(path),
        "link": lambda directory: directory.link(path, "../a/a"),
    }
    before = descriptors()
    with suppress(OSError), Directory.real(root) as directory:
        changes[verb](directory)
    assert descriptors() == before
    assert sorted(os.listdir(root.parent)) == ["a", "b", "c", "root"]
    for name in NAMES:
        assert (root.parent / name / "a").read_text() == "outside"
        assert os.listdir(root.parent / name) == ["a"]
    assert not [name for name in os.listdir(root) if name.endswith(entries.TEMP)]


@given(TREES)
def test_walk_lists_each_entry_once_and_opens_only_files(
    tmp_path_factory: pytest.TempPathFactory, tree: list[tuple[str, str]]
) -> None:
    root = tmp_path_factory.mktemp("any").resolve()
    make(root, tree)
    before = descriptors()
    with Directory.real(root) as directory:
        seen = {}
        for entry in directory.walk():
            assert entry.path not in seen
            seen[entry.path] = entry.kind
            if entry.kind == "file":
                with entry.open() as file:
                    assert file.read() == (root / entry.path).read_bytes()
            elif entry.kind == "link":
                assert entry.target() == os.readlink(root / entry.path)
            else:
                with pytest.raises(RefusedError):
                    entry.open()
    assert descriptors() == before
    # Path.rglob follows no links.
    assert seen.keys() == {p.relative_to(root).as_posix() for p in root.rglob("*")}


def test_magic_links_are_followed_only_by_their_text(tmp_path: Path) -> None:
    (tmp_path / "environ").symlink_to("/proc/self/environ")
    (tmp_path / "root").symlink_to("/proc/self/root")
    with Directory.real(tmp_path.resolve()) as directory:
        for path in ("environ", "root/etc/passwd", "root/proc/self/environ"):
            with pytest.raises(RefusedError, match="is outside"):
                directory.read(path)


def test_absolute_link_is_followed_only_inside_the_directory(tmp_path: Path) -> None:
    root = tmp_path.resolve() / "root"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "a").write_text("inside")
    (root / "in").symlink_to(root / "deep")
    (root / "itself").symlink_to(root)
    (root / "nearly").symlink_to(f"{root}s")
    (root / "back").symlink_to(f"{root}/../x")
    (tmp_path / "x").write_text("outside")
    (tmp_path / "by a link").symlink_to(root.parent)
    for opened in (Directory.real(root), Directory.at(tmp_path / "by a link" / "root")):
        with opened as directory:
            assert directory.read("in/a") == directory.read("itself/deep/a") == b"inside"
            for path in ("nearly", "back"):
                with pytest.raises(RefusedError, match="is outside"):
                    directory.read(path)


def test_directory_that_is_a_link_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "inner").mkdir()
    for path in (tmp_path / "link", tmp_path / "link" / "inner"):
        with pytest.raises(OSError):
            Directory.real(path.absolute())
    with pytest.raises(OSError):
        Directory.at(tmp_path / "link")
    with Directory.at(tmp_path / "link" / "inner"):
        pass


def test_file_is_read_only_by_its_real_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert read_file(tmp_path / "file", 1) == b"x"
    for name, why in (("link", "a symlink"), ("pipe", "a pipe")):
        with pytest.raises(RefusedError, match=why):
            read_file(tmp_path / name)
    with pytest.raises(RefusedError, match="larger than 0 bytes"):
        read_file(tmp_path / "file", 0)


def test_replacement_of_a_file_is_neither_followed_nor_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    a_file = (tmp_path / "file").lstat()
    monkeypatch.setattr(entries, "stat_at", lambda name, folder: a_file)
    before = descriptors()
    with Directory.at(tmp_path) as directory:
        with pytest.raises(RefusedError, match="a pipe"):
            directory.read("pipe")
        with pytest.raises(OSError, match="symbolic links"):
            directory.read("link", follow=False)
        with pytest.raises(IsADirectoryError):
            directory.read(".")
    assert descriptors() == before


def test_each_kind_of_file_has_a_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    with Directory.at(tmp_path) as directory:
        assert [e.about for e in directory.walk()] == ["pipe (a pipe)", "socket (a socket)"]
    with Directory.real(Path("/dev")) as directory:
        assert directory.kind("null") == "device"
        with pytest.raises(RefusedError, match="is a device"):
            directory.read("null")


def test_very_deep_tree_is_walked_to_the_maximum_depth(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3 * MAX_DEPTH):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    with Directory.at(tmp_path) as directory:
        kinds = [entry.kind for entry in directory.walk()]
        assert kinds == ["folder"] * MAX_DEPTH + ["deep"]
        directory.make("/".join("d" * MAX_DEPTH))
        with pytest.raises(RefusedError, match="nested too deeply"):
            directory.make("/".join("d" * (MAX_DEPTH + 1)))


def test_entries_deleted_during_a_walk_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("x")
    for name in ("c", "d"):
        (tmp_path / name).mkdir()
    real = os.listdir

    def listdir(folder: int) -> list[str]:
        names = real(folder)
        (tmp_path / "a").unlink(missing_ok=True)
        return names

    monkeypatch.setattr(os, "listdir", listdir)
    with Directory.at(tmp_path) as directory:
        walk = directory.walk()
        assert next(walk).path == "b"
        (tmp_path / "c").rmdir()
        assert [entry.path for entry in walk] == ["d"]


def test_file_is_replaced_atomically_and_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o4750)
    inode = (tmp_path / "a").stat().st_ino
    with Directory.at(tmp_path) as directory:
        directory.replace("a", b"new")
        directory.replace("b/c", b"new")
    about = (tmp_path / "a").stat()
    assert (stat.S_IMODE(about.st_mode), about.st_ino == inode) == (0o750, False)
    assert (tmp_path / "a").read_text() == (tmp_path / "b" / "c").read_text() == "new"
    with pytest.raises(FileExistsError), Directory.at(tmp_path) as directory:
        directory.create("a")


@pytest.mark.parametrize("call", ["replace", "fchmod", "unlink", "mkdir", "open"])
def test_failed_change_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (tmp_path / "a").write_text("old")
    before = descriptors()
    with monkeypatch.context() as broken, Directory.at(tmp_path) as directory:

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        broken.setattr(os, call, full)
        with suppress(OSError):
            directory.replace("a", b"new")
        with suppress(OSError):
            directory.create("b/c").close()
    assert descriptors() == before
    if call not in ("unlink", "mkdir"):
        assert (tmp_path / "a").read_text() == "old"
    if call != "unlink":
        assert set(os.listdir(tmp_path)) <= {"a", "b"}


WITHOUT_RIGHTS = """
import os, sys
from contextlib import suppress
from pathlib import Path
from nb_agents.disk.directory import Directory
from nb_agents.disk.entry import RefusedError
if os.geteuid() == 0:  # root can read all files, except in some containers
    with suppress(PermissionError):
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
with Directory.real(Path(sys.argv[1])) as directory:
    for entry in directory.walk():
        if entry.kind != "file":
            print(entry.about)
            continue
        try:
            entry.open().close()
        except RefusedError as exc:
            print(f"{entry.path}: {exc.strerror}")
    print(directory.read("passed/inner/a").decode())
"""


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """Yield a temporary directory that any user can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


def test_unreadable_directory_is_listed_and_can_be_traversed(
    everybodys: Path,
) -> None:
    for name in ("closed", "named", "passed/inner"):
        (everybodys / name).mkdir(parents=True)
        (everybodys / name / "a").write_text("read")
    (everybodys / "secret").write_text("x")
    for name, mode in {"closed": 0, "named": 0o444, "passed": 0o311, "secret": 0}.items():
        (everybodys / name).chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RIGHTS, str(everybodys)], capture_output=True, text=True
    )
    for name in ("closed", "named", "passed"):
        (everybodys / name).chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "secret: can't be read: Permission denied",
        "closed (a directory that can't be read)",
        "named (a directory that can't be read)",
        "passed (a directory that can't be read)",
        "read",
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a b", "a b"),
        ("a\nb\x1b[2J", "a\\nb\\x1b[2J"),
        ("\udcff", "\\udcff"),
        ("a\u202eb", "a\\u202eb"),
        ("\U0001f468\u200d\U0001f467", "\U0001f468\u200d\U0001f467"),
        ("…é", "…é"),
    ],
)
def test_printable_name_is_on_one_line(name: str, told: str) -> None:
    assert printable_name(name) == told


def test_join_names_lists_the_first_names() -> None:
    assert join_names(["a", "b"]) == "a, b"
    assert join_names(map(str, range(12))) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
