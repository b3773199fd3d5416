"""Damaged sessions are shown or reported, and do not affect other sessions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.damage import cuts, edits, end_next_turn, files_of, look, mend, small_sessions, spoil
from tests.kit.sessions import JournalContents, read_journal, sessions_in

EDITS = 150
"""Of each session; `python -m tests.damage 10000` takes more."""


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    # Thousands of files are rewritten, without a power failure.
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    return {path.name: path for path in small_sessions(tmp_path)}


def test_undamaged_sessions_are_valid(sessions: dict[str, Path]) -> None:
    for session in sessions.values():
        assert look(session) == ""
        assert read_journal(session / "turn_1" / "events.jsonl").warnings == ()


@pytest.mark.parametrize("name", ["team", "recipe"])
def test_truncated_journal_has_the_events_before_the_cut(
    sessions: dict[str, Path], tmp_path: Path, name: str
) -> None:
    data = (sessions[name] / "turn_1" / "events.jsonl").read_bytes()
    path = tmp_path / "cut.jsonl"
    path.write_bytes(data)
    events = read_journal(path).events
    for place in range(len(data) - 1, -1, -1):
        os.truncate(path, place)
        assert read_journal(path) == JournalContents(events[: data.count(b"\n", 0, place)])


@pytest.mark.parametrize("name", ["team", "recipe"])
def test_session_with_a_truncated_file_is_shown_or_reported(
    sessions: dict[str, Path], name: str
) -> None:
    session, files = sessions[name], files_of(sessions[name])
    for damage in cuts(session, step=211):
        spoil(session, damage)
        look(session)
        if "/" not in damage.file:
            end_next_turn(session)
        mend(session, files)


@pytest.mark.parametrize("name", ["team", "recipe"])
def test_session_with_an_edited_file_is_shown_or_reported(
    sessions: dict[str, Path], tmp_path: Path, name: str
) -> None:
    session, files = sessions[name], files_of(sessions[name])
    for damage in edits(session, EDITS, seed=1):
        spoil(session, damage)
        look(session)
        if "/" not in damage.file:
            end_next_turn(session)
        assert {path.name for path in sessions_in(tmp_path).by_use} == sessions.keys()
        mend(session, files)
