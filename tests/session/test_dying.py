"""A process killed at any change of files leaves complete snapshots and forks, or none."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from hashlib import blake2b
from itertools import count
from pathlib import Path

import nb_agents
from nb_agents import RunOptions
from tests.kit.sessions import load_session
from tests.kit.snapshots import Index, SnapshotStore
from tests.snapshots.test_store import shell, state
from tests.snapshots.test_user_files import Own
from tests.team_kit import finish, script

EACH = os.environ.get("NB_AGENTS_KILL_EACH") == "1"
"""Whether to kill at each change of files, instead of at a sample."""

AT_HOME = """\
name: some
description: d
version: 1.0.0
workspace: project
steps:
- {id: make, type: bash, command: "mkdir -p in; echo 1 > in/a; echo 2 > b; ln -sf b l", output: a}
- {id: change, type: bash, command: "echo x > in/a; rm -f b l", output: b}
"""

_BEGIN = """
from pathlib import Path
from tests.dying import die_at
root = Path({root!r})
die_at({number}, root)
"""
_KEEP = """
from nb_agents.snapshots.store import SnapshotStore
store = SnapshotStore(root / "s")
store.snapshot(root / "w", store.read_index({tree!r}))
"""
_COPY = """
from nb_agents.session.layout import turns_of
from nb_agents.session.manage import copy_turns
(root / "fork").mkdir()
copy_turns(turns_of(root / "s"), root / "fork")
"""
_BACK = """
import nb_agents
from nb_agents import RunOptions
nb_agents.rewind("s/1", {point}, options=RunOptions(session_root=root)).wait()
"""
_OWN = """
import json
from nb_agents.process.writable import WritablePath
from nb_agents.snapshots.user_files import UserFileChange, UserFiles, UserFileHistory
from nb_agents.snapshots.user_file_restore import plan_restore, restore_files
from nb_agents.snapshots.tree import TreeEntry
kept = lambda it: it and TreeEntry(*it)
said = json.loads((root / "changes.json").read_text())
changes = [UserFileChange(place, path, kept(b), kept(a)) for place, path, b, a, _ in said]
own, places = UserFiles(root / "s"), [WritablePath(root / "site")]
plan = plan_restore(UserFileHistory(tuple(changes)), own, places)
assert not restore_files(plan, own, places, [])
"""
RECIPE = """\
name: some
description: d
version: 1.0.0
steps:
- {id: make, type: bash, command: "mkdir in; echo 1 > in/a; echo 2 > b; ln -s b l", output: a}
- {id: change, type: bash, command: "echo x >> in/a; rm b l", output: b}
"""


def _killed(root: Path, work: str, step: int) -> Iterator[int]:
    """Repeat work that dies at its first change of files, its second one, and so on."""
    for number in count(1, 1 if EACH else step):
        with script(_BEGIN.format(root=str(root), number=number) + work, root) as process:
            assert process.stderr is not None
            said = process.stderr.read()
            code = process.wait(60)
        assert code in (0, -signal.SIGKILL), said
        if code == 0:
            return
        yield number


def _check(store: SnapshotStore) -> None:
    """Check that each stored file matches its digest and each tree can be read."""
    for path in store.path.glob("files/??/*"):
        if not path.name.startswith("."):
            digest = blake2b(path.read_bytes(), digest_size=20).hexdigest()
            assert digest == path.parent.name + path.name
    for path in store.path.glob("trees/[!.]*"):
        for entry in store.read_tree(path.name).values():
            if entry.kind == "f":
                store.read_blob(entry)


def test_snapshot_is_complete_or_missing_after_a_kill_at_any_step(tmp_path: Path) -> None:
    workspace, store = tmp_path / "w", SnapshotStore(tmp_path / "s")
    (workspace / "in").mkdir(parents=True)
    (workspace / "in" / "a").write_text("one")
    (workspace / "b").write_text("two")
    tree = store.snapshot(workspace, Index()).new_index.tree_id
    before = state(store.path)
    (workspace / "in" / "a").write_text("another")
    (workspace / "large").write_bytes(bytes(2_000_000))
    (workspace / "b").unlink()
    want, deaths = state(workspace), 0
    for deaths in _killed(tmp_path, _KEEP.format(tree=tree), 4):
        left = state(store.path)
        assert {path: left[path] for path in before} == before, deaths
        _check(SnapshotStore(tmp_path / "s"))
        store = SnapshotStore(tmp_path / "s")
        again = store.snapshot(workspace, store.read_index(tree)).new_index.tree_id
        store.checkout(again, tmp_path / "laid")
        assert state(tmp_path / "laid") == want
        for path in (
            left.keys() | state(store.path).keys()
        ):  # restore the old state for the next kill
            if path not in before and (place := store.path / os.fsdecode(path)).is_file():
                place.unlink()
        shutil.rmtree(tmp_path / "laid")
    assert deaths > 6


def _played(root: Path) -> nb_agents.Run:
    (root / "recipe.yaml").write_text(RECIPE)
    options = RunOptions(session_root=root)
    return finish(nb_agents.start("", None, "s", recipe=root / "recipe.yaml", options=options))


def test_copied_session_has_its_last_turn_only_if_complete(tmp_path: Path) -> None:
    run, fork, deaths = _played(tmp_path), tmp_path / "fork", 0
    before = state(run.path.parent)
    for deaths in _killed(tmp_path, _COPY, 15):
        assert state(run.path.parent) == before, deaths
        if (fork / "turn_1").exists():
            assert state(fork / "turn_1" / "workspaces") == state(run.path / "workspaces")
        shutil.rmtree(fork, ignore_errors=True)
    assert deaths > 20
    assert state(fork / "turn_1" / "workspaces") == state(run.path / "workspaces")


def test_fork_is_complete_or_missing_after_a_kill_at_any_step(
    tmp_path: Path,
) -> None:
    run, deaths = _played(tmp_path), 0
    point = run.preview_rewind("step make").point
    before, want = state(run.path), state(run.path / "workspaces")
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "s", kept, symlinks=True)
    options = RunOptions(session_root=tmp_path)
    for deaths in _killed(tmp_path, _BACK.format(point=point), 29):
        turns = load_session(tmp_path / "s").turns
        assert state(run.path) == before, deaths
        for turn in turns[1:]:
            if turn.paths.has_begun:
                assert (turn.view.resumes, turn.view.point) == (1, point)
        begun = any(turn.paths.has_begun and not turn.is_complete for turn in turns[1:])
        again = finish(nb_agents.resume("s", options=options) if begun else run.rewind(point))
        assert again.result == run.result, deaths
        assert state(again.path / "workspaces") == want, deaths
        assert state(run.path) == before, deaths
        shutil.rmtree(tmp_path / "s")
        shutil.copytree(kept, tmp_path / "s", symlinks=True)
    assert deaths > 20


def test_user_files_are_old_or_restored_after_a_kill_at_any_step(
    tmp_path: Path,
) -> None:
    it, deaths = Own(tmp_path, "mkdir a d; printf one > a/one; echo two > two; echo 3 > d/3"), 0
    point = state(it.site)
    it.agents("echo 1 >> a/one; rm two; mkdir two; echo in > two/it; rm -r d; echo d > d; touch n")
    left = state(it.site)
    (tmp_path / "changes.json").write_text(json.dumps(it.changes))
    for deaths in _killed(tmp_path, _OWN, 6):
        now = state(it.site)
        for path in {*point, *left, *now}:
            between = path in (b"two", b"d")  # replacing a file by a directory is not atomic
            is_ours = path.endswith(b".nb_agents.tmp")
            assert is_ours or between or now.get(path) in (point.get(path), left.get(path)), path
        if deaths % 2:  # the next kill starts with the remains of this one, or with the old state
            it.back()
            assert state(it.site) == point
        shutil.rmtree(it.site)
        shell("mkdir site; cd site; mkdir a; echo -n one > a/one; echo 1 >> a/one")(tmp_path)
        shell("mkdir two; echo in > two/it; echo d > d; touch n")(it.site)
        assert state(it.site) == left
    assert deaths > 12, deaths
    assert state(it.site) == point


def test_killed_rewind_of_user_files_can_be_repeated(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "recipe.yaml").write_text(AT_HOME)
    options = RunOptions(session_root=tmp_path)
    here = os.getcwd()
    os.chdir(site)
    try:
        run = nb_agents.start("", None, "s", recipe=tmp_path / "recipe.yaml", options=options)
    finally:
        os.chdir(here)
    finish(run)
    want, deaths = state(site), 0
    point = run.preview_rewind("the start").point
    for deaths in _killed(tmp_path, _BACK.format(point=point), 45):
        turns = load_session(tmp_path / "s").turns
        begun = [turn for turn in turns[1:] if turn.paths.has_begun]
        is_open = bool(begun) and not begun[-1].is_complete
        again = finish(nb_agents.resume("s", options=options) if is_open else run.rewind(point))
        assert (again.result, state(site)) == (run.result, want), deaths
    assert deaths > 40
