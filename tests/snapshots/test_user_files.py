"""User files: the agents' changes are reverted, and files that others touched stay."""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nb_agents.snapshots import user_files
from nb_agents.snapshots.user_files import LocationScan, UserFileChange, UserFileHistory, UserFiles
from tests.kit.processes import WritablePath
from tests.kit.snapshots import (
    COPIES_FOLDER,
    Index,
    RestorePlan,
    plan_restore,
    refusal_lines,
    restore_files,
    undo_restore,
    write_patches,
)
from tests.snapshots.test_store import names_in_odd_bytes, shell, state

Work = Callable[[Path], None]


class Own:
    """A user's directory, with the agents' changes in it."""

    def __init__(
        self, root: Path, begin: str = "mkdir a; printf one > a/one; echo two > two"
    ) -> None:
        self.root, self.site, self.turn = root, root / "site", root / "s" / "turn_2"
        self.turn.mkdir(parents=True)
        self.site.mkdir()
        shell(begin)(self.site)
        self.own = UserFiles(root / "s", 1_000_000)
        self.place = WritablePath(self.site)
        self.changes: list[UserFileChange] = []

    def agents(self, work: Work | str, only: list[str] | None = None) -> None:
        """Run a command as a tool does, with a scan before and after."""
        known, _ = self.own.scan(self.place, LocationScan(), only)
        (shell(work) if isinstance(work, str) else work)(self.site)
        _, changes = self.own.scan(self.place, known, only)
        self.own.store_changes(str(self.site), changes, "a 1")
        self.own.delete_copies()
        self.changes += changes

    @property
    def plan(self) -> RestorePlan:
        return plan_restore(UserFileHistory(tuple(self.changes)), self.own, [self.place])

    def back(self) -> tuple[str, ...]:
        """Restore the files. Return the lines about files that were not restored."""
        refused = restore_files(self.plan, self.own, [self.place], [])
        return write_patches(refused, self.own, self.turn)


BY_AGENTS = {
    "changed": shell("echo more >> a/one"),
    "created": shell("mkdir -p b/c; echo three > b/c/three; touch four"),
    "deleted": shell("rm a/one two"),
    "renamed": shell("mv a b"),
    "binary": shell("printf 'x\\0y' > two; printf '\\0' > bin"),
    "a file made a directory": shell("rm two; mkdir two; echo in > two/it"),
    "a directory made a file": shell("rm -r a; echo file > a"),
    "a link": shell("rm two; ln -s a/one two; ln -s /etc/passwd out"),
    "modes": shell("chmod 700 a/one; chmod 640 two; chmod 711 a"),
    "odd bytes": names_in_odd_bytes,
    "an empty directory": shell("rm -r a; mkdir e"),
}


@pytest.mark.parametrize("work", BY_AGENTS.values(), ids=BY_AGENTS.keys())
def test_files_changed_only_by_agents_are_restored_in_both_directions(
    tmp_path: Path, work: Work
) -> None:
    it = Own(tmp_path)
    before = state(it.site)
    it.agents(work)
    after = state(it.site)
    assert before != after
    plan, done = it.plan, list[UserFileChange]()
    assert state(it.site) == after
    assert restore_files(plan, it.own, [it.place], done) == ()
    assert state(it.site) == before
    assert it.plan.changes == ()  # a second restore changes nothing
    undo_restore(done, it.own, [it.place])
    assert state(it.site) == after


SINCE = {
    "changed": ("echo mine >> one", "was changed since"),
    "deleted": ("rm one", "was deleted or renamed since"),
    "renamed": ("mv one mine", "was deleted or renamed since"),
    "made executable": ("chmod +x one", "was changed since"),
    "replaced by a directory": ("rm one; mkdir one; echo x > one/x", "replaced by a directory"),
    "replaced by a link": ("mv one mine; ln -s mine one", "was replaced by a link since"),
    "replaced by a pipe": ("rm one; mkfifo one", "is not as agents left it (a pipe)"),
    "behind a link": ("mv ../a ../mine; ln -s mine ../a", "its directory is a link now"),
}


@pytest.mark.parametrize(("since", "why"), SINCE.values(), ids=SINCE.keys())
def test_files_touched_by_the_user_stay_and_get_a_patch(
    tmp_path: Path, since: str, why: str
) -> None:
    it = Own(tmp_path)
    it.agents("echo more >> a/one; echo 2 > two")
    shell(since)(it.site / "a")
    mine = state(it.site)
    told = [*refusal_lines(it.plan.refusals, str(it.turn))]
    assert not it.turn.joinpath("changes").exists()
    assert it.back() == tuple(told)  # the preview agrees with the result
    after = state(it.site)
    assert after.pop(b"two")[1] == b"two\n"
    assert after == {path: held for path, held in mine.items() if path != b"two"}
    assert len(told) == 1 and why in told[0]
    patch = it.turn / "changes" / "1_one.patch"
    assert str(patch) in told[0]
    assert "-onemore\n+one\n\\ No newline at end of file" in patch.read_text()


def test_patch_reverts_only_the_agents_changes(
    tmp_path: Path,
) -> None:
    it = Own(tmp_path, "seq 30 > n")
    it.agents("sed -i s/^3$/three/ n", ["n"])
    shell("sed -i s/^15$/mine/ n")(it.site)
    it.agents("sed -i s/^27$/last/ n", ["n"])
    assert "was changed by someone else between the agents' changes" in it.back()[0]
    (patch,) = it.turn.joinpath("changes").iterdir()
    how = patch.read_text().splitlines()[0].replace("THIS", str(patch))
    subprocess.run(["bash", "-c", how], check=True)
    want = [*map(str, range(1, 31))]
    want[14] = "mine"
    assert (it.site / "n").read_text().split() == want


def test_binary_file_gets_a_copy_instead_of_a_patch(tmp_path: Path) -> None:
    it = Own(tmp_path, "printf 'a\\0' > bin")
    it.agents("printf 'b\\0' > bin; printf '\\0' > new", None)
    shell("printf 'c\\0' > bin; printf 'd\\0' > new")(it.site)
    told = it.back()
    assert [path.name for path in it.turn.joinpath("changes").iterdir()] == ["1_bin"]
    assert (it.turn / "changes" / "1_bin").read_bytes() == b"a\0"
    assert (it.site / "bin").read_bytes() == b"c\0"
    assert told[1].endswith("new was changed since.")


def test_directory_created_by_agents_stays_if_it_has_user_files(
    tmp_path: Path,
) -> None:
    it = Own(tmp_path)
    it.agents("mkdir -p made/in; echo x > made/in/x")
    shell("echo mine > made/mine")(it.site)
    assert [line.rpartition("site/")[2] for line in it.back()] == ["made contains files that stay."]
    assert sorted(os.listdir(it.site / "made")) == ["mine"]


def test_only_changed_files_are_stored_and_copies_are_deleted(tmp_path: Path) -> None:
    it = Own(tmp_path, "mkdir .git node_modules; for i in $(seq 50); do echo $i > $i; done")
    shell("echo secret > .git/config; echo x > .env")(it.site)
    it.agents("echo other > 7; rm 8; echo x > node_modules/x; echo y > .git/y")
    assert [change.path for change in it.changes] == ["7", "8"]
    kept = [*it.own.store.path.glob("files/??/*")]
    assert sorted(path.read_text() for path in kept) == ["7\n", "8\n", "other\n"]
    assert not (tmp_path / "s" / COPIES_FOLDER).exists()


def test_single_file_location_stores_and_restores_only_that_file(tmp_path: Path) -> None:
    it = Own(tmp_path)
    it.place = WritablePath(it.site / "two")
    it.agents("echo 2 > two; echo 1 > a/one")
    assert [change.path for change in it.changes] == ["two"]
    assert it.back() == ()
    assert (it.site / "two").read_text() == "two\n"
    it.changes.append(it.changes[0]._replace(path="a/one"))
    assert it.plan.refusals[0].reason == "is outside the paths that this team may write to"


def test_scan_that_continues_after_the_turn_leaves_no_files(tmp_path: Path) -> None:
    it = Own(tmp_path)
    late = it.own._copies  # as in a background thread after a stop
    it.own.scan(it.place, LocationScan())
    it.own.delete_copies()
    with pytest.raises(OSError, match="is closed"):
        late.snapshot(it.site, Index())
    assert not (tmp_path / "s" / COPIES_FOLDER).exists()


def test_protected_paths_are_neither_read_nor_stored(tmp_path: Path) -> None:
    it = Own(tmp_path, "mkdir -p a/Keep; echo x > a/Keep/x; echo y > y; echo z > z")
    it.place = WritablePath(it.site, [Path("a/keep"), Path("y")])
    it.agents("echo 1 > a/Keep/x; echo 1 > y; echo 1 > z")
    assert [change.path for change in it.changes] == ["z"]


def test_edit_scans_only_its_path(tmp_path: Path) -> None:
    it = Own(tmp_path)
    it.agents("echo new > a/new; echo not seen > two", ["a/new"])
    assert [change.path for change in it.changes] == ["a/new"]


def test_large_files_are_listed_and_a_large_location_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Own(tmp_path)
    it.agents("truncate -s 2M a/one; truncate -s 3G sparse")
    told = it.back()
    assert [line.partition("site/")[2].partition(" (")[0] for line in told] == [
        "a/one is not as agents left it",
        "sparse is not as agents left it",
    ]
    assert (it.site / "a/one").stat().st_size == 2_097_152
    monkeypatch.setattr(user_files, "MAX_SCANNED_FILES", 2)
    with pytest.raises(OSError, match="has more than 2 files"):
        it.own.scan(it.place, LocationScan())


@pytest.mark.parametrize("where", ["../elsewhere", "../site2/x", ".git/config", "out/x"])
def test_restore_writes_only_inside_writable_locations(tmp_path: Path, where: str) -> None:
    it = Own(tmp_path, "mkdir .git; ln -s .. out")
    shell("echo x > two")(it.site)
    held = it.own.store.entry(it.site, "two")
    it.changes = [UserFileChange(str(it.site), where, held, None)]
    before = state(tmp_path)
    assert it.plan.changes == ()
    assert len(restore_files(it.plan, it.own, [it.place], [])) == 1
    forced = RestorePlan(changes=(UserFileChange(str(it.site), where, None, held),))
    assert len(restore_files(forced, it.own, [it.place], [])) == 1
    assert state(tmp_path) == before


def test_file_that_changes_during_the_restore_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Own(tmp_path)
    it.agents("echo more >> a/one")
    read = UserFiles.read_blob

    def late(own: UserFiles, entry: object) -> bytes:
        (it.site / "a/one").write_text("mine")
        return read(own, entry)  # type: ignore[arg-type]

    plan = it.plan
    monkeypatch.setattr(UserFiles, "read_blob", late)
    refused = restore_files(plan, it.own, [it.place], [])
    assert [each.reason for each in refused] == ["is being changed by another process"]
    assert (it.site / "a/one").read_text() == "mine"
    assert not [*it.site.rglob("*.tmp")]


_steps = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from(
            [
                "echo {n} >> {p}",
                "echo {n} > {p}",
                "rm -rf {p}",
                "rm -rf {p}; mkdir {p}; echo {n} > {p}/in",
                "rm -rf {p}; ln -s two {p}",
                "chmod 7{n}0 {p} 2>&-; true",
            ]
        ),
        st.sampled_from(["a", "b", "a/one"]),
        st.integers(0, 3),
    ),
    max_size=5,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
@given(_steps)
def test_random_changes_of_the_user_are_never_lost(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, str, str, int]]
) -> None:
    root = tmp_path_factory.mktemp("any")
    it = Own(root, "mkdir -p a; echo 1 > a/one; echo 2 > b")
    begun, left, mine = state(it.site), state(it.site), state(it.site)
    touched = set[bytes]()
    for by_agents, what, path, number in steps:
        before = state(it.site)
        work = shell(f"{{ {what.format(n=number, p=path)}; }} 2>/dev/null || true")
        it.agents(work) if by_agents else work(it.site)
        after = state(it.site)
        for each in before.keys() | after.keys():
            if before.get(each) != after.get(each):
                (touched.discard if by_agents else touched.add)(each)
        left, mine = (after if by_agents else left), after
    it.back()
    after = state(it.site)
    for each in touched:  # files that the user changed last
        now, is_folder = mine.get(each), stat.S_ISDIR(after.get(each, (0, b""))[0])
        if now != left.get(each) and not is_folder:
            assert after.get(each) == now, each
    if not any(not by_agents for by_agents, *_ in steps):
        assert after == begun
    shutil.rmtree(root)


def test_record_of_another_user_is_ignored(tmp_path: Path) -> None:
    it = Own(tmp_path)
    known, _ = it.own.scan(it.place, LocationScan(), None)
    record = it.own.record_start(it.place, known)
    shell("echo changed > two")(it.site)
    assert [change.path for change in UserFiles(tmp_path / "s").leftover_changes()] == ["two"]
    said = json.loads(record.read_bytes())
    elsewhere = {"place": str(tmp_path), "tree": known.index.tree_id, "after": known.index.tree_id}
    for name, value in {**said, **elsewhere, "late": [], "mac": "", "mark": "other"}.items():
        forged = {**said, name: value, **({"late": []} if name == "after" else {})}
        if forged != said:
            record.write_text(json.dumps(forged))
            assert UserFiles(tmp_path / "s").leftover_changes() == [], name
    record.write_text(json.dumps({key: said[key] for key in said if key not in ("mark", "mac")}))
    assert UserFiles(tmp_path / "s").leftover_changes() == []
    record.write_text(json.dumps(said))
    assert [change.path for change in UserFiles(tmp_path / "s").leftover_changes()] == ["two"]
