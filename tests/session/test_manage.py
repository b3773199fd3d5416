"""Sessions can be renamed, exported, deleted and forked, except while they are live."""

from __future__ import annotations

import os
import stat
import zipfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import SessionBusyError, StorageError, UnknownSessionError, UserError
from nb_agents.session import manage
from nb_agents.session.manage import delete_session, export_session, fork_session, rename_session
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.sessions import CLAIM_LOCK, copy_tree, load_session, sessions_in, turns_of

NOW = datetime(2026, 11, 20, 12, 0, 0)
WRITE = Turn(calls=(Call("write_file", {"path": "a.txt", "content": "kept"}),))


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session of three complete turns, each with a file."""
    for task in ("one", "two", "three"):
        team = scripted_team(a=ScriptedModel(WRITE, Answer(f"answer to {task}")))
        nb_agents.start(
            task, config=team, session="s", options=RunOptions(session_root=tmp_path)
        ).wait()
    return tmp_path / "s"


def contents(session: Path) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in load_session(session).messages]


def test_renamed_session_has_the_same_content(session: Path) -> None:
    before = contents(session)
    renamed = rename_session(session, "better name")
    assert not session.exists()
    assert contents(renamed) == before
    assert {turn.view.session for turn in load_session(renamed).turns} == {"better name"}


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".hidden", "con"])
def test_invalid_session_name_is_refused(session: Path, name: str) -> None:
    with pytest.raises(UserError, match="can't be a directory name"):
        rename_session(session, name)
    assert session.exists()


def test_existing_name_is_refused(session: Path) -> None:
    (session.parent / "taken").mkdir()
    with pytest.raises(UserError, match="'taken' already"):
        rename_session(session, "taken")


def test_export_contains_every_file_of_the_session(session: Path, tmp_path: Path) -> None:
    made = export_session(session, tmp_path / "out.zip")
    names = zipfile.ZipFile(made.path).namelist()
    assert "s/turn_1/metadata.json" in names
    assert "s/turn_3/workspaces/a/a.txt" in names


def test_export_contains_files_with_any_name_and_date(session: Path, tmp_path: Path) -> None:
    space = session / "turn_1" / "workspaces" / "a"
    (space / "empty").mkdir()
    (space / "old.sh").write_text("kept")
    (space / "old.sh").chmod(0o755)
    os.utime(space / "old.sh", (0, 0))
    (space / "late").write_text("kept")
    os.utime(space / "late", (2**33, 2**33))  # the year 2242
    (space / os.fsdecode(b"latin-\xe9")).write_text("kept")
    made = export_session(session, tmp_path / "out")
    assert made == (tmp_path / "out.zip", ())
    archive = zipfile.ZipFile(made.path)
    place = "s/turn_1/workspaces/a"
    for name in ("old.sh", "late", "latin-\\xe9"):
        assert archive.read(f"{place}/{name}") == b"kept"
    assert f"{place}/empty/" in archive.namelist()
    about = archive.getinfo(f"{place}/old.sh")
    assert (about.date_time[0], stat.S_IMODE(about.external_attr >> 16)) == (1980, 0o755)
    assert archive.testzip() is None


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("a.txt", True),
        ("../a/a.txt", True),
        ("../../../turn_2/metadata.json", True),
        ("../../../..", False),
        ("../../../../s", False),
        ("/etc/passwd", False),
        ("/", False),
        # Through another link, "here/../.." would lead out of the session.
        ("here/../../../../..", False),
        ("here/..", False),
    ],
)
def test_export_contains_only_links_that_stay_inside(
    session: Path, tmp_path: Path, text: str, stays: bool
) -> None:
    space = session / "turn_1" / "workspaces" / "a"
    (space / "here").symlink_to("..")
    (space / "link").symlink_to(text)
    made = export_session(session, tmp_path / "out.zip")
    archive = zipfile.ZipFile(made.path)
    assert ("s/turn_1/workspaces/a/link" in archive.namelist()) == stays
    assert made.left_out == (
        () if stays else ("turn_1/workspaces/a/link (points outside the session)",)
    )
    if stays:
        about = archive.getinfo("s/turn_1/workspaces/a/link")
        assert stat.S_ISLNK(about.external_attr >> 16) and archive.read(about) == text.encode()


def test_exported_session_can_be_continued_after_unpacking(session: Path, tmp_path: Path) -> None:
    made = export_session(session, tmp_path / "out.zip")
    # Python's zipfile extracts links as small files with the link's text.
    zipfile.ZipFile(made.path).extractall(tmp_path / "elsewhere")
    unpacked = tmp_path / "elsewhere" / "s"
    assert contents(unpacked) == contents(session)
    where = load_session(unpacked).context_paths
    assert where == tuple(unpacked / f"turn_{n}" / "workspaces" / "a" for n in (1, 2, 3))
    assert (where[0] / "a.txt").read_text() == "kept"


def test_failed_export_leaves_no_partial_zip(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "open", full)
    with pytest.raises(StorageError, match="No space left"):
        export_session(session, tmp_path / "out.zip")
    assert not (tmp_path / "out.zip").exists()


def test_export_does_not_replace_a_file(session: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.zip").write_text("precious")
    with pytest.raises(UserError, match="already exists"):
        export_session(session, tmp_path / "mine.zip")
    assert (tmp_path / "mine.zip").read_text() == "precious"


def test_export_to_a_missing_directory_is_a_user_error(session: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Can't write"):
        export_session(session, tmp_path / "file" / "out.zip")


def test_deleted_session_does_not_exist(session: Path) -> None:
    delete_session(session)
    assert not session.exists()


def test_a_live_session_is_neither_deleted_nor_renamed(tmp_path: Path) -> None:
    gate = Gate()
    team = scripted_team(a=ScriptedModel(Turn(text="wait ", gate=gate)))
    run = nb_agents.start(
        "t", config=team, session="live", options=RunOptions(session_root=tmp_path)
    )
    for attempt in (delete_session, lambda path: rename_session(path, "other")):
        with pytest.raises(SessionBusyError, match="turn 1 is live"):
            attempt(tmp_path / "live")
    run.stop(now=True)
    run.wait(raise_on_stop=False)
    assert (tmp_path / "live" / "turn_1" / "metadata.json").exists()


def test_session_with_a_starting_turn_is_neither_deleted_nor_renamed(session: Path) -> None:
    for attempt in (delete_session, lambda path: rename_session(path, "other")):
        with (
            FileLock(session / CLAIM_LOCK),
            pytest.raises(SessionBusyError, match="a turn is starting"),
        ):
            attempt(session)
    assert [turn.number for turn in turns_of(session)] == [1, 2, 3]
    assert rename_session(session, "other").is_dir()


def test_fork_has_the_earlier_turns_and_does_not_change_the_session(session: Path) -> None:
    fork, left_out = fork_session(session, 2, NOW)
    assert left_out == ()
    assert [t.number for t in turns_of(fork)] == [1, 2]
    assert [t.number for t in turns_of(session)] == [1, 2, 3]
    assert contents(fork) == contents(session)[:4]
    assert (fork / "turn_2" / "workspace" / "a.txt").read_text() == "kept"


def test_killed_fork_has_no_partial_turns(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Path] = []

    def die_in_the_second(source: Path, target: Path, *more: Any) -> tuple[str, ...]:
        copied.append(target)
        if len(copied) == 2:
            raise SystemExit
        return copy_tree(source, target, *more)

    monkeypatch.setattr(manage, "copy_tree", die_in_the_second)
    with pytest.raises(SystemExit):
        fork_session(session, 2, NOW)
    assert len(copied) == 2
    assert sessions_in(session.parent).by_use == [session]


def test_fork_copies_files_with_any_name(session: Path) -> None:
    space = session / "turn_1" / "workspaces" / "a"
    for name in ("owner.lock", ".draft.tmp"):
        (space / name).write_text("an agent's")
    (session / "turn_1" / ".metadata.json.tmp").write_text("half")
    fork, left_out = fork_session(session, 1, NOW)
    assert left_out == ()
    names = os.listdir(fork / "turn_1" / "workspaces" / "a")
    assert {"owner.lock", ".draft.tmp", "a.txt"} <= set(names)
    assert not (fork / "turn_1" / ".metadata.json.tmp").exists()
    assert not (fork / "turn_1" / "owner.lock").exists()


def test_fork_from_a_missing_turn_suggests_the_last_one(session: Path) -> None:
    with pytest.raises(UnknownSessionError, match="Did you mean 's/3'"):
        fork_session(session, 9, NOW)


def test_continue_from_a_turn_creates_a_new_session(session: Path) -> None:
    model = ScriptedModel(Answer("a fourth"))
    run = nb_agents.start(
        "four",
        config=scripted_team(a=model),
        session="s",
        continue_=True,
        options=RunOptions(from_turn=1, session_root=session.parent),
    )
    assert run.wait() == "a fourth"
    assert (run.session != "s", run.turn) == (True, 2)
    seen = str(model.requests[0])
    assert "answer to one" in seen
    assert "answer to two" not in seen


@pytest.mark.parametrize("number", [1, 2])
def test_continue_from_an_interrupted_turn_uses_its_resumption(tmp_path: Path, number: int) -> None:
    gate, options = Gate(), RunOptions(session_root=tmp_path)
    team = scripted_team(
        a=ScriptedModel(Turn(text="a cut te", gate=gate), Answer("the whole text"))
    )
    cut = nb_agents.start("one", team, "s", options=options)
    gate.wait_reached()
    cut.stop(now=True)
    cut.wait(raise_on_stop=False)
    assert cut.resume().wait() == "the whole text"
    model = ScriptedModel(Answer("two"))
    again = nb_agents.start(
        "and?", scripted_team(a=model), "s", True, options=replace(options, from_turn=number)
    )
    assert again.wait() == "two"
    assert "the whole text" in str(model.requests[0])
    assert "a cut te" not in str(model.requests[0])
    assert ("Turn 1 was resumed as turn 2" in " ".join(again.view.notices)) is (number == 1)


def test_from_without_continue_is_a_user_error(session: Path) -> None:
    with pytest.raises(UserError, match="can only be used with --continue"):
        nb_agents.start(
            "x", session="s", options=RunOptions(from_turn=1, session_root=session.parent)
        )
