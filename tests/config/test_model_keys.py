"""Keys of model requests: valid values, and how they are stored in the journal."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nb_agents import TeamSpec
from nb_agents.errors import ConfigError
from tests.kit.models import check_start, settings_of
from tests.kit.secrets import secrets_of_team, snapshot
from tests.kit.teams import report_on

KEY = "tk-1f9Qz7LmX02p"


def team(kind: str = "openai", **backend: Any) -> TeamSpec:
    given = {"type": kind, "model": "m", "api_key": "k", **backend}
    return TeamSpec.model_validate({"agents": [{"id": "ada", "backend": given}]})


def settings(kind: str = "openai", **backend: Any) -> dict[str, Any]:
    return settings_of(team(kind, **backend).agents[0].backend)


@pytest.mark.parametrize(
    "line, column, told",
    [
        ("reasoning: {effort: hihg}", 25, "nearest: 'high'"),
        ("thinking: {type: enabled, budget_tokens: lots}", 46, "valid integer"),
        ("text: {verbosity: loud}", 23, "'low', 'medium' or 'high'"),
        ("top_k: 0", 12, "greater than or equal to 1"),
        ("extra_body: {tools: []}", 17, "`tools` can't be overridden"),
        ("reasoning: {efort: high}", 17, "did you mean 'effort'?"),
        ("api: response", 10, "nearest: 'responses'"),
    ],
)
def test_invalid_value_error_has_its_position(
    tmp_path: Path, line: str, column: int, told: str
) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(f"agents:\n- id: a\n  backend:\n    type: openai\n    {line}\n")
    with pytest.raises(ConfigError) as wrong:
        TeamSpec.from_file(file)
    assert told in wrong.value.message
    assert (wrong.value.line, wrong.value.column) == (5, column)


@pytest.mark.parametrize(
    "kind, keys",
    [
        ("openai", {"max_tokens": 5, "max_output_tokens": 6}),
        ("openai", {"reasoning_effort": "low", "reasoning": {"effort": "high"}}),
        ("claude", {"stop": "a", "stop_sequences": ["b"]}),
        ("gemini", {"thinking": {"budget_tokens": 1}, "thinking_config": {"thinking_budget": 2}}),
    ],
)
def test_conflicting_keys_of_a_setting_are_an_error(kind: str, keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="set the same parameter; keep one"):
        team(kind, **keys)


def test_keys_with_the_same_value_are_accepted() -> None:
    assert settings(max_tokens=5, max_completion_tokens=5)["max_tokens"] == 5


def test_boolean_switches_thinking() -> None:
    assert settings("claude", thinking=False)["anthropic_thinking"] == {"type": "disabled"}
    given = settings("gemini", thinking=True)["google_thinking_config"]
    assert given == {"include_thoughts": True}


def test_google_accepts_anthropics_thinking_keys() -> None:
    given = settings("gemini", thinking={"type": "enabled", "budget_tokens": 100})
    assert given["google_thinking_config"] == {"include_thoughts": True, "thinking_budget": 100}


def test_only_openai_has_the_responses_api() -> None:
    with pytest.raises(ValidationError, match="works only with type 'openai'"):
        team("vllm", api="responses")


def test_unsendable_limit_prevents_the_start(
    tmp_path: Path,
) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(
        "agents:\n- id: a\n  backend:\n    type: vllm\n    model: m\n"
        "    thinking: {type: enabled, budget_tokens: 5}\n"
    )
    with pytest.raises(ConfigError, match="restricts how much a model thinks") as refused:
        check_start(TeamSpec.from_file(file))
    assert (refused.value.line, refused.value.column) == (6, 46)


def test_unsent_keys_are_reported_per_type() -> None:
    found = report_on(
        TeamSpec.model_validate(
            {
                "agents": [
                    {"backend": {"type": "openai", "model": "m", "top_k": 5, "min_p": 0.1}},
                    {"backend": {"type": "claude", "model": "m", "top_k": 5, "seed": 1}},
                    {"backend": {"type": "openai", "model": "m", "truncation": "auto"}},
                    {"backend": {"type": "uitars", "seed": 1}},
                ]
            }
        )
    ).lines
    assert "Not sent to openai models, which don't support it: top_k, min_p" in found
    assert "Not sent to claude models, which don't support it: seed" in found
    assert "Sent to openai models only with `api: responses`: truncation" in found
    assert not [line for line in found if "uitars models" in line]


def test_header_is_secret_and_its_variable_is_journalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TEAM_TOKEN", KEY)
    file = tmp_path / "team.yaml"
    file.write_text(
        "agents:\n- id: ada\n  backend:\n    type: openai\n    model: m\n    api_key: k\n"
        "    extra_headers: {X-Auth: 'Bearer ${MY_TEAM_TOKEN}'}\n"
        "    extra_body: {auth_token: '${MY_TEAM_TOKEN}', metadata: {a: b}}\n"
    )
    spec = TeamSpec.from_file(file)
    assert KEY in {secret.value for secret in secrets_of_team(spec)}
    given = settings_of(spec.agents[0].backend)
    assert given["extra_headers"] == {"X-Auth": f"Bearer {KEY}"}
    assert given["extra_body"] == {"auth_token": KEY, "metadata": {"a": "b"}}
    assert KEY not in repr(spec)
    stored = json.dumps(snapshot(spec))
    assert KEY not in stored
    assert settings_of(TeamSpec.model_validate(json.loads(stored)).agents[0].backend) == given


@pytest.mark.parametrize(
    "keys", [{"extra_headers": {"X-Auth": KEY}}, {"extra_body": {"inner": {"auth_token": KEY}}}]
)
def test_literal_secret_is_masked_and_never_stored(keys: dict[str, Any]) -> None:
    spec = team(**keys)
    assert KEY in {secret.value for secret in secrets_of_team(spec)}
    assert snapshot(spec) is None and KEY not in repr(spec)


def test_unset_variable_in_a_header_is_named() -> None:
    spec = team(extra_headers={"X-Auth": "${NOT_SET_ANYWHERE}"})
    assert "NOT_SET_ANYWHERE is not set. Set it in the environment" in report_on(spec).verdict


def test_every_key_survives_the_journal() -> None:
    given = {
        "thinking": {"type": "enabled", "budget_tokens": 2048},
        "reasoning": {"effort": "low"},
        "stop": "END",
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
        "user": "ada",
    }
    spec = team("claude", **given)
    stored = json.loads(json.dumps(snapshot(spec)))
    back = TeamSpec.model_validate(stored).agents[0].backend
    assert settings_of(back) == settings_of(spec.agents[0].backend)
