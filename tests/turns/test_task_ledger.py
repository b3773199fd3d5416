"""The budget of a task is shared by its turns and forks, in several processes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions, Sweep
from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.turns.task_ledger import PastTask, TaskLedger, ledgers_of
from tests.kit.runs import Budget, Run, Spent
from tests.kit.sessions import TurnPaths, past_events
from tests.model_server import ModelServer, Reply, wait_until
from tests.samples import some_or_all
from tests.team_kit import WAIT_S, finish, kill_writers
from tests.turns.test_task_budget import ANSWER, READ, team_of

LIMIT = 10_000
WORKER = """
import random, sys, time
from pathlib import Path
from nb_agents.disk.lock import FileLock
from nb_agents.turns.budget import Spent
from nb_agents.turns.task_ledger import PastTask, TaskLedger

folder, turn = map(Path, sys.argv[1:3])
limit, seed = map(int, sys.argv[3:])
chance = random.Random(seed)
ledger = TaskLedger(folder, PastTask("task", {"first": Spent(tokens=int(limit * 0.3))}), "tokens")
ledger._final = lambda turn: None
lock = FileLock(turn / "lock")
lock.acquire()
used = 0
with open(turn / "journal", "a", buffering=1) as journal:
    while True:
        granted = int(ledger.reserve(turn.name, used, limit, str(turn)).up_to)
        if granted <= used:
            break
        while used < granted:
            step = min(chance.randint(1, 20), granted - used)
            journal.write("x" * step)
            journal.flush()
            used += step
            time.sleep(0.001)
ledger.release(turn.name, used)
"""


def used_by(turn: Path) -> int:
    return (turn / "journal").read_text().count("x")


@pytest.mark.parametrize("seed", range(some_or_all(3, 12)))
def test_processes_share_the_rest_exactly_although_some_are_killed(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    turns = [tmp_path / f"fork_{n}" for n in range(chance.randint(2, 5))]
    killed = turns[: chance.randint(0, len(turns) - 1)]
    workers = {}
    for number, turn in enumerate(turns):
        turn.mkdir()
        (turn / "journal").touch()
        argv = [str(tmp_path / "ledger"), str(turn), str(LIMIT), str(seed + number)]
        workers[turn] = subprocess.Popen([sys.executable, "-c", WORKER, *argv])
    for turn in killed:
        least = chance.randint(10, 200)
        wait_until(lambda t=turn, n=least: used_by(t) >= n, WAIT_S, "a fork to work")  # type: ignore[misc]
        workers[turn].send_signal(signal.SIGKILL)
    for worker in workers.values():
        assert worker.wait(WAIT_S) in (0, -signal.SIGKILL)
    first = int(LIMIT * 0.3)
    ledger = TaskLedger(tmp_path / "ledger", PastTask("task", {"first": Spent(first)}), "tokens")
    ledger._final = lambda turn: used_by(Path(turn))  # type: ignore[method-assign]
    total = first + sum(map(used_by, turns))
    assert ledger.total() == total == ledger.total()
    assert total <= LIMIT
    if len(killed) < len(turns):  # the dead may still hold a part
        assert total > LIMIT * 0.8


def fork(run: Run, seq: int, times: int = 1) -> Sweep:
    options = RunOptions(session_root=run.path.parents[1], detach=True)
    return nb_agents.fork(run.path, seq, times=times, options=options)


def test_forks_in_different_processes_do_not_spend_the_rest_twice(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("a", READ, READ, ANSWER)
    options = RunOptions(session_root=tmp_path)
    run = finish(nb_agents.start("the task", team_of(server, LIMIT), session="s", options=options))
    tools = [e for e in past_events(TurnPaths(run.path)) if isinstance(e, ev.ToolFinished)]
    server.script("a", Reply("word " * LIMIT, words_per_second=1000, input_tokens=1))
    forks = [fork(run, each.seq) for each in tools[:2]]
    for each in forks:
        each.wait()
    spent = [each.view.tokens for each in forks]
    assert all(spent)
    assert LIMIT * 0.98 < run.view.tokens + sum(spent) < LIMIT * 1.05
    with pytest.raises(UserError, match="budget is used up"):
        fork(run, tools[0].seq, times=2)
    kill_writers(tmp_path)


def test_task_without_a_budget_has_no_ledger(tmp_path: Path, server: ModelServer) -> None:
    server.script("a", ANSWER)
    agent = {"id": "a", "backend": server.backend("vllm", model="a")}
    team = nb_agents.TeamSpec.model_validate({"agents": [agent]})
    finish(nb_agents.start("t", team, session="s", options=RunOptions(session_root=tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def ledger_of(run: Run) -> Path:
    [path] = (run.path.parents[1] / ".budgets").glob("*.tokens.json")
    return path


def to_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "link": to_link,
    "truncated": lambda path: path.write_text(path.read_text()[:-9]),
    "empty": lambda path: path.write_text(""),
    "directory": lambda path: (path.unlink(), path.mkdir()),
    "not a number": lambda path: path.write_text('{"a": [NaN, 0, 0]}'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_resume_with_a_damaged_ledger_is_refused_with_its_path_and_a_remedy(
    tmp_path: Path, server: ModelServer, damage: str
) -> None:
    server.script("a", READ, Reply("word", hang_after=1))
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("t", team_of(server, LIMIT), session="s", options=options)
    wait_until(lambda: run.view.agents["a"].partial == "word", WAIT_S)
    run.stop(now=True)
    finish(run)
    path = ledger_of(run)
    assert 0 < sum(spent for spent, *_ in json.loads(path.read_text()).values()) < LIMIT
    DAMAGE[damage](path)
    with pytest.raises(UserError, match="The budget of the task can't be checked") as refused:
        run.resume()
    message = str(refused.value)
    assert str(path) in message
    assert "Delete it" in message or "Remove it if it is not a regular file" in message


def test_run_whose_ledger_is_damaged_meanwhile_keeps_its_own_budget(
    tmp_path: Path, server: ModelServer
) -> None:
    words = Reply("word " * LIMIT, words_per_second=1000, input_tokens=1)
    server.script("a", words)
    server.hold()
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("t", team_of(server, LIMIT), session="s", options=options)
    server.wait_open(1)
    ledger_of(run).write_text("{")
    server.release()
    finish(run)
    assert run.receipt.source == "budget"
    assert LIMIT <= run.view.tokens < LIMIT * 1.05
    assert any("may exceed its budget together" in notice for notice in run.view.notices)


def test_each_limit_has_a_ledger(tmp_path: Path) -> None:
    turn = TurnPaths(tmp_path / "s" / "turn_1")
    both = ledgers_of(turn, PastTask("id"), Budget(max_cost=1.0, max_tokens=5))
    assert {unit: each.path.name for unit, each in both.items()} == {
        "cost": "id.cost.json",
        "tokens": "id.tokens.json",
    }
    assert ledgers_of(turn, PastTask("id"), Budget()) == {}
