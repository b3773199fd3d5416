"""Turns and sessions over HTTP, which the server reads from disk."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event

import httpx2
import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.testing import Answer, Gate, ScriptedModel, Vote, scripted_team
from tests.kit.cards import TURN_MIME
from tests.kit.runs import Run
from tests.kit.servers import NameResolver, session_handlers
from tests.kit.sessions import TurnPaths, read_journal
from tests.server.conftest import JupyterServer, jupyter_server
from tests.team_kit import WAIT_S, finish, start

EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>"


STREAMS = 200
KEEP_ALIVE = b": keep-alive\n\n"
_numbers = count()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def held(jupyter: JupyterServer, gate: Gate) -> Iterator[Run]:
    """Start a run with one agent, which waits at a gate while it writes."""
    run = start(
        jupyter.sessions, ada=ScriptedModel(Answer("Use mmap.", text="I think ", gate=gate))
    )
    gate.wait_reached()
    yield run
    run.stop(now=True)
    gate.open()
    run.wait(WAIT_S, raise_on_stop=False)


def over(root: Path, answer: str = "Use mmap.") -> Run:
    # Sessions are named by the second: one of a test before, deleted by now, may have had the name,
    # and have been read as live just before.
    team = scripted_team(ada=ScriptedModel(Answer(answer), Vote("agent1"), Answer(answer)))
    options = RunOptions(session_root=root)
    return finish(nb_agents.start("the task", team, f"over-{next(_numbers)}", options=options))


def test_live_run_is_listed_with_its_state(jupyter: JupyterServer, held: Run) -> None:
    [told] = jupyter.get("runs")
    assert told["id"] == jupyter.name(held.path)
    assert (told["state"], told["task"], told["is_live"]) == ("running", "the task", True)
    assert jupyter.get(f"runs/{told['id']}")["receipt"]["agents"].keys() == {"ada"}


def test_ended_run_is_not_listed_but_can_be_read(jupyter: JupyterServer) -> None:
    run = over(jupyter.sessions)
    assert jupyter.get("runs") == []
    told = jupyter.get(f"runs/{jupyter.name(run.path)}")
    assert (told["state"], told["is_live"]) == ("complete", False)


def test_event_stream_has_past_and_new_events(
    jupyter: JupyterServer, held: Run, gate: Gate
) -> None:
    with jupyter.stream(f"runs/{jupyter.name(held.path)}/events") as messages:
        first, data, number = next(messages)
        assert (first, data["task"], number) == ("turn_started", "the task", "1")
        gate.open()
        kinds = [kind for kind, _, _ in messages]
    assert {"text_streamed", "answer_given", "turn_ended"} <= {*kinds}


def test_event_stream_starts_after_last_event_id(jupyter: JupyterServer) -> None:
    path = f"runs/{jupyter.name(over(jupyter.sessions).path)}/events"
    with jupyter.stream(path) as messages:
        numbers = [int(number) for _, _, number in messages]
    with jupyter.stream(path, headers={"Last-Event-ID": "3"}) as messages:
        assert [int(number) for _, _, number in messages] == numbers[3:]
    assert (
        jupyter.client.get(f"{jupyter.url}/{path}", headers={"Last-Event-ID": "x"}).status_code
        == 400
    )


def test_closing_a_stream_does_not_stop_the_run(
    jupyter: JupyterServer, held: Run, gate: Gate
) -> None:
    for part in ("events", "view"):
        with jupyter.stream(f"runs/{jupyter.name(held.path)}/{part}") as messages:
            next(messages)
    gate.open()
    assert finish(held).status == "completed"


@pytest.mark.parametrize("part", ["events", "view"])
def test_server_shuts_down_with_an_open_stream(tmp_path: Path, part: str) -> None:
    with jupyter_server(tmp_path) as server:
        turn = over(server.sessions).path
        lock = TurnPaths(turn).lock()
        with lock, server.stream(f"runs/{server.name(turn)}/{part}") as messages:
            next(messages)
            server.process.terminate()
            assert server.process.wait(WAIT_S) == 0


@pytest.mark.parametrize("part", ["events", "view"])
def test_stream_ends_when_the_turn_is_deleted(jupyter: JupyterServer, part: str) -> None:
    turn = over(jupyter.sessions).path
    with TurnPaths(turn).lock(), jupyter.stream(f"runs/{jupyter.name(turn)}/{part}") as messages:
        next(messages)
        shutil.rmtree(turn.parent)
        kinds = [kind for kind, _, _ in messages]
    if part == "view":
        assert kinds[-1] == "unknown"
    assert not turn.parent.exists()


def test_view_stream_has_panel_states_and_the_final_card(
    jupyter: JupyterServer, held: Run, gate: Gate
) -> None:
    with jupyter.stream(f"runs/{jupyter.name(held.path)}/view") as messages:
        kind, data, _ = next(messages)
        assert (kind, data["id"]) == ("state", jupyter.name(held.path))
        assert data["state"]["status"] == "running"
        assert [row["id"] for row in data["state"]["agents"]] == ["ada"]
        gate.open()
        *_, (kind, data, _) = messages
    assert kind == "card"
    assert "Use mmap." in data["bundle"]["text/html"]
    # The name that a notebook in the same directory uses.
    told = data["bundle"][TURN_MIME]
    assert (told["state"], told["path"]) == ("complete", str(held.path.relative_to(jupyter.root)))


def test_timeline_of_a_live_turn_grows_and_has_checkpoints(
    jupyter: JupyterServer, held: Run, gate: Gate
) -> None:
    path = f"runs/{jupyter.name(held.path)}"
    before = jupyter.get(f"{path}/timeline")["html"]
    assert "over" in before
    assert "data-point" not in before  # its only call is in flight
    gate.open()
    finish(held)
    after = jupyter.get(f"{path}/timeline")["html"]
    points = {int(seq) for seq in re.findall(r'data-point="?1:([0-9]+)', after)}
    ended = ("model_finished", "answer_given")
    events = read_journal(TurnPaths(held.path).journal).events
    given = {event.seq for event in events if event.kind in ended}
    assert given
    assert given <= points


def test_view_stream_of_an_ended_turn_is_its_card(jupyter: JupyterServer) -> None:
    run = over(jupyter.sessions)
    session = jupyter.name(run.path.parent)
    for path in (f"runs/{session}/turn_1/view", f"sessions/{session}/turns/1/view"):
        with jupyter.stream(path) as messages:
            assert [kind for kind, _, _ in messages] == ["card"]


def test_one_stream_shows_many_turns_and_reports_unknown_ids(
    jupyter: JupyterServer, held: Run, gate: Gate
) -> None:
    # In a directory with the sessions of a notebook.
    other = over(jupyter.root / "reports" / ".nb_agents" / "sessions")
    names = [jupyter.name(held.path), jupyter.name(other.path), "no/session/turn_1"]
    seen = set()
    with jupyter.stream("view", params={"id": names}) as messages:
        for kind, data, _ in messages:
            seen.add((kind, data["id"]))
            if kind == "state":
                gate.open()
    live, past, unknown = names
    assert seen == {("state", live), ("card", live), ("card", past), ("unknown", unknown)}


def test_session_list_includes_turns(jupyter: JupyterServer) -> None:
    run = over(jupyter.sessions)
    beside = over(jupyter.root / "reports" / ".nb_agents" / "sessions")
    [told] = jupyter.get("sessions")
    assert told["id"] == jupyter.name(run.path.parent)
    [turn] = told["turns"]
    assert (turn["id"], turn["state"]) == (jupyter.name(run.path), "complete")
    listed = jupyter.get("sessions", params={"folder": "reports"})
    assert {each["session"] for each in listed} == {run.session, beside.session}
    assert jupyter.get(f"sessions/{told['id']}") == told
    assert jupyter.get(f"sessions/{told['id']}/turns/1")["state"] == "complete"


def test_session_root_accepts_short_names(jupyter: JupyterServer) -> None:
    run = over(jupyter.sessions)
    assert jupyter.get(f"runs/{run.session}/turn_1")["id"] == jupyter.name(run.path)


def test_model_text_is_escaped(jupyter: JupyterServer) -> None:
    run = over(jupyter.sessions, EVIL)
    with jupyter.stream(f"runs/{jupyter.name(run.path)}/view") as messages:
        [(_, data, _)] = messages
    html = data["bundle"]["text/html"]
    assert "alert(1)" in html
    assert "<script" not in html and "<img" not in html


def test_server_answers_during_two_hundred_streams(
    jupyter: JupyterServer, held: Run, gate: Gate
) -> None:
    url = f"{jupyter.url}/runs/{jupyter.name(held.path)}/events"
    began = Event()
    opened = count(1)

    async def listen(client: httpx2.AsyncClient) -> bytes:
        async with client.stream("GET", url) as answer:
            heard = b""
            async for piece in answer.aiter_bytes():
                if not heard and next(opened) == STREAMS:
                    began.set()
                heard += piece
            return heard.replace(KEEP_ALIVE, b"")

    async def all_of_them() -> list[bytes]:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(
            headers=jupyter.client.headers, limits=limits, timeout=WAIT_S
        ) as client:
            return await asyncio.gather(*(listen(client) for _ in range(STREAMS)))

    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(asyncio.run, all_of_them())
        assert began.wait(WAIT_S)
        assert [run["id"] for run in jupyter.get("runs")] == [jupyter.name(held.path)]
        gate.open()
        finish(held)
        assert len(set(heard.result(WAIT_S))) == 1
    assert b"event: turn_ended" in heard.result()[0]


def test_session_list_has_the_most_recently_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / ".nb_agents" / "sessions"
    runs = [over(root) for _ in range(3)]
    for age, run in enumerate(runs):
        os.utime(run.path / "events.jsonl", (-age, -age))
    monkeypatch.setattr(session_handlers, "MAX_LISTED", 2)
    listed = session_handlers.list_folders(NameResolver(tmp_path), [])
    assert [each["session"] for each in listed] == [run.session for run in runs[:2]]
