"""Rows of a sweep whose process ended while they waited are resumed when their wait is over."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import nb_agents
from nb_agents import RunOptions
from tests.kit.disk import private_lock
from tests.kit.runs import WAITS_LOCK, attach, live_turns, resume_due_turns
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.processes import ROOT
from tests.warm import WarmProcess

SHORT_S = 60
MODEL = "gpt-5-mini"
"""A model whose price is known."""

CODE = """
import sys
import nb_agents
from tests.sweeps.test_interrupted_rows import sweep_of
sweep_of(sys.argv[1], sys.argv[2], float(sys.argv[3]) or None, int(sys.argv[4])).wait()
"""


def sweep_of(root: str, url: str, max_cost: float | None = None, limit: int = 1) -> Any:
    backend = {"type": "openai", "model": MODEL, "base_url": url, "api_key": "k"}
    team = nb_agents.TeamSpec.model_validate(
        {"agents": [{"id": "a", "backend": backend}], "retry": {"attempts": 0}}
    )
    rows = [{"id": name} for name in ("done", "out_1", "out_2")]
    options = RunOptions(session_root=Path(root), wait_for_quota=4000)
    return nb_agents.map(
        rows, "Row {{id}}.", team, name="rows", limit=limit, max_cost=max_cost, options=options
    )


def _killed_sweep(
    root: Path, server: ModelServer, max_cost: float = 0.0, limit: int = 1, tokens: int = 0
) -> tuple[float, Any]:
    """Kill a sweep while two of its three rows wait. Return the end of the waits, and the calls.

    Args:
        tokens: The size of a waiting row's second request, whose reply then calls a tool. The other
            requests are a tenth of it.
    """
    seen = Counter[str]()

    def reply(request: Request) -> Reply:
        row = next(name for name in ("done", "out_1", "out_2") if f"Row {name}." in request.prompt)
        seen[row] += 1
        if row != "done" and seen[row] == 1:
            return Reply(status=429, headers={"Retry-After": "3600"}, error="Out of quota.")
        if row != "done" and seen[row] == 2 and tokens:
            write = (ToolCall("write_file", {"path": "a.txt", "content": "a"}),)
            return Reply(tool_calls=write, input_tokens=tokens, output_tokens=1)
        answer = (ToolCall("new_answer", {"content": f"answer of {row}"}),)
        return Reply(tool_calls=answer, input_tokens=10 + tokens // 10, output_tokens=1)

    server.script(MODEL, *([reply] * 10))
    command = [sys.executable, "-c", CODE, str(root), server.url, str(max_cost), str(limit)]
    with WarmProcess(command, cwd=ROOT, stdout=subprocess.PIPE) as sweep:
        wait_until(lambda: seen == {"done": 1, "out_1": 1, "out_2": 1}, SHORT_S)
        waits = [_wait_of(turn) for turn in (root / "rows").glob("out-*/turn_1")]
        sweep.kill()
    wait_until(lambda: not live_turns(root=root))
    return max(waits), seen


def _wait_of(turn: Path) -> float:
    run = attach(turn)
    wait_until(lambda: run.view.wait, SHORT_S)
    assert run.view.wait is not None
    return run.view.wait.until


def _turn(name: str) -> tuple[str, str]:
    """Return the row and the turn's number of "rows/ROW-DIGEST/TURN"."""
    _, row, number = name.split("/")
    return row.rpartition("-")[0], number


def test_rows_are_resumed_within_the_limit_of_their_sweep(
    tmp_path: Path, server: ModelServer
) -> None:
    until, seen = _killed_sweep(tmp_path, server)
    early = resume_due_turns(tmp_path, time.time())
    assert [_turn(turn.name) for turn in early] == [("out-1", "1"), ("out-2", "1")]
    assert not any(turn.resumed or turn.error for turn in early)
    resumed: list[str] = []
    while len(resumed) < 2:
        new = [turn.resumed for turn in resume_due_turns(tmp_path, until) if turn.resumed]
        assert len(new) <= 1  # the limit
        resumed += new
        for name in new:
            attach(tmp_path / Path(name).parent / "turn_2").wait(SHORT_S)
    assert sorted(map(_turn, resumed)) == [("out-1", "2"), ("out-2", "2")]
    assert resume_due_turns(tmp_path, until) == []
    sweep = sweep_of(str(tmp_path), server.url)
    view = sweep.wait(SHORT_S)
    assert (view.completed, view.failed) == (3, 0)
    answers = [record["answer"] for record in sweep.table()]
    assert answers == ["answer of done", "answer of out_1", "answer of out_2"]
    assert seen == {"done": 1, "out_1": 2, "out_2": 2}  # nothing that finished was repeated


def test_rows_of_a_sweep_with_a_budget_are_resumed_one_at_a_time(
    tmp_path: Path, server: ModelServer
) -> None:
    until, seen = _killed_sweep(tmp_path, server, max_cost=1.0, limit=2)
    [first, waiting] = resume_due_turns(tmp_path, until)
    assert first.resumed and not waiting.resumed and not waiting.error
    run = attach(tmp_path / Path(first.resumed).parent / "turn_2")
    run.wait(SHORT_S)
    assert run.view.max_cost is None  # the budget of the sweep is not recorded as the row's own
    [second] = resume_due_turns(tmp_path, until)
    attach(tmp_path / Path(second.resumed).parent / "turn_2").wait(SHORT_S)
    sweep = sweep_of(str(tmp_path), server.url, max_cost=1.0)
    assert sweep.wait(SHORT_S).completed == 3
    assert seen == {"done": 1, "out_1": 2, "out_2": 2}


def test_resumed_rows_cost_at_most_what_is_left_of_the_budget(
    tmp_path: Path, server: ModelServer
) -> None:
    until, seen = _killed_sweep(tmp_path, server, max_cost=0.1, tokens=1_000_000)
    [first, _] = resume_due_turns(tmp_path, until)
    run = attach(tmp_path / Path(first.resumed).parent / "turn_2")
    run.wait(SHORT_S, raise_on_stop=False)
    assert run.view.stop is not None and run.view.stop.source == "budget"
    assert "$0.25 of $0.075 used" in run.view.stop.reason  # the first row has cost $0.025
    [refused] = resume_due_turns(tmp_path, until)
    assert "max_cost of 0.1 US dollars was reached" in refused.error
    assert sum(seen.values()) == 4  # the row was stopped before its second request
    sweep = sweep_of(str(tmp_path), server.url, max_cost=10.0)
    assert sweep.wait(SHORT_S).completed == 3  # no row has a budget of its own


def test_two_processes_do_not_resume_rows_at_the_same_time(
    tmp_path: Path, server: ModelServer
) -> None:
    until, _ = _killed_sweep(tmp_path, server)
    with private_lock(tmp_path / "rows" / WAITS_LOCK):
        assert resume_due_turns(tmp_path, until) == []
    [resumed] = [turn.resumed for turn in resume_due_turns(tmp_path, until) if turn.resumed]
    attach(tmp_path / Path(resumed).parent / "turn_2").wait(SHORT_S)


def test_rows_are_only_listed_if_the_budget_was_not_recorded(
    tmp_path: Path, server: ModelServer
) -> None:
    """Earlier versions recorded only that there is a budget."""
    until, seen = _killed_sweep(tmp_path, server, max_cost=1.0)
    notes = tmp_path / "rows" / "rows.jsonl"
    notes.write_text(notes.read_text().replace('"max_cost": 1.0', '"max_cost": null'))
    turns = resume_due_turns(tmp_path, until)
    assert ["did not record its max_cost" in turn.error for turn in turns] == [True, True]
    assert seen == {"done": 1, "out_1": 1, "out_2": 1}


def test_rows_of_a_running_sweep_are_left_alone(tmp_path: Path, server: ModelServer) -> None:
    server.script(MODEL, *[Reply(status=429, headers={"Retry-After": "3600"}, error="Out.")] * 3)
    sweep = sweep_of(str(tmp_path), server.url)
    wait_until(lambda: [row.view.wait for row in sweep.view.live if row.view.wait], SHORT_S)
    assert resume_due_turns(tmp_path, time.time() + 4000) == []
    sweep.stop(True)
    sweep.wait(SHORT_S)
    assert resume_due_turns(tmp_path, time.time() + 4000) == []  # the user stopped it
