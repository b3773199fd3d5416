"""Which runner plays an agent's rounds, by the type of its backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from nb_agents.agents.model_runner import ModelRunner
from nb_agents.agents.programs.program_objects import runner_of
from nb_agents.agents.runner import AgentRunner, Promise
from nb_agents.config.programs import ACP_TYPES
from nb_agents.config.team import AgentSpec
from nb_agents.errors import ConfigError
from nb_agents.models.providers import backend_for

if TYPE_CHECKING:
    import httpx2


class RunnerType(NamedTuple):
    """A kind of runner that is no model loop of ours.

    Attributes:
        make: Makes an agent's runner; may block.
        resumes: What a resume promises.
    """

    make: Callable[[AgentSpec], AgentRunner]
    resumes: Promise


def _acp(agent: AgentSpec) -> AgentRunner:
    from nb_agents.agents.acp.acp_runner import AcpRunner  # the library is an extra

    return AcpRunner(agent)


RUNNER_TYPES: dict[str, RunnerType] = dict.fromkeys(ACP_TYPES, RunnerType(_acp, "goes on"))
"""By backend type; `nb_agents.config.backends.BACKEND_TYPES` has what each needs in a file."""


def runner_for(agent: AgentSpec, client: Callable[[], httpx2.AsyncClient]) -> AgentRunner:
    """Return the runner of an agent.

    Args:
        agent: The agent.
        client: Returns the HTTP client; called for a model that needs one.
    """
    if (row := RUNNER_TYPES.get(agent.backend.type)) is not None:
        return row.make(agent)
    if agent.backend.type == "python" and (runner := runner_of(agent)) is not None:
        return runner
    return ModelRunner(backend_for(agent, client))


def chooses_models(agent: AgentSpec) -> bool:
    """Return whether an agent is a program or an object that chooses its models itself."""
    if agent.backend.type in RUNNER_TYPES:
        return True
    try:
        return agent.backend.type == "python" and runner_of(agent) is not None
    except ConfigError:  # a start reports it
        return True


def promise_of(agent: AgentSpec) -> Promise:
    """Return what a resume of an agent promises."""
    if (row := RUNNER_TYPES.get(agent.backend.type)) is not None:
        return row.resumes
    try:
        runner = runner_of(agent) if agent.backend.type == "python" else None
    except ConfigError:  # a start reports it
        runner = None
    return runner.resumes if runner else ModelRunner.resumes
