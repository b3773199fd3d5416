"""Sessions go both ways: MassGen's own readers load ours, and we load what its writer writes.

`make py-test` installs two releases: 0.1.22, whose words are those of the published document, and
0.1.97, today's.
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
from nb_agents.cancel import CancelPolicy
from nb_agents.errors import NotYoursError
from nb_agents.runs.run import Run
from nb_agents.session.history import load_session
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
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
    """A release's module for sessions; it needs nothing but the standard library."""
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
    """What MassGen's reader makes of a session."""
    return massgen.restore_session(session.name, str(session.parent))


def theirs(state: Any) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in state.conversation_history]


def ours(session: Path) -> list[tuple[str, str]]:
    """Our messages, but for those that say what is in no answer."""
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
    """A run that was stopped with an answer and a vote of one agent, and half a text of another."""
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


# Ours, read by MassGen ----------------------------------------------------------------------


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


def test_an_incomplete_session_loads_with_what_was_kept(
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
    # What was written and never submitted is ours alone.
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


def test_a_turn_with_follow_up_texts_loads_and_ours_alone_tells_them(
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


# A resumed session ---------------------------------------------------------------------------
#
# The turn that was resumed and the one that resumes it are two turns to MassGen: it has no key for
# "the same task, from there". So its readers tell the task twice, and ours once. Both answers of a
# stopped turn and of its resumption are there, in the order in which they were given.


def twice_held(root: Path) -> tuple[Run, list[Gate]]:
    """A run that was stopped at once, while ada judged her answer and ben had half a thought.

    Resumed, it comes to the same place again, where the second gate is; then to its end.
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
    """Stop a run at once when both agents are at the gate."""
    gate.wait_reached(2)
    run.stop(now=True)
    return over(run)


def over(run: Run) -> Run:
    """Wait for the end, and check that disk and memory tell the same of all turns together."""
    run.wait(WAIT_S, raise_on_stop=False)
    assert load_session(run.path.parent).turns[-1].view.agents == run.view.agents
    return run


def test_a_resumed_session_that_came_to_its_end_loads(
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
    # What it makes of turn 1: a cancelled turn of its own, with the answer of then.
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
    # A weakness of theirs: the flag stays at turn 1 although turn 2 is complete. Ours does not.
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
    # Both are cancelled turns to it; the answer of turn 1 is in turn 2 as well, as it counts there.
    for turn, (_, text) in zip(state.previous_turns, (told[1], told[3]), strict=True):
        assert text.startswith(PHASES[release])
        assert "ada" in text and "The longer answer." in text
        assert turn["status"] == "incomplete"
        assert turn["partial_answers"]["ada"]["answer"] == LONG
        assert turn["partial_answers"]["ada"]["answer_count"] == 1
    assert [turn["turn"] for turn in state.previous_turns] == [1, 2]
    # The last one is what it offers to go on with, with that turn's workspaces.
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


# MassGen's, read by us ----------------------------------------------------------------------

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


def test_what_massgen_saved_loads_whole(tmp_path: Path, massgen: ModuleType, release: str) -> None:
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


def test_what_massgen_saved_while_it_presented_loads_with_its_winner(
    tmp_path: Path, massgen: ModuleType
) -> None:
    path = save(massgen, tmp_path, phase="presenting", selected_agent="ada", voting_complete=True)
    (turn,) = load_session(path.parent).turns
    assert (turn.view.phase, turn.view.winner) == ("presenting", "ada")
    assert not turn.is_complete


def test_what_massgen_saved_without_answers_loads(tmp_path: Path, massgen: ModuleType) -> None:
    path = save(massgen, tmp_path, answers={}, workspaces={}, phase="idle")
    session = load_session(path.parent)
    assert [m.content for m in session.messages] == ["Why?"]
    assert session.turns[0].warnings == ()


def test_a_run_goes_on_where_massgen_stopped(tmp_path: Path, massgen: ModuleType) -> None:
    save(massgen, tmp_path)
    model = ScriptedModel(Answer("On."), Vote("agent1"), Answer("On."))
    team = nb_agents.testing.scripted_team(ada=model)
    go_on = partial(nb_agents.start, "more", team, "session_1")
    with pytest.raises(NotYoursError):  # it says nothing of who made it
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
def test_a_torn_or_wrongly_shaped_file_gives_a_message_and_loses_only_itself(
    tmp_path: Path, massgen: ModuleType, name: str, content: bytes
) -> None:
    whole = save(massgen, tmp_path, turn=2)
    torn = save(massgen, tmp_path, turn=1)
    (torn / name).write_bytes(content)
    session = load_session(whole.parent)
    first, second = session.turns
    assert any(name in line for line in session.restored())
    assert (second.view.agents["ben"].answer, second.warnings) == (LONG, ())
    # All that the other files of the torn turn hold is there: of lost answers, the best one.
    assert first.view.agents["ben"].answer == LONG
    assert [p.parents[1].name for p in session.context_paths] == ["turn_1"] * 2 + ["turn_2"] * 2
    if name == "partial_answers.json":
        assert first.view.task == "Why?"
