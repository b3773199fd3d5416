"""Who does an agent step, and with which model: pure functions of the team and the step.

A recipe names agents that the person who runs it may not have, such as
``foundation:zen-architect``. In this order: an agent of that name in the team (the part after the
colon will do), the first pattern of `recipe_agents` that fits, the team's first agent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nb_agents.config.backends import BackendSpec
from nb_agents.config.recipe import Step
from nb_agents.config.recipe_step import ProviderPreference
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.config.tools import ToolKeys
from nb_agents.errors import RecipeError

__all__ = ["Worker", "resolve_agent"]

_TYPES = {"anthropic": "claude", "google": "gemini", "azure": "azure_openai"}
"""Backend types of the providers that recipes call by another name."""


@dataclass(frozen=True)
class Worker:
    """Who does a step.

    Attributes:
        agent: The agent, with the model that it uses for this step.
        why: How it was found, in words, such as "critic, by 'foundation:*'".
    """

    agent: AgentSpec
    why: str


def resolve_agent(step: Step, team: TeamSpec, is_usable: Callable[[AgentSpec], bool]) -> Worker:
    """Choose who does a step.

    Args:
        step: The step.
        team: The agents that there are.
        is_usable: Whether an agent's model can be called: its type is known, its key is set.

    Returns:
        The worker.

    Raises:
        RecipeError: The step can't do without a model that is not to be had.
    """
    agent, why = _by_name(step.agent, team)
    wishes = _wishes(step)
    for wish in wishes:
        with_wish = _with_model(agent, wish)
        if with_wish is not None and is_usable(with_wish):
            return Worker(with_wish, f"{why}; {_said(wish)}")
    if missing := [w for w in wishes if w.required]:
        raise RecipeError(
            f"Step {step.id!r} requires {_said(missing[0])}, which is not to be had here: set its "
            "key, or give the step another model."
        )
    if wishes or step.model_role:
        wished = _said(wishes[0]) if wishes else f"a model for {step.model_role!r}"
        why += f"; {wished} is not to be had here, so {agent.backend.model or agent.backend.type}"
    return Worker(agent, why)


def _by_name(name: str, team: TeamSpec) -> tuple[AgentSpec, str]:
    agents = {agent.id: agent for agent in team.agents}
    for known in (name, name.rpartition(":")[2]):
        if known in agents:
            return agents[known], known
    for pattern, target in team.recipe_agents.items():
        if fnmatchcase(name, pattern):
            return agents[target], f"{target}, by {pattern!r}"
    return team.agents[0], f"{team.agents[0].id}, the default agent"


def _wishes(step: Step) -> tuple[ProviderPreference, ...]:
    if step.provider or step.model:
        return (ProviderPreference(provider=step.provider, model=step.model),)
    return step.provider_preferences


def _with_model(agent: AgentSpec, wish: ProviderPreference) -> AgentSpec | None:
    """Give an agent another model, or None when the wish names none that can be asked for."""
    own = agent.backend
    kind = _TYPES.get(wish.provider, wish.provider) or (own.type if wish.model else "")
    if kind == own.type and fnmatchcase(own.model, wish.model or "*"):
        return agent
    if not kind or not wish.model or any(c in wish.model for c in "*?["):
        return None
    if kind != own.type:  # no key and no address, but the agent's tools and who decides on them
        tools = {name: getattr(own, name) for name in ToolKeys.model_fields}
        backend = BackendSpec(type=kind, model=wish.model, **tools)
        return agent.model_copy(update={"backend": backend})
    if own.base_url:  # a server of its own has models of its own
        return None
    return agent.model_copy(update={"backend": own.model_copy(update={"model": wish.model})})


def _said(wish: ProviderPreference) -> str:
    named = ":".join(part for part in (wish.provider, wish.model) if part)
    return named or f"a model of class {wish.class_!r}"
