"""Finished calls are journalled before anything else, so that they are not paid for twice."""

from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from tests.kit.sessions import read_journal
from tests.model_server import ModelServer, Reply, wait_until
from tests.processes import python

RUN = """
import sys, nb_agents
from nb_agents.models import response_limits
response_limits.DRAIN_S = 1000
team = nb_agents.TeamSpec.model_validate_json(sys.argv[1])
nb_agents.start("t", team, "s", options=nb_agents.RunOptions(session_root=sys.argv[2])).wait()
"""


@pytest.mark.parametrize("kind", ["vllm", "responses", "claude"])
def test_complete_reply_on_an_open_connection_is_not_repeated_after_a_kill(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    server.script("a", Reply("It is done.", lingers=True))
    backend = {**server.backend(kind), "model": "a"}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})

    def is_finished() -> bool:
        events = read_journal(tmp_path / "s" / "turn_1" / "events.jsonl").events
        return any(isinstance(event, ev.ModelFinished) for event in events)

    with python(RUN, team.model_dump_json(), tmp_path) as process:
        wait_until(is_finished)
        assert server.requests[0].closed_at is None
        process.kill()
        process.wait()
    run = nb_agents.resume("s", team, options=RunOptions(session_root=tmp_path))
    assert run.wait(200) == "It is done."
    assert len(server.requests) == 1
