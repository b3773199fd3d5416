"""Chooses the agent and model of each agent step, and builds the step's first request.

A recipe may name agents that the user does not have, such as ``foundation:zen-architect``. A name
resolves to the first of these: a team agent with that name (with or without the part before the
colon), the target of the first matching pattern in `recipe_agents`, or the team's first agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from nb_agents.agents.message_json import Opening
from nb_agents.agents.prompts import follow_up
from nb_agents.agents.replay import PastRound
from nb_agents.config.backends import BACKEND_TYPES, BackendSpec
from nb_agents.config.team import AgentSpec, TeamSpec, names_of_models
from nb_agents.config.template import render
from nb_agents.config.tools import ToolKeys
from nb_agents.errors import RecipeError, UserError
from nb_agents.extensions.recipes.recipe import Recipe
from nb_agents.extensions.recipes.recipe_step import ProviderPreference, Step
from nb_agents.extensions.recipes.recipe_values import is_template
from nb_agents.extensions.recipes.tasks import AgentWork
from nb_agents.nouns import did_you_mean

_TYPES = {"anthropic": "claude", "google": "gemini", "azure": "azure_openai"}
"""Maps the provider names that recipes use to backend types."""

_DEFAULT_SUFFIX = ", the default agent"

_SYSTEM = """You do one step of a workflow. Your last message, as plain text, is the step's result
and is passed to the next steps unchanged. Write only the result, and do not ask questions. You have
a workspace of files that all steps of the workflow share. Use the tools list_files, read_file,
write_file, edit_file and delete_file with relative paths."""


@dataclass(frozen=True)
class Worker:
    """The agent that runs a step.

    Attributes:
        agent: The agent, with the model to use for this step.
        why: How the agent was chosen, such as "critic, by 'foundation:*'".
    """

    agent: AgentSpec
    why: str


def resolve_agent(step: Step, team: TeamSpec, is_usable: Callable[[AgentSpec], bool]) -> Worker:
    """Choose the agent and model for a step.

    Without an available preferred model, the agent's own model is used.

    Args:
        team: The team to choose from.
        is_usable: Returns whether an agent's model can be called: its type is known and its key is
            set.

    Raises:
        RecipeError: A model that the step requires is not available.
    """
    agent, why = _by_name(step.agent, team)
    preferences = _model_preferences(step)
    for preference in preferences:
        candidate = _with_model(agent, preference)
        if candidate is not None and is_usable(candidate):
            return Worker(candidate, f"{why}; {_describe(preference)}")
    if missing := [w for w in preferences if w.required]:
        raise RecipeError(
            f"Step {step.id!r} requires {_describe(missing[0])}, which is not available: set its "
            "API key, or choose another model for the step."
        )
    if preferences or step.model_role:
        unavailable = (
            _describe(preferences[0]) if preferences else f"a model for {step.model_role!r}"
        )
        why += f"; {unavailable} is not available, so {agent.backend.model or agent.backend.type}"
    return Worker(agent, why)


def models_of(recipe: Recipe, team: TeamSpec, values: Mapping[str, Any]) -> frozenset[str]:
    """Return the models of a recipe's agent steps.

    Steps of called recipes, and models that depend on earlier steps, are not considered.

    Args:
        recipe: The recipe.
        team: The team that runs the steps.
        values: The initial values.
    """
    agents = list[AgentSpec]()
    for step in recipe.walk():
        if step.kind == "agent":
            with suppress(UserError):
                keys = ("agent", "provider", "model")
                filled = {key: render(getattr(step, key), values) for key in keys}
                step = step.model_copy(update=filled)
                agents.append(resolve_agent(step, team, lambda agent: True).agent)
    return names_of_models(agents) or team.models


def unknown_names(step: Step, team: TeamSpec) -> Iterator[str]:
    """Describe the agents and providers of a step that look misspelled.

    Recipes often use agents that a team does not have, so an unknown agent is reported only if its
    name resembles that of a team agent.
    """
    agent, why = _by_name(step.agent, team)
    if why.endswith(_DEFAULT_SUFFIX) and step.agent and not is_template(step.agent):
        hint = did_you_mean(step.agent, [each.id for each in team.agents])
        if hint:
            unknown = f"the agent {step.agent!r}, which the team does not have"
            yield f"{unknown}: {agent.id} is used instead.{hint}"
    for name in dict.fromkeys(preference.provider for preference in _model_preferences(step)):
        if name and not is_template(name) and name not in {*_TYPES, *BACKEND_TYPES}:
            hint = did_you_mean(name, [*_TYPES, *BACKEND_TYPES])
            yield f"the provider {name!r}, which is unknown.{hint}"


def _by_name(name: str, team: TeamSpec) -> tuple[AgentSpec, str]:
    agents = {agent.id: agent for agent in team.agents}
    for candidate in (name, name.rpartition(":")[2]):
        if candidate in agents:
            return agents[candidate], candidate
    for pattern, target in team.recipe_agents.items():
        if fnmatchcase(name, pattern):
            return agents[target], f"{target}, by {pattern!r}"
    return team.agents[0], f"{team.agents[0].id}{_DEFAULT_SUFFIX}"


def _model_preferences(step: Step) -> tuple[ProviderPreference, ...]:
    if step.provider or step.model:
        return (ProviderPreference(provider=step.provider, model=step.model),)
    return step.provider_preferences


def _with_model(agent: AgentSpec, preference: ProviderPreference) -> AgentSpec | None:
    """Return the agent with the preferred model, or None if the preference can't be met."""
    own = agent.backend
    type_ = _TYPES.get(preference.provider, preference.provider) or (
        own.type if preference.model else ""
    )
    if type_ == own.type and fnmatchcase(own.model, preference.model or "*"):
        return agent
    if not type_ or not preference.model or any(c in preference.model for c in "*?["):
        return None
    if type_ != own.type:  # key and address belong to the old type, but the tool settings do not
        tools = {name: getattr(own, name) for name in ToolKeys.model_fields}
        backend = BackendSpec(type=type_, model=preference.model, **tools)
        return agent.model_copy(update={"backend": backend})
    if own.base_url:  # a custom server may not have the preferred model
        return None
    return agent.model_copy(update={"backend": own.model_copy(update={"model": preference.model})})


def _describe(preference: ProviderPreference) -> str:
    named = ":".join(part for part in (preference.provider, preference.model) if part)
    return named or f"a model of class {preference.class_!r}"


def opening(
    own: str,
    prompt: str,
    context: Sequence[Path],
    user_messages: Sequence[str],
    guides: Sequence[str] = (),
) -> Opening:
    """Return the system message and first request of a step.

    Args:
        own: The agent's own system message, or "".
        prompt: The step's prompt, rendered.
        context: Read-only files and directories.
        user_messages: The messages that the user has added to the task.
        guides: Instructions for features that are enabled in the team file.
    """
    listing = "".join(f"\n- {path}" for path in context)
    paths = f"\n\nYou can also read these by their absolute paths:{listing}" if listing else ""
    request = f"{prompt}\n\n{follow_up(user_messages)}" if user_messages else prompt
    system = "\n\n".join(part for part in (own, _SYSTEM + paths, *guides) if part)
    return Opening(system, (request,))


def if_still_current(past: PastRound | None, work: AgentWork) -> PastRound | None:
    """Return an interrupted round if the step still has the same prompt, or None.

    Args:
        past: The interrupted round, or None.
        work: The current step. Its prompt differs if the recipe was edited in between.
    """
    asks, prompt = past.opening.asks if past else (), work.prompt
    is_same = any(text == prompt or text.startswith(f"{prompt}\n\n") for text in asks)
    return past if is_same else None
