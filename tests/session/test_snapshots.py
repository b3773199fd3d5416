"""What a workspace held is kept whole, and laid again as it was, whatever its files are."""

import os
import resource
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nb_agents.session.snapshots import Index, KeptPath, SnapshotStore

State = dict[bytes, tuple[int, bytes]]


def state(place: Path) -> State:
    """Each path below a directory, in bytes, with its mode and what it holds."""
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
def test_each_state_is_laid_as_it_was(tmp_path: Path, change: Callable[[Path], None]) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    work.mkdir()
    begin(work)
    first, before = store.keep(work, Index()), state(work)
    change(work)
    second, after = store.keep(work, first.known), state(work)
    assert before != after
    for number, (kept, held) in enumerate(((first, before), (second, after))):
        assert store.lay(kept.known.id, tmp_path / str(number)) == ()
        assert state(tmp_path / str(number)) == held
    assert state(work) == after


def test_only_what_changed_is_read_and_written(tmp_path: Path) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    work.mkdir()
    for number in range(200):
        (work / f"f{number}").write_text(str(number))
    os.utime(work / "f1", (1, 1))
    time.sleep(0.05)  # or the clock of the file system might not have ticked
    known = store.keep(work, Index()).known
    assert store.keep(work, known).changed == ()
    (work / "f7").write_text("seven")
    again = store.keep(work, known)
    assert again.changed == ("f7",)
    [*_, small] = sorted((tmp_path / "snapshots" / "trees").iterdir(), key=os.path.getmtime)
    assert small.stat().st_size < 500
    assert store.keep(work, again.known, ["f7"]).changed == ()


def test_a_path_that_an_edit_named_is_looked_at_alone(tmp_path: Path) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    work.mkdir()
    known = store.keep(work, Index()).known
    shell("mkdir -p new/dir; echo 1 > new/dir/file; echo 2 > beside")(work)
    kept = store.keep(work, known, ["new/dir/file"])
    assert kept.changed == ("new", "new/dir", "new/dir/file")
    assert store.keep(work, kept.known, ["../beside"]).changed == ("beside",)


def test_pipes_and_sockets_are_named_and_large_files_are_taken_while_they_are_as_they_were(
    tmp_path: Path,
) -> None:
    work, store = tmp_path / "w", SnapshotStore(tmp_path, 1000)
    work.mkdir()
    shell("mkfifo pipe; truncate -s 2G big; truncate -s 2000 other")(work)
    here = os.getcwd()
    os.chdir(work)  # a socket's name is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    os.chdir(here)
    kept = store.keep(work, Index())
    assert sorted(kept.not_kept) == [
        "big (too large: 2147 MB)",
        "other (too large: 0 MB)",
        "pipe (a pipe)",
        "socket (a socket)",
    ]
    (work / "big").unlink()
    lacking = store.lay(kept.known.id, tmp_path / "laid", work)
    assert sorted(os.listdir(tmp_path / "laid")) == ["other"]
    assert len(lacking) == 3
    assert sum(f.stat().st_size for f in (tmp_path / "snapshots").rglob("*")) < 20_000


@pytest.mark.parametrize("path", ["../out", "/etc/out", "link/out", "a/../../out", "none/out"])
def test_a_strangers_tree_writes_nothing_elsewhere(tmp_path: Path, path: str) -> None:
    store = SnapshotStore(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    known = store.keep(work, Index()).known
    (work / "x").write_text("x")
    kept = store.keep(work, known)
    held = kept.known.tree["x"]
    tree = {path: held, "link": KeptPath("l", 0o777, "/tmp"), "a": held}
    bad = store._kept(Index(), Index(tree), tree)
    with pytest.raises(OSError, match="no path of a workspace"):
        store.lay(bad.known.id, tmp_path / "laid")
    assert not (tmp_path / "laid").exists()
    assert not (tmp_path / "out").exists()


def test_a_missing_or_damaged_tree_is_an_error_of_the_disk(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    for tree in ("0" * 40, "../../etc/passwd", "x"):
        with pytest.raises(OSError):
            store.tree(tree)


def test_directories_too_far_down_are_named_and_the_rest_is_laid(tmp_path: Path) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    work.mkdir()
    known = store.keep(work, Index()).known
    deep = "/".join(["d"] * 101)
    shell(f"mkdir -p {deep}; echo 1 > {deep}/file; echo 2 > d/file")(work)
    kept = store.keep(work, known)
    assert kept.not_kept == (f"{deep} (a directory too far down)",)
    assert store.lay(kept.known.id, tmp_path / "laid") == kept.not_kept
    assert (tmp_path / "laid/d/file").read_text() == "2\n"
    again = store.keep(work, kept.known)
    assert again.changed == again.not_kept == ()


def test_a_directory_may_hold_more_directories_than_a_process_may_open(tmp_path: Path) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    for number in range(200):
        (work / f"d{number}/inner").mkdir(parents=True)
        (work / f"d{number}/inner/file").write_text(str(number))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 100, limits[1]))
    try:
        kept = store.keep(work, Index())
        store.lay(kept.known.id, tmp_path / "laid")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(kept.changed) == 3 * 200
    assert state(tmp_path / "laid") == state(work)


def test_what_a_background_process_wrote_since_is_part_of_the_next_moment(tmp_path: Path) -> None:
    work, store = tmp_path / "work", SnapshotStore(tmp_path)
    work.mkdir()
    shell("echo before > log; (read go < ../go; echo after > log; echo > ../done) &")(
        _with_pipes(tmp_path, work)
    )
    first = store.keep(work, Index())
    (tmp_path / "go").write_text("go\n")
    (tmp_path / "done").read_text()
    second = store.keep(work, first.known)
    assert second.changed == ("log",)
    for kept, held in ((first, "before\n"), (second, "after\n")):
        store.lay(kept.known.id, tmp_path / held.strip())
        assert (tmp_path / held.strip() / "log").read_text() == held


def _with_pipes(place: Path, work: Path) -> Path:
    os.mkfifo(place / "go")
    os.mkfifo(place / "done")
    return work


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_copy_is_known_by_its_tree_and_what_changes_there_is_kept(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    work, copy, store = tmp_path / "work", tmp_path / "copy", SnapshotStore(tmp_path)
    work.mkdir()
    begin(work)
    store.lay(store.keep(work, Index()).known.id, copy)
    known = store.index(store.keep(work, Index()).known.id)
    change(copy)
    kept = store.keep(copy, known)
    store.lay(kept.known.id, tmp_path / "laid")
    assert state(tmp_path / "laid") == state(copy)
