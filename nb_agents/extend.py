"""The public names for packages that extend nb_agents.

    from nb_agents.extend import Extension

    EXTENSION = Extension(name="acme", tools={"acme_weather": "acme.weather:acme_weather"})

Each name is imported on first use, so the module with the `Extension` stays cheap to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nb_agents.agents.ballot import Ballot
    from nb_agents.agents.decisions import Answered, Decision
    from nb_agents.agents.model_runner import ModelRunner
    from nb_agents.agents.python_objects import ObjectKind
    from nb_agents.agents.replay import PastRound
    from nb_agents.agents.runner import AgentRunner, Promise, Round
    from nb_agents.agents.runner_types import RunnerType
    from nb_agents.agents.turn_result import TurnResult
    from nb_agents.config.backends import BackendType
    from nb_agents.config.spec import Spec
    from nb_agents.config.team import AgentSpec
    from nb_agents.events import Event
    from nb_agents.launch.run import Run
    from nb_agents.launch.steps_kind import StepsKind
    from nb_agents.launch.work_kind import WorkKind
    from nb_agents.models.backend import Backend
    from nb_agents.plugins import Extension, extensions, register
    from nb_agents.presentation.transcript import TRANSCRIPT
    from nb_agents.turns.steps_driver import StepsDriver, StepsWork
    from nb_agents.verbs.outcome import Reply, Table
    from nb_agents.verbs.verb import Caller, Command, Parameter, Verb
    from nb_agents.view.fold import VIEW
    from nb_agents.view.run_view import RunView
    from nb_agents.view.spans import SPANS

__all__ = [
    "AgentRunner",
    "AgentSpec",
    "Answered",
    "Backend",
    "BackendType",
    "Ballot",
    "Caller",
    "Command",
    "Decision",
    "Event",
    "Extension",
    "ModelRunner",
    "ObjectKind",
    "Parameter",
    "PastRound",
    "Promise",
    "Reply",
    "Round",
    "Run",
    "RunView",
    "RunnerType",
    "SPANS",
    "Spec",
    "StepsDriver",
    "StepsKind",
    "StepsWork",
    "TRANSCRIPT",
    "Table",
    "TurnResult",
    "VIEW",
    "Verb",
    "WorkKind",
    "extensions",
    "register",
]

_MODULES = {
    "AgentRunner": "nb_agents.agents.runner",
    "AgentSpec": "nb_agents.config.team",
    "Answered": "nb_agents.agents.decisions",
    "Backend": "nb_agents.models.backend",
    "BackendType": "nb_agents.config.backends",
    "Ballot": "nb_agents.agents.ballot",
    "Caller": "nb_agents.verbs.verb",
    "Command": "nb_agents.verbs.verb",
    "Decision": "nb_agents.agents.decisions",
    "Event": "nb_agents.events",
    "Extension": "nb_agents.plugins",
    "ModelRunner": "nb_agents.agents.model_runner",
    "ObjectKind": "nb_agents.agents.python_objects",
    "Parameter": "nb_agents.verbs.verb",
    "PastRound": "nb_agents.agents.replay",
    "Promise": "nb_agents.agents.runner",
    "Reply": "nb_agents.verbs.outcome",
    "Round": "nb_agents.agents.runner",
    "Run": "nb_agents.launch.run",
    "RunView": "nb_agents.view.run_view",
    "RunnerType": "nb_agents.agents.runner_types",
    "SPANS": "nb_agents.view.spans",
    "Spec": "nb_agents.config.spec",
    "StepsDriver": "nb_agents.turns.steps_driver",
    "StepsKind": "nb_agents.launch.steps_kind",
    "StepsWork": "nb_agents.turns.steps_driver",
    "TRANSCRIPT": "nb_agents.presentation.transcript",
    "Table": "nb_agents.verbs.outcome",
    "TurnResult": "nb_agents.agents.turn_result",
    "VIEW": "nb_agents.view.fold",
    "Verb": "nb_agents.verbs.verb",
    "WorkKind": "nb_agents.launch.work_kind",
    "extensions": "nb_agents.plugins",
    "register": "nb_agents.plugins",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value
