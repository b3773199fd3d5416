"""How the agent and model of a step are chosen."""

from __future__ import annotations

from typing import Any

import pytest

from nb_agents.errors import RecipeError
from tests.kit.recipes import Step, resolve_agent
from tests.kit.teams import AgentSpec, TeamSpec
from tests.kit.tools import ToolKeys

TEAM = TeamSpec.model_validate(
    {
        "agents": [
            {"id": "writer", "backend": {"type": "openai", "model": "gpt-5", "api_key": "k"}},
            {"id": "critic", "backend": {"type": "claude", "model": "opus-4"}},
            {
                "id": "local",
                "backend": {
                    "type": "openai",
                    "model": "llama",
                    "base_url": "http://127.0.0.1:9/v1",
                },
            },
        ],
        "recipe_agents": {"foundation:zen-*": "critic", "*:*": "local"},
    }
)


def step(agent: str = "writer", **keys: Any) -> Step:
    """Return an agent step."""
    return Step.model_validate({"id": "s", "agent": agent, "prompt": "p", **keys})


def usable(*types: str) -> Any:
    """Return a check that accepts only models of these types."""
    return lambda agent: agent.backend.type in types


ALL = usable("openai", "claude", "gemini", "azure_openai")


@pytest.mark.parametrize(
    "name, agent, why",
    [
        ("critic", "critic", "critic"),
        ("foundation:critic", "critic", "critic"),
        ("foundation:zen-architect", "critic", "critic, by 'foundation:zen-*'"),
        ("recipes:author", "local", "local, by '*:*'"),
        ("self", "writer", "writer, the default agent"),
        ("Critic", "writer", "writer, the default agent"),
    ],
)
def test_agent_is_found_by_name_pattern_or_default(name: str, agent: str, why: str) -> None:
    worker = resolve_agent(step(name), TEAM, ALL)

    assert (worker.agent.id, worker.why) == (agent, why)
    assert worker.agent == next(a for a in TEAM.agents if a.id == agent)


@pytest.mark.parametrize(
    "agent, keys, model, why",
    [
        # The agent's own model, under its provider's other name or by a pattern.
        ("critic", {"provider": "anthropic", "model": "opus-4"}, "claude:opus-4", "anthropic"),
        ("critic", {"provider": "anthropic", "model": "opus-*"}, "claude:opus-4", "opus-*"),
        ("critic", {"provider": "anthropic"}, "claude:opus-4", "critic; anthropic"),
        # Another model.
        ("writer", {"provider": "anthropic", "model": "haiku"}, "claude:haiku", "anthropic:haiku"),
        ("writer", {"provider": "google", "model": "flash"}, "gemini:flash", "google:flash"),
        ("writer", {"provider": "azure", "model": "x"}, "azure_openai:x", "azure:x"),
        ("writer", {"provider": "openai", "model": "gpt-6"}, "openai:gpt-6", "openai:gpt-6"),
        ("writer", {"model": "gpt-6"}, "openai:gpt-6", "writer; gpt-6"),
        # No usable model.
        (
            "writer",
            {"provider": "anthropic", "model": "opus-*"},
            "openai:gpt-5",
            "is not available",
        ),
        ("writer", {"provider": "anthropic"}, "openai:gpt-5", "so gpt-5"),
        ("writer", {"provider": "acme", "model": "m"}, "openai:gpt-5", "acme:m is not available"),
        ("local", {"provider": "openai", "model": "gpt-5"}, "openai:llama", "so llama"),
        ("writer", {"model_role": "fast"}, "openai:gpt-5", "a model for 'fast' is not available"),
    ],
)
def test_step_gets_its_model_if_available(
    agent: str, keys: dict[str, Any], model: str, why: str
) -> None:
    worker = resolve_agent(step(agent, **keys), TEAM, ALL)

    assert f"{worker.agent.backend.type}:{worker.agent.backend.model}" == model
    assert worker.agent.id == agent
    assert why in worker.why


def test_first_available_preference_is_used() -> None:
    wishes = [
        {"class": "reasoning"},
        {"provider": "google", "model": "pro"},
        {"provider": "anthropic", "model": "haiku"},
    ]
    worker = resolve_agent(step(provider_preferences=wishes), TEAM, usable("openai", "claude"))

    assert (worker.agent.backend.type, worker.agent.backend.model) == ("claude", "haiku")


def test_model_of_the_same_provider_uses_the_same_key() -> None:
    worker = resolve_agent(step(provider="openai", model="gpt-6"), TEAM, ALL)

    key = worker.agent.backend.api_key
    assert key is not None and key.get_secret_value() == "k"


def test_key_is_not_sent_to_another_provider() -> None:
    worker = resolve_agent(step(provider="anthropic", model="haiku"), TEAM, ALL)

    assert worker.agent.backend.api_key is None


def test_other_providers_model_keeps_the_agents_tools_and_rules() -> None:
    keys = {"data_store": True, "tool_policy": [{"match": "*", "action": "ask"}]}
    backend = {"type": "openai", "model": "gpt-5", "enable_mcp_command_line": True, **keys}
    team = TeamSpec.model_validate({"agents": [{"id": "writer", "backend": backend}]})
    worker = resolve_agent(step(provider="anthropic", model="haiku"), team, ALL)

    own, used = team.agents[0].backend, worker.agent.backend
    assert (used.type, used.model) == ("claude", "haiku")
    assert [getattr(used, name) for name in ToolKeys.model_fields] == [
        getattr(own, name) for name in ToolKeys.model_fields
    ]


@pytest.mark.parametrize(
    "wish, said",
    [
        ({"provider": "google", "model": "pro"}, "google:pro"),
        ({"class": "reasoning"}, "a model of class 'reasoning'"),
    ],
)
def test_unavailable_required_model_is_an_error(wish: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=f"Step 's' requires {said}, which is not available"):
        resolve_agent(
            step(provider_preferences=[wish | {"required": True}]), TEAM, usable("openai")
        )


def test_required_model_may_be_missing_if_another_preference_is_available() -> None:
    wishes = [
        {"provider": "google", "model": "pro", "required": True},
        {"provider": "anthropic", "model": "haiku"},
    ]
    worker = resolve_agent(step(provider_preferences=wishes), TEAM, usable("claude"))

    assert worker.agent.backend.model == "haiku"


def test_agent_without_preferences_is_not_checked() -> None:
    def never(agent: AgentSpec) -> bool:
        raise AssertionError(agent)

    assert resolve_agent(step(), TEAM, never).agent.id == "writer"
