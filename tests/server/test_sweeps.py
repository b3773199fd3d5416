"""Sweeps over HTTP: a sweep is one entry with its progress; its rows are listed below it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents.events import Pause
from nb_agents.options import RunOptions
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.jupyter.test_sweep_panel import WAITING, live, view
from tests.kit.cards import TURN_MIME
from tests.kit.runs import LiveTurn
from tests.kit.servers import NameResolver
from tests.kit.servers import places as places_module
from tests.kit.sessions import TurnPaths, has_commands, send
from tests.kit.sweeps import SWEEP_MIME, Sweep, sweep_bundle, sweep_facts
from tests.kit.views import RunView
from tests.model_server import wait_until
from tests.server.conftest import JupyterServer
from tests.team_kit import ROOT, WAIT_S
from tests.warm import WarmProcess


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def held(jupyter: JupyterServer, gate: Gate) -> Iterator[Sweep]:
    """Start a sweep of six rows; the first two wait at a gate while they write."""
    sweep = begin(jupyter, ScriptedModel(Answer("Use mmap.", text="I think ", gate=gate)))
    gate.wait_reached(2)
    wait_until(lambda: len(sweep.runs) == 2)  # visible shortly after the rows have started
    yield sweep
    sweep.stop(now=True)
    gate.open()
    sweep.wait(WAIT_S)


def begin(jupyter: JupyterServer, model: ScriptedModel, rows: int = 6) -> Sweep:
    options = RunOptions(session_root=jupyter.sessions)
    team, source = scripted_team(ada=model), [{"q": number} for number in range(rows)]
    return nb_agents.map(source, "{{q}}?", team, limit=2, name="asked", options=options)


def ended(jupyter: JupyterServer) -> Sweep:
    sweep = begin(jupyter, ScriptedModel(Answer("Use mmap.")))
    sweep.wait(WAIT_S)
    return sweep


def test_live_sweep_is_listed_as_one_run(jupyter: JupyterServer, held: Sweep, gate: Gate) -> None:
    [told] = jupyter.get("runs")
    assert told["id"] == jupyter.name(held.path)
    assert (told["state"], told["says"]) == ("running", "0 of 6 rows")
    assert (told["task"], told["is_live"]) == ("{{q}}?", True)
    gate.open()
    held.wait(WAIT_S)
    assert jupyter.get("runs") == []
    told = jupyter.get(f"runs/{told['id']}")
    assert (told["state"], told["rows"]) == ("complete", {"total": 6, "done": 6, "failed": 0})
    assert told["tokens"] == held.view.tokens


def test_stop_of_a_sweep_stops_all_rows(jupyter: JupyterServer, held: Sweep) -> None:
    path = f"runs/{jupyter.name(held.path)}"
    assert jupyter.post(f"{path}/stop", {"reason": "seen enough"}).json()["changed"] is True
    assert jupyter.post(f"{path}/stop", {"immediate": True}).status_code == 202
    stopped = held.wait(WAIT_S)
    assert (stopped.status, stopped.to_go) == ("cancelled", 4)
    assert jupyter.post(f"{path}/stop").status_code == 409
    assert jupyter.get(path)["state"] == "stopped"


def test_pause_and_unpause_of_a_sweep(jupyter: JupyterServer, held: Sweep, gate: Gate) -> None:
    path = f"runs/{jupyter.name(held.path)}"
    assert jupyter.post(f"{path}/pause").status_code == 202
    wait_until(lambda: held.status == "paused")
    assert jupyter.post(f"{path}/unpause").status_code == 202
    wait_until(lambda: held.status == "running")
    gate.open()
    held.wait(WAIT_S)
    for action in ("pause", "unpause", "resume"):
        answer = jupyter.post(f"{path}/{action}")
        assert (answer.status_code, answer.json()["status"]) == (409, "complete")


def test_sweep_is_steered(jupyter: JupyterServer, held: Sweep, gate: Gate) -> None:
    path = f"runs/{jupyter.name(held.path)}/steer"
    steered = jupyter.post(path, {"limit": 4, "timeout": 600})
    assert (steered.status_code, steered.json()["changes"]) == (202, {"limit": 4, "timeout": 600})
    gate.wait_reached(4)
    for body, message in (({}, "Nothing is to be changed"), ({"score": True}, "no score function")):
        refused = jupyter.post(path, body)
        assert (refused.status_code, message in refused.json()["message"]) == (409, True)
    assert jupyter.post(path, {"limit": "many"}).status_code == 400
    [row, *_] = held.runs.values()
    assert jupyter.post(f"runs/{jupyter.name(row.path)}/steer", {"limit": 1}).status_code == 409


def test_commands_for_rows_are_rejected_by_their_sweep(jupyter: JupyterServer, held: Sweep) -> None:
    path = f"runs/{jupyter.name(held.path)}"
    for action, body in {"say": {"text": "x"}, "stop": {"agent": "ada"}}.items():
        answer = jupyter.post(f"{path}/{action}", body)
        assert (answer.status_code, "is a sweep" in answer.json()["message"]) == (409, True)
    assert held.status == "running"


def test_command_to_an_ended_sweep_does_not_affect_the_next(
    jupyter: JupyterServer, gate: Gate
) -> None:
    paths = TurnPaths(ended(jupyter).path)
    send(paths, Pause())
    sweep = begin(jupyter, ScriptedModel(Answer("Use mmap.", gate=gate)), rows=10)
    gate.wait_reached(2)
    wait_until(lambda: not has_commands(str(paths.commands)))
    gate.open()
    assert sweep.wait(WAIT_S).completed == 10


def test_sweep_waits_for_the_user_while_a_row_does(tmp_path: Path) -> None:
    told = sweep_facts(view(live=live(RunView(), WAITING)), None, tmp_path)
    assert (told.status, told.state) == ("awaiting", "running")
    assert "1 waits for you" in told.says


def test_sweep_is_one_entry_of_the_session_list(
    jupyter: JupyterServer,
) -> None:
    sweep = ended(jupyter)
    [told] = jupyter.get("sessions")
    assert (told["session"], told["turns"]) == ("asked", [])
    assert told["sweep"]["rows"] == {"total": 6, "done": 6, "failed": 0}
    rows = jupyter.get("sessions", params={"sweep": told["id"]})
    assert {row["session"] for row in rows} == {row.name for row in sweep.rows}
    assert {row["turns"][0]["state"] for row in rows} == {"complete"}
    assert jupyter.get(f"runs/{rows[0]['turns'][0]['id']}")["state"] == "complete"


def test_rows_of_a_listed_sweep_are_not_separate_sessions(
    jupyter: JupyterServer, held: Sweep
) -> None:
    jupyter.get("runs")
    assert [told["session"] for told in jupyter.get("sessions")] == ["asked"]


def test_rows_of_an_unknown_sweep_have_status_404(jupyter: JupyterServer) -> None:
    for name in ("nobody", "..", "/etc"):
        answer = jupyter.client.get(f"{jupyter.url}/sessions", params={"sweep": name})
        assert answer.status_code == 404


@pytest.mark.parametrize("about", ["[]", '{"rows": "many"}', '{"rows": 1e99}', "\0", "{"])
def test_damaged_sweep_does_not_hide_other_sessions(jupyter: JupyterServer, about: str) -> None:
    path = ended(jupyter).path
    (path / "sweep.json").write_text(about)
    (path / "rows.jsonl").unlink()
    (path / "rows.jsonl").symlink_to("/dev/zero")
    [told] = jupyter.get("sessions")
    assert told["sweep"]["rows"]["done"] == 0


def sweep_with_row(tmp_path: Path) -> tuple[TurnPaths, TurnPaths]:
    """Create a sweep with one row. Return both with their locks."""
    row = TurnPaths(tmp_path / "asked" / "row" / "turn_1")
    row.path.mkdir(parents=True)
    row.journal.touch()
    sweep = TurnPaths(tmp_path / "asked")
    (sweep.path / "sweep.json").write_text("{}")
    return sweep, row


def set_live(monkeypatch: pytest.MonkeyPatch, *turns: TurnPaths) -> None:
    found = tuple(LiveTurn(str(turn.path), "r1", 1, "", "") for turn in turns)
    monkeypatch.setattr(places_module, "live_turns", lambda: found)


def test_sweep_is_live_between_two_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, row = sweep_with_row(tmp_path)
    places = NameResolver(tmp_path)
    with sweep.lock():
        set_live(monkeypatch, row)
        assert [len(rows) for rows in places.live().groups.values()] == [1]
        set_live(monkeypatch)
        assert places.live().groups == {sweep.path: []}
    assert places.live().groups == {}


def test_resumed_row_of_an_ended_sweep_is_a_separate_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, row = sweep_with_row(tmp_path)
    set_live(monkeypatch, row)
    with row.lock():
        found: Any = NameResolver(tmp_path).live()
    assert ([turn.paths for turn in found.turns], found.groups) == ([row], {})


def test_rows_are_not_separate_runs_when_the_sweep_ends_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, row = sweep_with_row(tmp_path)
    places = NameResolver(tmp_path)
    with sweep.lock() as of_sweep, row.lock() as of_row:
        set_live(monkeypatch, row)
        assert [len(rows) for rows in places.live().groups.values()] == [1]

        def ending() -> tuple[LiveTurn, ...]:
            of_row.release()
            of_sweep.release()
            return (LiveTurn(str(row.path), "r1", 1, "", ""),)

        monkeypatch.setattr(places_module, "live_turns", ending)
        assert places.live() == ([], {})


# Streams for a page without a kernel


Messages = Iterator[tuple[str, Any, str]]


def state_where(messages: Messages, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Read the stream until a state fulfils a condition."""
    seen: dict[str, Any] = {}
    for kind, data, _ in messages:
        assert kind == "state", data
        seen = data["state"]
        if is_so(seen):
            return seen
    raise AssertionError(f"The stream ended with {seen}")


def card(messages: Messages) -> dict[str, Any]:
    """Read the stream to its last message, which is the card."""
    *_, (kind, data, _) = messages
    assert kind == "card"
    bundle: dict[str, Any] = data["bundle"]
    return bundle


def test_view_stream_of_a_sweep_has_states_and_the_card(
    jupyter: JupyterServer,
    held: Sweep,
    gate: Gate,
) -> None:
    name = jupyter.name(held.path)
    with jupyter.stream(f"runs/{name}/view") as messages:
        state = state_where(messages, lambda state: len(state["rows"]) == 2)
        assert (state["sweep"], state["task"], state["round"]) == ("asked", "{{q}}?", "0 of 6 rows")
        assert {row["run"] for row in state["rows"]} == {f"{row}/1" for row in held.runs}
        state_where(messages, lambda state: "I think" in state["rows"][0]["says"])
        gate.open()
        bundle = card(messages)
    held.wait(WAIT_S)
    told = bundle[SWEEP_MIME]
    assert (told["state"], told["done"], told["path"]) == ("complete", 6, f"{name}")
    of_kernel = sweep_bundle(held.view, "{{q}}?", name, held.table())
    assert words(bundle) == words(of_kernel)


def words(bundle: dict[str, Any]) -> list[str]:
    """Return the lines of a card except the last, which has the time."""
    lines: list[str] = bundle["text/plain"].splitlines()
    return lines[:-1]


def test_view_stream_shows_pause_and_stop_between_rows(
    jupyter: JupyterServer,
    held: Sweep,
) -> None:
    name = jupyter.name(held.path)
    with jupyter.stream("view", params={"id": name}) as messages:
        assert state_where(messages, lambda state: state["rows"])["hold"] == "pause"
        jupyter.post(f"runs/{name}/pause")
        paused = state_where(messages, lambda state: state["chip"] == "paused")
        assert paused["hold"] == "unpause"
        jupyter.post(f"runs/{name}/unpause")
        state_where(messages, lambda state: state["chip"] == "running")
        jupyter.post(f"runs/{name}/stop", {"reason": "seen enough"})
        stopping = state_where(messages, lambda state: state["status"] == "stopping")
        assert stopping["button"]["label"] == "Stop now"
        jupyter.post(f"runs/{name}/stop", {"immediate": True})
        bundle = card(messages)
    assert bundle[SWEEP_MIME]["state"] == "stopped"
    assert "Run the cell again to continue with the 6 missing rows" in bundle["text/plain"]


def test_stop_of_one_row_does_not_stop_the_others(
    jupyter: JupyterServer,
    held: Sweep,
) -> None:
    name = jupyter.name(held.path)
    row = next(iter(held.runs))
    turn = f"{name}/{row}/turn_1"
    with jupyter.stream("view", params={"id": [turn, name, "nobody"]}) as messages:
        seen = {data["id"]: kind for kind, data, _ in (next(messages) for _ in range(3))}
        assert seen == {"nobody": "unknown", turn: "state", name: "state"}
        jupyter.post(f"runs/{turn}/stop", {"immediate": True})
        has_ended = next_has_begun = False  # in either order
        while not (has_ended and next_has_begun):
            kind, data, _ = next(messages)
            if kind == "card":
                assert (data["id"], data["bundle"][TURN_MIME]["state"]) == (turn, "stopped")
                has_ended = True
            elif data["id"] == name:
                rows = data["state"]["rows"]
                live = {each["id"] for each in rows if each["state"] in ("running", "waiting")}
                next_has_begun = row not in live and len(live) == 2
    assert held.status == "running"


def test_event_stream_of_a_sweep_has_starts_and_ends_of_rows(
    jupyter: JupyterServer, held: Sweep, gate: Gate
) -> None:
    path = f"runs/{jupyter.name(held.path)}/events"
    with jupyter.stream(path) as messages:
        kinds = [kind for kind, _, _ in (next(messages) for _ in range(3))]
        assert kinds == ["sweep_began", "row_began", "row_began"]
        gate.open()
        told = list(messages)
    assert sum(kind == "row_ended" for kind, _, _ in told) == 6
    kind, data, number = told[-1]
    assert (kind, data["status"]) == ("sweep_changed", "completed")
    with jupyter.stream(path, headers={"Last-Event-ID": str(int(number) - 1)}) as messages:
        assert list(messages) == told[-1:]


def test_view_stream_of_an_ended_sweep_is_its_card(jupyter: JupyterServer) -> None:
    name = jupyter.name(ended(jupyter).path)
    with jupyter.stream(f"runs/{name}/view") as messages:
        assert card(messages)[SWEEP_MIME]["state"] == "complete"


SCRIPT = """
import sys, nb_agents
backend = {"type": "demo", "words_per_second": 2}
team = nb_agents.TeamSpec.model_validate({"agents": [{"id": "ada", "backend": backend}]})
options = nb_agents.RunOptions(session_root=sys.argv[1])
rows = [{"q": number} for number in range(3)]
nb_agents.map(rows, "{{q}}?", team, name="asked", limit=2, options=options).wait()
"""


def test_another_process_continues_a_killed_sweep(
    jupyter: JupyterServer,
) -> None:
    path = jupyter.sessions / "asked"
    argv = [sys.executable, "-c", SCRIPT, str(jupyter.sessions)]
    with WarmProcess(argv, cwd=ROOT) as process:
        wait_until(lambda: jupyter.get("runs"))
        with jupyter.stream(f"runs/{jupyter.name(path)}/view") as messages:
            state_where(messages, lambda state: len(state["rows"]) == 2)
            os.kill(process.pid, signal.SIGKILL)
            bundle = card(messages)
    assert bundle[SWEEP_MIME]["state"] == "stopped"
    assert "its process died" in bundle["text/plain"]
    assert "2 stopped · 1 not started" in bundle["text/plain"]
    sweep = begin(jupyter, ScriptedModel(Answer("x", gate=(held := Gate()), text="so ")), rows=3)
    held.wait_reached(1)
    with jupyter.stream(f"runs/{jupyter.name(path)}/view") as messages:
        state = state_where(messages, lambda state: state["rows"])
        assert state["status"] == "running"
        sweep.stop(now=True)
        held.open()
        assert card(messages)[SWEEP_MIME]["state"] == "stopped"
