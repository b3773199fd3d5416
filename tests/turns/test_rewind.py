"""Rewind to a checkpoint of a turn: a new turn from a prefix of the old journal."""

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.kit.cells import handle_page_request
from tests.kit.runs import Run
from tests.kit.sessions import load_session, read_journal
from tests.kit.tools import ToolContext
from tests.kit.views import Checkpoint, checkpoints_of
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
    """A finished turn of a team."""

    def __init__(self, root: Path, names: str = "a") -> None:
        self.heard = {name: list[str]() for name in names}
        models = {n: ScriptedModel(_plays(n, self.heard[n])) for n in names}
        self.team = team_by_rules(models)
        self.options = RunOptions(session_root=root)
        self.run = nb_agents.start("the task", self.team, session="s", options=self.options)
        finish(self.run)

    @property
    def points(self) -> list[Checkpoint]:
        return checkpoints_of(read_journal(self.run.path / "events.jsonl").events)

    def back(self, to: str | int, **more: Any) -> Run:
        for each in self.heard.values():
            each.clear()
        return finish(self.run.rewind(to, **more))


def _files(path: Path) -> Mapping[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_rewind_to_any_checkpoint_has_the_same_end_and_pays_only_for_later_work(
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


def test_workspace_is_saved_only_for_functions_that_receive_it(
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
    assert [started[e.call] for e in events(run, ev.FilesSaved)] == ["write"]


def test_message_reaches_all_agents_or_only_its_recipient(tmp_path: Path) -> None:
    played = Played(tmp_path, "ab")
    played.back("before b's 1st answer", say="Think of the cost.")
    assert all(any("Think of the cost." in said for said in h) for h in played.heard.values())
    again = played.back("before b's 1st answer", say="Only for b.", agent="b")
    assert any("Only for b." in said for said in played.heard["b"])
    assert not any("Only for b." in said for said in played.heard["a"])
    assert events(again, ev.UserMessage)[0].to == "b"


def test_next_task_continues_only_the_rewound_turn(tmp_path: Path) -> None:
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
        ({"say": " "}, "message is empty"),
        ({"say": "x" * 20_001}, "the limit is 20000"),
        ({"config": "other.yaml"}, "No such file"),
        ({"model": "nonsense"}, "Use 'provider:nonsense'"),
    ],
)
def test_invalid_rewind_does_not_stop_a_live_turn(
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
def test_missing_snapshot_files_are_reported_and_stop_the_rewind(tmp_path: Path, part: str) -> None:
    played = Played(tmp_path)
    shutil.rmtree(tmp_path / "s" / "snapshots" / part)
    before = _files(tmp_path / "s")
    with pytest.raises(UserError, match=f"the session has no snapshots/{part}/.* from a backup"):
        played.run.rewind("a's 1st write_file")
    assert _files(tmp_path / "s") == before


def test_truncated_snapshot_file_is_reported_and_stops_the_rewind(
    tmp_path: Path,
) -> None:
    played = Played(tmp_path)
    for path in (tmp_path / "s" / "snapshots" / "files").rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size - 1)
    before = _files(tmp_path / "s")
    with pytest.raises(UserError, match="snapshots/files/.* is incomplete: 1 of its"):
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
def test_checkpoint_has_a_readable_name(tmp_path: Path, to: str, begins: str) -> None:
    played = Played(tmp_path)
    assert played.run.preview_rewind(to).at.startswith(begins.split(" ")[0])
    if not to.startswith("+"):
        assert played.run.preview_rewind(to).at == begins


@pytest.mark.parametrize(
    "to", ["0", "b's 1st answer", "a's 0th answer", "a's 9th answer", "nonsense", "25:99"]
)
def test_unknown_checkpoint_is_reported_with_the_existing_ones(tmp_path: Path, to: str) -> None:
    played = Played(tmp_path)
    with pytest.raises(UserError, match=r"It has, for example|before the start"):
        played.run.rewind(to)
    with pytest.raises(UserError, match="no agent 'z'"):
        played.run.rewind(1, say="hello", agent="z")
    assert len(load_session(tmp_path / "s").turns) == 1


def test_preview_names_unsaved_files_and_rewind_leaves_them_unchanged(tmp_path: Path) -> None:
    model, options = ScriptedModel(_plays("a", [])), RunOptions(session_root=tmp_path)
    team = team_by_rules({"a": model}).model_copy(update={"snapshots": False})
    run = finish(nb_agents.start("the task", team, session="s", options=options))
    assert events(run, ev.FilesSaved) == []
    assert not (tmp_path / "s" / "snapshots").exists()
    assert "Files are not restored" in str(run.preview_rewind(1))


def test_files_beyond_the_total_limit_are_reported_once_and_named_by_a_rewind(
    tmp_path: Path,
) -> None:
    texts = [("a", "a"), ("b", "b"), ("b", "c"), ("c", "d")]
    work = [
        Turn(calls=(Call("write_file", {"path": name, "content": text * 300_000}),))
        for name, text in texts
    ]
    model = ScriptedModel(lambda messages: work.pop(0) if work else Answer("done"))
    options = RunOptions(session_root=tmp_path)
    team = team_by_rules({"a": model}).model_copy(update={"snapshot_total_limit": 0.5})
    run = finish(nb_agents.start("task", team, session="s", options=options))
    [notice] = [text for text in run.view.notices if "snapshots" in text]
    assert "snapshots have 0.3 MB, and 0.3 MB more would exceed their limit of 0.5 MB" in notice
    assert "set a higher `snapshot_total_limit` (in MB) in the team file" in notice
    again = finish(run.rewind("a's 2nd write_file"))
    assert any("b (no space left for 300,000 bytes" in text for text in again.view.notices)


def test_preview_describes_each_file_change_without_making_it(tmp_path: Path) -> None:
    played = Played(tmp_path)
    before = _files(tmp_path)
    told = played.run.preview_rewind("a's 1st write_file")
    lines = {file.path: (file.what, file.plus, file.minus) for file in told.files}
    assert lines == {"a/work.md": ("changed", 1, 1)}
    assert "-one 2\n+one two" in told.files[0].diff
    assert _files(tmp_path) == before


@pytest.mark.parametrize("hidden", ["\u202e", "\u2066", "\u200b", "\x1b[2J"], ids=ascii)
def test_preview_contains_no_control_characters(tmp_path: Path, hidden: str) -> None:
    given = {"path": f"invoice{hidden}fdp.exe", "content": f"one{hidden}two"}
    work = [Turn(calls=(Call("write_file", given | more),)) for more in ({}, {"content": "x"})]
    model = ScriptedModel(lambda messages: work.pop(0) if work else Answer("done"))
    options = RunOptions(session_root=tmp_path)
    team = team_by_rules({"a": model})
    run = finish(nb_agents.start("task", team, session="s", options=options))
    found = run.preview_rewind("a's 1st write_file")
    escaped = ascii(hidden[0])[1:-1]
    assert escaped in found.files[0].path and f"invoice{escaped}" in str(found)
    assert "one" in found.files[0].diff
    for text in (str(found), *found.lines, *_texts(asdict(found))):
        assert hidden[0] not in text


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value, however deep they are."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.items()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def test_counts_of_a_preview_agree_in_number_with_their_nouns(tmp_path: Path) -> None:
    run = Played(tmp_path).run
    told = run.preview_rewind("before a's 1st answer").lines
    assert told[1] == "Kept at no new cost: 0 answers, 0 votes, 2 model calls."
    assert told[2] == "Left out: 1 answer, 1 model call; turn s/1 keeps it."
    told = run.preview_rewind("a's 1st answer").lines
    assert told[1] == "Kept at no new cost: 1 answer, 0 votes, 3 model calls."
    assert told[2] == "Left out: nothing."


def test_rewind_message_of_a_panel_is_refused_but_its_preview_is_not(
    tmp_path: Path,
) -> None:
    asked = {"run": str(Played(tmp_path).run.path), "to": "1"}
    refused = handle_page_request("rewind", asked)
    assert refused.refusal == "A panel can't start a turn. Write `%agents rewind` in a cell."
    assert handle_page_request("rewind", {**asked, "preview": True}).facts["lines"]
    assert len(load_session(tmp_path / "s").turns) == 1
