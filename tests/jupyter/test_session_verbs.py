"""A session that can't be shown does not affect lists of sessions or reports of dead turns."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.damage import small_sessions
from tests.kit.cells import verbs
from tests.kit.sessions import history
from tests.kit.verbs import on_sessions

SHELL = SimpleNamespace(user_ns={})


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of displayed texts."""
    texts: list[str] = []

    def display(bundle: dict[str, Any]) -> None:
        texts.append(bundle["text/plain"])

    for module in ("verbs", "ipython"):
        monkeypatch.setattr(f"nb_agents.jupyter.{module}.display", display)
    return texts


def test_bug_in_one_session_does_not_hide_others(
    tmp_path: Path, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_sessions(tmp_path)
    load = history.load_session

    def fails_for_one(path: Path) -> Any:
        if path.name == "team":
            raise RuntimeError("a defect")
        return load(path)

    monkeypatch.setattr(on_sessions, "load_session", fails_for_one)
    verbs.VERBS["sessions"](SHELL, SimpleNamespace(session_root=tmp_path, all=False))
    table, said = shown
    assert "recipe   1      stopped  " in table
    assert said == "Session 'team' can't be shown: RuntimeError: a defect."


def test_unread_parts_of_a_session_are_reported_in_one_sentence(
    tmp_path: Path, shown: list[str]
) -> None:
    team, _ = small_sessions(tmp_path)
    journal = team / "turn_1" / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"rubbish\n", *lines[1:]]))
    verbs.VERBS["sessions"](SHELL, SimpleNamespace(session_root=tmp_path, all=False))
    [_, said] = shown
    assert said == "Not read: team/1: events.jsonl: line 2 can't be read and was skipped."


def test_sessions_table_has_one_line_per_session(tmp_path: Path, shown: list[str]) -> None:
    team, _ = small_sessions(tmp_path)
    team.rename(tmp_path / "te\nam\x1b[2J")
    verbs.VERBS["sessions"](SHELL, SimpleNamespace(session_root=tmp_path, all=False))
    assert len(shown[0].splitlines()) == 3
    assert "te am" in shown[0] and "\x1b" not in shown[0]


def test_long_list_loads_only_the_sessions_it_shows(
    tmp_path: Path, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    team, recipe = small_sessions(tmp_path)
    os.utime(team / "turn_1" / "events.jsonl", (1, 1))  # the other was used later
    opened = list[str]()

    def load(path: Path) -> Any:
        opened.append(path.name)
        return history.load_session(path)

    monkeypatch.setattr(on_sessions, "LISTED", 1)
    monkeypatch.setattr(on_sessions, "load_session", load)
    verbs.VERBS["sessions"](SHELL, SimpleNamespace(session_root=tmp_path, all=False))
    assert opened == [recipe.name]
    assert shown[-1] == "1 older session not listed. --all lists all."
    opened.clear()
    verbs.VERBS["sessions"](SHELL, SimpleNamespace(session_root=tmp_path, all=True))
    assert opened == [recipe.name, team.name]
