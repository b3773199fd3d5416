"""A rate limit error slows down all calls to the server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nb_agents
from nb_agents import RunOptions
from tests.kit.models import FIRST_GAP_S, MAX_GAP_S, Pace
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, Request
from tests.team_kit import WAIT_S


def test_no_wait_before_a_rate_limit_error() -> None:
    pace = Pace()
    assert [pace.wait_s(now) for now in (0.0, 0.0, 1.0)] == [0.0, 0.0, 0.0]
    pace.succeeded()
    assert pace.wait_s(1.0) == 0.0


def test_rate_limit_error_delays_and_spaces_all_calls() -> None:
    pace = Pace()
    pace.throttled(10.0, 2.0)
    assert [pace.wait_s(11.0) for _ in range(3)] == pytest.approx(
        [1.0, 1.0 + FIRST_GAP_S, 1.0 + 2 * FIRST_GAP_S]
    )


@given(st.lists(st.sampled_from(["throttled", "succeeded", "wait"]), max_size=60))
def test_gap_is_limited_and_vanishes_after_successes(
    done: list[str],
) -> None:
    pace, now = Pace(), 0.0
    does: dict[str, Callable[[], Any]] = {
        "throttled": lambda: pace.throttled(now, 1.0),
        "succeeded": pace.succeeded,
        "wait": lambda: pace.wait_s(now),
    }
    for what in done:
        does[what]()
        now += 4 * MAX_GAP_S
        first = pace.wait_s(now)
        assert 0 <= first <= 1.0
        assert pace.wait_s(now) <= first + MAX_GAP_S
    for _ in range(30):
        pace.succeeded()
    now += MAX_GAP_S * 100
    assert [pace.wait_s(now), pace.wait_s(now)] == [0.0, 0.0]


def test_rate_limit_error_of_a_row_delays_the_next_rows(tmp_path: Path) -> None:
    """Two rows run at a time. The first gets a rate limit error, and the third waits for it."""

    def reply(request: Request) -> Reply:
        if request.number == 0:
            return Reply(status=429, headers={"Retry-After": "1"})
        return Reply(text="So.", delay_s=0.5 if request.number == 1 else 0.0)

    with ModelServer() as server:
        server.script("m", reply)
        backend = {"type": "chatcompletion", "model": "m", "base_url": server.url, "api_key": "k"}
        team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
        sweep = nb_agents.map(
            [1, 2, 3, 4], "{{value}}", team, limit=2, options=RunOptions(session_root=tmp_path)
        )
        sweep.wait(WAIT_S)
        began = [request.opened_at for request in server.requests]
    assert sweep.view.completed == 4
    assert len(began) == 5
    assert min(began[2:]) - began[0] >= 1.0
