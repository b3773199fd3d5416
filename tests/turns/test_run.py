"""The handle of a run: its state, waiting for it, and the files on disk."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import nb_agents
from nb_agents import RunCancelled, RunOptions
from nb_agents import events as ev
from nb_agents.errors import RunNotFinished, StorageError, UserError
from nb_agents.launch.run import Run
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote, scripted_team
from tests.canaries import KEY
from tests.kit.agents import Team
from tests.kit.cards import card_bundle, card_text
from tests.kit.runs import StopResult, call, recorder, turn
from tests.kit.sessions import TurnPaths, load_session, load_turn
from tests.kit.views import RunView
from tests.model_server import ModelServer, Reply, wait_until
from tests.team_kit import (
    BOTH_ANSWER_FIRST,
    WAIT_S,
    events,
    finish,
    metadata,
    outcome,
    start,
    start_by_rules,
)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_the_turn_is_on_disk_as_incomplete_before_any_model_is_called(tmp_path: Path) -> None:
    found: list[Any] = []

    def look(messages: object) -> Turn:
        (turn,) = tmp_path.glob("*/turn_1")
        known = json.loads((turn / "metadata.json").read_text())
        lines = (turn / "events.jsonl").read_text().splitlines()
        found.append((known["status"], known["run_status"], json.loads(lines[0])["kind"]))
        assert (turn / "workspaces" / "a").is_dir()
        assert TurnPaths(turn).is_live()
        return Answer("A's")

    assert finish(start(tmp_path, a=ScriptedModel(look))).result == "A's"
    assert found == [("incomplete", "in-progress", "turn_started")]


def test_starting_returns_before_the_model_is_called(tmp_path: Path, gate: Gate) -> None:
    model = ScriptedModel(Answer("A's", gate=gate))
    run = start(tmp_path, a=model)
    assert (run.status, run.is_over) == ("in-progress", False)
    with pytest.raises(RunNotFinished, match=rf"{run.id} is still running"):
        _ = run.result
    gate.open()
    assert run.wait(WAIT_S) == "A's"
    assert (run.status, run.result, run.is_over) == ("completed", "A's", True)
    assert not TurnPaths(run.path).is_live()


def test_run_reports_its_progress(tmp_path: Path, gate: Gate) -> None:
    a = ScriptedModel(Answer("A's"), Vote("agent1", gate=gate), Turn(text="fin"))
    b = ScriptedModel(Answer("B's"), Vote("agent1"))
    run = start_by_rules(
        tmp_path, {"a": a, "b": b}, {"orchestrator_timeout_seconds": 60}, **BOTH_ANSWER_FIRST
    )
    wait_until(lambda: run.progress.votes == 1 and run.progress.in_flight == ("a",))
    seen = run.progress
    assert (seen.answers, seen.timeout_s) == (2, 60)
    assert seen.round in (2, 3) and 0 <= seen.elapsed_s < 20
    gate.open()
    finish(run)
    assert run.progress.in_flight == ()
    assert run.progress.elapsed_s == run.progress.elapsed_s


def test_receipt_counts_the_usage(tmp_path: Path) -> None:
    wrote = Turn(calls=(Call("write_file", {"path": "x", "content": "y"}),))
    run = finish(start(tmp_path, a=ScriptedModel(wrote, Answer("A's"))))
    receipt = run.receipt
    assert receipt.tools == (("a: write_file", "finished"),)
    assert receipt.tokens == run.view.agents["a"].tokens > 0
    assert receipt.cost is None  # nobody knows a price for the scripted model
    assert receipt.path == str(run.path)
    assert [(f.agent, f.path, f.size) for f in run.view.files] == [("a", "x", 1)]


def test_wait_timeout_does_not_stop_the_run(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))
    with pytest.raises(TimeoutError):
        run.wait(0.01)
    assert run.status == "in-progress"
    gate.open()
    assert run.wait(WAIT_S) == run.wait(WAIT_S) == "A's"


def test_run_can_be_awaited_repeatedly_from_any_loop(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))

    async def twice() -> list[str]:
        first, second = asyncio.ensure_future(_awaited(run)), asyncio.ensure_future(_awaited(run))
        await asyncio.to_thread(gate.wait_reached)
        gate.open()
        return [await first, await second, await run]

    assert asyncio.run(twice()) == ["A's"] * 3
    assert asyncio.run(_awaited(run)) == "A's"


def test_cancelled_await_neither_stops_the_run_nor_logs_its_end(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_awaited(run), 0.01)

    asyncio.run(give_up())
    gate.open()
    finish(run)
    assert run.result == "A's"
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_cancel_stops_gracefully_and_returns_after_saving(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)), b=ScriptedModel(Turn("x ")))

    async def cancel() -> StopResult:
        asking = asyncio.ensure_future(run.cancel("changed my mind"))
        await asyncio.to_thread(wait_until, lambda: run.view.stop)
        gate.open()
        return await asking

    assert asyncio.run(cancel()) == StopResult(True, "finished")
    assert metadata(run)["run_status"] == "cancelled"
    assert run.receipt.reason == "changed my mind"
    assert asyncio.run(run.cancel()) == StopResult(False, "finished")
    with pytest.raises(RunCancelled):
        asyncio.run(_awaited(run))


def test_stop_of_an_unknown_agent_lists_the_known_ones(tmp_path: Path, gate: Gate) -> None:
    run = start(tmp_path, a=ScriptedModel(Turn(gate=gate)))
    with pytest.raises(UserError, match=r"has no agent 'z'. Its agents are: a\."):
        run.stop(agent="z")
    run.stop(now=True)
    finish(run)


def test_failing_subscriber_has_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate, told = Gate(), []

    def bad(view: object) -> None:
        raise RuntimeError("panel trouble")

    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))
    run.subscribe(bad)
    run.subscribe(lambda view: told.append(view.status))
    wait_until(lambda: told)
    gate.open()
    finish(run)
    assert (run.result, told[-1]) == ("A's", "completed")


def test_streamed_text_is_published_and_journalled_immediately(tmp_path: Path, gate: Gate) -> None:
    told: list[str] = []
    run = start(tmp_path, a=ScriptedModel(Turn(text="one two ", gate=gate)))
    run.subscribe(lambda view: told.append(view.agents["a"].partial))
    wait_until(lambda: "one two " in told)
    assert "".join(e.text for e in events(run, ev.TextStreamed)) == "one two "
    run.stop(now=True)
    finish(run)
    assert max(told.index(t) for t in told) <= 20


def test_internal_error_is_raised_and_the_turn_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Team, "run", broken)
    run = finish(start(tmp_path, a=ScriptedModel(Answer("A's"))))
    with pytest.raises(ZeroDivisionError):
        run.wait(WAIT_S)
    assert run.status == "failed"
    assert not TurnPaths(run.path).is_live()


@pytest.mark.parametrize(
    "where, broken",
    [(recorder, "workspace_files"), (recorder, "write_views"), (turn, "receipt")],
)
def test_waiting_callers_return_even_if_finishing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: ModuleType, broken: str, gate: Gate
) -> None:
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))

    def fail(*args: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(where, broken, fail)
    gate.open()
    run.wait(WAIT_S, raise_on_stop=False)
    assert not TurnPaths(run.path).is_live()
    if broken != "receipt":  # it is made for after_cancel only
        assert isinstance(run._turn.crash, ValueError)


def test_file_deleted_during_workspace_listing_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(*args: object) -> None:
        raise FileNotFoundError(2, "gone")

    monkeypatch.setattr(recorder, "workspace_files", vanish)
    run = finish(start(tmp_path, a=ScriptedModel(Answer("A's"))))
    assert run.result == "A's"
    assert "The workspaces can't be listed: gone." in run.view.notices


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Holds up the listing of the workspaces until it is set."""
    go_on, list_now = threading.Event(), recorder.workspace_files

    def wait_and_list(*args: Any) -> ev.FilesListed:
        go_on.wait()
        return list_now(*args)

    monkeypatch.setattr(recorder, "workspace_files", wait_and_list)
    yield go_on
    go_on.set()


@pytest.mark.parametrize("stopped", [True, False])
def test_the_turn_is_on_disk_before_its_files_are_listed(
    tmp_path: Path, listing: threading.Event, gate: Gate, stopped: bool
) -> None:
    wrote = Turn(calls=(Call("write_file", {"path": "x", "content": "y"}),))
    run = start(tmp_path, a=ScriptedModel(wrote, Answer("A's", gate=gate)))
    gate.wait_reached()
    shown: list[RunView] = []
    run.subscribe(lambda view: shown.append(view) if view.is_over else None)
    if stopped:
        run.stop(now=True)
    else:
        gate.open()
    wait_until(lambda: events(run)[-1].kind == "turn_ended")
    status = "cancelled" if stopped else "completed"
    # Who reads the turn now finds it as it ended; its files are made of that, once.
    assert load_turn(TurnPaths(run.path)).view.status == status
    assert "files" not in metadata(run)
    # The loop is free, the session is still taken, and nobody is shown half of it.
    assert call(lambda: run.is_over) is False
    assert TurnPaths(run.path).is_live()
    assert shown == []
    assert run.stop() == StopResult(False, "finished")
    listing.set()
    finish(run)
    assert [(f.agent, f.path, f.size) for f in run.view.files] == [("a", "x", 1)]
    assert [e.kind for e in events(run)][-2:] == ["turn_ended", "files_listed"]
    assert (metadata(run)["file_count"], metadata(run)["file_bytes"]) == (1, 1)
    assert [len(view.files) for view in shown] == [1]


def test_next_turn_waits_for_the_files_of_the_previous_turn(
    tmp_path: Path, listing: threading.Event
) -> None:
    run = start(tmp_path, a=ScriptedModel(Answer("A's")))
    wait_until(lambda: run.view.is_over)
    begun: list[Run] = []

    def go_on() -> None:
        team = scripted_team(None, a=ScriptedModel(Answer("B's")))
        begun.append(
            nb_agents.start("t", team, run.session, options=RunOptions(session_root=tmp_path))
        )

    thread = threading.Thread(target=go_on)
    thread.start()
    listing.set()
    thread.join()
    assert finish(begun[0]).turn == 2


def test_slow_workspace_listing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: threading.Event
) -> None:
    monkeypatch.setattr(recorder, "LISTING_S", 0.01)
    run = finish(start(tmp_path, a=ScriptedModel(Answer("A's"))))
    assert run.result == "A's"
    assert "Listing the workspaces took longer than 0.01 s." in run.view.notices
    assert not TurnPaths(run.path).is_live()


def test_views_that_could_not_be_written_are_written_by_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    run = start(tmp_path, a=ScriptedModel(Answer("A's", gate=gate)))

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "write_views", full)
        gate.open()
        assert run.wait(WAIT_S) == "A's"
        assert any("stay in the memory of this process" in each for each in run.view.notices)
        assert "`run.save()` tries again." in card_text(run.view, str(run.path))
        with pytest.raises(StorageError, match="No space left on device"):
            run.save()
    assert metadata(run)["run_status"] == "in-progress"
    assert not run.view.is_saved
    run.save()
    assert run.view.is_saved
    assert metadata(run)["run_status"] == "completed"
    assert (run.path / "answer.txt").read_text() == "A's"


def test_ended_runs_leave_nothing_on_the_loop(tmp_path: Path, gate: Gate) -> None:
    def tasks() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks() if "run " in task.get_name()}

    def timers() -> int:
        scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        left = [arg for t in scheduled if not t.cancelled() for arg in t._args]
        return sum(getattr(arg, "__func__", None) is turn.TurnWriter._stop for arg in left)

    before = call(timers)
    run = start(tmp_path, a=ScriptedModel(Turn(text="x ", gate=gate)))
    gate.wait_reached()
    run.stop()
    assert call(timers) == before + 1
    run.stop(now=True)
    finish(run)
    wait_until(lambda: f"run {run.id}" not in call(tasks))
    agents = [t for t in call(lambda: [t.get_name() for t in asyncio.all_tasks()])]
    assert not [name for name in agents if name.startswith("agent ")]
    assert call(timers) == before


def test_an_immediate_stop_closes_every_connection(tmp_path: Path) -> None:
    with ModelServer(Reply(text="word ", endless=True, words_per_second=200)) as server:
        backend = {"type": "chatcompletion", "model": "m", "base_url": server.url}
        agents = [{"id": f"a{n}", "backend": backend} for n in range(3)]
        team = nb_agents.TeamSpec.model_validate({"agents": agents})
        run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path))
        server.wait_open(3)
        wait_until(lambda: all(view.partial for view in run.view.agents.values()))
        run.stop(now=True)
        server.wait_closed()
        finish(run)
        # The streams have no end of their own.
        assert all(r.closed_at for r in server.requests)
        assert all(view.partial for view in run.view.agents.values())
        assert server.count() == 3


def test_preserved_text_is_what_the_server_sent(tmp_path: Path) -> None:
    text = " ".join(f"w{n}" for n in range(100))
    with ModelServer(Reply(text=text)) as server:
        server.hold(after=40)
        backend = {"type": "openai", "model": "m", "base_url": server.url, "api_key": KEY}
        agents = [{"id": "a", "backend": backend}]
        team = nb_agents.TeamSpec.model_validate({"agents": agents})
        run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path))
        server.wait_chunks(40)
        wait_until(lambda: "w39" in run.view.agents["a"].partial)
        run.stop(now=True)
        finish(run)
        assert run.view.agents["a"].partial == " ".join(f"w{n}" for n in range(40))


def test_text_of_a_dropped_stream_survives_a_hanging_retry(tmp_path: Path) -> None:
    text = " ".join(f"w{n}" for n in range(100))
    with ModelServer(Reply(text="again", hang_after=0)) as server:
        server.script("m", Reply(text=text, drop_after=60), once=True)
        backend = {"type": "openai", "model": "m", "base_url": server.url, "api_key": KEY}
        team = nb_agents.TeamSpec.model_validate(
            {"agents": [{"id": "a", "backend": backend}], "retry": {"delay": 0.01}}
        )
        run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path))
        server.wait_until(lambda: server.count() == 2)
        run.stop(now=True)
        finish(run)
    words = " ".join(f"w{n}" for n in range(60))
    assert run.view.agents["a"].unsubmitted == words
    assert run.receipt.agents["a"].words_kept == 60
    assert json.loads((run.path / "partial_answers.json").read_text())["a"]["partial_text"] == words
    assert words in (run.path / "answer.txt").read_text()
    card = card_bundle(run.view, str(run.path))
    assert words in card["text/plain"] and "Nothing was lost: 1 partial text" in card["text/html"]
    session = load_session(run.path.parent)
    assert words in session.messages[-1].content
    # A turn that resumes this one shows them too.
    with ModelServer(Reply(text="other", hang_after=1)) as server:
        backend["base_url"] = server.url
        team = nb_agents.TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
        again = nb_agents.resume(run.session, team, options=RunOptions(session_root=tmp_path))
        server.wait_chunks(1)
        wait_until(lambda: again.view.agents["a"].partial == "other")
        again.stop(now=True)
        again.wait(WAIT_S, raise_on_stop=False)
    told = load_session(run.path.parent).messages[-1].content
    assert words in told and "other" in told


async def _awaited(run: Run) -> str:
    return await run


def test_a_disk_that_is_full_at_the_start_is_a_storage_error_and_leaves_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "write_views", full)
        with pytest.raises(StorageError, match="No space left"):
            start(tmp_path, a=ScriptedModel(Answer("A's")))
    assert list(tmp_path.glob("*/turn_*")) == []
    assert outcome(start(tmp_path, a=ScriptedModel(Answer("A's")))) == "A's"
