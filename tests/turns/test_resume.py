"""Which turns can be resumed, with which team, and what a resumption leaves on disk."""

import errno
import json
import os
import re
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.errors import (
    ConfigError,
    SessionBusyError,
    SessionChangedError,
    StorageError,
    UserError,
)
from nb_agents.launch import resume as resume_module
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote, scripted_team
from tests.kit.runs import THREAD_NAME, Run, call, here, preview, start_module
from tests.kit.sessions import copying, journal, load_session, turns_of
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.team_kit import (
    BOTH_ANSWER_FIRST,
    WAIT_S,
    events,
    metadata,
    outcomes,
    prompt,
    start,
    start_by_rules,
)

PRESENTED = Turn(text="presented")
EMPTY = Answer("")
WRITE = Call("write_file", {"path": "n.md", "content": "kept"})


def held(root: Path, *before: Turn, **others: Any) -> tuple[Run, ScriptedModel]:
    """Stop a run of "a" immediately while its model hangs after these turns, in session "s"."""
    gate = Gate()
    model = ScriptedModel(*before, Turn(text="so far ", gate=gate), Answer("A's"))
    team = scripted_team(None, a=model, **others)
    run = nb_agents.start("the task", team, session="s", options=RunOptions(session_root=root))
    gate.wait_reached()
    run.stop(now=True)
    run.wait(WAIT_S, raise_on_stop=False)
    return run, model


def resumed(run: Run, **options: Any) -> Run:
    again = run.resume(options=RunOptions(**options))
    again.wait(WAIT_S, raise_on_stop=False)
    return again


def test_a_run_resumes_with_its_own_models(tmp_path: Path) -> None:
    run, model = held(tmp_path, Turn(calls=(WRITE,)))
    again = resumed(run)
    assert (again.turn, again.status, again.result) == (2, "completed", "A's")
    assert len(model.requests) == 3  # the tool's request, the one that was cut, and that again
    assert len(events(again, ev.ToolStarted)) == 0
    assert (again.path / "workspaces/a/n.md").read_text() == "kept"
    assert again.view.notices[0] == (
        "Resumes turn 1: 0 answers, 0 votes and 1 finished model call are kept. "
        "Runs again: 1 model call interrupted or failed (a)."
    )


def test_a_resume_reads_each_journal_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = held(tmp_path, Turn(calls=(WRITE,)))
    again = run.resume(scripted_team(a=ScriptedModel(Turn(text="more ", hang=True))))
    wait_until(lambda: again.view.agents["a"].partial)
    again.stop(now=True)
    again.wait(WAIT_S, raise_on_stop=False)
    read, real = Counter[Path](), journal.read_file

    def read_file(path: Path, limit: int) -> bytes:
        read[path] += 1
        return real(path, limit)

    monkeypatch.setattr(journal, "read_file", read_file)
    last = again.resume(scripted_team(a=ScriptedModel(Answer("A's"))))
    assert read == {each.path / "events.jsonl": 1 for each in (run, again)}
    assert last.wait(WAIT_S) == "A's"
    assert len(last.timeline.turns) == 3


def copies_until(monkeypatch: pytest.MonkeyPatch, go_on: threading.Event) -> threading.Event:
    """Let the next resume copy for as long as a test wants.

    Return an event that signals its start.
    """
    copying_now = threading.Event()
    for name in ("copy_workspaces", "restore_workspaces"):
        real = getattr(here, name)

        def copy(*paths: Any, real: Any = real) -> Any:
            copying_now.set()
            wait_until(go_on.is_set)  # awake now and then, for signals
            return real(*paths)

        monkeypatch.setattr(here, name, copy)
    return copying_now


def test_other_runs_start_while_a_resume_copies_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = held(tmp_path, Turn(calls=(WRITE,)))
    go_on = threading.Event()
    copying_now = copies_until(monkeypatch, go_on)
    again: list[Run] = []
    thread = threading.Thread(target=lambda: again.append(resumed(run)))
    thread.start()
    try:
        assert copying_now.wait(WAIT_S)
        other = start(tmp_path, a=ScriptedModel(Answer("beside")))
        assert other.wait(WAIT_S) == "beside"
        with pytest.raises(SessionBusyError):
            nb_agents.resume("s", options=RunOptions(session_root=tmp_path))
    finally:
        go_on.set()
        thread.join(WAIT_S)
    assert again[0].status == "completed"


def test_resume_can_be_interrupted_while_it_copies_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, model = held(tmp_path, Turn(calls=(WRITE,)))
    never, main = threading.Event(), threading.main_thread().ident or 0
    copying_now = copies_until(monkeypatch, never)

    def interrupt() -> None:
        assert copying_now.wait(WAIT_S)
        # Not the process: another thread may take it, and the main one sleeps on its lock.
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    before = model.requests[:]
    with pytest.raises(KeyboardInterrupt):
        run.resume()
    assert [turn.number for turn in turns_of(run.path.parent)] == [1]
    assert model.requests == before
    monkeypatch.undo()
    again = resumed(run)
    assert (again.turn, again.status) == (2, "completed")
    assert (again.path / "workspaces/a/n.md").read_text() == "kept"


def test_files_are_copied_while_other_runs_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = held(tmp_path, Turn(calls=(WRITE,)))
    loops: list[str] = []
    copy_one = copying._fill

    def copy(source: int, target: int) -> None:
        # The loop answers in the middle of the copying.
        loops.append(call(lambda: threading.current_thread().name))
        copy_one(source, target)

    monkeypatch.setattr(copying, "_fill", copy)
    again = resumed(run)
    assert loops == [THREAD_NAME]
    assert (again.path / "workspaces/a/n.md").read_text() == "kept"


def test_turn_can_be_resumed_repeatedly(tmp_path: Path) -> None:
    gates = [Gate() for _ in range(3)]
    turns = [Turn(text=f"{n} ", gate=gate) for n, gate in enumerate(gates)]
    model = ScriptedModel(Turn(calls=(WRITE,)), *turns, Answer("A's"))
    run = nb_agents.start(
        "t", scripted_team(None, a=model), "s", options=RunOptions(session_root=tmp_path)
    )
    for gate in gates:
        gate.wait_reached()
        run.stop(now=True)
        run.wait(WAIT_S, raise_on_stop=False)
        assert preview("s", session_root=tmp_path).calls == 1
        run = run.resume()
    assert run.wait(WAIT_S) == "A's"
    assert [t.number for t in turns_of(tmp_path / "s")] == [1, 2, 3, 4]
    session = load_session(tmp_path / "s")
    assert [t.view.resumes for t in session.turns] == [0, 1, 2, 3]
    assert [m.content for m in session.messages] == ["t", "A's"]
    assert (run.path / "workspaces/a/n.md").read_text() == "kept"


def test_a_later_task_sees_a_resumed_turn_once(tmp_path: Path) -> None:
    run, _ = held(tmp_path)
    resumed(run)
    model = ScriptedModel(Answer("next"))
    team = scripted_team(None, a=model)
    nb_agents.start("More?", team, continue_=True, options=RunOptions(session_root=tmp_path)).wait(
        WAIT_S
    )
    said = prompt(model, 0)
    assert said.count("User: the task\n") == 1
    assert "INCOMPLETE" not in said


def test_layout_matches_massgen(tmp_path: Path) -> None:
    run, _ = held(tmp_path)
    again = resumed(run)
    assert (metadata(run)["turn"], metadata(run)["status"]) == (1, "incomplete")
    assert metadata(again)["turn"] == 2 and "status" not in metadata(again)
    assert (again.path / "workspace").is_symlink()
    summary = (again.path.parent / "SESSION_SUMMARY.txt").read_text()
    assert "TURN 1 [INCOMPLETE - CANCELLED]" in summary and "TURN 2\n" in summary


def test_failed_agent_of_a_running_team_is_asked_again(tmp_path: Path) -> None:
    gate = Gate()
    a = ScriptedModel(Turn(error=ModelHTTPError(401, "m")), Answer("A's"), Vote("agent2"))
    b = ScriptedModel(
        Answer("B's"), Turn(gate=gate), Vote("agent2"), Vote("agent2"), Vote("agent2"), PRESENTED
    )
    run = start(tmp_path, a=a, b=b)
    gate.wait_reached()
    wait_until(lambda: run.view.agents["a"].error)
    run.stop(now=True)
    run.wait(WAIT_S, raise_on_stop=False)
    assert preview(run.session, session_root=tmp_path).asked_again == ("a", "b")
    again = resumed(run)
    assert again.status == "completed"
    first, second = ([[p.content for p in m.parts] for m in sent] for sent in a.requests[:2])  # type: ignore[union-attr]
    assert first == second
    assert again.view.agents["a"].answers == ("A's",)
    assert outcomes(again) == {"a": "finished", "b": "finished"}


def test_all_agents_retry_if_all_failed(tmp_path: Path) -> None:
    broken = Turn(error=ModelHTTPError(401, "m"))
    a = ScriptedModel(Turn(calls=(WRITE,)), broken, Answer("A's"), Vote("agent1"), PRESENTED)
    b = ScriptedModel(EMPTY, EMPTY, EMPTY, Vote("agent1"))
    run = start(tmp_path, a=a, b=b)
    run.wait(WAIT_S, raise_on_stop=False)
    assert run.status == "failed"
    told = preview(run.session, session_root=tmp_path)
    assert (told.asked_again, told.calls) == (("a",), 4)
    again = resumed(run)
    assert (again.status, again.result) == ("completed", "presented")
    assert outcomes(again) == {"a": "finished", "b": "finished"}
    assert again.view.agents["a"].error == ""
    assert (again.path / "workspaces/a/n.md").read_text() == "kept"


@pytest.mark.parametrize("stopped_alone", [False, True])
def test_next_resume_restores_that_all_agents_tried_again(
    tmp_path: Path, stopped_alone: bool
) -> None:
    gates = {"a": Gate(), "b": Gate()}
    gate = Gate()
    a = ScriptedModel(
        _first_try(stopped_alone, gates["a"]), Answer("A's"), Vote("agent1"), PRESENTED
    )
    b = ScriptedModel(
        _first_try(stopped_alone, gates["b"]), Turn(text="so far ", gate=gate), Vote("agent1")
    )
    run = nb_agents.start(
        "t", scripted_team(None, a=a, b=b), options=RunOptions(session_root=tmp_path)
    )
    if stopped_alone:
        for agent, held in gates.items():
            held.wait_reached()
            run.stop(now=True, agent=agent)
    run.wait(WAIT_S, raise_on_stop=False)
    tried = run.resume()
    gate.wait_reached()
    wait_until(lambda: tried.view.agents["a"].vote)
    tried.stop(now=True)
    tried.wait(WAIT_S, raise_on_stop=False)
    gate.open()
    again = tried.resume()
    again.wait(WAIT_S, raise_on_stop=False)
    # The cut request is sent again, and nobody is left out.
    assert {a.id: a.vote.target for a in again.view.agents.values() if a.vote} == {
        "a": "a",
        "b": "a",
    }
    assert (again.status, again.result) == ("completed", "presented")


def _first_try(stopped_alone: bool, gate: Gate) -> Turn:
    return Turn(text="hm ", gate=gate) if stopped_alone else Turn(error=ModelHTTPError(401, "m"))


def test_presenters_turn_continues_where_it_stopped(tmp_path: Path) -> None:
    gate = Gate()
    presents = Turn(text="a file first", calls=(WRITE,))
    a = ScriptedModel(Answer("A's"), Vote("agent1"), presents, Turn(gate=gate), PRESENTED)
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    run = start_by_rules(tmp_path, {"a": a, "b": b}, **BOTH_ANSWER_FIRST)
    gate.wait_reached()
    run.stop(now=True)
    run.wait(WAIT_S, raise_on_stop=False)
    assert run.view.phase == "presenting"
    asked = len(b.requests)
    again = resumed(run)
    assert (again.result, again.view.winner, len(b.requests)) == ("presented", "a", asked)
    assert events(again, ev.PresentationStarted, ev.AnswerGiven, ev.VoteCast) == []


def test_timed_out_turn_is_resumed_with_a_new_limit(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(Turn(gate=gate, calls=(WRITE,)), Answer("A's"))
    team = scripted_team(1.5, a=model)  # longer than a busy machine needs to ask it
    run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path))
    gate.wait_reached()
    wait_until(lambda: run.view.stop)
    gate.open()
    run.wait(WAIT_S, raise_on_stop=False)
    assert load_session(run.path.parent).turns[-1].state == "timed out"
    assert preview(run.session, session_root=tmp_path).tools_again == ("a: write_file",)
    again = resumed(run, timeout=60)
    assert (again.result, again.view.timeout_s, len(model.requests)) == ("A's", 60, 2)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_invalid_timeout_is_rejected(tmp_path: Path, timeout: float) -> None:
    run, _ = held(tmp_path)
    with pytest.raises(ConfigError, match="must be a positive number"):
        run.resume(options=RunOptions(timeout=timeout))


# Refusals


def assert_refused(root: Path, error: type[Exception], words: str, **given: Any) -> None:
    before = sorted(p.name for p in (root / "s").glob("turn_*"))
    with pytest.raises(error, match=words):
        nb_agents.resume("s", options=RunOptions(session_root=root), **given)
    assert sorted(p.name for p in (root / "s").glob("turn_*")) == before


def test_a_complete_turn_is_refused(tmp_path: Path) -> None:
    run, _ = held(tmp_path)
    resumed(run)
    assert_refused(tmp_path, UserError, "Turn s/2 is complete, so there is nothing to resume")
    with pytest.raises(UserError, match="s/1 is followed by turn 2, and only the last turn"):
        run.resume()


def test_a_live_turn_is_refused(tmp_path: Path) -> None:
    gate = Gate()
    team = scripted_team(None, a=ScriptedModel(Answer("A's", gate=gate)))
    run = nb_agents.start("t", team, "s", options=RunOptions(session_root=tmp_path))
    gate.wait_reached()
    assert_refused(tmp_path, SessionBusyError, "'s' is already running .run r[0-9]+ in this kernel")
    gate.open()
    run.wait(WAIT_S)


@pytest.mark.parametrize("door", ["resume", "continue"])
def test_turn_resumed_concurrently_is_paid_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    """The turn that a run continues from must still be the last one when the run starts."""
    run, model = held(tmp_path)
    module: Any = resume_module if door == "resume" else start_module
    launch = module.launch

    def overtaken(*args: Any) -> Run:
        """Let another run resume the session, to its end, after this one has read it."""
        monkeypatch.setattr(module, "launch", launch)
        resumed(run)
        return launch(*args)  # type: ignore[no-any-return]

    monkeypatch.setattr(module, "launch", overtaken)
    with pytest.raises(SessionChangedError, match="has added turn 2 to session 's'"):
        if door == "resume":
            run.resume()
        else:
            team, options = scripted_team(None, a=model), RunOptions(session_root=tmp_path)
            nb_agents.start("more", team, "s", continue_=True, options=options)
    assert [turn.number for turn in turns_of(tmp_path / "s")] == [1, 2]
    assert len(model.requests) == 2  # the one that was cut, and that again


def test_changed_agents_are_refused(tmp_path: Path) -> None:
    held(tmp_path)
    other = scripted_team(None, z=ScriptedModel(Answer("Z's")))
    words = "The turn's agents are a, but the team has z. Use the turn's own team, or --continue"
    assert_refused(tmp_path, ConfigError, words, config=other)


def test_python_models_must_be_passed_again(tmp_path: Path) -> None:
    held(tmp_path)
    assert_refused(tmp_path, UserError, "a model was created in Python")


def test_turn_of_massgen_is_refused(tmp_path: Path) -> None:
    run, _ = held(tmp_path)
    (run.path / "events.jsonl").unlink()
    assert_refused(tmp_path, UserError, "Turn s/1 has no journal")


# The team


def play(request: Request) -> Reply:
    if not any(m["role"] == "tool" for m in request.messages):
        return Reply(tool_calls=(ToolCall("write_file", {"path": "n.md", "content": "x"}),))
    return Reply(tool_calls=(ToolCall("new_answer", {"content": request.model}),))


@pytest.fixture
def in_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A turn from a team file, stopped after its first request; and its server."""
    with ModelServer(default=play) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
        write_team(tmp_path, server)
        server.hold(after=1)
        run = nb_agents.start(
            "t", tmp_path / "team.json", "s", options=RunOptions(session_root=tmp_path)
        )
        server.wait_chunks(1)
        run.stop()
        server.release()
        run.wait(WAIT_S, raise_on_stop=False)
        assert run.status == "cancelled"
        yield server


def write_team(root: Path, server: ModelServer, agent: str = "a", model: str = "m") -> None:
    backend = {"type": "openai", "model": model, "base_url": server.url, "api_key": "sk-inline"}
    data = {"agents": [{"id": agent, "backend": backend}]}
    (root / "team.json").write_text(json.dumps(data))


def finish_s(root: Path) -> Run:
    run = nb_agents.resume("s", options=RunOptions(session_root=root))
    run.wait(WAIT_S)
    return run


def test_a_team_comes_from_its_file(tmp_path: Path, in_file: ModelServer) -> None:
    write_team(tmp_path, in_file, model="better")
    assert finish_s(tmp_path).result == "better"
    assert [r.headers["authorization"] for r in in_file.requests] == ["Bearer sk-inline"] * 2


@pytest.mark.parametrize("change", ["gone", "other agents", "broken"])
def test_team_without_its_file_comes_from_the_journal(
    tmp_path: Path, in_file: ModelServer, change: str
) -> None:
    if change == "gone":
        (tmp_path / "team.json").unlink()
    elif change == "broken":
        (tmp_path / "team.json").write_text('{"agents": 7}')
    else:
        write_team(tmp_path, in_file, agent="z")
    run = finish_s(tmp_path)
    assert run.result == "m"
    assert in_file.requests[-1].headers["authorization"] == "Bearer sk-of-the-environment"
    changed = [n for n in run.view.notices if "now has a different team" in n]
    assert bool(changed) == (change != "gone")


def test_no_key_is_on_disk(tmp_path: Path, in_file: ModelServer) -> None:
    assert finish_s(tmp_path).result == "m"
    for path in (tmp_path / "s").rglob("*"):
        assert not path.is_file() or not re.search(rb"sk-(of|inline)", path.read_bytes())


# Files


def test_workspaces_are_copied_and_the_originals_unchanged(tmp_path: Path) -> None:
    run, _ = held(tmp_path, Turn(calls=(WRITE,)))
    old = run.path / "workspaces" / "a"
    for number in range(1000):
        (old / "many").mkdir(exist_ok=True)
        (old / "many" / f"{number}.txt").write_text(str(number))
    (old / "run.sh").write_text("#!")
    (old / "run.sh").chmod(0o755)
    (old / "link").symlink_to("n.md")
    (old / "to_dir").symlink_to("many")
    (old / "dangling").symlink_to("nowhere")
    (old / "empty").mkdir()
    os.mkfifo(old / "pipe")
    again = resumed(run)
    new = again.path / "workspaces" / "a"
    assert sorted(p.name for p in new.iterdir()) == sorted(
        p.name for p in old.iterdir() if p.name != "pipe"
    )
    assert {p.name: p.read_text() for p in (new / "many").iterdir()} == {
        f"{n}.txt": str(n) for n in range(1000)
    }
    assert [os.readlink(new / n) for n in ("link", "to_dir", "dangling")] == [
        *("n.md", "many", "nowhere")
    ]
    assert os.access(new / "run.sh", os.X_OK)
    (new / "n.md").write_text("changed")
    assert (old / "n.md").read_text() == "kept"


def test_full_disk_during_copying_leaves_no_partial_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = held(tmp_path, Turn(calls=(WRITE,)))
    (run.path / "workspaces/a/other.md").write_text("x")
    tried: list[int] = []

    def full(source: int, target: int) -> None:
        tried.append(target)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(copying, "_fill", full)
        with pytest.raises(StorageError, match="No space left on device"):
            run.resume()
    assert len(tried) == 1
    assert [t.number for t in turns_of(tmp_path / "s")] == [1]
    assert resumed(run).result == "A's"


# What only a kill leaves


def cut_after(run: Run, kind: type[Any]) -> None:
    """Leave the turn as a kill does right after the last event of a kind."""
    journal = run.path / "events.jsonl"
    last = max(e.seq for e in events(run, kind))
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:last]))


def test_plain_text_answer_is_not_requested_again(tmp_path: Path) -> None:
    model = ScriptedModel(Turn(text="just text"))
    run = start(tmp_path, a=model)
    run.wait(WAIT_S)
    cut_after(run, ev.ModelFinished)
    assert (resumed(run).result, len(model.requests)) == ("just text", 1)


def test_turn_without_only_its_end_completes_without_a_request(tmp_path: Path) -> None:
    model = ScriptedModel(Answer("A's"))
    run = start(tmp_path, a=model)
    run.wait(WAIT_S)
    cut_after(run, ev.AnswerGiven)
    assert (resumed(run).result, len(model.requests)) == ("A's", 1)


def test_rejected_turns_before_the_resume_are_counted(tmp_path: Path) -> None:
    run, model = held(tmp_path, EMPTY, EMPTY)
    model._turns = (EMPTY,)
    again = resumed(run)
    assert (again.status, len(model.requests)) == ("failed", 4)
    assert [e.attempt for e in events(again, ev.TurnRejected)] == [3]
