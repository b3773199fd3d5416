"""Two branches of a turn, side by side."""

import os
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from nb_agents.verbs.comparing import diff
from tests.kit.cards import CELL
from tests.kit.verbs import Caller, sessions
from tests.team_kit import finish, team_by_rules
from tests.turns.test_rewind import Played


def test_diff_compares_answers_votes_files_and_messages(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.back("before a's 1st answer", say="Be brief.")
    (tmp_path / "s" / "turn_2" / "workspaces" / "a" / "work.md").write_text("other")
    found = diff(tmp_path, Caller("magic", CELL), first="s/1", second="s/2")
    assert found.heads == ("", "s/1", "s/2")
    rows = {row[0]: tuple(row[1:]) for row in found.rows}
    assert rows["state"] == ("complete", "complete")
    assert rows["rewinds to"][1].endswith("of turn 1")
    assert rows["your message"] == ("", "Be brief.")
    assert rows["answer of a"] == ("answer of a", "answer of a")
    assert rows["file a/work.md"] == ("5 B", "5 B")
    assert "file a/end.md" not in rows
    [row] = sessions(tmp_path, Caller("magic", CELL)).rows
    assert row[1].startswith("2 2↩1@")


def test_diff_omits_equal_file_with_line_break_in_its_name(tmp_path: Path) -> None:
    calls = (Call("write_file", {"path": "new\nline", "content": "same"}),)
    model = ScriptedModel(Turn(calls=calls), Answer("done"))
    options = RunOptions(session_root=tmp_path)
    run = finish(nb_agents.start("t", team_by_rules({"a": model}), session="s", options=options))
    finish(run.rewind("a's write_file"))
    found = diff(tmp_path, Caller("magic", CELL), first="s/1", second="s/2")
    assert [row[0] for row in found.rows if row[0].startswith("file ")] == []


SWAPS = ["pipe", "link to a device", "link out", "link inside"]


@pytest.mark.parametrize("swap", SWAPS)
def test_diff_does_not_open_special_file_or_link(tmp_path: Path, swap: str) -> None:
    played = Played(tmp_path)
    played.back("before a's 1st answer")
    (tmp_path / "outside").write_text("same")
    for turn in ("turn_1", "turn_2"):
        file = tmp_path / "s" / turn / "workspaces" / "a" / "work.md"
        file.rename(file.with_name("moved"))
        if swap == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to(
                {"link to a device": "/dev/zero", "link inside": "moved"}.get(swap)
                or tmp_path / "outside"
            )
    found = diff(tmp_path, Caller("magic", CELL), first="s/1", second="s/2")
    assert "file a/work.md" in {row[0] for row in found.rows}
