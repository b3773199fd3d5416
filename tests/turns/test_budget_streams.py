"""A budget that is reached while replies stream: the streams are closed at the limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from tests.kit.sessions import read_journal
from tests.model_server import ModelServer, Reply

AGENTS = 5
BUDGET = 3000


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def test_streams_are_closed_at_the_limit_of_the_budget(server: ModelServer, tmp_path: Path) -> None:
    words = Reply(text="word " * 100_000, words_per_second=100, input_tokens=100)
    server.script("m", *([words] * AGENTS))
    backend = {**server.backend("vllm"), "model": "m"}
    agents = [{"id": f"a{n}", "backend": backend} for n in range(AGENTS)]
    team = nb_agents.TeamSpec.model_validate({"agents": agents})
    options = RunOptions(session_root=tmp_path, max_tokens=BUDGET)
    run = nb_agents.start("Write.", team, options=options)
    run.wait(200, raise_on_stop=False)
    assert run.status == "cancelled"
    assert run.view.stop is not None
    assert (run.view.stop.source, run.view.stop.level) == ("budget", "requested")
    assert set(server.endings()) == {"client"}
    cut = [e for e in read_journal(run.path / "events.jsonl").events if isinstance(e, ev.ModelCut)]
    assert len(cut) == AGENTS
    assert all(each.usage is not None for each in cut)
    used = sum(agent.tokens for agent in run.view.agents.values())
    assert BUDGET <= used < 2 * BUDGET
