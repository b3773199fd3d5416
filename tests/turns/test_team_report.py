"""The report about a team file, without running it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nb_agents import TeamSpec
from nb_agents.launch.team_report import AgentReport, TeamReport, report_on
from tests.kit.teams import Finding

SECRET = "sk-very-secret-0123456789"


def agent(name: str, kind: str, **backend: Any) -> dict[str, Any]:
    return {"id": name, "backend": {"type": kind, "model": "m", **backend}}


def report(*agents: dict[str, Any], **more: Any) -> TeamReport:
    return report_on(TeamSpec.model_validate({"agents": agents, **more}))


def keys(found: TeamReport) -> dict[str, str]:
    return {each.agent: each.key for each in found.agents}


def test_each_agent_is_named_with_type_and_model() -> None:
    found = report(agent("ada", "vllm"), {"id": "ben", "backend": {"type": "demo"}})
    assert found.agents == (
        AgentReport("ada", "vllm", "m", "none needed"),
        AgentReport("ben", "demo", "", "none needed"),
    )
    assert found.verdict == "Can start."


def test_report_names_the_location_of_a_key_but_never_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", SECRET)
    found = report(
        agent("ada", "gemini"), agent("ben", "openai", api_key=SECRET), agent("cleo", "grok")
    )
    assert keys(found) == {
        "ada": "GOOGLE_API_KEY is set",
        "ben": "given",
        "cleo": "XAI_API_KEY is not set",
    }
    assert SECRET not in repr(found)


def test_each_missing_variable_is_reported_once() -> None:
    found = report(agent("ada", "openai"), agent("ben", "openai"), agent("cleo", "groq"))
    verdict, ada, cleo = found.verdict.split("\n")
    assert verdict == "Can't start."
    assert ada.startswith("Agent 'ada' uses 'openai'") and "OPENAI_API_KEY is not set" in ada
    assert cleo.startswith("Agent 'cleo' uses 'groq'") and "GROQ_API_KEY is not set" in cleo
    assert [each.count("Set it in the environment") for each in (ada, cleo)] == [0, 1]


def test_only_findings_decide_whether_a_team_can_start() -> None:
    able, lacking = report(agent("ada", "vllm")), report(agent("ada", "openai"))
    assert able.can_start and not lacking.can_start
    assert [each.code for each in lacking.findings] == ["missing-key"]
    notice = Finding("info", "notice", "A notice.")
    assert replace(able, verdict="Anything.", findings=(notice,)).can_start
    assert not replace(able, findings=(notice, *lacking.findings)).can_start


@pytest.mark.parametrize("key", ["model", "api_version"])
def test_unset_variable_prevents_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    keys = {"type": "azure_openai", "base_url": "http://a", "api_key": "k", "model": "m"}
    file = tmp_path / "team.yaml"
    file.write_text(json.dumps({"agent": {"id": "ada", "backend": {**keys, key: "${THE_VALUE}"}}}))
    assert (
        f"a value for `{key}`, but THE_VALUE is not set"
        in report_on(TeamSpec.from_file(file)).verdict
    )
    monkeypatch.setenv("THE_VALUE", "v")
    assert report_on(TeamSpec.from_file(file)).verdict == "Can start."


def test_missing_model_and_missing_path_are_reported() -> None:
    found = report(
        agent("ada", "vllm", model=""), orchestrator={"context_paths": ["/no/such/place"]}
    )
    assert "Context paths: /no/such/place" in found.lines
    _, model, path = found.verdict.split("\n")
    assert "'ada' has no model" in model
    assert "'/no/such/place' does not exist" in path


def test_report_names_everything_that_an_agent_lacks() -> None:
    lacking = agent(
        "ada",
        "azure_openai",
        model="",
        base_url="https://${NO_HOST}",
        extra_headers={"x": "${NO_HEADER}"},
        upload_files=[{"image_path": "gone.png"}],
    )
    verdict, *reasons = report(lacking, agent("ben", "groq")).verdict.split("\n")
    assert verdict == "Can't start."
    parts = [
        "has no model",
        "needs an address, but NO_HOST is not set",
        "needs a value for `extra_headers`, but NO_HEADER is not set",
        "gone.png",
        "Agent 'ben' uses 'groq', which needs a key, but GROQ_API_KEY is not set",
    ]
    assert [p for p, reason in zip(parts, reasons, strict=True) if p not in reason] == []


def test_timeouts_are_reported() -> None:
    limits = {"initial_round_timeout_seconds": 60, "on_timeout": "fail"}
    assert report(agent("ada", "vllm"), timeout_settings=limits).lines == (
        "Timeouts: turn 1800 s (fail), first round 60 s, later rounds no limit, "
        "then 120 s more to finish the round",
    )


def test_ignored_keys_are_reported_in_one_line() -> None:
    found = report(agent("ada", "vllm", cwd="w"), agent("ben", "vllm", cwd="w"), ui={"a": 1})
    assert found.lines[1:] == ("Ignored keys: ui, agents.backend.cwd",)


def test_disabled_settings_and_unusable_agents_are_not_reported() -> None:
    off = {"enable_nlip": False, "multimodal_config": {"enabled": False}, "cwd": "w"}
    found = report(agent("ada", "vllm", **off), agent("ben", "uitars", group_config={}, colour=1))
    assert found.lines[1:] == ("Ignored keys: agents.backend.cwd",)


def test_agent_that_cannot_run_on_this_machine_is_reported_with_the_reason() -> None:
    found = report(agent("ada", "vllm"), agent("coder", "uitars"))
    assert keys(found)["coder"] == ""
    can, why = found.verdict.split("\n")
    assert can == "Can start with --skip-unsupported, without coder (uitars)."
    assert why.startswith("Agent 'coder' has backend type 'uitars', which is not supported. It ")


def test_team_without_supported_agents_cannot_start() -> None:
    found = report(agent("coder", "uitars"))
    verdict, why, none = found.verdict.split("\n")
    assert verdict == "Can't start." and "'coder' has backend type 'uitars'" in why
    assert none == "None of the team's agents can run here: coder (uitars)."


def test_callable_agents_are_checked_like_the_others() -> None:
    helper = {"callable_agents": [agent("helper", "openai")]}
    found = report(agent("ada", "vllm"), **helper)
    assert keys(found)["helper"] == "OPENAI_API_KEY is not set"
    assert "OPENAI_API_KEY" in found.verdict
    found = report(agent("ada", "vllm"), callable_agents=[agent("helper", "uitars")])
    assert found.verdict.startswith("Can start with --skip-unsupported, without helper (uitars).")


def test_budget_of_the_team_file_is_reported() -> None:
    limits = {"max_cost": 0.5, "max_tokens": 200_000}
    found = report(agent("ada", "vllm"), orchestrator=limits)
    assert "Budget of a task: $0.50 and 200,000 tokens" in found.lines
