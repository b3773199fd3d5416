"""Finds the framework of an agent object, without importing a framework."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from nb_agents.agents.python_objects import ObjectKind
from nb_agents.agents.runner import AgentRunner
from nb_agents.errors import ConfigError
from nb_agents.extensions.external_agents.frameworks.function_agent import function_framework
from nb_agents.extensions.external_agents.frameworks.program_runner import Framework, ProgramRunner

_ADAPTERS = {
    (
        "pydantic_ai",
        "AbstractAgent",
    ): "nb_agents.extensions.external_agents.frameworks.pydantic_agent",
    ("agents", "AgentBase"): "nb_agents.extensions.external_agents.frameworks.openai_agent",
    ("ag2", "Agent"): "nb_agents.extensions.external_agents.frameworks.ag2_agent",
    ("langgraph", "Pregel"): "nb_agents.extensions.external_agents.frameworks.graph_agent",
}
"""The adapter modules, by the package of the framework and the class of its agents."""


def framework_of(program: Any) -> Framework:
    """Return the framework that runs an object as an agent.

    Raises:
        ConfigError: The object can't be an agent.
    """
    if (framework := _framework_of(program)) is None:
        name = type(program).__name__
        raise ConfigError(
            f"An object of type {name!r} can't be an agent. Pass {FRAMEWORKS.accepts}."
        )
    return framework


def _framework_of(program: Any) -> Framework | None:
    for kind in type(program).__mro__:
        if module := _ADAPTERS.get((kind.__module__.split(".")[0], kind.__name__)):
            framework: Framework = importlib.import_module(module).framework(program)
            return framework
    if inspect.iscoroutinefunction(program) or inspect.isasyncgenfunction(program):
        return function_framework(program, framework_of)
    return None


def _runner_of(name: str, program: Any) -> AgentRunner | None:
    framework = _framework_of(program)
    return None if framework is None else ProgramRunner(name, program, framework)


FRAMEWORKS = ObjectKind(
    "an async function (task, ctx), a pydantic-ai, OpenAI Agents or ag2 Agent, a compiled "
    "LangGraph graph",
    _runner_of,
)
