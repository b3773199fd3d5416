"""Snapshots of workspaces are complete and are restored exactly, for any files."""

import os
import resource
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nb_agents.snapshots.store import SnapshotStore
from tests.kit.snapshots import FileChange, Index, TreeEntry, change_of

State = dict[bytes, tuple[int, bytes]]


def state(place: Path) -> State:
    """Return each path in a directory, in bytes, with its mode and content."""
    found: State = {}
    for folder, folders, files in os.walk(os.fsencode(place)):
        for name in folders + files:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            held = b""
            if stat.S_ISLNK(mode):
                held = os.readlink(path)
            elif stat.S_ISREG(mode):
                held = Path(os.fsdecode(path)).read_bytes()
            found[os.path.relpath(path, os.fsencode(place))] = (mode, held)
    return found


def shell(command: str) -> Callable[[Path], None]:
    def run(place: Path) -> None:
        subprocess.run(["bash", "-c", command], cwd=place, check=True)

    return run


def names_in_odd_bytes(place: Path) -> None:
    for name in (b"\xff\xfe", b"100%25", b"new\nline", b"caf\xc3\xa9", b"-rf"):
        Path(os.fsdecode(os.fsencode(place) + b"/" + name)).write_bytes(name)


CHANGES = {
    "changed": shell("echo more >> a/one"),
    "changed to the same size": shell("printf xyz > a/one"),
    "created and deleted": shell("rm a/two; echo 3 > three"),
    "renamed": shell("mv a b"),
    "replaced by a directory": shell("rm a/two; mkdir a/two; echo in > a/two/it"),
    "a directory replaced by a file": shell("rm -r a; echo file > a"),
    "a link to outside": shell("ln -s /etc/passwd out; ln -s /etc etc; ln -s nowhere gone"),
    "a directory replaced by a link": shell("rm -r a; ln -s /etc a"),
    "modes": shell("chmod 640 a/one; chmod 755 a/two; chmod 500 empty"),
    "hidden and ignored": shell("echo a > .env; printf '*\\n' > .gitignore; mkdir .cache"),
    "odd bytes": names_in_odd_bytes,
    "a repository of its own": shell("git init -q . && git add -A && echo x > untracked"),
    "a repository within": shell("git init -q inner && echo x > inner/file"),
}


def begin(place: Path) -> None:
    shell("mkdir a empty; printf one > a/one; printf two > a/two")(place)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_each_state_is_restored_exactly(tmp_path: Path, change: Callable[[Path], None]) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    work.mkdir()
    begin(work)
    first, before = store.snapshot(work, Index()), state(work)
    change(work)
    second, after = store.snapshot(work, first.new_index), state(work)
    assert before != after
    for number, (kept, held) in enumerate(((first, before), (second, after))):
        assert store.checkout(kept.new_index.tree_id, tmp_path / str(number)) == ()
        assert state(tmp_path / str(number)) == held
    assert state(work) == after


def test_only_what_changed_is_read_and_written(tmp_path: Path) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    work.mkdir()
    for number in range(200):
        (work / f"f{number}").write_text(str(number))
    os.utime(work / "f1", (1, 1))
    time.sleep(0.05)  # because the file system's clock is coarse
    known = store.snapshot(work, Index()).new_index
    assert store.snapshot(work, known).changed == ()
    (work / "f7").write_text("seven")
    again = store.snapshot(work, known)
    assert again.changed == ("f7",)
    [*_, small] = sorted((tmp_path / "snapshots" / "trees").iterdir(), key=os.path.getmtime)
    assert small.stat().st_size < 500
    assert store.snapshot(work, again.new_index, ["f7"]).changed == ()


def test_only_the_path_of_an_edit_is_scanned(tmp_path: Path) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    work.mkdir()
    known = store.snapshot(work, Index()).new_index
    shell("mkdir -p new/dir; echo 1 > new/dir/file; echo 2 > beside")(work)
    kept = store.snapshot(work, known, ["new/dir/file"])
    assert kept.changed == ("new", "new/dir", "new/dir/file")
    assert store.snapshot(work, kept.new_index, ["../beside"]).changed == ("beside",)


def test_pipes_and_sockets_are_listed_and_unchanged_large_files_are_copied(
    tmp_path: Path,
) -> None:
    work, store = tmp_path / "w", SnapshotStore(tmp_path, 1000)
    work.mkdir()
    shell("mkfifo pipe; truncate -s 2G big; truncate -s 2000 other")(work)
    here = os.getcwd()
    os.chdir(work)  # because the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    os.chdir(here)
    kept = store.snapshot(work, Index())
    assert sorted(kept.not_stored) == [
        "big (too large: 2147 MB)",
        "other (too large: 0 MB)",
        "pipe (a pipe)",
        "socket (a socket)",
    ]
    (work / "big").unlink()
    lacking = store.checkout(kept.new_index.tree_id, tmp_path / "laid", work)
    assert sorted(os.listdir(tmp_path / "laid")) == ["other"]
    assert len(lacking) == 3
    assert sum(f.stat().st_size for f in (tmp_path / "snapshots").rglob("*")) < 20_000


@pytest.mark.parametrize("kept", ["large", "small"])
def test_a_directory_that_became_a_link_is_not_followed(tmp_path: Path, kept: str) -> None:
    work, outside = tmp_path / "w", tmp_path / "outside"
    store = SnapshotStore(tmp_path, 3 if kept == "large" else 1000)
    shell("mkdir -p w/a outside && echo private > w/a/file && cp -p w/a/file outside")(tmp_path)
    known = store.snapshot(work, Index()).new_index
    shell("rm -r w/a && ln -s ../outside w/a")(tmp_path)
    lacking = store.checkout(known.tree_id, tmp_path / "laid", work)
    assert (tmp_path / "laid" / "a" / "file").exists() == (kept == "small") == (not lacking)
    (outside / "file").write_text("other")
    (outside / "inner").symlink_to("private")
    now = store.entry(work, "a/file"), store.entry(work, "a/inner"), store.entry(work, "a/none")
    assert {each and each[:3] for each in now} == {("x", 0, "goes through a symlink (a)")}


def test_file_changed_through_a_link_is_stored(tmp_path: Path) -> None:
    work, store = tmp_path / "w", SnapshotStore(tmp_path)
    shell("mkdir -p w/d && echo old > w/d/file && ln -s d w/link")(tmp_path)
    known = store.snapshot(work, Index()).new_index
    (work / "d" / "file").write_text("new")
    kept = store.snapshot(work, known, ["link/file"])
    assert kept.changed == ("d/file",)
    assert store.checkout(kept.new_index.tree_id, tmp_path / "laid") == ()
    assert (tmp_path / "laid" / "link" / "file").read_text() == "new"


SWAPS = {
    "a link": "rm file; ln -s ../outside/file file",
    "a link above": "cd .. && rm -r w && ln -s outside w",
    "a pipe": "rm file; mkfifo file",
    "a large file": "truncate -s 1000000000 file",
}


@pytest.mark.parametrize("swap", SWAPS)
def test_replacement_during_a_scan_is_neither_read_nor_waited_for(
    tmp_path: Path, swap: str
) -> None:
    store = SnapshotStore(tmp_path)
    shell("mkdir -p w outside && echo old > w/file && echo private > outside/file")(tmp_path)
    old = store.entry(tmp_path, "w/file")
    shell(SWAPS[swap])(tmp_path / "w")
    change = change_of(store, "w/file", tmp_path, "w/file", old, None)
    assert change == FileChange("w/file", "gone", -1, -1, "")


@pytest.mark.parametrize("path", ["../out", "/etc/out", "link/out", "a/../../out", "none/out"])
def test_strangers_tree_cannot_write_outside_the_workspace(tmp_path: Path, path: str) -> None:
    store = SnapshotStore(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    known = store.snapshot(work, Index()).new_index
    (work / "x").write_text("x")
    kept = store.snapshot(work, known)
    held = kept.new_index.entries["x"]
    tree = {path: held, "link": TreeEntry("l", 0o777, "/tmp"), "a": held}
    bad = store._write_tree(Index(), Index(tree), tree)
    with pytest.raises(OSError, match="which is not a workspace path"):
        store.checkout(bad.new_index.tree_id, tmp_path / "laid")
    assert not (tmp_path / "laid").exists()
    assert not (tmp_path / "out").exists()


def test_missing_or_damaged_tree_raises_os_error(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    for tree in ("0" * 40, "../../etc/passwd", "x"):
        with pytest.raises(OSError):
            store.read_tree(tree)


def test_too_deep_directories_are_listed_and_the_rest_is_restored(tmp_path: Path) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    work.mkdir()
    known = store.snapshot(work, Index()).new_index
    deep = "/".join(["d"] * 101)
    shell(f"mkdir -p {deep}; echo 1 > {deep}/file; echo 2 > d/file")(work)
    kept = store.snapshot(work, known)
    assert kept.not_stored == (f"{deep} (a directory nested too deeply)",)
    assert store.checkout(kept.new_index.tree_id, tmp_path / "laid") == kept.not_stored
    assert (tmp_path / "laid/d/file").read_text() == "2\n"
    again = store.snapshot(work, kept.new_index)
    assert again.changed == again.not_stored == ()


def test_directory_can_contain_more_directories_than_file_descriptors(tmp_path: Path) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    for number in range(200):
        (work / f"d{number}/inner").mkdir(parents=True)
        (work / f"d{number}/inner/file").write_text(str(number))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 100, limits[1]))
    try:
        kept = store.snapshot(work, Index())
        store.checkout(kept.new_index.tree_id, tmp_path / "laid")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(kept.changed) == 3 * 200
    assert state(tmp_path / "laid") == state(work)


def test_next_snapshot_includes_files_of_background_processes(tmp_path: Path) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    work.mkdir()
    shell("echo before > log; (read go < ../go; echo after > log; echo > ../done) &")(
        _with_pipes(tmp_path, work)
    )
    first = store.snapshot(work, Index())
    (tmp_path / "go").write_text("go\n")
    (tmp_path / "done").read_text()
    second = store.snapshot(work, first.new_index)
    assert second.changed == ("log",)
    for kept, held in ((first, "before\n"), (second, "after\n")):
        store.checkout(kept.new_index.tree_id, tmp_path / held.strip())
        assert (tmp_path / held.strip() / "log").read_text() == held


def _with_pipes(place: Path, work: Path) -> Path:
    os.mkfifo(place / "go")
    os.mkfifo(place / "done")
    return work


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changes_to_a_restored_workspace_are_stored(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    work, copy, store = tmp_path / "work", tmp_path / "copy", SnapshotStore(tmp_path)
    work.mkdir()
    begin(work)
    store.checkout(store.snapshot(work, Index()).new_index.tree_id, copy)
    known = store.read_index(store.snapshot(work, Index()).new_index.tree_id)
    change(copy)
    kept = store.snapshot(copy, known)
    store.checkout(kept.new_index.tree_id, tmp_path / "laid")
    assert state(tmp_path / "laid") == state(copy)


PATHS = st.sampled_from(["a", "b", "a/c", "b/c", "a/c/d", "b/c/d", "e"])


def remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def write_file(place: Path) -> None:
    if not place.is_dir():
        place.write_text(str(time.time_ns()))


def move(place: Path, to: str) -> None:
    place.rename(place.with_name(to))


EDITS: dict[str, Callable[[Path], None]] = {
    "write": write_file,
    "make": lambda place: place.mkdir(),
    "remove": remove,
    "link": lambda place: place.symlink_to("b"),
    "replace": lambda place: (remove(place), write_file(place))[1],
}
MOVES = {f"move to {name}": name for name in ("a", "b", "c", "d", "e")}
STEPS = st.tuples(st.sampled_from([*EDITS, *MOVES]), PATHS, st.booleans())


def changed(work: Path, what: str, path: str) -> None:
    """Make a change if it is possible."""
    place = work / path
    if any(above.is_symlink() for above in place.parents if above != work):
        return
    try:
        move(place, MOVES[what]) if what in MOVES else EDITS[what](place)
    except OSError:
        pass


@settings(max_examples=100, deadline=None, suppress_health_check=[*HealthCheck])
@given(st.lists(STEPS, max_size=12))
def test_each_tree_matches_the_workspace_after_any_change(
    steps: list[tuple[str, str, bool]],
) -> None:
    """An edit with known paths is stored by them alone, anything else by a full scan."""
    with TemporaryDirectory() as folder:
        work, store = Path(folder, "work"), SnapshotStore(Path(folder))
        work.mkdir()
        known = store.snapshot(work, Index()).new_index
        for number, (what, path, is_named) in enumerate(steps):
            changed(work, what, path)
            known = store.snapshot(
                work, known, [path] if is_named and what in EDITS else None
            ).new_index
            laid = Path(folder, str(number))
            assert store.checkout(known.tree_id, laid) == ()
            assert state(laid) == state(work), steps[: number + 1]
