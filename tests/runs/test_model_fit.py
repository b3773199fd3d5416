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


def test_what_a_model_does_not_take_is_left_out_of_an_extra_body(
    tmp_path: Path, server: ModelServer
) -> None:
    extra = {"temperature": 0.2, "metadata": {"user_id": "ada"}}
    team = team_of(server, "claude", model="claude-opus-4-7", extra_body=extra)
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    told = "Not sent to claude-opus-4-7, which does not take it: extra_body.temperature"
    assert run.result == "done" and told in run.view.notices
    (request,) = server.requests
    assert request.body["metadata"] == {"user_id": "ada"} and "temperature" not in request.body


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


def test_each_reply_of_a_team_must_call_a_tool_and_that_of_a_recipe_may_end_in_words(
    tmp_path: Path, server: ModelServer
) -> None:
    server.default = lambda r: DONE if "new_answer" in r.tool_names else Reply("The end.")
    team = team_of(server, "claude", model="claude-haiku-4-5", tool_choice={"type": "any"})
    options = RunOptions(session_root=tmp_path)
    assert finish(nb_agents.start("the task", team, options=options)).result == "done"
    recipe = tmp_path / "one.yaml"
    head = "name: one\ndescription: one step\nversion: 1.0.0\n"
    recipe.write_text(f"{head}steps:\n- {{id: s, agent: ann, prompt: Go, output: said}}\n")
    run = finish(nb_agents.start("", team, recipe=recipe, options=options))
    assert run.status == "completed"
    asked = [each.body["tool_choice"]["type"] for each in server.requests]
    assert asked[0] == "any" and {*asked[1:]} == {"auto"}


def test_a_model_that_can_not_be_made_to_call_tools_and_another_choice_are_refused() -> None:
    def verdict(**words: Any) -> str:
        backend = {"type": "claude", "model": "claude-opus-5-5", "api_key": "k"} | words
        team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
        return report_on(team).verdict

    assert "can't be made to call a tool; remove `tool_choice`" in verdict(tool_choice="required")
    thinking = {"model": "claude-opus-4-6", "thinking": {"type": "adaptive"}}
    assert "it does not think when it must call" in verdict(tool_choice="required", **thinking)
    assert verdict(tool_choice="auto", **thinking) == "Can start."
    for other in ("none", {"type": "tool", "name": "vote"}):
        assert "`agents.backend.tool_choice` restricts which tools" in verdict(tool_choice=other)
