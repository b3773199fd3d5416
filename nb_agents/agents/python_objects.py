"""Runs agents that are Python objects, passed in Python or given in a file as ``module:name``.

``__main__:name`` refers to the notebook. Only a run and its checks import the module.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from nb_agents.agents.runner import AgentRunner
from nb_agents.config.backends import BackendSpec
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.errors import ConfigError, error_message
from nb_agents.plugins import ExtensionPoint


class ObjectKind(NamedTuple):
    """A kind of Python objects that can be agents.

    Attributes:
        accepts: A description of the objects, such as "a LangGraph graph".
        runner_of: Returns the runner of an object for an agent's id, or None if the object is of
            another kind.
    """

    accepts: str
    runner_of: Callable[[str, Any], AgentRunner | None]


OBJECT_KINDS = ExtensionPoint[ObjectKind]("agent_objects")
"""The kinds of objects in addition to models and runners, such as agents of frameworks."""


def object_of(backend: BackendSpec) -> Any:
    """Return the object of a backend of type ``python``.

    Raises:
        ConfigError: The object can't be imported.
    """
    if backend.instance is not None or backend.object is None:
        return backend.instance
    module, _, name = backend.object.partition(":")
    try:
        value: Any = _imported(module)
        for part in name.split("."):
            value = getattr(value, part)
        return value
    except AttributeError:
        where = "the notebook" if module == "__main__" else f"module {module!r}"
        raise ConfigError(f"{backend.object!r}: {where} has no {name!r}.") from None


def _imported(module: str) -> Any:
    directory = str(Path.cwd())
    is_added = directory not in sys.path and "" not in sys.path
    sys.path[:0] = [directory] * is_added
    try:
        return importlib.import_module(module)
    except Exception as exc:
        why = error_message(exc, named=True)
        raise ConfigError(
            f"Module {module!r} of an agent's `object` can't be imported: {why}."
        ) from exc
    finally:
        if is_added:
            sys.path.remove(directory)


def runner_of(agent: AgentSpec) -> AgentRunner | None:
    """Return the runner of an agent of type ``python``, or None if its object is a model.

    Raises:
        ConfigError: Its object can't be an agent or can't be imported.
    """
    program = object_of(agent.backend)
    if hasattr(program, "play"):
        runner: AgentRunner = program
        return runner
    if hasattr(program, "stream") and hasattr(program, "calls_tools"):
        return None
    kinds = OBJECT_KINDS.all().values()
    for kind in kinds:
        if (program_runner := kind.runner_of(agent.id, program)) is not None:
            return program_runner
    accepted = ", ".join([*(kind.accepts for kind in kinds), "or an AgentRunner"])
    name = type(program).__name__
    raise ConfigError(f"An object of type {name!r} can't be an agent. Pass {accepted}.")


def check_objects(team: TeamSpec) -> None:
    """Check that all Python objects of a team can be agents.

    Raises:
        ConfigError: An object can't be an agent or can't be imported.
    """
    for agent in team.everyone:
        if agent.backend.type == "python":
            try:
                runner_of(agent)
            except ConfigError as exc:
                raise team.fault(
                    f"Agent {agent.id!r}: {exc}", "agents", agent.id, "backend"
                ) from exc
