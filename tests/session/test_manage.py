"""Whole sessions can be renamed, exported, deleted and forked, and nothing live is touched."""

from __future__ import annotations

import zipfile
from datetime import datetime
from pathlib import Path

import pytest

import nb_agents
from nb_agents.errors import SessionBusyError, StorageError, UnknownSessionError, UserError
from nb_agents.session.history import load_session
from nb_agents.session.layout import turns_of
from nb_agents.session.manage import (
    delete_session,
    export_session,
    fork_session,
    rename_session,
)
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team

NOW = datetime(2026, 11, 20, 12, 0, 0)
WRITE = Turn(calls=(Call("write_file", {"path": "a.txt", "content": "kept"}),))


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session of three complete turns, each with a file."""
    for task in ("one", "two", "three"):
        team = scripted_team(a=ScriptedModel(WRITE, Answer(f"answer to {task}")))
        nb_agents.start(task, config=team, session="s", session_root=tmp_path).wait()
    return tmp_path / "s"


def contents(session: Path) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in load_session(session).messages]


def test_a_renamed_session_holds_what_it_held(session: Path) -> None:
    before = contents(session)
    renamed = rename_session(session, "better name")
    assert not session.exists()
    assert contents(renamed) == before
    assert {turn.view.session for turn in load_session(renamed).turns} == {"better name"}


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".hidden", "con"])
def test_a_name_that_is_no_directory_is_refused(session: Path, name: str) -> None:
    with pytest.raises(UserError, match="can't be a directory name"):
        rename_session(session, name)
    assert session.exists()


def test_a_taken_name_is_refused(session: Path) -> None:
    (session.parent / "taken").mkdir()
    with pytest.raises(UserError, match="'taken' already"):
        rename_session(session, "taken")


def test_an_export_holds_every_file_of_the_session(session: Path, tmp_path: Path) -> None:
    made = export_session(session, tmp_path / "out.zip")
    names = zipfile.ZipFile(made).namelist()
    assert "s/turn_1/metadata.json" in names
    assert "s/turn_3/workspaces/a/a.txt" in names


def test_an_export_replaces_no_file(session: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.zip").write_text("precious")
    with pytest.raises(UserError, match="exists already"):
        export_session(session, tmp_path / "mine.zip")
    assert (tmp_path / "mine.zip").read_text() == "precious"


def test_an_export_into_a_place_that_is_none_is_a_sentence(session: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Can't write"):
        export_session(session, tmp_path / "file" / "out.zip")


def test_a_deleted_session_is_gone(session: Path) -> None:
    delete_session(session)
    assert not session.exists()


def test_a_live_session_is_neither_deleted_nor_renamed(tmp_path: Path) -> None:
    gate = Gate()
    team = scripted_team(a=ScriptedModel(Turn(text="wait ", gate=gate)))
    run = nb_agents.start("t", config=team, session="live", session_root=tmp_path)
    for attempt in (delete_session, lambda path: rename_session(path, "other")):
        with pytest.raises(SessionBusyError, match="turn 1 is live"):
            attempt(tmp_path / "live")
    run.stop(now=True)
    run.wait_quietly()
    assert (tmp_path / "live" / "turn_1" / "metadata.json").exists()


def test_a_fork_begins_with_the_turns_before_and_leaves_the_session_alone(session: Path) -> None:
    fork = fork_session(session, 2, NOW)
    assert [t.number for t in turns_of(fork)] == [1, 2]
    assert [t.number for t in turns_of(session)] == [1, 2, 3]
    assert contents(fork) == contents(session)[:4]
    assert (fork / "turn_2" / "workspace" / "a.txt").read_text() == "kept"


def test_a_fork_from_a_turn_that_is_not_there_names_the_last_one(session: Path) -> None:
    with pytest.raises(UnknownSessionError, match="Did you mean 's/3'"):
        fork_session(session, 9, NOW)


def test_continue_from_a_turn_goes_on_in_a_new_session(session: Path) -> None:
    model = ScriptedModel(Answer("a fourth"))
    run = nb_agents.start(
        "four",
        config=scripted_team(a=model),
        session="s",
        continue_=True,
        from_turn=1,
        session_root=session.parent,
    )
    assert run.wait() == "a fourth"
    assert (run.session != "s", run.turn) == (True, 2)
    seen = str(model.requests[0])
    assert "answer to one" in seen
    assert "answer to two" not in seen


def test_from_without_continue_is_a_sentence(session: Path) -> None:
    with pytest.raises(UserError, match="goes with --continue"):
        nb_agents.start("x", session="s", from_turn=1, session_root=session.parent)
