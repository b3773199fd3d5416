"""MassGen's readers load our sessions, and we load MassGen's.

`make py-test` installs two releases: 0.1.22, which has the wording of the published document, and
0.1.97, the current one.
"""

import importlib.util
import json
import os
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import NotYoursError
from nb_agents.options import CancelPolicy
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.kit.runs import Run
from tests.kit.sessions import load_session
from tests.model_server import wait_until
from tests.team_kit import WAIT_S, finish, start

ROOT = Path(__file__).parents[2]
RELEASES = ("0.1.22", "0.1.97")
LONG = "The longer answer. " * 40 + "The end."
PHASES = {
    "0.1.22": "[INCOMPLETE TURN - Session was cancelled before completion]",
    "0.1.97": "[CANCELLED - Turn interrupted",
}


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


@pytest.fixture
def massgen(release: str) -> ModuleType:
    """The session module of a MassGen release, which needs only the standard library."""
    path = ROOT / f".venv/massgen-{release}/massgen/session/_state.py"
    if not path.exists():
        missing = (
            f"MassGen {release} is not installed. `make {path.parents[2]}/.installed` does it."
        )
        missing = missing.replace(f"{ROOT}/", "")
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    spec = importlib.util.spec_from_file_location(f"massgen_{release}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def restored(massgen: ModuleType, session: Path) -> Any:
    """Load a session with MassGen's reader."""
    return massgen.restore_session(session.name, str(session.parent))


def theirs(state: Any) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in state.conversation_history]


def ours(session: Path) -> list[tuple[str, str]]:
    """Return our messages, except those with text and tool results that are not in an answer."""
    told = [(m.role, m.content) for m in load_session(session).messages]
    return [
        (role, text)
        for role, text in told
        if not text.startswith(("[PARTIAL TEXT", "[TOOL RESULTS"))
    ]


def complete(root: Path) -> Run:
    note = Call("write_file", {"path": "notes.md", "content": "kept “words” 😀"})
    turns = (Turn(calls=(note,)), Answer("Short."), Vote("agent1"), Answer("The end."))
    return finish(start(root, ada=ScriptedModel(*turns)))


def stopped(root: Path) -> Run:
    """A stopped run with an answer and a vote of one agent, and a partial text of another."""
    gate = Gate()
    note = Call("write_file", {"path": "notes.md", "content": "kept"})
    ada = ScriptedModel(Turn(calls=(note,)), Answer(LONG), Turn("Judging.", hang=True))
    ben = ScriptedModel(Turn("Half a thought ", gate=gate))
    run = start(root, ada=ada, ben=ben)
    gate.wait_reached()
    wait_until(lambda: bool(run.view.agents["ada"].answers))
    run.stop(now=True)
    return finish(run)


def timed_out(root: Path) -> Run:
    policy = CancelPolicy(grace_timeout_s=0.05)
    ada = ScriptedModel(Turn("Some words ", hang=True))
    return finish(start(root, policy, timeout=1.5, ada=ada))


# Our sessions, read by MassGen --------------------------------------------------------------


def test_a_complete_session_loads_with_its_answer_and_workspace(
    tmp_path: Path, massgen: ModuleType
) -> None:
    run = complete(tmp_path)
    session = run.path.parent
    state = restored(massgen, session)
    assert theirs(state) == ours(session) == [("user", "the task"), ("assistant", run.result)]
    assert (state.current_turn, state.incomplete_turn) == (1, None)
    assert state.last_workspace_path == (run.path / "workspaces" / "ada").resolve()
    assert (state.last_workspace_path / "notes.md").read_text() == "kept “words” 😀"
    assert state.winning_agents_history == [{"agent_id": "ada", "turn": 1}]


def test_incomplete_session_loads_with_its_partial_results(
    tmp_path: Path, massgen: ModuleType, release: str
) -> None:
    run = stopped(tmp_path)
    session = run.path.parent
    state = restored(massgen, session)
    assert state.incomplete_turn["phase"] == "coordinating"
    assert state.incomplete_turn["partial_answers"]["ada"]["answer"] == LONG
    assert set(state.incomplete_turn_workspaces) == {"ada", "ben"}
    assert (state.incomplete_turn_workspaces["ada"] / "notes.md").read_text() == "kept"
    (_, task), (role, text) = theirs(state)
    assert (task, role) == ("the task", "assistant")
    assert text.startswith(PHASES[release])
    if release == "0.1.22":
        assert theirs(state) == ours(session)
    # Only our reader includes unsubmitted text.
    assert "Half a thought" in load_session(session).messages[-1].content


def test_a_timed_out_session_loads_as_incomplete(
    tmp_path: Path, massgen: ModuleType, release: str
) -> None:
    run = timed_out(tmp_path)
    session = run.path.parent
    state = restored(massgen, session)
    assert json.loads((run.path / "metadata.json").read_text())["reason"] == "timeout"
    assert state.incomplete_turn["turn"] == 1
    assert theirs(state)[1][1].startswith(PHASES[release])
    if release == "0.1.22":
        assert theirs(state) == ours(session)


def test_turns_of_every_kind_load_in_one_session(
    tmp_path: Path, massgen: ModuleType, release: str
) -> None:
    session = stopped(tmp_path).path.parent
    model = ScriptedModel(Answer("Second."), Vote("agent1"), Answer("Second."))
    team = nb_agents.testing.scripted_team(ada=model)
    run = nb_agents.start(
        "more", team, session=session.name, options=RunOptions(session_root=tmp_path, trust=True)
    )
    assert finish(run).turn == 2
    state = restored(massgen, session)
    assert [turn["turn"] for turn in state.previous_turns] == [1, 2]
    assert theirs(state)[2:] == ours(session)[2:] == [("user", "more"), ("assistant", "Second.")]
    if release == "0.1.22":
        assert theirs(state) == ours(session)


def test_turn_with_messages_loads_and_only_our_reader_shows_them(
    tmp_path: Path, massgen: ModuleType
) -> None:
    gate = Gate()
    run = start(tmp_path, ada=ScriptedModel(Answer("Early.", gate=gate), Answer("Heard.")))
    gate.wait_reached()
    run.say("And briefly.")
    gate.open()
    session = finish(run).path.parent
    state = restored(massgen, session)
    assert theirs(state) == [("user", "the task"), ("assistant", "Heard.")]
    assert ours(session) == [theirs(state)[0], ("user", "And briefly."), theirs(state)[1]]
    assert state.incomplete_turn is None


# A resumed session --------------------------------------------------------------------------
#
# For MassGen, a resumed turn and its resumption are two turns, as it has no key for a resumption.
# So its readers show the task twice, and ours once. The answers of both turns are included.


def twice_held(root: Path) -> tuple[Run, list[Gate]]:
    """A run stopped immediately, while ada judged her answer and ben was thinking.

    When resumed, it waits at the second gate in the same place, and then completes.
    """
    gates = [Gate(), Gate()]
    note = Call("write_file", {"path": "notes.md", "content": "kept"})
    ada = ScriptedModel(
        Turn(calls=(note,)),
        Answer(LONG),
        *(Turn("Judging ", gate=g) for g in gates),
        Vote("agent1"),
    )
    thoughts = (Turn(f"Half a thought {n} ", gate=g) for n, g in enumerate(gates, 1))
    ben = ScriptedModel(*thoughts, Answer("Ben's."), Vote("agent1"))
    run = start(root, ada=ada, ben=ben)
    return hold(run, gates[0]), gates


def hold(run: Run, gate: Gate) -> Run:
    """Stop a run immediately when both agents are at the gate."""
    gate.wait_reached(2)
    run.stop(now=True)
    return over(run)


def over(run: Run) -> Run:
    """Wait for the end, and check that disk and memory agree about all turns."""
    run.wait(WAIT_S, raise_on_stop=False)
    assert load_session(run.path.parent).turns[-1].view.agents == run.view.agents
    return run


def test_resumed_and_completed_session_loads(
    tmp_path: Path, massgen: ModuleType, release: str
) -> None:
    run, gates = twice_held(tmp_path)
    gates[1].open()
    again = over(run.resume())
    session = again.path.parent
    assert (again.turn, again.status, again.view.winner) == (2, "completed", "ada")
    state = restored(massgen, session)
    told = theirs(state)
    assert [role for role, _ in told] == ["user", "assistant"] * 2
    assert told[0] == told[2] == ("user", "the task")
    # For MassGen, turn 1 is a separate cancelled turn with its answer.
    assert told[1][1].startswith(PHASES[release])
    assert ("## ada's answer:" if release == "0.1.22" else "**ada**: The longer answer.") in told[
        1
    ][1]
    assert told[3] == ("assistant", again.result)
    assert ours(session) == [told[2], told[3]]
    first, second = state.previous_turns
    assert (first["turn"], first["status"]) == (1, "incomplete")
    assert first["partial_answers"]["ada"]["answer"] == LONG
    assert (second["turn"], second["winning_agent"], second.get("status")) == (2, "ada", None)
    assert state.current_turn == 2
    # A defect of MassGen: its flag stays at turn 1 although turn 2 is complete.
    assert state.incomplete_turn["turn"] == 1
    assert not any(line.startswith("Turn ") for line in load_session(session).restored())
    assert (state.last_workspace_path / "notes.md").read_text() == "kept"
    assert state.winning_agents_history == [{"agent_id": "ada", "turn": 2}]


def test_a_resumed_session_that_was_stopped_again_loads(
    tmp_path: Path, massgen: ModuleType, release: str
) -> None:
    run, gates = twice_held(tmp_path)
    again = hold(run.resume(), gates[1])
    session = again.path.parent
    assert (again.turn, again.status) == (2, "cancelled")
    state = restored(massgen, session)
    told = theirs(state)
    assert [role for role, _ in told] == ["user", "assistant"] * 2
    assert told[0] == told[2] == ("user", "the task")
    # Both are cancelled turns for MassGen. The answer of turn 1 still counts, so turn 2 has it too.
    for turn, (_, text) in zip(state.previous_turns, (told[1], told[3]), strict=True):
        assert text.startswith(PHASES[release])
        assert "ada" in text and "The longer answer." in text
        assert turn["status"] == "incomplete"
        assert turn["partial_answers"]["ada"]["answer"] == LONG
        assert turn["partial_answers"]["ada"]["answer_count"] == 1
    assert [turn["turn"] for turn in state.previous_turns] == [1, 2]
    # MassGen offers to continue the last one, with its workspaces.
    assert state.incomplete_turn["turn"] == 2
    spaces = state.incomplete_turn_workspaces
    assert set(spaces) == {"ada", "ben"}
    assert (spaces["ada"] / "notes.md").read_text() == "kept"
    assert spaces["ada"].is_relative_to(again.path.resolve())
    if release == "0.1.22":
        assert ours(session) == told[2:]
    assert "Half a thought 2" in load_session(session).messages[-1].content


def test_a_session_resumed_twice_loads_with_its_end_last(
    tmp_path: Path, massgen: ModuleType, release: str
) -> None:
    run, gates = twice_held(tmp_path)
    again = hold(run.resume(), gates[1])
    last = over(again.resume())
    state = restored(massgen, last.path.parent)
    assert [turn["turn"] for turn in state.previous_turns] == [1, 2, 3]
    assert [turn.get("status") for turn in state.previous_turns] == ["incomplete"] * 2 + [None]
    told = theirs(state)
    assert [text for role, text in told if role == "user"] == ["the task"] * 3
    assert told[-1] == ("assistant", last.result) == ours(last.path.parent)[-1]
    assert len(ours(last.path.parent)) == 2


def test_a_timed_out_session_that_was_resumed_loads(
    tmp_path: Path, massgen: ModuleType, release: str
) -> None:
    policy = CancelPolicy(grace_timeout_s=0.05)
    ada = ScriptedModel(Turn("Some words ", hang=True), Answer("In time."))
    run = finish(start(tmp_path, policy, timeout=1.5, ada=ada))
    again = run.resume(options=RunOptions(timeout=60))
    assert over(again).result == "In time."
    state = restored(massgen, again.path.parent)
    told = theirs(state)
    assert [role for role, _ in told] == ["user", "assistant"] * 2
    assert told[1][1].startswith(PHASES[release])
    assert told[3] == ("assistant", "In time.")
    assert state.incomplete_turn["turn"] == 1


# MassGen's sessions, read by us -------------------------------------------------------------

PARTIAL = {
    "status": "incomplete",
    "phase": "coordinating",
    "current_task": "Why?",
    "answers": {
        "ada": {
            "answer": "Because “so” 😀.",
            "has_voted": True,
            "votes": {"agent_id": "ben", "voted_for": "ben", "reason": "best"},
            "answer_count": 2,
        },
        "ben": {"answer": LONG, "has_voted": False, "votes": None, "answer_count": 1},
    },
    "selected_agent": None,
    "voting_complete": False,
}


def save(massgen: ModuleType, root: Path, turn: int = 1, **changes: Any) -> Path:
    """Let MassGen write an incomplete turn, and return its directory."""
    spaces = {agent: root / "live" / agent for agent in ("ada", "cleo")}
    for agent, space in spaces.items():
        space.mkdir(parents=True, exist_ok=True)
        (space / "notes.md").write_text(f"{agent}'s")
    partial = {**PARTIAL, "workspaces": {a: str(p) for a, p in spaces.items()}, **changes}
    path: Path = massgen.save_partial_turn("session_1", turn, "Why?", partial, str(root))
    return path


def test_session_saved_by_massgen_loads_completely(
    tmp_path: Path, massgen: ModuleType, release: str
) -> None:
    path = save(massgen, tmp_path)
    session = load_session(path.parent)
    (turn,) = session.turns
    assert (turn.state, turn.view.task, turn.view.phase) == ("stopped", "Why?", "coordinating")
    assert turn.warnings == ()
    agents = turn.view.agents
    assert set(agents) == {"ada", "ben", "cleo"}
    assert (agents["ada"].answer, agents["ben"].answer) == ("Because “so” 😀.", LONG)
    assert turn.view.votes == {"ben": 1}
    assert [p.name for p in session.context_paths] == ["ada", "cleo"]
    assert [(f.agent, f.path) for f in turn.view.files] == [
        ("ada", "notes.md"),
        ("cleo", "notes.md"),
    ]
    if release == "0.1.22":
        assert theirs(restored(massgen, path.parent)) == ours(path.parent)


def test_session_saved_by_massgen_while_presenting_loads_with_its_winner(
    tmp_path: Path, massgen: ModuleType
) -> None:
    path = save(massgen, tmp_path, phase="presenting", selected_agent="ada", voting_complete=True)
    (turn,) = load_session(path.parent).turns
    assert (turn.view.phase, turn.view.winner) == ("presenting", "ada")
    assert not turn.is_complete


def test_session_saved_by_massgen_without_answers_loads(
    tmp_path: Path, massgen: ModuleType
) -> None:
    path = save(massgen, tmp_path, answers={}, workspaces={}, phase="idle")
    session = load_session(path.parent)
    assert [m.content for m in session.messages] == ["Why?"]
    assert session.turns[0].warnings == ()


def test_run_continues_a_session_that_massgen_stopped(tmp_path: Path, massgen: ModuleType) -> None:
    save(massgen, tmp_path)
    model = ScriptedModel(Answer("On."), Vote("agent1"), Answer("On."))
    team = nb_agents.testing.scripted_team(ada=model)
    go_on = partial(nb_agents.start, "more", team, "session_1")
    with pytest.raises(NotYoursError):  # it has no mark
        go_on(options=RunOptions(session_root=tmp_path))
    run = go_on(options=RunOptions(session_root=tmp_path, trust=True))
    assert finish(run).turn == 2
    assert finish(go_on(options=RunOptions(session_root=tmp_path))).turn == 3
    read = "\n".join(str(part) for message in model.requests[0] for part in message.parts)
    assert "Because “so” 😀." in read and "ada's answer (voted for: ben)" in read
    assert [t["turn"] for t in restored(massgen, run.path.parent).previous_turns] == [1, 2, 3]


TORN = [b"", b"{", b"[]", b'"text"', b"null", b"\xff\xfe", b'{"answ', b"[" * 100_000]


@pytest.mark.parametrize("content", TORN, ids=lambda c: repr(c[:8]))
@pytest.mark.parametrize("name", ["metadata.json", "partial_answers.json"])
def test_torn_or_invalid_file_gives_a_warning_and_the_rest_loads(
    tmp_path: Path, massgen: ModuleType, name: str, content: bytes
) -> None:
    whole = save(massgen, tmp_path, turn=2)
    torn = save(massgen, tmp_path, turn=1)
    (torn / name).write_bytes(content)
    session = load_session(whole.parent)
    first, second = session.turns
    assert any(name in line for line in session.restored())
    assert (second.view.agents["ben"].answer, second.warnings) == (LONG, ())
    # The content of the other files is loaded; of the lost answers, the best one.
    assert first.view.agents["ben"].answer == LONG
    assert [p.parents[1].name for p in session.context_paths] == ["turn_1"] * 2 + ["turn_2"] * 2
    if name == "partial_answers.json":
        assert first.view.task == "Why?"
