"""Tests of MassGen's weaknesses, which were found by running it, and of their absence here.

Source: MassGen 0.1.97 (and, where it differs, 0.1.22).
"""

import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import get_args

import anyio
import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.options import CancelPolicy
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote, scripted_team
from tests import processes
from tests.canaries import KEY
from tests.kit.cards import card_text, text
from tests.kit.runs import Run, StopSource, recorder
from tests.kit.sessions import SESSIONS_VARIABLE, load_session
from tests.kit.teams import TeamSpec
from tests.massgen.rows import (
    ANSWERS,
    HALF,
    TASK,
    Row,
    Table,
    begin,
    complete,
    files_below,
    go_on,
    partial_answers,
    session_in,
    stopped,
    stopped_early,
    writes,
)
from tests.model_server import ModelServer, Reply, wait_until
from tests.team_kit import events, finish, give_tools, metadata, outcomes, prompt, start_by_rules

TABLE = Table()
says = TABLE.says


@TABLE.parametrize()
def test_weakness_of_massgen_does_not_occur_here(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row.hold(tmp_path, monkeypatch)


def held(root: Path, text: str = HALF) -> tuple[Run, Gate]:
    """Start a run of one agent that has written some text and waits at a gate."""
    gate = Gate()
    team = scripted_team(None, agent_a=ScriptedModel(Turn(text, gate=gate), Answer("A's")))
    run = nb_agents.start(TASK, team, options=RunOptions(session_root=root))
    gate.wait_reached()
    return run, gate


@says("1. A first question that is cancelled saves nothing. Here its turn is there from the start.")
def w01_the_first_question_is_saved(root: Path, patch: pytest.MonkeyPatch) -> None:
    run, _ = held(root)
    assert (metadata(run)["status"], metadata(run)["run_status"]) == ("incomplete", "in-progress")
    run.stop(now=True)
    finish(run)
    assert partial_answers(run.path)["agent_a"]["partial_text"] == HALF
    assert go_on(root)[0].session == run.session


@says("2. The turn after a cancelled one overwrites it. Here a number is never given twice.")
def w02_turns_are_never_overwritten(root: Path, patch: pytest.MonkeyPatch) -> None:
    first = stopped(root)
    before = files_below(first.path)
    second, _ = go_on(root)
    assert (second.turn, files_below(first.path)) == (2, before)
    for path in sorted(first.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    first.path.rmdir()
    assert go_on(root)[0].turn == 3


@says("3. A cancel waits for the next chunk, and so for ever. Here a mute server can't hold it up.")
def w03_a_hung_call_is_cut(root: Path, patch: pytest.MonkeyPatch) -> None:
    with ModelServer(Reply(hang_after=0)) as server:
        backend = {"type": "openai", "model": "m", "base_url": server.url, "api_key": KEY}
        team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
        policy = CancelPolicy(grace_timeout_s=0.05)
        run = nb_agents.start(TASK, team, options=RunOptions(session_root=root, cancel=policy))
        server.wait_open(1)
        run.stop()
        finish(run)
        server.wait_closed()
        assert [(r.closed_by, r.chunks_sent) for r in server.requests] == [("client", 0)]
        assert outcomes(run) == {"a": "killed"}


@says("4. Streams and child processes outlive a cancel. Here they have ended when it is reported.")
def w04_nothing_outlives_a_stop(root: Path, patch: pytest.MonkeyPatch) -> None:
    children: list[anyio.abc.Process] = []

    async def work() -> str:
        """Run a program that never ends by itself."""
        async with await anyio.open_process(["sleep", "600"]) as child:
            children.append(child)
            await child.wait()
        return ""

    give_tools(patch, work)
    a, b = ScriptedModel(Turn(calls=(Call("work"),))), ScriptedModel(Turn(HALF, hang=True))
    run = begin(root, a=a, b=b)
    wait_until(lambda: children and b.open_streams)
    run.stop(now=True)
    run.wait(200, raise_on_stop=False)
    assert (a.open_streams, b.open_streams) == (0, 0)
    assert children[0].returncode == -signal.SIGKILL
    finish(run)


@says("5. Half-written text is lost, workspaces without answers and long answers are. Here: none.")
def w05_nothing_is_cut_short(root: Path, patch: pytest.MonkeyPatch) -> None:
    long, gate = "word " * 400 + "end", Gate()
    a = ScriptedModel(Answer(long), Turn(HALF, gate=gate))
    b = ScriptedModel(writes("b.md"), Turn("b writes ", gate=gate))
    run = begin(root, a=a, b=b)
    gate.wait_reached(2)
    run.stop(now=True)
    finish(run)
    _, model = go_on(root)
    read = prompt(model, 0)
    assert long in read and HALF in read and "b writes" in read
    assert f"[View workspace for current progress: {run.path / 'workspaces' / 'b'}]" in read


KILLED = """
import sys, nb_agents
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, scripted_team
gate = Gate()
a = ScriptedModel(Answer("A's"), Turn("half ", gate=gate))
b = ScriptedModel(Turn("b ", gate=gate))
options = nb_agents.RunOptions(session_root=sys.argv[1])
run = nb_agents.start("t", scripted_team(None, a=a, b=b), "s", options=options)
gate.wait_reached(2)
print("there", flush=True)
sys.stdin.readline()
"""


@says("6. Nothing is on disk before the end: a killed process has lost its turn. Here it has not.")
def w06_a_killed_process_loses_nothing(root: Path, patch: pytest.MonkeyPatch) -> None:
    with processes.python(KILLED, root) as process:
        assert processes.line(process) == "there"
        process.kill()
        process.wait()
    (turn,) = session_in(root).turns
    assert turn.state == "stopped"
    assert turn.view.agents["a"].answer == "A's"
    assert json.loads(turn.paths.metadata.read_text())["reason"] == "kernel died"


@says("7. Torn metadata hides a turn, and its number is given again; other shapes crash. Not here.")
def w07_torn_files_hide_nothing(root: Path, patch: pytest.MonkeyPatch) -> None:
    path = stopped(root).path
    for journal in (True, False):
        if not journal:
            (path / "events.jsonl").unlink()
        for torn in ('{"turn": 1, "sta', "", "[1, 2]", '{"agent_a": [], "agent_b": 7}'):
            for name in ("metadata.json", "partial_answers.json"):
                whole = (path / name).read_bytes()
                (path / name).write_text(torn)
                (turn,) = session_in(root).turns
                assert (turn.paths.number, turn.is_complete) == (1, False)
                (path / name).write_bytes(whole)
    # Without its journal nothing says whose it is.
    assert go_on(root, trust=True)[0].turn == 2


@says("8. Cancelled without answers, not even the promised metadata are saved. Here they are.")
def w08_metadata_without_answers(root: Path, patch: pytest.MonkeyPatch) -> None:
    known = metadata(stopped_early(root))
    assert {k: known[k] for k in ("status", "phase", "task", "turn")} == {
        "status": "incomplete",
        "phase": "coordinating",
        "task": TASK,
        "turn": 1,
    }


@says("9. 'Saved' is said when saving failed, and 'complete' of cancelled turns. Not here.")
def w09_only_what_is_true_is_said(root: Path, patch: pytest.MonkeyPatch) -> None:
    run, _ = held(root)
    told: list[str] = []
    run.subscribe(lambda view: told.append(metadata(run)["run_status"]) if view.is_over else None)
    run.stop(now=True)
    finish(run)
    # Who is told that it is over finds it on disk.
    assert told == ["cancelled"] * len(told) != []
    card = card_text(run.view, str(run.path))
    assert (run.status, text.chip(run.view)) == ("cancelled", "stopped")
    assert "✅" not in card and "omplete" not in card.replace("Incomplete turn", "")


@says("9. (again) A disk that refuses is said, and nothing is called saved then.")
def w09_a_failed_save_is_said(root: Path, patch: pytest.MonkeyPatch) -> None:
    run, _ = held(root)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with patch.context() as broken:
        broken.setattr(recorder, "write_views", full)
        run.stop(now=True)
        run.wait(200, raise_on_stop=False)
    card = card_text(run.view, str(run.path))
    assert "Saving failed: No space left on device." in card
    assert "saved" not in card.lower().replace("unsaved", "")
    run.save()
    finish(run)


@says("10. Cancelling takes the signal handlers and the main thread. Here a run takes neither.")
def w10_no_signal_handlers(root: Path, patch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    done: list[Run] = []

    def elsewhere() -> None:
        run, _ = held(root)
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
        run.stop(now=True)
        done.append(finish(run))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(200)
    assert [run.status for run in done] == ["cancelled"]


@says("10. (again) A second signal tears the save. Here it changes nothing of what is written.")
def w10_a_save_is_never_torn(root: Path, patch: pytest.MonkeyPatch) -> None:
    run, _ = held(root)
    replace, pressed = os.replace, []

    def interrupted(source: object, target: object) -> None:
        run.press()
        pressed.append(run.stop(now=True).status)
        replace(source, target)  # type: ignore[call-overload]

    patch.setattr(os, "replace", interrupted)
    run.stop(now=True)
    finish(run)
    assert len(pressed) >= 4 and set(pressed) == {"finished"}
    assert partial_answers(run.path)["agent_a"]["partial_text"] == HALF
    assert [p for p in run.path.iterdir() if p.name.endswith(".tmp")] == []


@says("11. A turn that ran out of time looks complete, or leaves nothing. Here it says what it is.")
def w11_timeouts_are_told_apart(root: Path, patch: pytest.MonkeyPatch) -> None:
    for answered in (True, False):
        gate = Gate()
        turns = (Answer("A's"), Turn("more ", gate=gate)) if answered else (Turn(gate=gate),)
        models = {"a": ScriptedModel(*turns), "b": ScriptedModel(Turn(gate=gate))}
        limits = {"orchestrator_timeout_seconds": 1.5}
        run = start_by_rules(root, models, limits, CancelPolicy(grace_timeout_s=0.05))
        finish(run)
        known = metadata(run)
        assert (known["status"], known["phase"], known["reason"]) == (
            "incomplete",
            "coordinating",
            "timeout",
        )
        assert load_session(run.path.parent).turns[0].state == "timed out"
        assert (run.path / "partial_answers.json").exists() is answered


@says("12. A round's limit holds only for who calls tools. Here it is a deadline for everybody.")
def w12_round_limits_need_no_tools(root: Path, patch: pytest.MonkeyPatch) -> None:
    a = ScriptedModel(Turn("on and on ", hang=True))
    b = ScriptedModel(Answer("B's"), Vote("agent2"), Turn("presented"))
    limits = {"initial_round_timeout_seconds": 1.5, "round_timeout_grace_seconds": 0.05}
    run = finish(start_by_rules(root, {"a": a, "b": b}, limits))
    assert (run.status, run.view.winner, a.open_streams) == ("completed", "b", 0)
    assert [e.agent for e in events(run, ev.RoundTimedOut)] == ["a"]
    assert run.view.tools == ()


@says("13. 'Incomplete' sticks after complete turns. Here only the last turn is spoken of.")
def w13_the_warning_goes(root: Path, patch: pytest.MonkeyPatch) -> None:
    stopped(root)
    assert any("was stopped" in line for line in session_in(root).restored())
    complete(root)
    assert session_in(root).restored() == (
        f"Continues session {session_in(root).path.name}: this is turn 3.",
    )


@says("13. (again) A stop while the winner presents is put down as one of coordinating. Not here.")
def w13_the_phase_is_true(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    a = ScriptedModel(Answer("A's"), Vote("agent1"), Turn("The final ", gate=gate))
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    run = begin(root, a=a, b=b)
    gate.wait_reached()
    run.stop(now=True)
    known = metadata(finish(run))
    assert (known["phase"], known["winning_agent"]) == ("presenting", "a")
    assert known["voting_complete"] is True
    assert "[Phase when cancelled: presenting]" in session_in(root).messages[1].content


@says("13. (at last) Three rules say which answer is best. Here one does, wherever it is asked.")
def w13_one_best_answer(root: Path, patch: pytest.MonkeyPatch) -> None:
    run = stopped(root)
    best = run.view.best_agent
    assert f"[Best answer from: {best}]\n" in (run.path / "answer.txt").read_text()
    card = card_text(run.view, str(run.path))
    assert re.findall(r"#### (\w+):.* · best answer so far", card) == [best]
    # Votes come before length, and length before who was first.
    assert best == "agent_b" and len(ANSWERS["agent_b"]) < len(ANSWERS["agent_a"])


@says(
    "14. Continuing with a question crashes, and takes what began last. Here: used last; it works."
)
def w14_continue_takes_the_session_used_last(root: Path, patch: pytest.MonkeyPatch) -> None:
    team = scripted_team(None, agent_a=ScriptedModel(Answer("A's")))
    for session in ("alpha", "beta", "alpha"):
        finish(nb_agents.start(TASK, team, session, options=RunOptions(session_root=root)))
    run, _ = go_on(root)
    assert (run.session, run.turn, run.result) == ("alpha", 3, "Done.")


@says("14. (again) It works from one directory only. Here the root of sessions can be named.")
def w14_from_any_directory(root: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(SESSIONS_VARIABLE, str(root / "sessions"))
    team = scripted_team(None, agent_a=ScriptedModel(Answer("A's")))
    found = []
    for place in ("here", "there"):
        (root / place).mkdir()
        patch.chdir(root / place)
        run = nb_agents.start(TASK, team, continue_=place == "there")
        found.append((finish(run).path.parent, run.turn))
    assert found == [(found[0][0], 1), (found[0][0], 2)]
    assert [list((root / place).iterdir()) for place in ("here", "there")] == [[], []]


@says("14. (at last) Two sessions of one second share a directory. Here each has its own.")
def w14_sessions_of_one_second(root: Path, patch: pytest.MonkeyPatch) -> None:
    team = scripted_team(None, agent_a=ScriptedModel(Answer("A's")))
    runs = [nb_agents.start(TASK, team, options=RunOptions(session_root=root)) for _ in range(5)]
    assert len({finish(run).session for run in runs}) == 5
    assert {run.turn for run in runs} == {1}


@says(
    "15. Agents get their own old files, to change, and only by a section of the file. Here: all."
)
def w15_all_old_files_to_read_only(root: Path, patch: pytest.MonkeyPatch) -> None:
    run = stopped(root)
    note = run.path / "workspaces" / "agent_c" / "c.md"
    look = Turn(calls=(Call("read_file", {"path": str(note)}),))
    spoil = Turn(calls=(Call("edit_file", {"path": str(note), "old": "kept", "new": "spoilt"}),))
    # The agent has a name that was not in that turn, and its team no section `orchestrator`.
    later, model = go_on(root, look, spoil)
    assert [e.outcome for e in events(later, ev.ToolFinished)] == ["ok", "error"]
    assert "kept" in prompt(model, 1)
    assert note.read_text() == "kept"


@says("16. A vote of an agent without an answer is lost; the key is not the documented one.")
def w16_every_vote_is_kept_under_both_keys(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate, judging = Gate(), Gate()
    a = ScriptedModel(Answer("A's"), Turn("Judging ", gate=judging))
    b = ScriptedModel(Vote("agent1", gate=gate), Vote("agent1", "the only one"))
    run = begin(root, a=a, b=b)
    judging.wait_reached()
    gate.open()
    wait_until(lambda: run.view.agents["b"].vote)
    run.stop(now=True)
    finish(run)
    kept = partial_answers(run.path)["b"]
    assert "answer" not in kept
    assert kept["has_voted"]
    assert kept["votes"] == {"agent_id": "a", "voted_for": "a", "reason": "the only one"}
    again = load_session(run.path.parent).turns[0].view
    assert again.votes == {"a": 1}


@says("16. (again) A copy of an answer is taken. Here it is refused, and its agent asked again.")
def w16_copies_are_refused(root: Path, patch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    a = ScriptedModel(Answer("same"), Vote("agent1"), Turn("presented"))
    b = ScriptedModel(Answer("same", gate=gate), Vote("agent1"))
    run = begin(root, a=a, b=b)
    wait_until(lambda: run.view.agents["a"].answers)
    gate.open()
    finish(run)
    assert (run.view.agents["b"].answers, run.view.winner) == ((), "a")
    assert any("identical to" in e.why for e in events(run, ev.TurnRejected))


@says("16. (at last) Some ways to cancel never save. Here every door leads to the same files.")
def w16_every_door_saves(root: Path, patch: pytest.MonkeyPatch) -> None:
    for source in get_args(StopSource):
        run, _ = held(root)
        assert run.stop(True, source=source).changed
        finish(run)
        assert partial_answers(run.path)["agent_a"]["partial_text"] == HALF
        assert (metadata(run)["status"], run.receipt.source) == ("incomplete", source)


@says("17. One run at a time can be cancelled. Here each by itself, and the others go on.")
def w17_runs_are_stopped_each_by_itself(root: Path, patch: pytest.MonkeyPatch) -> None:
    runs = [held(root) for _ in range(3)]
    runs[1][0].stop(now=True)
    finish(runs[1][0])
    assert [run.status for run, _ in runs] == ["in-progress", "cancelled", "in-progress"]
    for run, gate in (runs[0], runs[2]):
        gate.open()
        assert finish(run).status == "completed"


@says("17. (again) No agent can be stopped alone. Here one is, and its team comes to an answer.")
def w17_agents_are_stopped_each_by_itself(root: Path, patch: pytest.MonkeyPatch) -> None:
    a, gate = ScriptedModel(Turn(HALF, hang=True)), Gate()
    b = ScriptedModel(Answer("B's", gate=gate), Vote("agent2"), Turn("presented"))
    run = begin(root, a=a, b=b)
    gate.wait_reached()
    wait_until(lambda: run.view.agents["a"].partial == HALF)
    run.stop(agent="a", now=True)
    gate.open()
    finish(run)
    assert (run.status, run.result) == ("completed", "presented")
    assert outcomes(run) == {"a": "killed", "b": "finished"}
    assert run.view.agents["a"].partial == HALF


def test_every_weakness_has_a_row() -> None:
    numbers = {int(row.name[1:3]) for row in TABLE.rows}
    assert numbers == {int(row.says.partition(".")[0]) for row in TABLE.rows} == set(range(1, 18))
