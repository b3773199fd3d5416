"""The list of sessions and the news of dead turns: one at a time, whatever one of them does."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nb_agents.jupyter import verbs
from nb_agents.session import history
from nb_agents.verbs import on_sessions
from tests.damage import small_sessions

SHELL = SimpleNamespace(user_ns={})


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are displayed."""
    texts: list[str] = []

    def display(bundle: dict[str, Any]) -> None:
        texts.append(bundle["text/plain"])

    for module in ("verbs", "ipython"):
        monkeypatch.setattr(f"nb_agents.jupyter.{module}.display", display)
    return texts


def test_a_defect_of_ours_in_one_session_hides_no_other(
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


def test_a_session_says_what_of_it_is_not_read_in_one_sentence(
    tmp_path: Path, shown: list[str]
) -> None:
    team, _ = small_sessions(tmp_path)
    journal = team / "turn_1" / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"rubbish\n", *lines[1:], b'{"kind": "x"}\n']))
    verbs.VERBS["sessions"](SHELL, SimpleNamespace(session_root=tmp_path, all=False))
    [_, said] = shown
    assert said == (
        "Not read: team/1: events.jsonl: 2 lines can't be read and were skipped "
        "(the first is line 2)."
    )


def test_the_table_of_sessions_is_one_line_a_session(tmp_path: Path, shown: list[str]) -> None:
    team, _ = small_sessions(tmp_path)
    team.rename(tmp_path / "te\nam\x1b[2J")
    verbs.VERBS["sessions"](SHELL, SimpleNamespace(session_root=tmp_path, all=False))
    assert len(shown[0].splitlines()) == 3
    assert "te am" in shown[0] and "\x1b" not in shown[0]


def test_a_long_list_opens_those_alone_that_it_shows(
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
    assert shown[-1] == "1 older session not listed: --all lists all."
    opened.clear()
    verbs.VERBS["sessions"](SHELL, SimpleNamespace(session_root=tmp_path, all=True))
    assert opened == [recipe.name, team.name]
