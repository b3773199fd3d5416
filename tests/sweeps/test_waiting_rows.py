"""Rows of a sweep that wait for a provider leave their places to other rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.options import Retry
from tests.kit.runs import registry
from tests.kit.sweeps import WaitingRows
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.team_kit import WAIT_S


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server
        for group in registry.groups():
            group.stop(True, reason="the test is over", source="parent")


def sweep_of(root: Path, server: ModelServer, names: list[str], limit: int) -> Any:
    team = nb_agents.TeamSpec.model_validate(
        {"agents": [{"id": "a", "backend": server.backend("openai", model="m")}]}
    )
    options = RunOptions(session_root=root, retry=Retry(0), wait_for_quota=4000)
    rows = [{"id": name} for name in names]
    return nb_agents.map(rows, "Row {{id}}.", team, limit=limit, options=options)


def answer(request: Request) -> Reply:
    return Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),))


def test_other_rows_are_completed_while_rows_wait(tmp_path: Path, server: ModelServer) -> None:
    def reply(request: Request) -> Reply:
        if "Row out_" in request.prompt:
            return Reply(status=429, headers={"Retry-After": "3600"}, error="Out of quota.")
        return answer(request)

    server.script("m", *([reply] * 10))
    names = ["out_1", "out_2", "out_3", "up_1", "up_2", "up_3"]
    sweep = sweep_of(tmp_path, server, names, limit=2)
    wait_until(lambda: sweep.view.completed == 3, WAIT_S)
    wait_until(lambda: len(sweep.view.live) == 3, WAIT_S)
    assert {row.view.wait is not None for row in sweep.view.live} == {True}
    assert server.count() == 6
    sweep.stop()
    assert sweep.wait(WAIT_S).failed == 0


def test_no_more_rows_run_than_the_limit_after_their_waits(
    tmp_path: Path, server: ModelServer
) -> None:
    seen = Counter[str]()
    accepted: list[Request] = []

    def reply(request: Request) -> Reply:
        row = next(name for name in names if f"Row {name}." in request.prompt)
        seen[row] += 1
        if seen[row] == 1:
            return Reply(status=429, headers={"Retry-After": "4"}, error="Out of quota.")
        accepted.append(request)
        answers = (ToolCall("new_answer", {"content": "done"}),)
        return Reply(delay_s=0.5, tool_calls=answers)

    names = ["r1", "r2", "r3"]
    server.script("m", *([reply] * 20))
    sweep = sweep_of(tmp_path, server, names, limit=1)
    wait_until(lambda: len(sweep.view.live) == 3, WAIT_S)  # no row has been answered yet
    view = sweep.wait(WAIT_S)
    assert (view.completed, view.failed) == (3, 0)
    assert seen == {name: 2 for name in names}
    for earlier, later in zip(accepted, accepted[1:], strict=False):
        assert earlier.closed_at is not None
        assert later.opened_at >= earlier.closed_at


def run_that_waits(until: float | None) -> Any:
    return SimpleNamespace(view=SimpleNamespace(wait=until and SimpleNamespace(until=until)))


def test_row_is_paused_after_its_wait_until_a_place_is_free() -> None:
    pauses: list[tuple[Any, bool]] = []
    rows = WaitingRows(lambda run, is_paused: pauses.append((run, is_paused)))
    waiting, working = run_that_waits(100.0), run_that_waits(None)
    rows.update({"a": waiting}, 0, 0.0, 1)
    assert rows.count == 1
    rows.update({"a": waiting, "b": working}, 0, 99.5, 1)
    assert (pauses, rows.is_held("a")) == ([(waiting, True)], True)
    rows.update({"a": waiting}, 1, 101.0, 1)  # another row starts
    assert rows.count == 1
    rows.update({"a": waiting}, 0, 102.0, 1)
    assert (pauses[1:], rows.count) == ([(waiting, False)], 0)


def test_row_that_ends_while_it_is_held_is_forgotten() -> None:
    rows = WaitingRows(lambda run, is_paused: None)
    waiting, working = run_that_waits(100.0), run_that_waits(None)
    rows.update({"a": waiting}, 0, 0.0, 1)
    rows.update({"a": waiting, "b": working}, 0, 99.5, 1)
    rows.update({"b": working}, 0, 101.0, 1)
    assert rows.count == 0
