"""Loading sessions for the next turn and for users, from files in any state."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from nb_agents import events as ev
from nb_agents.session.history import (
    LISTED,
    PastTurn,
    Session,
    is_up_to_date,
    load_session,
    load_turn,
    past_events,
    resumed_in,
    workspace_files,
)
from tests import processes
from tests.kit.runs import handle_of
from tests.kit.sessions import (
    CLAIM_LOCK,
    MAX_BYTES,
    PastMessage,
    TurnPaths,
    claim_turn,
    turns_of,
    views,
    write_atomic,
    write_views,
)
from tests.kit.verbs import run_facts
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
    vote,
    write_journal,
    write_turn,
    writing,
)

WRITE_AND_WAIT = """
import sys
from pathlib import Path
from nb_agents.session.layout import claim_turn
from tests.session.turns import started, answer, write_journal, writing
paths, lock = claim_turn(Path(sys.argv[1]))
for agent in ("ada", "ben"):
    (paths.workspaces / agent).mkdir()
(paths.workspaces / "ben" / "notes.md").write_text("12345")
write_journal(paths, started(), answer("ada", "An answer."), *writing("ben", "half a thought"))
print("written", flush=True)
sys.stdin.readline()
"""


def session_of(root: Path) -> Session:
    return load_session(root / "session_1")


def massgen_turn(root: Path, number: int, files: dict[str, Any]) -> TurnPaths:
    """Write a turn like MassGen, without a journal and our keys."""
    paths = TurnPaths(root / "session_1" / f"turn_{number}")
    paths.path.mkdir(parents=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=2)
        path = paths.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return paths


COMPLETE = {
    "turn": 1,
    "timestamp": "2025-12-05T12:00:00.000001",
    "winning_agent": "agent_a",
    "task": "First question",
    "session_id": "session_1",
}
INCOMPLETE = {
    "turn": 2,
    "timestamp": "2025-12-05T12:01:00.000001",
    "status": "incomplete",
    "phase": "coordinating",
    "task": "Complex question...",
    "session_id": "session_1",
}
PARTIAL = {
    "agent_a": {
        "answer": "First agent's partial answer...",
        "has_voted": True,
        "votes": {"voted_for": "agent_b", "reason": "r"},
        "answer_count": 1,
    }
}


# Messages of the next turn ------------------------------------------------------------------


def test_steps_of_a_turn_with_a_dead_process_are_not_running(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    failed = ev.StepFailed(step="b", attempt=1, error="no luck", attempts=2, retry_in_s=9.0)
    begun = [ev.StepStarted(step=step, unit="bash") for step in "ab"]
    write_journal(paths, started(), *begun, failed)
    steps = load_turn(paths).view.steps
    assert {k: s.status for k, s in steps.items()} == {"a": "cut", "b": "stopped"}


def test_incomplete_turn_reads_as_documented_by_massgen(tmp_path: Path) -> None:
    files = {
        "metadata.json": INCOMPLETE,
        "partial_answers.json": PARTIAL,
        "workspaces/agent_a/a.txt": "x",
        "workspaces/agent_b/b.txt": "y",
    }
    paths = massgen_turn(tmp_path, 2, files)
    user, assistant = session_of(tmp_path).messages
    assert user == PastMessage("user", "Complex question...")
    assert assistant == PastMessage(
        "assistant",
        f"""\
[INCOMPLETE TURN - Session was cancelled before completion]
[Phase when cancelled: coordinating]

## agent_a's answer (voted for: agent_b):
First agent's partial answer...
[Workspace available at: {paths.workspaces}/agent_a]

## agent_b:
[No answer submitted - agent was still working]
[View workspace for current progress: {paths.workspaces}/agent_b]
""",
    )


def test_incomplete_turn_of_nb_agents_reads_the_same_in_order_of_ids(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    write_turn(paths, started(), answer("ben", BEN), vote("ben", "ben"), STOP, CANCELLED)
    assert session_of(tmp_path).messages[1].content == (
        "[INCOMPLETE TURN - Session was cancelled before completion]\n"
        "[Phase when cancelled: coordinating]\n"
        "\n"
        "## ada:\n"
        "[No answer submitted - agent was still working]\n"
        f"[View workspace for current progress: {paths.workspaces}/ada]\n"
        "\n"
        "## ben's answer (voted for: ben):\n"
        f"{BEN}\n"
        f"[Workspace available at: {paths.workspaces}/ben]\n"
    )


def test_sub_agents_are_described_with_their_results(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    for name in ("ada+critic-1", "ada+critic-2", "ada+critic-3"):
        (paths.workspaces / name).mkdir()
    calls = [
        ev.AgentCalled(
            agent=f"ada/critic#{n}",
            caller="ada",
            name="critic",
            model="m",
            workspace=f"ada+critic-{n}",
            input="?",
        )
        for n in (2, 3)
    ]
    words = ev.TextStreamed(agent="ada/critic#2", call=1, channel="text", text="It is too long.")
    ended = ev.AgentEnded(agent="ada/critic#2", outcome="finished")
    write_turn(paths, started(), answer("ben", BEN), *calls, words, ended, STOP, CANCELLED)
    text = session_of(tmp_path).messages[1].content
    spaces = paths.workspaces
    assert text.endswith(
        f"## ben's answer:\n{BEN}\n[Workspace available at: {spaces / 'ben'}]\n\n"
        f"## ada+critic-1 (called by another agent):\n"
        f"[Workspace available at: {spaces / 'ada+critic-1'}]\n\n"
        f"## ada/critic#2 (called by ada):\nIt is too long.\n"
        f"[Workspace available at: {spaces / 'ada+critic-2'}]\n\n"
        f"## ada/critic#3 (called by ada):\n[It returned nothing]\n"
        f"[Workspace available at: {spaces / 'ada+critic-3'}]\n"
    )
    assert text.count("still working") == 1  # ada


def test_unsubmitted_text_is_distinguished_from_answers(tmp_path: Path) -> None:
    write_turn(turn_paths(tmp_path), started(), *writing("ada", "half a"), STOP, CANCELLED)
    _, document, unsubmitted = session_of(tmp_path).messages
    assert "half a" not in document.content
    assert unsubmitted.content.endswith("## ada was writing:\nhalf a")
    assert "never submitted" in unsubmitted.content


def test_complete_turn_gives_its_task_and_answer(tmp_path: Path) -> None:
    write_turn(turn_paths(tmp_path), started(), answer("ada", ADA), COMPLETED)
    assert session_of(tmp_path).messages == (
        PastMessage("user", "Why?"),
        PastMessage("assistant", "The answer."),
    )


@pytest.mark.parametrize("end", [(COMPLETED,), (STOP, CANCELLED), ()])
@pytest.mark.parametrize("has_journal", [True, False])
def test_messages_of_the_user_follow_the_task(
    tmp_path: Path, end: tuple[ev.Event, ...], has_journal: bool
) -> None:
    said = [ev.UserMessage(text=text) for text in ("In French.", "And briefly.")]
    paths = turn_paths(tmp_path)
    write_turn(paths, started(), said[0], answer("ada", ADA), said[1], *end)
    if not has_journal:
        paths.journal.unlink()
    (task, *more, last) = [(m.role, m.content) for m in session_of(tmp_path).messages]
    assert task == ("user", "Why?")
    assert more == [("user", "In French."), ("user", "And briefly.")]
    assert last[0] == "assistant"


@pytest.mark.parametrize("said", [None, "x", 3, {"a": 1}])
def test_invalid_messages_in_metadata_are_ignored(tmp_path: Path, said: object) -> None:
    massgen_turn(tmp_path, 1, {"metadata.json": {**COMPLETE, "said": said}, "answer.txt": "x"})
    assert [m.content for m in session_of(tmp_path).messages] == ["First question", "x"]


def test_turns_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 2):
        write_turn(turn_paths(tmp_path, number), started(number, f"task {number}"), COMPLETED)
    tasks = [m.content for m in session_of(tmp_path).messages if m.role == "user"]
    assert tasks == ["task 2", "task 9", "task 10"]


def test_session_without_turns_has_no_messages(tmp_path: Path) -> None:
    session = load_session(tmp_path / "nothing")
    assert (session.turns, session.messages, session.context_paths) == ((), (), ())
    assert session.restored() == ()


def test_context_paths_are_all_workspaces_of_incomplete_turns_and_winners(
    tmp_path: Path,
) -> None:
    first, second = turn_paths(tmp_path, 1), turn_paths(tmp_path, 2)
    write_turn(first, started(1), answer("ada", ADA), COMPLETED)
    write_turn(second, started(2), STOP, CANCELLED)
    (second.workspaces / "stray file").touch()
    assert session_of(tmp_path).context_paths == (
        first.workspaces / "ada",
        second.workspaces / "ada",
        second.workspaces / "ben",
    )


# Lines for the user -------------------------------------------------------------------------


def test_continuing_describes_the_incomplete_turn_and_its_saved_results(tmp_path: Path) -> None:
    massgen_turn(tmp_path, 1, {"metadata.json": COMPLETE, "answer.txt": "First answer"})
    both = {**PARTIAL, "agent_b": {"answer": "Second", "has_voted": False, "votes": None}}
    massgen_turn(tmp_path, 2, {"metadata.json": INCOMPLETE, "partial_answers.json": both})
    assert session_of(tmp_path).restored() == (
        "Continues session session_1: this is turn 3.",
        "Turn 2 was stopped while coordinating: Complex question...",
        "Saved: answers of agent_a, agent_b.",
    )


def test_a_later_complete_turn_clears_the_warning(tmp_path: Path) -> None:
    write_turn(turn_paths(tmp_path, 1), started(1), STOP, CANCELLED)
    write_turn(turn_paths(tmp_path, 5), started(5), COMPLETED)
    assert session_of(tmp_path).restored() == ("Continues session session_1: this is turn 6.",)


STATES = [
    ([COMPLETED], "complete"),
    ([STOP, CANCELLED], "stopped"),
    ([ev.StopRequested(level="requested", source="timeout"), CANCELLED], "timed out"),
    ([ev.TurnEnded(status="failed", phase="coordinating")], "failed"),
    ([], "stopped"),
    ([STOP], "stopped"),
]


@pytest.mark.parametrize("events, state", STATES)
def test_each_ended_turn_has_its_state(tmp_path: Path, events: list[ev.Event], state: str) -> None:
    paths = turn_paths(tmp_path)
    write_journal(paths, started(), *events)
    turn = load_turn(paths)
    assert (turn.state, turn.is_complete) == (state, state == "complete")


ENDED = [
    ([], "was stopped", "its process ended", "kernel died", "KERNEL DIED"),
    ([STOP], "was stopped", "its process ended", "kernel died", "KERNEL DIED"),
    ([replace(STOP, source="timeout"), CANCELLED], "timed out", "enough", "timeout", "TIMEOUT"),
    ([STOP, CANCELLED], "was stopped", "enough", "cancelled", "CANCELLED"),
    ([ev.TurnEnded(status="failed", phase="coordinating")], "failed", "", "failed", "FAILED"),
]


@pytest.mark.parametrize("events, word, why, reason, mark", ENDED)
def test_restored_turn_shows_its_ending_everywhere(
    tmp_path: Path, events: list[ev.Event], word: str, why: str, reason: str, mark: str
) -> None:
    paths = turn_paths(tmp_path)
    write_journal(paths, started(), answer("ada", ADA), *events)
    restored = session_of(tmp_path).restored()
    shown = f" ({why})" if why else ""
    assert f"Turn 1 {word} while coordinating{shown}: Why?" in restored
    assert json.loads(paths.metadata.read_text())["reason"] == reason
    assert f"TURN 1 [INCOMPLETE - {mark}]" in paths.summary.read_text()


def test_running_turn_is_not_repaired(tmp_path: Path) -> None:
    paths, lock = claim_turn(tmp_path / "session_1")
    write_journal(paths, started())
    with lock:
        turn = load_turn(paths)
        assert (turn.state, turn.is_live) == ("running", True)
        assert not paths.metadata.exists()


# Repairs ------------------------------------------------------------------------------------


def test_killed_turn_is_repaired_from_its_journal(tmp_path: Path) -> None:
    with processes.python(WRITE_AND_WAIT, tmp_path / "session_1") as process:
        assert processes.line(process) == "written"
        (turn,) = session_of(tmp_path).turns
        assert turn.state == "running"
        process.kill()
        process.wait()
    (turn,) = session_of(tmp_path).turns
    assert turn.state == "stopped"
    assert turn.warnings == ()
    assert not any(a.in_flight for a in turn.view.agents.values())
    data = json.loads(turn.paths.metadata.read_text())
    assert (data["status"], data["reason"], data["run_status"]) == (
        "incomplete",
        "kernel died",
        "cancelled",
    )
    assert data["files"] == [{"agent": "ben", "path": "notes.md", "size": 5}]
    partial = json.loads(turn.paths.partial_answers.read_text())
    assert partial["ada"]["answer"] == "An answer."
    assert partial["ben"]["partial_text"] == "half a thought"
    assert turn.paths.answer.read_text().endswith("\n\nAn answer.")
    assert "TURN 1 [INCOMPLETE - KERNEL DIED]" in turn.paths.summary.read_text()


def test_completed_turn_without_files_is_repaired_as_complete(
    tmp_path: Path,
) -> None:
    paths = turn_paths(tmp_path)
    write_turn(paths, started())
    paths.journal.unlink()
    write_journal(paths, started(), answer("ada", ADA), COMPLETED)
    assert load_turn(paths).is_complete
    assert "status" not in json.loads(paths.metadata.read_text())
    assert paths.answer.read_text() == "The answer."


@pytest.mark.parametrize("name", ["metadata.json", "answer.txt", "partial_answers.json"])
@pytest.mark.parametrize("events", [(STOP, CANCELLED), ()], ids=["stopped", "killed"])
def test_missing_file_is_written_again(
    tmp_path: Path, name: str, events: tuple[ev.Event, ...]
) -> None:
    paths = turn_paths(tmp_path)
    write_journal(paths, started(), answer("ada", ADA), *events)
    load_turn(paths)
    before = (paths.path / name).read_bytes()
    (paths.path / name).unlink()
    load_turn(paths)
    assert (paths.path / name).read_bytes() == before


def test_reader_lists_files_that_the_run_did_not_list(
    tmp_path: Path,
) -> None:
    paths = turn_paths(tmp_path)
    # The state after a kill immediately after the turn's end.
    write_views(write_journal(paths, started(), answer("ada", ADA), STOP, CANCELLED), paths)
    (paths.workspaces / "ben" / "notes.md").write_text("12345")
    assert "files" not in json.loads(paths.metadata.read_bytes())
    turn = load_turn(paths)
    assert (turn.state, turn.warnings) == ("stopped", ())
    notes = ev.FileInfo(agent="ben", path="notes.md", size=5)
    assert (turn.view.files, turn.view.file_count, turn.view.file_bytes) == ((notes,), 1, 5)
    assert json.loads(paths.metadata.read_bytes())["file_count"] == 1
    assert "Agents with workspace only (no answer): ben" in paths.summary.read_text()


def test_file_list_at_the_end_of_the_journal_is_used(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    gone = ev.FileInfo(agent="ben", path="gone.md", size=7)
    write_journal(paths, started(), replace(CANCELLED, files=(gone,)))
    view = load_turn(paths).view
    assert (view.files, view.file_count, view.file_bytes) == ((gone,), 1, 7)


def test_large_workspace_lists_the_first_files_and_counts_all(
    tmp_path: Path,
) -> None:
    paths = turn_paths(tmp_path)
    for number in range(LISTED + 10):
        (paths.workspaces / "ada" / f"{number:04}.txt").write_text("xy")
    (paths.workspaces / "ben" / "notes.md").write_text("12345")
    listed = workspace_files(paths, ("ada", "ben"))
    assert (listed.count, listed.size) == (LISTED + 11, 2 * (LISTED + 10) + 5)
    names = [f"{number:04}.txt" for number in range(LISTED)]
    assert [f.path for f in listed.files] == [*names, "notes.md"]


@pytest.mark.parametrize("torn", [b"", b'{"turn": 1, "sta', b"[]", b"\xff", b"[" * 100_000])
def test_torn_metadata_is_written_again(tmp_path: Path, torn: bytes) -> None:
    paths = turn_paths(tmp_path)
    write_turn(paths, started(), answer("ada", ADA), STOP, CANCELLED)
    before = paths.metadata.read_bytes()
    paths.metadata.write_bytes(torn)
    assert load_turn(paths).warnings == ()
    assert paths.metadata.read_bytes() == before


@pytest.mark.parametrize("events", [(), (answer("ada", ADA),), (answer("ada", ADA), COMPLETED)])
def test_turn_is_repaired_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: tuple[ev.Event, ...]
) -> None:
    paths = turn_paths(tmp_path)
    write_journal(paths, started(), *events)
    load_turn(paths)
    written: list[Path] = []
    monkeypatch.setattr(views, "write_atomic", lambda path, _: written.append(path))
    load_turn(paths)
    assert written == []


def test_concurrent_readers_read_the_same_and_one_repairs(tmp_path: Path) -> None:
    """All use the same temporary name, and none may rename another's partial file."""
    long = " ".join(f"word{n}" for n in range(20_000))
    for number in range(20):
        paths = turn_paths(tmp_path / str(number))
        write_journal(paths, started(), answer("ada", long))
        with ThreadPoolExecutor(4) as readers:
            told = [*readers.map(load_turn, [paths] * 4)]
        assert [(turn.warnings, turn.view == told[0].view) for turn in told] == [((), True)] * 4
        assert is_up_to_date(told[0].view, paths)
        assert json.loads(paths.partial_answers.read_text())["ada"]["answer"] == long
        assert not [path for path in paths.path.rglob(".*.tmp")]


def test_starting_turn_is_not_repaired(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    write_journal(paths, started())
    with FileLock(paths.path.parent / CLAIM_LOCK):
        assert load_turn(paths).warnings == ()
    assert not paths.metadata.exists()
    load_turn(paths)
    assert paths.metadata.exists()


def test_turn_that_cannot_be_repaired_is_loaded_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = turn_paths(tmp_path)
    write_journal(paths, started(), answer("ada", ADA))

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    turn = load_turn(paths)
    assert turn.view.agents["ada"].answer == ADA
    assert "Read-only file system" in turn.warnings[0]


# Files in any state -------------------------------------------------------------------------


def test_turns_that_massgen_wrote_load(tmp_path: Path) -> None:
    massgen_turn(
        tmp_path,
        1,
        {"metadata.json": COMPLETE, "answer.txt": "First answer", "workspace/a.txt": "x"},
    )
    massgen_turn(tmp_path, 2, {"metadata.json": INCOMPLETE, "partial_answers.json": PARTIAL})
    session = session_of(tmp_path)
    first, second = session.turns
    assert (first.state, first.view.winner, first.view.answer) == (
        "complete",
        "agent_a",
        "First answer",
    )
    assert (second.view.status, second.view.votes) == ("cancelled", {"agent_b": 1})
    assert session.context_paths == (first.paths.workspace,)
    assert [w for t in session.turns for w in t.warnings] == []
    # MassGen's files are not written again.
    assert json.loads(first.paths.metadata.read_text()) == COMPLETE
    assert not first.paths.journal.exists() and not first.paths.summary.exists()


def test_a_vote_is_read_under_either_of_massgens_names(tmp_path: Path) -> None:
    partial = {"agent_a": {"answer": "x", "has_voted": True, "votes": {"agent_id": "agent_b"}}}
    massgen_turn(tmp_path, 1, {"metadata.json": INCOMPLETE, "partial_answers.json": partial})
    assert "agent_a's answer (voted for: agent_b)" in session_of(tmp_path).messages[1].content


def test_stale_partial_answer_of_a_complete_turn_is_not_shown(tmp_path: Path) -> None:
    files = {"metadata.json": COMPLETE, "answer.txt": "Final", "partial_answers.json": PARTIAL}
    massgen_turn(tmp_path, 1, files)
    (turn,) = session_of(tmp_path).turns
    assert all(not a.answers for a in turn.view.agents.values())
    assert session_of(tmp_path).messages[1].content == "Final"


BROKEN = ["", "{", "[]", '"text"', "null", "3", "[" * 100_000, '{"agent_a": []}', '{"agent_a": 3}']


@pytest.mark.parametrize("text", BROKEN, ids=lambda t: t[:12])
@pytest.mark.parametrize("name", ["metadata.json", "partial_answers.json"])
def test_invalid_file_does_not_prevent_loading_the_rest(
    tmp_path: Path, name: str, text: str
) -> None:
    files = {"metadata.json": INCOMPLETE, "partial_answers.json": PARTIAL, name: text}
    massgen_turn(tmp_path, 1, files)
    massgen_turn(tmp_path, 2, {"metadata.json": INCOMPLETE, "partial_answers.json": PARTIAL})
    session = session_of(tmp_path)
    assert len(session.turns) == 2
    assert "First agent's partial answer" in session.messages[-1].content
    if not text.startswith('{"agent_a'):
        assert any(name in line for line in session.restored())


def test_the_answer_is_recovered_when_partial_answers_are_torn(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    write_turn(paths, started(), answer("ada", ADA), STOP, CANCELLED)
    paths.journal.unlink()
    paths.partial_answers.write_text('{"ada": {"ans')
    turn = load_turn(paths)
    assert turn.view.agents["ada"].answer == ADA
    assert "partial_answers.json" in turn.warnings[0]


def test_turn_without_a_journal_is_loaded_from_its_files(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    write_turn(
        paths, started(), answer("ada", ADA), vote("ada", "ada"), *writing("ben", "half"), STOP,
        CANCELLED,
    )  # fmt: skip
    before = session_of(tmp_path).messages
    paths.journal.unlink()
    assert session_of(tmp_path).messages == before
    assert load_turn(paths).view.task == "Why?"


def test_a_journal_without_its_first_line_falls_back_to_the_files_with_a_warning(
    tmp_path: Path,
) -> None:
    paths = turn_paths(tmp_path)
    write_turn(paths, started(), answer("ada", ADA), STOP, CANCELLED)
    lines = paths.journal.read_bytes().split(b"\n")
    paths.journal.write_bytes(b"\n".join([b"rubbish", *lines[1:]]))
    turn = load_turn(paths)
    assert turn.view.agents["ada"].answer == ADA
    assert any("line 1" in w for w in turn.warnings)


def test_invalid_journal_line_is_reported_when_the_session_continues(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    write_journal(paths, started(), answer("ada", ADA), COMPLETED)
    lines = paths.journal.read_bytes().split(b"\n")
    paths.journal.write_bytes(b"\n".join([lines[0], b"rubbish", *lines[1:]]))
    session = session_of(tmp_path)
    assert session.turns[0].is_complete
    assert session.restored()[-1] == "Not read: events.jsonl: line 2 can't be read and was skipped"


def test_a_turn_killed_before_its_first_line_is_incomplete(tmp_path: Path) -> None:
    paths, lock = claim_turn(tmp_path / "session_1")
    lock.release()
    paths.journal.touch()
    (turn,) = session_of(tmp_path).turns
    assert (turn.is_complete, turn.state) == (False, "stopped")
    assert "metadata.json" in turn.warnings[0]


@pytest.mark.parametrize("data", [{}, {"colour": "red"}, {"task": "t", "status": None}])
def test_turn_never_counts_as_complete_by_accident(tmp_path: Path, data: object) -> None:
    massgen_turn(tmp_path, 1, {"metadata.json": data, "answer.txt": "An answer?"})
    (turn,) = session_of(tmp_path).turns
    assert not turn.is_complete


def test_unknown_winner_is_tolerated(tmp_path: Path) -> None:
    data = {**INCOMPLETE, "winning_agent": "stranger", "phase": "presenting"}
    massgen_turn(tmp_path, 1, {"metadata.json": data, "partial_answers.json": PARTIAL})
    (turn,) = session_of(tmp_path).turns
    assert turn.view.best_agent == "agent_a"


def test_task_null_is_an_empty_task(tmp_path: Path) -> None:
    massgen_turn(tmp_path, 1, {"metadata.json": {**COMPLETE, "task": None}, "answer.txt": "A"})
    assert session_of(tmp_path).messages == (PastMessage("assistant", "A"),)


# Pipes, links and directories ---------------------------------------------------------------


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(MAX_BYTES + 1)


STRANGE = {"a pipe": pipe, "a folder": folder, "a loop": loop, "a device": device, "huge": sparse}


@pytest.mark.parametrize("name", ["events.jsonl", "metadata.json", "partial_answers.json"])
@pytest.mark.parametrize("what", STRANGE)
def test_pipes_and_links_are_reported_and_the_rest_is_loaded(
    tmp_path: Path, name: str, what: str
) -> None:
    paths = turn_paths(tmp_path)
    write_turn(paths, started(), answer("ada", ADA), STOP, CANCELLED)
    paths.journal.unlink()
    (paths.path / name).unlink(missing_ok=True)
    STRANGE[what](paths.path / name)
    turn = load_turn(paths)
    assert any(name in warning for warning in turn.warnings)
    assert all("\n" not in warning for warning in turn.warnings)
    assert turn.view.agents["ada"].answer == ADA


@pytest.mark.parametrize("name", ["answer.txt", "workspaces", "owner.lock"])
@pytest.mark.parametrize("what", STRANGE)
def test_wrong_kind_of_file_does_not_prevent_loading_a_turn(
    tmp_path: Path, name: str, what: str
) -> None:
    paths = turn_paths(tmp_path)
    write_turn(paths, started(), answer("ada", ADA), STOP, CANCELLED)
    place = paths.path / name
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    STRANGE[what](place)
    assert load_turn(paths).view.agents["ada"].answer == ADA


def test_journal_with_outside_paths_lists_no_files_there(tmp_path: Path) -> None:
    paths = turn_paths(tmp_path)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.txt").write_text("x")
    elsewhere = ev.AgentInfo(id="../../../secret", model="m")
    write_journal(paths, replace(started(), agents=(elsewhere,)), STOP, CANCELLED)
    assert load_turn(paths).view.files == ()


def test_a_chain_of_a_thousand_resumed_turns_is_read(tmp_path: Path) -> None:
    for number in range(1, 1200):
        paths = TurnPaths(tmp_path / "session_1" / f"turn_{number}")
        paths.path.mkdir(parents=True)
        line = replace(started(number), resumes=number - 1, seq=1, at=100.0)
        paths.journal.write_bytes(ev.EVENT.dump_json(line) + b"\n")
    assert len(past_events(paths)) == 1199
    turns = tuple(PastTurn(p, RunView(resumes=p.number - 1)) for p in turns_of(paths.path.parent))
    assert Session(paths.path.parent, turns).before(1199).turns == ()


def test_atomic_writes_leave_no_temporary_files_in_a_session(tmp_path: Path) -> None:
    write_turn(turn_paths(tmp_path), started(), answer("ada", ADA), COMPLETED)
    write_atomic(tmp_path / "session_1" / "note", "x")
    assert [p for p in tmp_path.rglob("*.tmp")] == []


def test_turn_names_the_last_turn_that_resumed_it(tmp_path: Path) -> None:
    paths = [turn_paths(tmp_path, number) for number in (1, 2, 3, 4, 5)]
    write_turn(paths[0], started(1), CANCELLED)
    write_turn(paths[1], replace(started(2), resumes=1), CANCELLED)
    write_turn(paths[2], started(3, "Another task?"), COMPLETED)
    write_turn(paths[3], replace(started(4), resumes=2), COMPLETED)
    write_turn(paths[4], replace(started(5), resumes=4, point=3), COMPLETED)  # a rewind
    assert resumed_in(paths[0]) == resumed_in(paths[1]) == paths[3]
    assert resumed_in(paths[2]) is None
    assert resumed_in(paths[3]) is None
    later = run_facts(handle_of(paths[0])).resumed_in
    assert later is not None
    assert (later.turn, later.state) == (4, "complete")
