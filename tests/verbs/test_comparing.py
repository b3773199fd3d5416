"""Two branches of a turn, side by side."""

from pathlib import Path

import nb_agents
from nb_agents import RunOptions
from nb_agents.presentation.asking import CELL
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from nb_agents.verbs.comparing import diff
from nb_agents.verbs.on_sessions import sessions
from nb_agents.verbs.verb import Caller
from tests.runs.test_rewind import Played
from tests.team_kit import finish, team_by_rules


def test_two_branches_are_compared_by_answers_votes_files_and_words(tmp_path: Path) -> None:
    played = Played(tmp_path)
    played.back("before a's 1st answer", say="Be brief.")
    (tmp_path / "s" / "turn_2" / "workspaces" / "a" / "work.md").write_text("other")
    found = diff(tmp_path, Caller("magic", CELL), first="s/1", second="s/2")
    assert found.heads == ("", "s/1", "s/2")
    rows = {row[0]: tuple(row[1:]) for row in found.rows}
    assert rows["state"] == ("complete", "complete")
    assert rows["goes back to"][1].endswith("of turn 1")
    assert rows["you said"] == ("", "Be brief.")
    assert rows["answer of a"] == ("answer of a", "answer of a")
    assert rows["file a/work.md"] == ("5 B", "5 B")
    assert "file a/end.md" not in rows
    [row] = sessions(tmp_path, Caller("magic", CELL)).rows
    assert row[1].startswith("2 2↩1@")


def test_a_file_of_an_odd_name_that_is_the_same_in_both_is_not_listed(tmp_path: Path) -> None:
    calls = (Call("write_file", {"path": "new\nline", "content": "same"}),)
    model = ScriptedModel(Turn(calls=calls), Answer("done"))
    options = RunOptions(session_root=tmp_path)
    run = finish(nb_agents.start("t", team_by_rules({"a": model}), session="s", options=options))
    finish(run.rewind("a's write_file"))
    found = diff(tmp_path, Caller("magic", CELL), first="s/1", second="s/2")
    assert [row[0] for row in found.rows if row[0].startswith("file ")] == []
