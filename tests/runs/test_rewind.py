"""Going back to a point of a turn: a new turn from a prefix of the old one's journal."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.jupyter.kernel import do_as_asked
from nb_agents.runs.run import Run
from nb_agents.session.history import load_session
from nb_agents.session.journal import read_journal
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from nb_agents.tools.base import ToolContext
from nb_agents.view.points import Point, points_of
from tests.team_kit import events, finish, metadata, team_by_rules


def _plays(name: str, heard: list[str]) -> Any:
    """Write, edit, answer; then vote for the first; the winner writes once more and presents."""

    def reply(messages: Any) -> Turn:
        said = str(messages)
        heard.append(said)
        done = sum(message.kind == "response" for message in messages)
        if "<FINAL PRESENTATION>" in said:
            last = Call("write_file", {"path": "end.md", "content": "the end"})
            return Turn("The end.") if done else Turn(calls=(last,))
        if f"answer of {name}" in said:
            return Vote("agent1")
        work = (
            Turn(calls=(Call("write_file", {"path": "work.md", "content": "one two"}),)),
            Turn(calls=(Call("edit_file", {"path": "work.md", "old": "two", "new": "2"}),)),
            Answer(f"answer of {name}"),
        )
        return work[done]

    return reply


class Played:
    """A team's turn that came to its end."""

    def __init__(self, root: Path, names: str = "a") -> None:
        self.heard = {name: list[str]() for name in names}
        models = {n: ScriptedModel(_plays(n, self.heard[n])) for n in names}
        self.team = team_by_rules(models)
        self.options = RunOptions(session_root=root)
        self.run = nb_agents.start("the task", self.team, session="s", options=self.options)
        finish(self.run)

    @property
    def points(self) -> list[Point]:
        return points_of(read_journal(self.run.path / "events.jsonl").events)

    def back(self, to: str | int, **more: Any) -> Run:
        for each in self.heard.values():
            each.clear()
        return finish(self.run.rewind(to, **more))


def _files(path: Path) -> Mapping[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_from_each_point_a_turn_comes_to_the_same_end_and_pays_only_for_what_is_after_it(
    tmp_path: Path,
) -> None:
    played = Played(tmp_path)
    before = _files(played.run.path)
    calls = len(events(played.run, ev.ModelFinished))
    for point in played.points:
        again = played.back(point.seq)
        kept = [e for e in events(played.run, ev.ModelFinished) if e.seq <= point.seq]
        assert again.result == played.run.result, point
        assert sum(map(len, played.heard.values())) == calls - len(kept), point
        assert (metadata(again)["rewinds"], metadata(again)["at"]) == (1, point.seq)
        assert _files(played.run.path) == before
        assert _files(again.path / "workspaces") == _files(played.run.path / "workspaces")


def test_a_workspace_is_kept_for_those_functions_alone_that_are_told_where_it_is(
    tmp_path: Path,
) -> None:
    def add(left: int) -> int:
        """Add one."""
        return left + 1

    def write(context: ToolContext) -> str:
        """Write a file."""
        (context.workspace / "seen.md").write_text("seen")
        return "written"

    model = ScriptedModel(Turn(calls=(Call("add", {"left": 1}), Call("write"))), Answer("So."))
    team, options = team_by_rules({"a": model}), RunOptions(session_root=tmp_path)
    run = finish(nb_agents.start("the task", team, options=options, tools=[add, write]))
    started = {f"{e.agent} {e.call_id}": e.tool for e in events(run, ev.ToolStarted)}
    assert [started[e.call] for e in events(run, ev.FilesKept)] == ["write"]


def test_a_word_reaches_all_agents_or_the_one_that_it_is_for(tmp_path: Path) -> None:
    played = Played(tmp_path, "ab")
    played.back("before b's 1st answer", say="Think of the cost.")
    assert all(any("Think of the cost." in said for said in h) for h in played.heard.values())
    again = played.back("before b's 1st answer", say="Only for b.", agent="b")
    assert any("Only for b." in said for said in played.heard["b"])
    assert not any("Only for b." in said for said in played.heard["a"])
    assert events(again, ev.Said)[0].to == "b"


def test_the_next_task_goes_on_from_the_branch_alone(tmp_path: Path) -> None:
    played = Played(tmp_path)
    more = nb_agents.start("another task", played.team, "s", True, options=played.options)
    finish(more)
    played.back(1)
    assert [turn.paths.number for turn in load_session(tmp_path / "s").latest_turns] == [3]
    last = finish(nb_agents.start("a third", played.team, "s", True, options=played.options))
    assert not any("another task" in said for said in played.heard["a"])
    assert [turn.paths.number for turn in load_session(tmp_path / "s").latest_turns] == [3, 4]
    assert last.turn == 4


def test_a_live_turn_is_stopped_first(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(Turn("so far", gate=gate), Answer("done"))
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("t", team_by_rules({"a": model}), session="s", options=options)
    gate.wait_reached()
    again = run.rewind(1, now=True)
    assert run.is_over
    gate.open()
    assert finish(again).view.resumes == 1


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"say": "x", "agent": "z"}, "no agent 'z'"),
        ({"say": " "}, "text is empty"),
        ({"say": "x" * 20_001}, "at most 20000"),
        ({"config": "other.yaml"}, "No such file"),
        ({"model": "nonsense"}, "not type:model"),
    ],
)
def test_a_mistake_does_not_stop_a_live_turn(
    tmp_path: Path, mistake: dict[str, str], says: str
) -> None:
    gate = Gate()
    model = ScriptedModel(Turn("so far", gate=gate), Answer("done"))
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("t", team_by_rules({"a": model}), session="s", options=options)
    gate.wait_reached()
    with pytest.raises(UserError, match=says):
        run.rewind(1, now=True, **mistake)
    assert run.view.stop is None
    gate.open()
    assert finish(run).status == "completed"


@pytest.mark.parametrize("part", ["files", "trees"])
def test_a_point_whose_files_are_gone_from_the_session_is_told_and_nothing_is_done(
    tmp_path: Path, part: str
) -> None:
    played = Played(tmp_path)
    shutil.rmtree(tmp_path / "s" / "snapshots" / part)
    before = _files(tmp_path / "s")
    with pytest.raises(UserError, match=f"the session lacks snapshots/{part}/.* from a copy"):
        played.run.rewind("a's 1st write_file")
    assert _files(tmp_path / "s") == before


def test_a_point_of_which_a_kept_file_was_cut_short_is_told_and_nothing_is_done(
    tmp_path: Path,
) -> None:
    played = Played(tmp_path)
    for path in (tmp_path / "s" / "snapshots" / "files").rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size - 1)
    before = _files(tmp_path / "s")
    with pytest.raises(UserError, match="snapshots/files/.* is cut short, by 1 of its"):
        played.run.rewind("a's 1st write_file")
    assert _files(tmp_path / "s") == before


@pytest.mark.parametrize(
    ("to", "begins"),
    [
        ("a's 1st answer", "a's 1st answer"),
        ("before a's first answer", "a's 1st edit_file"),
        ("before a's answer", "a's 1st edit_file"),
        ("a's 2nd model call", "a's 2nd model call"),
        ("after a's model call 2", "a's 2nd model call"),
        ("the start", "the start"),
        ("+0:59", "a's 5th model call"),
    ],
)
def test_a_point_is_named_in_words(tmp_path: Path, to: str, begins: str) -> None:
    played = Played(tmp_path)
    assert played.run.preview_rewind(to).at.startswith(begins.split(" ")[0])
    if not to.startswith("+"):
        assert played.run.preview_rewind(to).at == begins


@pytest.mark.parametrize(
    "to", ["0", "b's 1st answer", "a's 0th answer", "a's 9th answer", "nonsense", "25:99"]
)
def test_a_point_that_is_not_there_is_told_with_those_that_are(tmp_path: Path, to: str) -> None:
    played = Played(tmp_path)
    with pytest.raises(UserError, match=r"The last points are|before the start"):
        played.run.rewind(to)
    with pytest.raises(UserError, match="no agent 'z'"):
        played.run.rewind(1, "hello", agent="z")
    assert len(load_session(tmp_path / "s").turns) == 1


def test_files_that_are_not_kept_stay_as_they_are_and_the_preview_says_so(tmp_path: Path) -> None:
    model, options = ScriptedModel(_plays("a", [])), RunOptions(session_root=tmp_path)
    team = team_by_rules({"a": model}).model_copy(update={"snapshots": False})
    run = finish(nb_agents.start("the task", team, session="s", options=options))
    assert events(run, ev.FilesKept) == []
    assert not (tmp_path / "s" / "snapshots").exists()
    assert "Files stay as they are now" in str(run.preview_rewind(1))


def test_a_preview_names_what_each_file_becomes_and_changes_nothing(tmp_path: Path) -> None:
    played = Played(tmp_path)
    before = _files(tmp_path)
    told = played.run.preview_rewind("a's 1st write_file")
    lines = {file.path: (file.what, file.plus, file.minus) for file in told.files}
    assert lines == {"a/work.md": ("changed", 1, 1)}
    assert "-one 2\n+one two" in told.files[0].diff
    assert _files(tmp_path) == before


def test_counts_of_a_preview_agree_in_number_with_their_nouns(tmp_path: Path) -> None:
    run = Played(tmp_path).run
    told = run.preview_rewind("before a's 1st answer").lines
    assert told[1] == "Kept, and not paid again: 0 answers, 0 votes, 2 model calls."
    assert told[2] == "Left out: 1 answer, 1 model call; turn s/1 keeps it."
    told = run.preview_rewind("a's 1st answer").lines
    assert told[1] == "Kept, and not paid again: 1 answer, 0 votes, 3 model calls."
    assert told[2] == "Left out: nothing."


def test_a_panel_that_asks_for_it_by_a_message_is_refused_and_can_have_the_preview(
    tmp_path: Path,
) -> None:
    asked = {"run": str(Played(tmp_path).run.path), "to": "1"}
    refused = do_as_asked("rewind", asked)
    assert refused.refusal == "A panel can't begin a turn. Write `%agents rewind` in a cell."
    assert do_as_asked("rewind", {**asked, "preview": True}).facts["lines"]
    assert len(load_session(tmp_path / "s").turns) == 1
