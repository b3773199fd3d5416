"""Chooses the runner of an agent by the type of its backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from anyio import to_thread

from nb_agents.agents.context_folding import Folding
from nb_agents.agents.model_runner import ModelRunner
from nb_agents.agents.python_objects import runner_of
from nb_agents.agents.runner import AgentRunner, Promise
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.errors import ConfigError
from nb_agents.models.backend import Backend
from nb_agents.models.providers import backend_for
from nb_agents.plugins import ExtensionPoint

if TYPE_CHECKING:
    import httpx2


class RunnerType(NamedTuple):
    """A kind of runner other than `ModelRunner`.

    Attributes:
        make: Creates an agent's runner. May block.
        resumes: What its runners guarantee about a resume.
        chooses_models: Whether the agent chooses its models itself, as external agents do.
    """

    make: Callable[[AgentSpec], AgentRunner]
    resumes: Promise
    chooses_models: bool = True


RUNNER_TYPES = ExtensionPoint[RunnerType]("runner_types")
"""The runner types by backend type. Agents of other types have a `ModelRunner`."""


def runner_for(
    agent: AgentSpec, client: Callable[[], httpx2.AsyncClient], team: TeamSpec | None = None
) -> AgentRunner:
    """Return the runner of an agent.

    Args:
        client: Returns the HTTP client. Called only if the model needs one.
        team: The agent's team, whose settings apply where the agent has none.
    """
    if (row := RUNNER_TYPES.get(agent.backend.type)) is not None:
        return row.make(agent)
    if agent.backend.type == "python" and (runner := runner_of(agent)) is not None:
        return runner
    backend = backend_for(agent, client)
    return ModelRunner(backend, _folding(agent, backend, team, client))


def _folding(
    agent: AgentSpec,
    backend: Backend,
    team: TeamSpec | None,
    client: Callable[[], httpx2.AsyncClient],
) -> Folding:
    """Return how an agent's conversations are folded."""
    folding = Folding.of(backend, team.context_of(agent) if team else agent.context)
    if team is not None and (other := team.summarizer_of(agent)) is not None:
        folding.summarizer = partial(to_thread.run_sync, backend_for, other, client)
    return folding


def chooses_models(agent: AgentSpec) -> bool:
    """Return whether an agent chooses its models itself, like an external agent or a function."""
    if (row := RUNNER_TYPES.get(agent.backend.type)) is not None:
        return row.chooses_models
    try:
        return agent.backend.type == "python" and runner_of(agent) is not None
    except ConfigError:  # reported when the run starts
        return True


def promise_of(agent: AgentSpec) -> Promise:
    """Return what an agent's runner guarantees about a resume."""
    if (row := RUNNER_TYPES.get(agent.backend.type)) is not None:
        return row.resumes
    try:
        runner = runner_of(agent) if agent.backend.type == "python" else None
    except ConfigError:  # reported when the run starts
        runner = None
    return runner.resumes if runner else ModelRunner.resumes
