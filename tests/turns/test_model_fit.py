"""Settings that a model does not support: the findings of a start, and the requests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents.errors import ConfigError
from tests.kit.teams import report_on
from tests.model_server import ModelServer, Reply, Request, ToolCall
from tests.team_kit import finish

DONE = Reply("", (ToolCall("new_answer", {"content": "done"}),))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(DONE, strict=True) as running:
        yield running


def team_of(server: ModelServer, kind: str, **backend: Any) -> TeamSpec:
    agent = {"id": "ann", "backend": server.backend(kind, **backend)}
    return TeamSpec.model_validate({"agents": [agent]})


def test_start_and_resume_report_the_findings_of_a_check_about_models(
    tmp_path: Path, server: ModelServer
) -> None:
    server.default = Reply(hang_after=0)
    told = "Not sent to gpt-5, which does not support it while it reasons: temperature"
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


def test_unsupported_settings_are_omitted_from_extra_body(
    tmp_path: Path, server: ModelServer
) -> None:
    extra = {"temperature": 0.2, "metadata": {"user_id": "ada"}}
    team = team_of(server, "claude", model="claude-opus-4-7", extra_body=extra)
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    told = "Not sent to claude-opus-4-7, which does not support it: extra_body.temperature"
    assert run.result == "done" and told in run.view.notices
    (request,) = server.requests
    assert request.body["metadata"] == {"user_id": "ada"} and "temperature" not in request.body


def test_model_with_unsupported_settings_is_never_called(
    tmp_path: Path, server: ModelServer
) -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    team = team_of(server, "claude", model="claude-opus-4-7", thinking=thinking)
    with pytest.raises(ConfigError, match="'claude-opus-4-7' does not support"):
        nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path))
    assert not server.requests and not [*tmp_path.iterdir()]


def test_settings_missing_in_the_responses_api_are_reported_for_web_search() -> None:
    backend = {"type": "openai", "model": "gpt-4o", "api_key": "k", "enable_web_search": True}
    words = {"stop": ["END"], "seed": 7, "temperature": 0.2}
    agent = {"id": "ann", "backend": {**backend, **words}}
    told = "Not sent to openai models, because the Responses API does not support it: seed, stop"
    assert told in report_on(TeamSpec.model_validate({"agents": [agent]})).lines


def test_team_replies_must_call_a_tool_and_recipe_steps_may_end_with_text(
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


WITHOUT_TOOLS = frozenset({"new_answer"})
LOOK = Reply("", (ToolCall("list_files", {"path": "."}),))
WRITE = Reply("", (ToolCall("write_file", {"path": "a.txt", "content": "a"}),))
NAMED = "list_files"
CHOICES: dict[str, tuple[Any, Any]] = {
    "openai": ({"type": "function", "function": {"name": NAMED}}, "required"),
    "openai responses": ({"type": "function", "name": NAMED}, "required"),
    "claude": ({"type": "tool", "name": NAMED}, {"type": "any"}),
    "gemini": ({"mode": "ANY", "allowedFunctionNames": [NAMED]}, {"mode": "ANY"}),
}
"""How each wire format says that one tool must be called, and that any must."""


def choice_of(request: Request) -> Any:
    google = request.body.get("toolConfig", {})
    choice = request.body.get("tool_choice") or google.get("functionCallingConfig")
    return {k: v for k, v in choice.items() if v} if isinstance(choice, dict) else choice


def api_of(kind: str) -> dict[str, str]:
    return {"api": "responses"} if kind == "openai responses" else {}


@pytest.mark.parametrize("kind", CHOICES)
def test_chosen_tool_starts_each_round_and_is_the_only_one_offered(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    """Also when the round is resumed: the call is not asked for once more."""
    named, required = CHOICES[kind]
    choice = ["list_files"] if kind == "gemini" else named
    server.script("m", LOOK, WRITE, Reply(hang_after=0), once=True)
    team = team_of(server, kind.split()[0], model="m", tool_choice=choice, **api_of(kind))
    options = RunOptions(session_root=tmp_path)
    run = nb_agents.start("the task", team, options=options)
    server.wait_until(lambda: server.count() == 3, what="the third request")
    run.stop(now=True)
    finish(run)
    again = finish(nb_agents.resume(run.session, team, options=options))
    assert again.result == "done"
    assert [choice_of(each) for each in server.requests] == [named, *[required] * 3]
    assert {frozenset(each.tool_names) for each in server.requests} == {
        frozenset({"list_files", "new_answer"})
    }
    assert "no tool 'write_file'" in json.dumps(server.requests[-1].body)
    assert not [*run.path.rglob("a.txt")]


@pytest.mark.parametrize("kind", CHOICES)
def test_agent_without_a_chosen_tool_still_answers(
    tmp_path: Path, server: ModelServer, kind: str
) -> None:
    words = {"enable_web_search": True, "enable_mcp_command_line": True, **api_of(kind)}
    server.script("m", WRITE, DONE)
    team = team_of(server, kind.split()[0], model="m", tool_choice={"type": "none"}, **words)
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    assert run.result == "done" and not [*run.path.rglob("a.txt")]
    assert {frozenset(each.tool_names) for each in server.requests} == {WITHOUT_TOOLS}
    assert all("web_search" not in str(each.body.get("tools")) for each in server.requests)


def test_agents_with_a_chosen_tool_answer_and_vote(tmp_path: Path, server: ModelServer) -> None:
    def reply(request: Request) -> Reply:
        if isinstance(request.body["tool_choice"], dict):
            return LOOK
        if not (answered := re.findall(r"ANSWER from=\W+(agent\d)", json.dumps(request.body))):
            return Reply("", (ToolCall("new_answer", {"content": f"done {request.number}"}),))
        return Reply("", (ToolCall("vote", {"agent_id": answered[-1], "reason": "good"}),))

    server.default = reply
    agents = [
        {"id": name, "backend": server.backend("openai", model="m", tool_choice=[NAMED, "vote"])}
        for name in ("ann", "bob")
    ]
    rules = {"skip_final_presentation": True}
    team = TeamSpec.model_validate({"agents": agents, "orchestrator": rules})
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    assert run.status == "completed" and run.result.startswith("done")
    assert sum(run.view.votes.values()) == 2


def test_recipe_step_starts_with_the_chosen_tool_and_ends_with_text(
    tmp_path: Path, server: ModelServer
) -> None:
    server.script("m", LOOK, Reply("The end."))
    team = team_of(server, "claude", model="m", tool_choice=["list_files"])
    recipe = tmp_path / "one.yaml"
    head = "name: one\ndescription: one step\nversion: 1.0.0\n"
    recipe.write_text(f"{head}steps:\n- {{id: s, agent: ann, prompt: Go, output: said}}\n")
    options = RunOptions(session_root=tmp_path)
    run = finish(nb_agents.start("", team, recipe=recipe, options=options))
    assert run.result is not None and run.result["said"] == "The end."
    assert [choice_of(each)["type"] for each in server.requests] == ["any", "auto"]


def test_chosen_tool_that_the_agent_lacks_is_reported(tmp_path: Path, server: ModelServer) -> None:
    team = team_of(server, "openai", model="m", tool_choice=["lookup"])
    run = finish(nb_agents.start("t", team, options=RunOptions(session_root=tmp_path)))
    told = "ann: `tool_choice` contains no tool that the agent has: lookup."
    assert run.result == "done" and told in run.view.notices
    assert choice_of(server.requests[0]) == "required"
    assert told in report_on(team, connects=True).lines


def verdict(**words: Any) -> str:
    backend = {"type": "claude", "model": "claude-opus-5-5", "api_key": "k"} | words
    team = TeamSpec.model_validate({"agents": [{"id": "ann", "backend": backend}]})
    return report_on(team).verdict


@pytest.mark.parametrize("choice", ["required", ["list_files"]])
def test_model_that_cannot_be_forced_to_call_tools_is_rejected(choice: Any) -> None:
    assert "can't be forced to call a tool; remove `tool_choice`" in verdict(tool_choice=choice)
    thinking = {"model": "claude-opus-4-6", "thinking": {"type": "adaptive"}}
    assert "it can't think when it must call" in verdict(tool_choice=choice, **thinking)


def test_model_that_cannot_be_forced_to_call_tools_accepts_auto_or_none() -> None:
    assert verdict(tool_choice="none") == verdict(tool_choice="auto") == "Can start."


@pytest.mark.parametrize("choice", ["list_files", [], {"type": "tool"}, 3])
def test_unknown_tool_choice_is_rejected(choice: Any) -> None:
    with pytest.raises(ValidationError, match=r"write `required`, `none`, or a list of tool names"):
        verdict(tool_choice=choice)
