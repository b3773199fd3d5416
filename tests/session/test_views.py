"""The files of a turn: written atomically, with MassGen's keys and wording."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nb_agents import events as ev
from nb_agents.session.views import answer_text, metadata, write_atomic, write_views
from tests.kit.sessions import TurnPaths
from tests.kit.views import RunView
from tests.session.turns import (
    ADA,
    BEN,
    CANCELLED,
    COMPLETED,
    STOP,
    answer,
    started,
    turn_paths,
    view_of,
    vote,
    write_turn,
    writing,
)

VOTED = (started(), answer("ada", ADA), answer("ben", BEN), vote("ada", "ben"))


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def paths(tmp_path: Path) -> TurnPaths:
    return turn_paths(tmp_path)


# metadata.json ------------------------------------------------------------------------------


def test_an_incomplete_turn_has_massgens_keys(paths: TurnPaths) -> None:
    write_turn(paths, *VOTED, STOP, CANCELLED)
    data = read(paths.metadata)
    assert {k: data[k] for k in ("turn", "status", "phase", "task", "session_id")} == {
        "turn": 1,
        "status": "incomplete",
        "phase": "coordinating",
        "task": "Why?",
        "session_id": "session_1",
    }
    assert data["voting_complete"] is False
    assert data["timestamp"][:2] == "20" and "T" in data["timestamp"]
    assert "winning_agent" not in data


def test_messages_are_in_the_metadata_if_there_are_any(paths: TurnPaths) -> None:
    assert "said" not in metadata(view_of(started()), paths)
    said = [ev.UserMessage(text=text) for text in ("One.", "Two.")]
    assert metadata(view_of(started(), *said, CANCELLED), paths)["said"] == ["One.", "Two."]


def test_a_turn_stopped_while_presenting_names_the_winner(paths: TurnPaths) -> None:
    events = (*VOTED, ev.PresentationStarted(agent="ada"), STOP)
    end = ev.TurnEnded(status="cancelled", phase="presenting", winner="ada")
    write_turn(paths, *events, end)
    data = read(paths.metadata)
    assert (data["phase"], data["voting_complete"], data["winning_agent"]) == (
        "presenting",
        True,
        "ada",
    )


def test_a_complete_turn_has_massgens_keys_and_no_status(paths: TurnPaths) -> None:
    write_turn(paths, *VOTED, COMPLETED)
    data = read(paths.metadata)
    assert data.keys() >= {"turn", "timestamp", "winning_agent", "task", "session_id"}
    assert data["winning_agent"] == "ada"
    assert data.keys().isdisjoint({"status", "phase", "voting_complete", "reason"})


REASONS = [
    ([], "running"),
    ([STOP, CANCELLED], "cancelled"),
    ([ev.StopRequested(level="requested", source="timeout"), CANCELLED], "timeout"),
    ([ev.StopRequested(level="requested", source="budget"), CANCELLED], "budget"),
    ([ev.TurnEnded(status="failed", phase="coordinating")], "failed"),
]


@pytest.mark.parametrize("events, reason", REASONS)
def test_incomplete_turn_has_a_reason(
    paths: TurnPaths, events: list[ev.Event], reason: str
) -> None:
    data = metadata(view_of(started(), *events), paths)
    assert (data["status"], data["reason"]) == ("incomplete", reason)


def test_a_turn_is_incomplete_from_its_first_moment(paths: TurnPaths) -> None:
    write_turn(paths, started())
    assert read(paths.metadata)["status"] == "incomplete"
    assert sorted(p.name for p in paths.path.iterdir()) == [
        "events.jsonl",
        "metadata.json",
        "workspaces",
    ]


def test_finished_turn_has_its_receipt_and_journal_position(paths: TurnPaths) -> None:
    write_turn(paths, *VOTED, STOP, CANCELLED)
    data = read(paths.metadata)
    assert data["journal_seq"] == 7
    assert data["receipt"]["source"] == "widget"
    assert data["receipt"]["agents"]["ada"]["outcome"] == "finished"
    assert data["duration_seconds"] == 5.0


# partial_answers.json -----------------------------------------------------------------------


def test_partial_answers_have_massgens_keys_and_votes_under_both_names(paths: TurnPaths) -> None:
    write_turn(paths, *VOTED, STOP, CANCELLED)
    assert read(paths.partial_answers) == {
        "ada": {
            "answer": ADA,
            "has_voted": True,
            "votes": {"agent_id": "ben", "voted_for": "ben", "reason": "best"},
            "answer_count": 1,
        },
        "ben": {"answer": BEN, "has_voted": False, "votes": None, "answer_count": 1},
    }


def test_vote_without_an_answer_and_unsubmitted_text_are_saved(paths: TurnPaths) -> None:
    write_turn(paths, started(), vote("ada", "ben"), *writing("ben", "half a"), STOP, CANCELLED)
    partial = read(paths.partial_answers)
    assert partial["ada"]["votes"]["voted_for"] == "ben"
    assert (partial["ben"]["partial"], partial["ben"]["partial_text"]) == (True, "half a")
    # An agent without an answer in the file does not count as having one.
    assert not any("answer" in entry for entry in partial.values())


def test_interrupted_tool_call_is_saved_as_far_as_received(paths: TurnPaths) -> None:
    cut = ev.TextStreamed(agent="ada", call=1, channel="call", text='{"pa', tool="write_file")
    write_turn(paths, started(), cut, STOP, CANCELLED)
    call = read(paths.partial_answers)["ada"]["partial_call"]
    assert call == {"tool": "write_file", "arguments": '{"pa'}


def test_turn_without_text_has_only_metadata(paths: TurnPaths) -> None:
    write_turn(paths, started(), STOP, CANCELLED)
    assert paths.metadata.exists()
    assert not paths.partial_answers.exists() and not paths.answer.exists()


def test_a_complete_turn_has_no_partial_answers(paths: TurnPaths) -> None:
    write_turn(paths, *VOTED, COMPLETED)
    assert not paths.partial_answers.exists()


# answer.txt ---------------------------------------------------------------------------------


def test_best_answer_of_an_incomplete_turn_has_massgens_header(
    paths: TurnPaths,
) -> None:
    write_turn(paths, started(), answer("ada", ADA), answer("ben", BEN), STOP, CANCELLED)
    assert paths.answer.read_bytes() == (
        b"[PARTIAL ANSWER - Session was cancelled during coordinating phase]\n"
        b"[Best answer from: ada]\n"
        b"============================================================\n"
        b"\n"
        b"An answer of some length."
    )


def test_answer_of_a_complete_turn_has_no_header(paths: TurnPaths) -> None:
    write_turn(paths, *VOTED, COMPLETED)
    assert paths.answer.read_bytes() == b"The answer."


def test_without_an_answer_the_longest_partial_text_is_saved() -> None:
    words = (*writing("ada", "short"), *writing("ben", "rather long"))
    assert answer_text(view_of(started(), *words, STOP, CANCELLED)) == (
        "[PARTIAL TEXT - Stopped during coordinating phase]\n"
        "[Written by ben, never submitted as an answer]\n"
        f"{'=' * 60}\n\nrather long"
    )
    assert answer_text(view_of(started(), CANCELLED)) == ""


# The winner ---------------------------------------------------------------------------------


def test_the_winners_workspace_is_linked(paths: TurnPaths) -> None:
    (paths.workspaces / "ada" / "a.txt").write_text("x")
    view = write_turn(paths, *VOTED, COMPLETED)
    assert os.readlink(paths.workspace) == os.path.join("workspaces", "ada")
    assert (paths.workspace / "a.txt").read_text() == "x"
    write_views(view, paths)  # a second write changes nothing
    assert os.readlink(paths.workspace) == os.path.join("workspaces", "ada")


def test_the_link_survives_a_move_of_the_session(paths: TurnPaths, tmp_path: Path) -> None:
    (paths.workspaces / "ada" / "a.txt").write_text("x")
    write_turn(paths, *VOTED, COMPLETED)
    (tmp_path / "session_1").rename(tmp_path / "moved")
    assert (tmp_path / "moved" / "turn_1" / "workspace" / "a.txt").read_text() == "x"


def test_without_symlinks_the_workspace_is_copied(
    paths: TurnPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    (paths.workspaces / "ada" / "sub").mkdir()
    (paths.workspaces / "ada" / "sub" / "a.txt").write_text("x")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    view = write_turn(paths, *VOTED, COMPLETED)
    assert (paths.workspace / "sub" / "a.txt").read_text() == "x"
    assert not paths.workspace.is_symlink()
    assert "status" not in read(paths.metadata)
    write_views(view, paths)


def test_an_incomplete_turn_has_no_winners_workspace(paths: TurnPaths) -> None:
    write_turn(paths, *VOTED, STOP, CANCELLED)
    assert not paths.workspace.exists()


def test_history_of_winners_has_one_entry_per_turn(tmp_path: Path) -> None:
    for number in (1, 2):
        paths = turn_paths(tmp_path, number)
        view = write_turn(paths, started(number), answer("ada", ADA), COMPLETED)
        write_views(view, paths)
    assert read(tmp_path / "session_1" / "winning_agents_history.json") == [
        {"agent_id": "ada", "turn": 1},
        {"agent_id": "ada", "turn": 2},
    ]


# SESSION_SUMMARY.txt ------------------------------------------------------------------------

RULE = "=" * 80


def test_summary_has_a_block_per_turn_in_massgens_format(tmp_path: Path) -> None:
    first, second = turn_paths(tmp_path, 1), turn_paths(tmp_path, 2)
    write_turn(first, started(1), answer("ada", ADA), COMPLETED)
    write_turn(second, started(2, "And\n  then?"), answer("ben", BEN), STOP, CANCELLED)
    text = first.summary.read_text()
    assert text.startswith(
        f"{RULE}\nMulti-Turn Session: session_1\n{RULE}\n\n{RULE}\nTURN 1\n{RULE}\n"
    )
    assert f"Winning Agent: ada\nTask: Why?\nWorkspace: {first.workspace}\n" in text
    assert f"\n{RULE}\nTURN 2 [INCOMPLETE - CANCELLED]\n{RULE}\nTimestamp: " in text
    assert "Phase when cancelled: coordinating\nTask: And then?\nAgents with answers: ben\n" in text
    assert f"Partial answers saved: {second.partial_answers}\n" in text


MARKS = [
    ([ev.StopRequested(level="requested", source="timeout"), CANCELLED], "TIMEOUT"),
    ([ev.TurnEnded(status="failed", phase="coordinating")], "FAILED"),
]


@pytest.mark.parametrize("events, mark", MARKS)
def test_summary_shows_how_a_turn_ended(
    paths: TurnPaths, events: list[ev.Event], mark: str
) -> None:
    write_turn(paths, started(), *events)
    assert f"TURN 1 [INCOMPLETE - {mark}]\n" in paths.summary.read_text()


def test_block_is_replaced_and_not_duplicated(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        write_turn(turn_paths(tmp_path, number), started(number), STOP, CANCELLED)
    paths = turn_paths(tmp_path, 2)
    before = paths.summary.read_text()
    view = view_of(started(2), STOP, CANCELLED)
    write_views(view, paths)
    assert paths.summary.read_text() == before
    assert [before.count(f"\nTURN {n} [") for n in (1, 2, 10)] == [1, 1, 1]
    assert before.index("TURN 2 ") < before.index("TURN 10 ")


@pytest.mark.parametrize(
    "task", [f"x\n{RULE}\nTURN 7\n{RULE}\ny", f"x\u2028{RULE}\u2028TURN 7\x85y", "\x0c\x1cTURN 7"]
)
def test_a_task_cannot_forge_a_block(paths: TurnPaths, task: str) -> None:
    view = write_turn(paths, started(1, task), STOP, CANCELLED)
    before = paths.summary.read_text()
    write_views(view, paths)
    assert paths.summary.read_text() == before
    assert sum(line.startswith("TURN ") for line in before.splitlines()) == 1


@pytest.mark.parametrize("line", ["TURN ", "TURN x", "TURN ²", "TURN 5 [INCOMPLETE - CANCELLED]"])
def test_other_blocks_are_preserved(paths: TurnPaths, line: str) -> None:
    head = f"{RULE}\nMulti-Turn Session: session_1\n{RULE}\n"
    paths.summary.write_text(f"{head}\n{RULE}\nTURN 3\n{RULE}\nsaid before\n\n{RULE}\n{line}\n")
    with open(paths.summary, "ab") as file:
        file.write(b"caf\xe9\n")
    write_turn(paths, started(), STOP, CANCELLED)
    text = paths.summary.read_text()
    assert "said before" in text and line in text
    assert text.index("TURN 1 ") < text.index("TURN 3")


# Atomic writes ------------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "answer.txt"
    write_atomic(path, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["answer.txt"]


def test_temporary_file_of_a_killed_process_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".answer.txt.tmp").write_text("torn and longer than the new one")
    write_atomic(tmp_path / "answer.txt", "new")
    assert (tmp_path / "answer.txt").read_text() == "new"
    assert os.listdir(tmp_path) == ["answer.txt"]


def test_half_a_surrogate_pair_becomes_the_replacement_character(paths: TurnPaths) -> None:
    events = (started(1, "half \ud800"), answer("ada", "also \udc00"), STOP, CANCELLED)
    view = view_of(*events)
    write_views(view, paths)
    assert read(paths.metadata)["task"] == "half \ufffd"
    assert read(paths.partial_answers)["ada"]["answer"] == "also \ufffd"


def test_metadata_is_written_last_so_that_complete_means_complete(
    paths: TurnPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_turn(paths, started())
    view = view_of(*VOTED, COMPLETED)
    real, room = os.replace, [0]

    def replace_some(source: Path, target: Path) -> None:
        if not room[0]:
            raise OSError(28, "No space left on device")
        room[0] -= 1
        real(source, target)

    monkeypatch.setattr(os, "replace", replace_some)
    for steps in range(10):
        room[0] = steps
        if _tried(view, paths):
            break
        assert read(paths.metadata)["status"] == "incomplete"
    assert "status" not in read(paths.metadata)
    assert paths.answer.read_text() == "The answer."


def _tried(view: RunView, paths: TurnPaths) -> bool:
    try:
        write_views(view, paths)
    except OSError:
        return False
    return True
