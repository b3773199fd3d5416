"""The day budget: shared by all processes of a user, even if one of them is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.errors import UserError
from nb_agents.turns import day_budget
from nb_agents.turns.day_budget import DayLedger, day_limit
from tests.kit.runs import LedgerEntry
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import WAIT_S, finish

STEP = 0.0005
LIMIT = 1.0
WORKER = """
import sys, time
from pathlib import Path
from nb_agents.disk.lock import FileLock
from nb_agents.turns.day_budget import DayLedger

folder, turn = map(Path, sys.argv[1:3])
limit, step = map(float, sys.argv[3:])
ledger, count = DayLedger(folder, lambda turn: None), 0
lock = FileLock(turn / "lock")
lock.acquire()
with open(turn / "journal", "a", buffering=1) as journal:
    while True:
        granted = ledger.reserve(str(turn), count * step, limit).up_to
        if granted < (count + 1) * step:
            break
        while (count + 1) * step <= granted:
            journal.write("x\\n")
            count += 1
            time.sleep(0.002)
ledger.release(str(turn), count * step)
"""


def spent_by(turn: Path) -> float:
    return (turn / "journal").read_text().count("x") * STEP


def test_processes_share_the_budget_exactly_although_one_is_killed(tmp_path: Path) -> None:
    turns = [tmp_path / name for name in ("a", "b", "c")]
    arguments = [str(tmp_path / "ledger"), "", str(LIMIT), str(STEP)]
    workers = []
    for turn in turns:
        turn.mkdir()
        (turn / "journal").touch()
        command = [sys.executable, "-c", WORKER, arguments[0], str(turn), *arguments[2:]]
        workers.append(subprocess.Popen(command))
    wait_until(lambda: spent_by(turns[0]) > 20 * STEP, WAIT_S, "the first to spend")
    workers[0].send_signal(signal.SIGKILL)
    assert [worker.wait(WAIT_S) for worker in workers] == [-signal.SIGKILL, 0, 0]
    ended = DayLedger(tmp_path / "ledger", lambda turn: spent_by(Path(turn)))
    total = sum(map(spent_by, turns))
    # The reservation of the killed process is replaced by what it has spent, once.
    assert ended.total() == pytest.approx(total) == ended.total()
    assert LIMIT * 0.8 < total <= LIMIT + 1e-9
    last = ended.reserve("later", 0.0, LIMIT).up_to
    assert 0 < last <= LIMIT - total + 1e-9


def test_live_turn_keeps_its_reservation(tmp_path: Path) -> None:
    ledger = DayLedger(tmp_path, lambda turn: None)
    first = ledger.reserve("a", 0.0, LIMIT).up_to
    assert ledger.total() == pytest.approx(first)
    assert ledger.reserve("b", 0.0, first).is_refused
    ledger.release("a", 0.01)
    assert ledger.total() == pytest.approx(0.01)


def test_reservation_of_a_turn_that_cannot_be_read_counts_as_spent(tmp_path: Path) -> None:
    def unreadable(turn: str) -> float | None:
        raise OSError("deleted")

    ledger = DayLedger(tmp_path, unreadable)
    first = ledger.reserve("a", 0.0, LIMIT).up_to
    assert ledger.total() == pytest.approx(first)
    [entry] = json.loads((tmp_path / f"{date.today()}.json").read_text()).values()
    assert LedgerEntry(*entry).reserved == 0.0


def test_spending_past_midnight_counts_for_its_own_day(
    tmp_path: Path,
) -> None:
    today = date(2026, 11, 28)
    ledger = DayLedger(tmp_path, lambda turn: None, lambda: today)
    ledger.reserve("a", 0.0, LIMIT)
    ledger.reserve("a", 0.4, LIMIT)
    today = date(2026, 11, 29)
    assert ledger.reserve("a", 0.5, LIMIT).up_to > 0.5
    ledger.release("a", 0.7)
    assert ledger.total() == pytest.approx(0.3)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "config" / "nb_agents" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("configured", "variable", "initial", "limit"),
    [
        ("", "", "", None),
        ("day_budget = 5", "", "", 5.0),
        ("day_budget = 5", "2", "", 2.0),
        ("day_budget = 1.5", "2", "", 1.5),
        ("", "100", "3", 3.0),
    ],
)
def test_strictest_limit_applies_and_the_initial_environment_stays(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    configured: str,
    variable: str,
    initial: str,
    limit: float | None,
) -> None:
    config.write_text(configured)
    monkeypatch.setenv("NB_AGENTS_DAY_BUDGET", variable)
    monkeypatch.setattr(day_budget, "_initial_value", lambda: initial)
    assert day_limit() == limit


@pytest.mark.parametrize("text", ["day_budget = 'much'", "day_budget = -1", "day_budget ="])
def test_invalid_configuration_is_reported_with_its_file(config: Path, text: str) -> None:
    config.write_text(text)
    with pytest.raises(UserError, match="config.toml"):
        day_limit()


def test_run_stops_at_the_day_budget_and_the_next_is_refused(
    config: Path, tmp_path: Path, server: ModelServer
) -> None:
    config.write_text("day_budget = 1.0")
    read: dict[str, Any] = {"tool_calls": (ToolCall("list_files", {}),), "output_tokens": 1}
    server.script("claude-sonnet-4-6", Reply(**read, input_tokens=100_000))
    backend = server.backend("claude", model="claude-sonnet-4-6")
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    options = RunOptions(session_root=tmp_path / "sessions")
    run = finish(nb_agents.start("t", team, session="s", options=options))  # $0.30 per call
    assert (run.receipt.source, run.receipt.reason) == (
        "budget",
        "the day budget of $1 is used up",
    )
    assert 1.0 <= run.view.task_cost < 1.31
    assert DayLedger().total() == pytest.approx(run.view.task_cost)
    for again in (lambda: nb_agents.start("t", team, options=options), run.resume):
        with pytest.raises(UserError, match=r"The day budget is used up \(\$1.2 of \$1\)"):
            again()


DAMAGED = ["{", "[]", '{"a": 5}', '{"a": ["x", 0, 0]}', '{"a": [NaN, 0, 0]}', "\x00"]


@pytest.mark.parametrize("text", DAMAGED)
def test_start_with_a_damaged_ledger_is_refused_with_its_path(
    config: Path, tmp_path: Path, text: str
) -> None:
    config.write_text("day_budget = 1.0")
    ledger = tmp_path / "state/nb_agents/spending" / f"{date.today()}.json"
    ledger.parent.mkdir(parents=True)
    ledger.write_text(text)
    with pytest.raises(UserError, match="The day budget can't be checked") as refused:
        nb_agents.start("t", options=RunOptions(session_root=tmp_path / "sessions"))
    assert str(ledger) in str(refused.value) and "Delete" in str(refused.value)
    assert not (tmp_path / "sessions").exists()


def test_run_whose_ledger_is_damaged_meanwhile_stops(
    config: Path, tmp_path: Path, server: ModelServer
) -> None:
    config.write_text("day_budget = 1.0")
    server.script("claude-sonnet-4-6", Reply(tool_calls=(ToolCall("list_files", {}),)))
    backend = server.backend("claude", model="claude-sonnet-4-6")
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    server.hold()
    run = nb_agents.start("t", team, options=RunOptions(session_root=tmp_path / "sessions"))
    server.wait_open(1)
    ledger = tmp_path / "state/nb_agents/spending" / f"{date.today()}.json"
    wait_until(ledger.exists, WAIT_S, "the first reservation")
    ledger.write_text('{"a": 5}')
    server.release()
    finish(run)
    assert run.receipt.source == "budget"
    assert "the day budget can't be checked" in run.receipt.reason
