"""What a start says of a file's words that a model does not take, and what it asks of the model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.errors import ConfigError
from nb_agents.runs.team_report import report_on
from tests.model_server import ModelServer, Reply, ToolCall
from tests.team_kit import finish

DONE = Reply("", (ToolCall("new_answer", {"content": "done"}),))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(DONE, strict=True) as running:
        yield running


def team_of(server: ModelServer, kind: str, **backend: Any) -> TeamSpec:
    agent = {"id": "ann", "backend": server.backend(kind, **backend)}
    return TeamSpec.model_validate({"agents": [agent]})


def test_a_start_and_a_resume_say_what_a_check_says_of_a_model(
    tmp_path: Path, server: ModelServer
) -> None:
    server.default = Reply(hang_after=0)
    told = "Not sent to gpt-5, which does not take it while it reasons: temperature"
    team = team_of(server, "openai", model="gpt-5", temperature=0.2, seed=7)
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("the task", team, options=options)
    server.wait_until(lambda: server.count() == 1, what="the request")
    run.stop(now=True)
    finish(run)
    server.default = DONE
    again = finish(nb_agents.resume(run.session, team, options=options))
    assert told in report_on(team).lines
    assert told in run.view.notices and told in again.view.notices
    assert again.status == "completed"
    assert [(r.body.get("temperature"), r.body["seed"]) for r in server.requests] == [(None, 7)] * 2


def test_a_model_that_can_not_be_asked_as_the_file_says_is_never_asked(
    tmp_path: Path, server: ModelServer
) -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    team = team_of(server, "claude", model="claude-opus-4-7", thinking=thinking)
    with pytest.raises(ConfigError, match="'claude-opus-4-7' does not support"):
        nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path))
    assert not server.requests and not [*tmp_path.iterdir()]


def test_what_the_responses_api_lacks_is_told_when_web_search_asks_for_it() -> None:
    backend = {"type": "openai", "model": "gpt-4o", "api_key": "k", "enable_web_search": True}
    words = {"stop": ["END"], "seed": 7, "temperature": 0.2}
    agent = {"id": "ann", "backend": {**backend, **words}}
    told = "Not sent to openai models, whose Responses API does not take it: seed, stop"
    assert told in report_on(TeamSpec.model_validate({"agents": [agent]})).lines
