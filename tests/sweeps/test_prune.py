"""Old sessions and rows of sweeps are removed, but nothing live, resumable or paid for."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import UnknownSessionError, UserError
from nb_agents.session.prune import PruneSpec, parse_age
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests import processes
from tests.kit.cards import card_text, text
from tests.kit.runs import here, registry
from tests.kit.sessions import CLAIM_LOCK, claim_turn, load_session, sessions_in, turns_of
from tests.kit.sessions import manage as removal
from tests.kit.sweeps import fold_notes, prune
from tests.team_kit import WAIT_S

WRITE = Turn(calls=(Call("write_file", {"path": "a.txt", "content": "kept"}),))
AGED_S = 40 * 86_400
MONTH = PruneSpec(time.time() - 30 * 86_400)


@pytest.fixture(autouse=True)
def options(tmp_path: Path) -> Iterator[RunOptions]:
    yield RunOptions(session_root=tmp_path)
    for group in registry.groups():
        group.stop(True, reason="the test is over", source="parent")
    registry.stop_all()


def age(session: Path) -> Path:
    """Make a session look as if it was last used forty days ago."""
    for turn in turns_of(session):
        for path in (turn.journal, turn.metadata):
            if path.exists():
                os.utime(path, (time.time() - AGED_S,) * 2)
    return session


def complete(root: Path, name: str, *, is_old: bool = True) -> Path:
    team = scripted_team(a=ScriptedModel(WRITE, Answer(f"The answer of {name}.")))
    nb_agents.start("Why?", team, name, options=RunOptions(session_root=root)).wait(WAIT_S)
    return age(root / name) if is_old else root / name


def stopped(root: Path, name: str) -> Path:
    gate = Gate()
    team = scripted_team(a=ScriptedModel(replace(Answer("So."), text="two words ", gate=gate)))
    run = nb_agents.start("Why?", team, name, options=RunOptions(session_root=root))
    gate.wait_reached()
    run.stop(now=True)
    run.wait(WAIT_S, raise_on_stop=False)
    return age(root / name)


def names(root: Path) -> set[str]:
    return {path.name for path in sessions_in(root).by_use}


def files_below(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()]


def swept(root: Path, model: ScriptedModel, count: int = 3) -> nb_agents.Sweep:
    sweep = nb_agents.map(
        [{"q": str(number)} for number in range(count)],
        "Answer: {{q}}",
        scripted_team(a=model),
        name="ask",
        options=RunOptions(session_root=root),
    )
    sweep.wait(WAIT_S)
    return sweep


def test_only_old_sessions_are_removed(tmp_path: Path) -> None:
    complete(tmp_path, "old")
    complete(tmp_path, "new", is_old=False)
    done = prune(tmp_path, MONTH)
    assert (done.sessions, done.incomplete, done.live, done.unread) == (1, 0, 0, [])
    assert names(tmp_path) == {"new"}
    assert not (tmp_path / ".removed").exists()


def test_without_yes_only_a_report_is_printed(tmp_path: Path) -> None:
    session = complete(tmp_path, "old")
    before = files_below(session)
    spec = replace(MONTH, is_dry_run=True)
    done = prune(tmp_path, spec)
    assert (done.sessions, done.size_bytes) == (1, sum(p.lstat().st_size for p in before))
    assert files_below(session) == before
    said = text.prune_summary(done, spec)
    assert said.startswith("Would remove 1 session and 0 rows of sweeps (")
    assert said.endswith("Nothing was removed yet. Add --yes to remove them.")


def test_incomplete_session_is_kept_by_default(tmp_path: Path) -> None:
    stopped(tmp_path, "cut")
    done = prune(tmp_path, MONTH)
    assert (done.sessions, done.incomplete) == (0, 1)
    assert "Skipped 1 incomplete" in text.prune_summary(done, MONTH)
    assert prune(tmp_path, replace(MONTH, incomplete=True)).sessions == 1
    assert names(tmp_path) == set()


def test_kept_answers_are_listed_and_can_be_continued(tmp_path: Path) -> None:
    session = complete(tmp_path, "old")
    before = load_session(session)
    listed = text.session_row(before)
    spec = replace(MONTH, keep_answers=True)
    done = prune(tmp_path, spec)
    assert done.sessions == 1 and done.size_bytes > 0
    assert {path.name for path in files_below(session)} == {
        CLAIM_LOCK,
        "SESSION_SUMMARY.txt",
        "answer.txt",
        "mark.json",
        "metadata.json",
        "winning_agents_history.json",
    }
    after = load_session(session)
    assert text.session_row(after) == listed
    assert [m.content for m in after.messages] == [m.content for m in before.messages]
    [turn] = after.turns
    assert turn.warnings == ()
    assert "The answer of old." in card_text(turn.view, str(turn.paths.path))
    assert prune(tmp_path, spec).sessions == 0, "there is no more to take"
    team = scripted_team(a=ScriptedModel(Answer("More.")))
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("And?", team, "old", continue_=True, options=options)
    assert run.wait(WAIT_S) == "More."


def test_partial_answers_of_an_incomplete_session_are_kept(tmp_path: Path) -> None:
    session = stopped(tmp_path, "cut")
    prune(tmp_path, replace(MONTH, keep_answers=True, incomplete=True))
    [turn] = load_session(session).turns
    assert turn.paths.partial_answers.exists() and not turn.paths.journal.exists()
    assert (turn.state, turn.view.agents["a"].partial) == ("stopped", "two words ")


def test_answers_of_a_killed_turn_are_written_before_its_journal_is_removed(tmp_path: Path) -> None:
    session = stopped(tmp_path, "cut")
    for name in ("metadata.json", "partial_answers.json", "answer.txt"):
        (session / "turn_1" / name).unlink()  # as if its process died before writing them
    prune(tmp_path, replace(MONTH, keep_answers=True, incomplete=True))
    assert load_session(session).turns[0].view.agents["a"].partial == "two words "


def test_live_session_is_kept(tmp_path: Path) -> None:
    session = complete(tmp_path, "old")
    paths, lock = claim_turn(session)
    with lock:
        paths.journal.touch()
        age(session)
        for keeps in (False, True):
            done = prune(tmp_path, replace(MONTH, keep_answers=keeps, incomplete=True))
            assert (done.sessions, done.live) == (0, 1)
    assert (session / "turn_1" / "events.jsonl").exists()


def test_session_in_which_a_turn_just_starts_is_kept(tmp_path: Path) -> None:
    session = stopped(tmp_path, "cut")
    with FileLock(session / CLAIM_LOCK):
        done = prune(tmp_path, replace(MONTH, incomplete=True))
    assert (done.sessions, done.live) == (0, 1)
    assert names(tmp_path) == {"cut"}


def test_resume_of_a_removed_session_finds_and_creates_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(tmp_path, "cut")
    begin = here.ensure_loop

    def remove_meanwhile() -> None:
        begin()
        prune(tmp_path, replace(MONTH, incomplete=True))

    monkeypatch.setattr(here, "ensure_loop", remove_meanwhile)
    team = scripted_team(a=ScriptedModel(Answer("So.")))
    with pytest.raises(UnknownSessionError, match="'cut'"):
        nb_agents.resume("cut", team, options=RunOptions(session_root=tmp_path))
    assert not (tmp_path / "cut").exists()


def test_waiting_start_in_a_removed_session_finds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = complete(tmp_path, "old")
    acquire = FileLock.acquire

    def remove_first(lock: FileLock, *args: object, **more: object) -> object:
        taken = acquire(lock, *args, **more)  # type: ignore[arg-type]
        if session.exists():
            session.rename(tmp_path / "elsewhere")
        return taken

    monkeypatch.setattr(FileLock, "acquire", remove_first)
    with pytest.raises(UnknownSessionError):
        claim_turn(session)
    assert not session.exists()


def test_leftovers_of_a_killed_removal_are_removed_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(tmp_path, "first")
    complete(tmp_path, "second")

    def killed(path: Path) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(SystemExit):
            prune(tmp_path, MONTH)
    assert len(names(tmp_path)) == 1
    [left] = (tmp_path / ".removed").iterdir()
    assert turns_of(left), "it is whole, and nobody looks there"
    prune(tmp_path, MONTH)
    assert list(tmp_path.iterdir()) == []


def test_process_killed_between_two_renames_leaves_a_readable_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_aside = removal._move_to_removed
    for count in range(5):
        session = complete(tmp_path, f"s{count}")
        left = count

        def killed(path: Path, root: Path) -> None:
            nonlocal left
            if not left:
                raise SystemExit
            left -= 1
            put_aside(path, root)

        with monkeypatch.context() as patch:
            patch.setattr(removal, "_move_to_removed", killed)
            with pytest.raises(SystemExit):
                removal.strip_session(session)
        [turn] = load_session(session).turns
        assert (turn.state, turn.view.answer) == ("complete", f"The answer of s{count}.")


def test_files_behind_a_link_are_not_removed(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "sessions", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    kept = complete(elsewhere, "mine")
    (root / "linked").symlink_to(kept)
    half = complete(root, "half")
    shutil.rmtree(half / "turn_1" / "workspaces")
    (half / "turn_1" / "workspaces").symlink_to(kept)
    (half / "turn_2").symlink_to(kept / "turn_1")
    before = files_below(kept)
    for keeps in (True, False):
        done = prune(root, replace(MONTH, keep_answers=keeps))
        assert "is a link" in done.unread[0]
        assert done.sessions == 1
    assert files_below(kept) == before
    assert names(root) == {"linked"}


@pytest.mark.parametrize("keeps", [False, True])
def test_sweep_does_not_repeat_removed_rows(tmp_path: Path, keeps: bool) -> None:
    model = ScriptedModel(lambda said: Answer("So."))
    sweep = swept(tmp_path, model)
    for row in sweep.rows:
        age(sweep.path / row.name)
    done = prune(tmp_path, replace(MONTH, keep_answers=keeps))
    assert (done.sessions, done.rows) == (0, 3)
    assert len(sessions_in(sweep.path).by_use) == 3 * keeps
    again = swept(tmp_path, model, 4)
    assert again.view.completed == 4
    assert [record["answer"] for record in again.table()] == ["So."] * 4
    assert len(model.requests) == 4, "the three that were paid for, and the one that is new"


def test_row_without_a_recorded_result_is_kept(
    tmp_path: Path,
) -> None:
    model = ScriptedModel(lambda said: Answer("So."))
    sweep = swept(tmp_path, model)
    for row in sweep.rows:
        age(sweep.path / row.name)
    (sweep.path / "rows.jsonl").unlink()
    done = prune(tmp_path, replace(MONTH, incomplete=True))
    assert (done.rows, done.not_noted) == (0, 3)
    assert "3 rows whose end is not recorded" in text.prune_summary(done, MONTH)
    assert swept(tmp_path, model).view.completed == 3
    assert len(model.requests) == 3


def test_stripped_row_without_a_note_still_counts_as_complete(tmp_path: Path) -> None:
    model = ScriptedModel(lambda said: Answer("So."))
    sweep = swept(tmp_path, model)
    tokens = [result.tokens for result in fold_notes(sweep.path).results.values()]
    for row in sweep.rows:
        age(sweep.path / row.name)
    prune(tmp_path, replace(MONTH, keep_answers=True))
    (sweep.path / "rows.jsonl").unlink()
    again = swept(tmp_path, model)
    assert [record["answer"] for record in again.table()] == ["So."] * 3
    assert [result.tokens for result in fold_notes(sweep.path).results.values()] == tokens
    assert len(model.requests) == 3


def test_running_sweep_is_kept(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(replace(Answer("So."), gate=gate))
    sweep = nb_agents.map(
        range(2), "{{value}}", scripted_team(a=model), options=RunOptions(session_root=tmp_path)
    )
    gate.wait_reached(2)
    for is_dry_run in (True, False):
        spec = PruneSpec(time.time() + 9, incomplete=True, is_dry_run=is_dry_run)
        done = prune(tmp_path, spec)
        assert (done.rows, done.live) == (0, 1)
    gate.open()
    assert sweep.wait(WAIT_S).completed == 2


@pytest.mark.parametrize(
    ("age_", "seconds"), [("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600)]
)
def test_age_is_a_number_and_a_unit(age_: str, seconds: int) -> None:
    assert parse_age(age_) == seconds


@pytest.mark.parametrize("wrong", ["", "30", "d", "-3d", "3 months", "1e9d"])
def test_invalid_age_is_refused(wrong: str) -> None:
    with pytest.raises(UserError, match="Write hours, days or weeks"):
        parse_age(wrong)


def test_terminal_and_cell_report_the_same(tmp_path: Path) -> None:
    complete(tmp_path, "old")
    argv = [sys.executable, "-m", "nb_agents.cli", "prune", "--older", "30d"]
    argv += ["--session-root", str(tmp_path)]
    done = processes.run(argv)
    assert "Add --yes" in done.stdout and names(tmp_path) == {"old"}
    processes.run([*argv, "--yes"])
    assert names(tmp_path) == set()
