"""Find the objects that are agents, and how they are run, without importing any framework.

An object is given in Python, or named in a file as ``module:name``; ``__main__:name`` is a
notebook's. Naming it imports its module, which only a run and its checks do.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from nb_agents.agents.programs.function_agent import function_framework
from nb_agents.agents.programs.program_runner import Framework, ProgramRunner
from nb_agents.agents.runner import AgentRunner
from nb_agents.config.backends import BackendSpec
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.errors import ConfigError, said_by

CAN_BE = (
    "Give an async function (task, ctx), a pydantic-ai, OpenAI Agents or ag2 Agent, a compiled "
    "LangGraph graph, or an AgentRunner."
)


_ADAPTERS = {
    ("pydantic_ai", "AbstractAgent"): "nb_agents.agents.programs.pydantic_agent",
    ("agents", "AgentBase"): "nb_agents.agents.programs.openai_agent",
    ("ag2", "Agent"): "nb_agents.agents.programs.ag2_agent",
    ("langgraph", "Pregel"): "nb_agents.agents.programs.graph_agent",
}
"""The modules that run a framework's agents, by its package and the name of their class."""


def framework_of(program: Any) -> Framework:
    """Return how an object is run as an agent.

    Raises:
        ConfigError: It can't be.
    """
    for kind in type(program).__mro__:
        if module := _ADAPTERS.get((kind.__module__.split(".")[0], kind.__name__)):
            made: Framework = importlib.import_module(module).framework(program)
            return made
    if inspect.iscoroutinefunction(program) or inspect.isasyncgenfunction(program):
        return function_framework(program, framework_of)
    raise ConfigError(f"An object of type {type(program).__name__!r} is no agent. {CAN_BE}")


def object_of(backend: BackendSpec) -> Any:
    """Return the object of a backend of type ``python``.

    Raises:
        ConfigError: It can't be imported.
    """
    if backend.instance is not None or backend.object is None:
        return backend.instance
    module, _, name = backend.object.partition(":")
    try:
        found: Any = _imported(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    except AttributeError:
        where = "the notebook" if module == "__main__" else f"module {module!r}"
        raise ConfigError(f"{backend.object!r}: {where} has no {name!r}.") from None


def _imported(module: str) -> Any:
    here = str(Path.cwd())
    is_added = here not in sys.path and "" not in sys.path
    sys.path[:0] = [here] * is_added
    try:
        return importlib.import_module(module)
    except Exception as exc:
        said = said_by(exc, named=True)
        raise ConfigError(
            f"Module {module!r} of an agent's `object` can't be imported: {said}."
        ) from exc
    finally:
        if is_added:
            sys.path.remove(here)


def runner_of(agent: AgentSpec) -> AgentRunner | None:
    """Return the runner of an agent of type ``python``; None when its object is a model.

    Raises:
        ConfigError: Its object is no agent, or can't be imported.
    """
    program = object_of(agent.backend)
    if hasattr(program, "play"):
        runner: AgentRunner = program
        return runner
    if hasattr(program, "stream") and hasattr(program, "calls_tools"):
        return None
    return ProgramRunner(agent.id, program, framework_of(program))


def check_objects(team: TeamSpec) -> None:
    """Raise unless all objects of a team are agents.

    Raises:
        ConfigError: One is not, or can't be imported.
    """
    for agent in team.everyone:
        if agent.backend.type == "python":
            try:
                runner_of(agent)
            except ConfigError as exc:
                raise team.fault(
                    f"Agent {agent.id!r}: {exc}", "agents", agent.id, "backend"
                ) from exc
