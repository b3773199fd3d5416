"""After any edit of SESSION_SUMMARY.txt, the next turn ends and no text is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.sessions import TurnPaths, read_json, views, write_views
from tests.session.turns import CANCELLED, COMPLETED, STOP, started, turn_paths, view_of, write_turn

RULE = "=" * 80
HEAD = f"{RULE}\nMulti-Turn Session: session_1\n{RULE}\n"


@pytest.fixture
def first(tmp_path: Path) -> TurnPaths:
    paths = turn_paths(tmp_path, 1)
    write_turn(paths, started(1), STOP, CANCELLED)
    return paths


def end_second(first: TurnPaths) -> tuple[str, ...]:
    """End the next turn. Return the notices about files that could not be written."""
    paths = turn_paths(first.path.parents[1], 2)
    told = write_views(view_of(started(2, "And then?"), COMPLETED), paths)
    assert "status" not in read_json(paths.metadata)
    return told


EDITED = {
    "emptied": "",
    "one line": "\n",
    "a person's own words": "My notes.\nTURN 9 was the best.\n",
    "half of it": HEAD[:100],
    "the head alone": HEAD,
    "no rule": "TURN 1\n",
    "a number without end": f"{HEAD}\n{RULE}\nTURN {'9' * 5_000}\n{RULE}\nx\n",
    "another turn twice": f"{HEAD}\n{RULE}\nTURN 5\n{RULE}\na\n\n{RULE}\nTURN 5\n{RULE}\nb\n",
    "not UTF-8": "caf\udce9\n",
    "lines of Windows": f"{HEAD}\n{RULE}\nTURN 1\n{RULE}\nold\n".replace("\n", "\r\n"),
}


@pytest.mark.parametrize("how", EDITED)
def test_after_any_edit_the_next_turn_ends_and_other_text_is_preserved(
    first: TurnPaths, how: str
) -> None:
    edited = EDITED[how].encode(errors="surrogateescape")
    first.summary.write_bytes(edited)
    assert end_second(first) == ()
    text = first.summary.read_text()
    assert text.startswith(HEAD)
    assert text.count("Multi-Turn Session: ") == 1
    assert text.count(f"\n{RULE}\nTURN 2\n{RULE}\n") == 1
    words = {line for line in edited.decode(errors="replace").split() if RULE not in line}
    assert words - {"Multi-Turn", "Session:"} <= set(text.split()) | {"Mu", "Multi-Tu"}
    # Writing it again does not change it.
    assert end_second(first) == ()
    assert first.summary.read_text() == text


def test_pipe_named_like_the_summary_is_replaced(first: TurnPaths) -> None:
    first.summary.unlink()
    os.mkfifo(first.summary)
    assert end_second(first) == ()
    assert "TURN 2" in first.summary.read_text()


@pytest.mark.parametrize("name", ["SESSION_SUMMARY.txt", "winning_agents_history.json"])
def test_directory_named_like_the_summary_stays_and_is_reported(
    first: TurnPaths, name: str
) -> None:
    place = first.path.parent / name
    place.unlink(missing_ok=True)
    (place / "kept").mkdir(parents=True)
    assert end_second(first) == (f"{name} can't be written: Is a directory. It was not changed.",)
    assert (place / "kept").is_dir()


def test_link_named_like_the_summary_stays_and_is_reported(
    first: TurnPaths, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("Mine.")
    first.summary.unlink()
    first.summary.symlink_to(tmp_path / "mine.txt")
    [told] = end_second(first)
    assert told == "SESSION_SUMMARY.txt is a symlink, not a file. It was not changed."
    assert (tmp_path / "mine.txt").read_text() == "Mine."


def test_summary_that_is_too_large_stays_and_is_reported(
    first: TurnPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MAX_SUMMARY_BYTES", 1000)
    first.summary.write_text("x" * 1001)
    [told] = end_second(first)
    assert "larger than 1000 bytes" in told
    assert first.summary.read_text() == "x" * 1001


@pytest.mark.parametrize("text", ["", "{", "{}", "3", "[" * 100_000, '["x"]', "NaN"])
def test_after_any_edit_of_the_winners_the_next_turn_ends(first: TurnPaths, text: str) -> None:
    first.winners.write_text(text)
    assert end_second(first) == ()
    assert '"turn": 2' in first.winners.read_text()


def test_summary_has_no_control_sequences_of_a_task(first: TurnPaths) -> None:
    paths = turn_paths(first.path.parents[1], 2)
    write_views(view_of(started(2, "Clear \x1b[2J\x1b]52;c;cm0=\x07it"), COMPLETED), paths)
    assert "Task: Clear it\n" in first.summary.read_text()
