"""Who does an agent step, with which model, what it is told and what it may do.

A recipe names agents that the person who runs it may not have, such as
``foundation:zen-architect``. In this order: an agent of that name in the team (the part after the
colon will do), the first pattern of `recipe_agents` that fits, the team's first agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from nb_agents.agents.message_json import Opening
from nb_agents.agents.prompts import follow_up
from nb_agents.agents.replay import PastRound
from nb_agents.config.backends import BACKEND_TYPES, BackendSpec
from nb_agents.config.recipe_step import ProviderPreference, Step
from nb_agents.config.recipe_values import is_template
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.config.tools import ToolKeys
from nb_agents.errors import RecipeError
from nb_agents.nouns import did_you_mean
from nb_agents.recipes.tasks import AgentWork

_TYPES = {"anthropic": "claude", "google": "gemini", "azure": "azure_openai"}
"""Backend types of the providers that recipes call by another name."""

_DEFAULT = ", the default agent"

_SYSTEM = """You do one step of a workflow. Your last message, as plain text, is the step's result:
the next steps get it as it is, so write the result alone, without asking back. You have a workspace
of files that all steps of the workflow share, reached by the tools list_files, read_file,
write_file, edit_file and delete_file with relative paths."""


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
        RecipeError: The step can't do without a model that is not available.
    """
    agent, why = _by_name(step.agent, team)
    wishes = _wishes(step)
    for wish in wishes:
        with_wish = _with_model(agent, wish)
        if with_wish is not None and is_usable(with_wish):
            return Worker(with_wish, f"{why}; {_said(wish)}")
    if missing := [w for w in wishes if w.required]:
        raise RecipeError(
            f"Step {step.id!r} requires {_said(missing[0])}, which is not available here: set its "
            "key, or give the step another model."
        )
    if wishes or step.model_role:
        wished = _said(wishes[0]) if wishes else f"a model for {step.model_role!r}"
        why += f"; {wished} is not available here, so {agent.backend.model or agent.backend.type}"
    return Worker(agent, why)


def unknown_names(step: Step, team: TeamSpec) -> Iterator[str]:
    """Yield the agent and the providers that a step names and that nothing here is called.

    Recipes name agents that few have: those are told that look like a slip.

    Args:
        step: The step.
        team: The agents that there are.
    """
    agent, why = _by_name(step.agent, team)
    if why.endswith(_DEFAULT) and step.agent and not is_template(step.agent):
        hint = did_you_mean(step.agent, [each.id for each in team.agents])
        if hint:
            what = f"the agent {step.agent!r}, which the team does not have"
            yield f"{what}: {agent.id} does it.{hint}"
    for name in dict.fromkeys(wish.provider for wish in _wishes(step)):
        if name and not is_template(name) and name not in {*_TYPES, *BACKEND_TYPES}:
            hint = did_you_mean(name, [*_TYPES, *BACKEND_TYPES])
            yield f"the provider {name!r}, which is not known here.{hint}"


def _by_name(name: str, team: TeamSpec) -> tuple[AgentSpec, str]:
    agents = {agent.id: agent for agent in team.agents}
    for known in (name, name.rpartition(":")[2]):
        if known in agents:
            return agents[known], known
    for pattern, target in team.recipe_agents.items():
        if fnmatchcase(name, pattern):
            return agents[target], f"{target}, by {pattern!r}"
    return team.agents[0], f"{team.agents[0].id}{_DEFAULT}"


def _wishes(step: Step) -> tuple[ProviderPreference, ...]:
    if step.provider or step.model:
        return (ProviderPreference(provider=step.provider, model=step.model),)
    return step.provider_preferences


def _with_model(agent: AgentSpec, wish: ProviderPreference) -> AgentSpec | None:
    """Return the agent with another model, or None when the preference names no usable one."""
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


def opening(
    own: str,
    prompt: str,
    context: Sequence[Path],
    said: Sequence[str],
    guides: Sequence[str] = (),
) -> Opening:
    """Return how a step opens.

    Args:
        own: The agent's own system message, or "".
        prompt: The step's prompt, rendered.
        context: Read-only files and directories.
        said: Texts that the person has added to the task.
        guides: What it is told of the features that the team's file switches on.
    """
    known = "".join(f"\n- {path}" for path in context)
    paths = f"\n\nThese can be read, too, by their absolute paths:{known}" if known else ""
    asked = f"{prompt}\n\n{follow_up(said)}" if said else prompt
    system = "\n\n".join(part for part in (own, _SYSTEM + paths, *guides) if part)
    return Opening(system, (asked,))


def still_asked(past: PastRound | None, work: AgentWork) -> PastRound | None:
    """Return the round that a stop cut, if the step still asks the same.

    Args:
        past: The round; None when there is none.
        work: The step as it is now; a changed recipe may ask something else.
    """
    asks, prompt = past.opening.asks if past else (), work.prompt
    is_same = any(text == prompt or text.startswith(f"{prompt}\n\n") for text in asks)
    return past if is_same else None
