"""Which runner plays an agent's rounds, by the type of its backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nb_agents.agents.model_runner import ModelRunner
from nb_agents.agents.runner import AgentRunner
from nb_agents.config.team import AgentSpec
from nb_agents.models.providers import backend_for

if TYPE_CHECKING:
    import httpx2

__all__ = ["RUNNER_TYPES", "runner_for"]

RUNNER_TYPES: dict[str, Callable[[AgentSpec], AgentRunner]] = {}
"""Runners that are no model loop of ours, by the type of their agents' backend."""


def runner_for(agent: AgentSpec, client: Callable[[], httpx2.AsyncClient]) -> AgentRunner:
    """Return the runner of an agent.

    Args:
        agent: The agent.
        client: Returns the HTTP client; called for a model that needs one.
    """
    if (make := RUNNER_TYPES.get(agent.backend.type)) is not None:
        return make(agent)
    if hasattr(agent.backend.instance, "play"):
        made: AgentRunner = agent.backend.instance
        return made
    return ModelRunner(backend_for(agent, client))
