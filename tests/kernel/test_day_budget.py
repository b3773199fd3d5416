"""Two notebooks share the day budget, even if one of their kernels is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.driver import Kernel
from tests.kernel.notebook import Notebook, Turn
from tests.model_server import ModelServer, Reply, wait_until

BUDGET = 0.06
TOKEN = 15e-6
"""The price in US dollars of a token that claude-sonnet-4-6 writes."""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    endless = Reply("word " * 200_000, words_per_second=200, input_tokens=1)
    with ModelServer(default=lambda _: endless) as server:
        yield server


@pytest.fixture
def notebooks(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Notebook]]:
    """Two notebooks with their own kernels, and a day budget."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "NB_AGENTS_DAY_BUDGET": str(BUDGET)}
    with ExitStack() as stack:
        opened = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            kernel = stack.enter_context(Kernel(tmp_path / name, env=env))
            assert kernel.run("%load_ext nb_agents").status == "ok"
            notebook = Notebook(kernel, server, tmp_path / name)
            backend = {**server.backend("claude"), "model": "claude-sonnet-4-6"}
            notebook.team.write_text(json.dumps({"agents": [{"id": "a", "backend": backend}]}))
            opened.append(notebook)
        yield opened


def cost(turn: Turn) -> float:
    """Return the last cost of the turn's only call in its journal."""
    spent = [e for e in turn.events() if e["kind"] in ("usage_updated", "model_cut")]
    return float(spent[-1]["usage"]["cost"]) if spent else 0.0


def test_two_kernels_share_the_day_budget_although_one_is_killed(
    notebooks: list[Notebook], server: ModelServer
) -> None:
    server.hold(after=1)
    first, second = turns = [each.start("--session s") for each in notebooks]
    server.wait_open(2)
    server.release()
    wait_until(lambda: min(map(cost, turns)) > 0.006, 60, "both to spend", turns[0].events)
    notebooks[0].kernel.kill()
    second.wait_over()
    [stop] = second.events("stop_requested")
    assert (stop["source"], stop["reason"]) == ("budget", "the day budget of $0.06 is used up")
    total = sum(map(cost, turns))
    sent = sum(request.chunks_sent for request in server.requests) * TOKEN
    # What was in flight when the limit was reached, or when the kernel was killed.
    assert BUDGET * 0.85 < total < BUDGET * 1.1
    assert sent < BUDGET * 1.3
    refused = notebooks[1].kernel.run(notebooks[1].magic("--session t"))
    assert "The day budget is used up" in notebooks[1].text(refused)
