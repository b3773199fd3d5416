"""Files of the person's own: what agents changed goes back, what anybody else touched stays."""

import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nb_agents.process.writable import WritablePath
from nb_agents.session.own_files import KnownPlace, OwnChange, OwnFiles, OwnHistory
from nb_agents.session.own_rewind import (
    OwnPlan,
    lines_of,
    plan_of,
    put_back,
    undo_moves,
    write_patches,
)
from nb_agents.session.snapshots import HELD, Index
from tests.session.test_snapshots import names_in_odd_bytes, shell, state

Work = Callable[[Path], None]


class Own:
    """A directory of the person's, with what agents did there."""

    def __init__(
        self, root: Path, begin: str = "mkdir a; printf one > a/one; echo two > two"
    ) -> None:
        self.root, self.site, self.turn = root, root / "site", root / "s" / "turn_2"
        self.turn.mkdir(parents=True)
        self.site.mkdir()
        shell(begin)(self.site)
        self.own = OwnFiles(root / "s", 1_000_000)
        self.place = WritablePath(self.site)
        self.changes: list[OwnChange] = []

    def agents(self, work: Work | str, only: list[str] | None = None) -> None:
        """Let agents work, as a tool does that is looked at before and after."""
        known, _ = self.own.look(self.place, KnownPlace(), only)
        (shell(work) if isinstance(work, str) else work)(self.site)
        _, changes = self.own.look(self.place, known, only)
        self.own.keep(str(self.site), changes, "a 1")
        self.own.drop()
        self.changes += changes

    @property
    def plan(self) -> OwnPlan:
        return plan_of(OwnHistory(tuple(self.changes)), self.own, [self.place])

    def back(self) -> tuple[str, ...]:
        """Go back; return what stays, in lines."""
        refused = put_back(self.plan, self.own, [self.place], [])
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
def test_what_only_agents_changed_goes_back_and_forth(tmp_path: Path, work: Work) -> None:
    it = Own(tmp_path)
    before = state(it.site)
    it.agents(work)
    after = state(it.site)
    assert before != after
    plan, done = it.plan, list[OwnChange]()
    assert state(it.site) == after
    assert put_back(plan, it.own, [it.place], done) == ()
    assert state(it.site) == before
    assert it.plan.back == ()  # once more changes nothing
    undo_moves(done, it.own, [it.place])
    assert state(it.site) == after


SINCE = {
    "changed": ("echo mine >> one", "was changed since"),
    "deleted": ("rm one", "was deleted or renamed since"),
    "renamed": ("mv one mine", "was deleted or renamed since"),
    "made executable": ("chmod +x one", "was changed since"),
    "replaced by a directory": ("rm one; mkdir one; echo x > one/x", "replaced by a directory"),
    "replaced by a link": ("mv one mine; ln -s mine one", "was replaced by a link since"),
    "replaced by a pipe": ("rm one; mkfifo one", "is not as agents left it (a pipe)"),
    "behind a link": ("mv ../a ../mine; ln -s mine ../a", "a link leads there now"),
}


@pytest.mark.parametrize(("since", "why"), SINCE.values(), ids=SINCE.keys())
def test_what_the_person_touched_since_stays_and_a_patch_is_written(
    tmp_path: Path, since: str, why: str
) -> None:
    it = Own(tmp_path)
    it.agents("echo more >> a/one; echo 2 > two")
    shell(since)(it.site / "a")
    mine = state(it.site)
    told = [*lines_of(it.plan.refused, str(it.turn))]
    assert not it.turn.joinpath("changes").exists()
    assert it.back() == tuple(told)  # the preview says what happens
    after = state(it.site)
    assert after.pop(b"two")[1] == b"two\n"
    assert after == {path: held for path, held in mine.items() if path != b"two"}
    assert len(told) == 1 and why in told[0]
    patch = it.turn / "changes" / "1_one.patch"
    assert str(patch) in told[0]
    assert "-onemore\n+one\n\\ No newline at end of file" in patch.read_text()


def test_a_patch_takes_back_what_agents_changed_and_leaves_what_the_person_did(
    tmp_path: Path,
) -> None:
    it = Own(tmp_path, "seq 30 > n")
    it.agents("sed -i s/^3$/three/ n", ["n"])
    shell("sed -i s/^15$/mine/ n")(it.site)
    it.agents("sed -i s/^27$/last/ n", ["n"])
    assert "was changed by others than these agents in between" in it.back()[0]
    (patch,) = it.turn.joinpath("changes").iterdir()
    how = patch.read_text().splitlines()[0].replace("THIS", str(patch))
    subprocess.run(["bash", "-c", how], check=True)
    want = [*map(str, range(1, 31))]
    want[14] = "mine"
    assert (it.site / "n").read_text().split() == want


def test_what_is_no_text_is_copied_to_where_a_patch_would_be(tmp_path: Path) -> None:
    it = Own(tmp_path, "printf 'a\\0' > bin")
    it.agents("printf 'b\\0' > bin; printf '\\0' > new", None)
    shell("printf 'c\\0' > bin; printf 'd\\0' > new")(it.site)
    told = it.back()
    assert [path.name for path in it.turn.joinpath("changes").iterdir()] == ["1_bin"]
    assert (it.turn / "changes" / "1_bin").read_bytes() == b"a\0"
    assert (it.site / "bin").read_bytes() == b"c\0"
    assert told[1].endswith("new was changed since.")


def test_a_directory_that_agents_made_stays_while_the_person_has_files_there(
    tmp_path: Path,
) -> None:
    it = Own(tmp_path)
    it.agents("mkdir -p made/in; echo x > made/in/x")
    shell("echo mine > made/mine")(it.site)
    assert [line.rpartition("site/")[2] for line in it.back()] == ["made holds files that stay."]
    assert sorted(os.listdir(it.site / "made")) == ["mine"]


def test_only_what_was_changed_is_kept_and_nothing_is_held_afterwards(tmp_path: Path) -> None:
    it = Own(tmp_path, "mkdir .git node_modules; for i in $(seq 50); do echo $i > $i; done")
    shell("echo secret > .git/config; echo x > .env")(it.site)
    it.agents("echo other > 7; rm 8; echo x > node_modules/x; echo y > .git/y")
    assert [change.path for change in it.changes] == ["7", "8"]
    kept = [*it.own.store.path.glob("files/??/*")]
    assert sorted(path.read_text() for path in kept) == ["7\n", "8\n", "other\n"]
    assert not (tmp_path / "s" / HELD).exists()


def test_of_a_place_that_is_one_file_nothing_beside_it_is_kept_or_put_back(tmp_path: Path) -> None:
    it = Own(tmp_path)
    it.place = WritablePath(it.site / "two")
    it.agents("echo 2 > two; echo 1 > a/one")
    assert [change.path for change in it.changes] == ["two"]
    assert it.back() == ()
    assert (it.site / "two").read_text() == "two\n"
    it.changes.append(it.changes[0]._replace(path="a/one"))
    assert it.plan.refused[0].why == "is in no place that this team may write"


def test_a_look_that_goes_on_after_the_end_leaves_nothing_behind(tmp_path: Path) -> None:
    it = Own(tmp_path)
    late = it.own._held  # as in a thread that a stop has left
    it.own.look(it.place, KnownPlace())
    it.own.drop()
    with pytest.raises(OSError, match="is closed"):
        late.keep(it.site, Index())
    assert not (tmp_path / "s" / HELD).exists()


def test_what_the_team_protects_is_neither_read_nor_kept(tmp_path: Path) -> None:
    it = Own(tmp_path, "mkdir -p a/Keep; echo x > a/Keep/x; echo y > y; echo z > z")
    it.place = WritablePath(it.site, [Path("a/keep"), Path("y")])
    it.agents("echo 1 > a/Keep/x; echo 1 > y; echo 1 > z")
    assert [change.path for change in it.changes] == ["z"]


def test_an_edit_tools_path_is_looked_at_alone(tmp_path: Path) -> None:
    it = Own(tmp_path)
    it.agents("echo new > a/new; echo not seen > two", ["a/new"])
    assert [change.path for change in it.changes] == ["a/new"]


def test_files_over_the_limit_are_named_and_a_place_that_holds_too_much_is_refused(
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
    monkeypatch.setattr("nb_agents.session.own_files.MAX_LOOKED_AT", 2)
    with pytest.raises(OSError, match="holds more than 2 files"):
        it.own.look(it.place, KnownPlace())


@pytest.mark.parametrize("where", ["../elsewhere", "../site2/x", ".git/config", "out/x"])
def test_nothing_is_put_outside_the_places_that_the_team_may_write(
    tmp_path: Path, where: str
) -> None:
    it = Own(tmp_path, "mkdir .git; ln -s .. out")
    shell("echo x > two")(it.site)
    held = it.own.store.entry(it.site, "two")
    it.changes = [OwnChange(str(it.site), where, held, None)]
    before = state(tmp_path)
    assert it.plan.back == ()
    assert len(put_back(it.plan, it.own, [it.place], [])) == 1
    forced = OwnPlan(back=(OwnChange(str(it.site), where, None, held),))
    assert len(put_back(forced, it.own, [it.place], [])) == 1
    assert state(tmp_path) == before


def test_a_file_that_changes_at_the_very_moment_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Own(tmp_path)
    it.agents("echo more >> a/one")
    read = OwnFiles.read

    def late(own: OwnFiles, entry: object) -> bytes:
        (it.site / "a/one").write_text("mine")
        return read(own, entry)  # type: ignore[arg-type]

    plan = it.plan
    monkeypatch.setattr(OwnFiles, "read", late)
    refused = put_back(plan, it.own, [it.place], [])
    assert [each.why for each in refused] == ["is changed at this moment"]
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
def test_whoever_changes_what_nothing_that_the_person_did_is_lost(
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
    for each in touched:  # the person had the last word there
        now, is_folder = mine.get(each), stat.S_ISDIR(after.get(each, (0, b""))[0])
        if now != left.get(each) and not is_folder:
            assert after.get(each) == now, each
    if not any(not by_agents for by_agents, *_ in steps):
        assert after == begun
    shutil.rmtree(root)
