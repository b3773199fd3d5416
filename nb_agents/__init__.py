"""Teams of LLM agents in a notebook that can be stopped at any moment without losing work.

    %load_ext nb_agents

    %%agents
    Compare three ways to cache embeddings for ten million documents.

From Python: ``run = nb_agents.start(task)``, then ``await run``, ``run.stop()``, ``run.receipt``.
``Client(url, token)`` connects to the runs of another Jupyter server. The classes of `RunOptions`
fields are in `nb_agents.options`, and more exceptions in `nb_agents.errors`. Importing the package
is cheap, because each name is imported on first use.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "nb_agents does not work on Windows. Install and start it in WSL: "
        "https://learn.microsoft.com/windows/wsl/install"
    )

from nb_agents.unicode import WithoutControls

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nb_agents.agents.subagents import call
    from nb_agents.cancel import (
        AgentStopped,
        CancellationStatus,
        StopResult,
        checkpoint,
        should_stop,
    )
    from nb_agents.client import Client
    from nb_agents.config.team import TeamSpec
    from nb_agents.errors import (
        CancellationRequestedError,
        NbAgentsError,
        RunCancelled,
        RunFailed,
        UserError,
    )
    from nb_agents.extensions.recipes.recipe import Recipe
    from nb_agents.extensions.sweeps.compare import TeamComparison, compare
    from nb_agents.extensions.sweeps.forks import fork
    from nb_agents.extensions.sweeps.mapping import map
    from nb_agents.extensions.sweeps.sweep import Sweep
    from nb_agents.launch.api import resume, rewind, start
    from nb_agents.launch.finding import find_run, runs
    from nb_agents.launch.once import once
    from nb_agents.launch.run import Run
    from nb_agents.options import RunOptions
    from nb_agents.presentation.explanation import why
    from nb_agents.session.journal import follow
    from nb_agents.tools.base import ToolError
    from nb_agents.tools.functions import tool
    from nb_agents.turns.approvals import ask
    from nb_agents.view.receipt import Receipt
    from nb_agents.view.run_view import RunView

_logger = logging.getLogger("nb_agents")
# Without a handler, Python prints warnings from the loop thread into the running cell.
_logger.addHandler(logging.NullHandler())
_logger.addFilter(WithoutControls())

__version__ = "0.1.0"

if TYPE_CHECKING:  # at run time, __getattr__ makes a list of the installed names
    __all__ = [
        "AgentStopped",
        "CancellationRequestedError",
        "CancellationStatus",
        "Client",
        "NbAgentsError",
        "Receipt",
        "Recipe",
        "Run",
        "RunCancelled",
        "RunFailed",
        "RunOptions",
        "RunView",
        "StopResult",
        "Sweep",
        "TeamComparison",
        "TeamSpec",
        "ToolError",
        "UserError",
        "ask",
        "call",
        "checkpoint",
        "compare",
        "find_run",
        "follow",
        "fork",
        "map",
        "once",
        "resume",
        "rewind",
        "runs",
        "should_stop",
        "start",
        "tool",
        "why",
    ]

_MODULES = {
    "AgentStopped": "nb_agents.cancel",
    "CancellationRequestedError": "nb_agents.errors",
    "CancellationStatus": "nb_agents.cancel",
    "Client": "nb_agents.client",
    "NbAgentsError": "nb_agents.errors",
    "Receipt": "nb_agents.view.receipt",
    "Run": "nb_agents.launch.run",
    "RunCancelled": "nb_agents.errors",
    "RunFailed": "nb_agents.errors",
    "RunOptions": "nb_agents.options",
    "RunView": "nb_agents.view.run_view",
    "StopResult": "nb_agents.cancel",
    "TeamSpec": "nb_agents.config.team",
    "ToolError": "nb_agents.tools.base",
    "UserError": "nb_agents.errors",
    "ask": "nb_agents.turns.approvals",
    "call": "nb_agents.agents.subagents",
    "checkpoint": "nb_agents.cancel",
    "find_run": "nb_agents.launch.finding",
    "follow": "nb_agents.session.journal",
    "once": "nb_agents.launch.once",
    "resume": "nb_agents.launch.api",
    "rewind": "nb_agents.launch.api",
    "runs": "nb_agents.launch.finding",
    "should_stop": "nb_agents.cancel",
    "start": "nb_agents.launch.api",
    "tool": "nb_agents.tools.functions",
    "why": "nb_agents.presentation.explanation",
}
"""The module of each public name, except for those that extensions add."""
_OF_EXTENSIONS = ("Recipe", "Sweep", "TeamComparison", "compare", "fork", "map")
"""The public names that the packages in `nb_agents.extensions` add."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__all__":
        return _installed_names()
    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    elif name.startswith("_") or (value := _of_extension(name)) is None:
        raise AttributeError(_why_missing(name))
    globals()[name] = value
    return value


def _installed_names() -> list[str]:
    from nb_agents.plugins import public_names

    return sorted({*_MODULES, *public_names()})


def _of_extension(name: str) -> Any:
    from nb_agents.plugins import public_name

    return public_name(name)


def _why_missing(name: str) -> str:
    if name in _OF_EXTENSIONS:
        return (
            f"nb_agents.{name} is not available, because its package in nb_agents.extensions is "
            "missing. Install nb_agents again."
        )
    return f"module {__name__!r} has no attribute {name!r}"


def __dir__() -> list[str]:
    return sorted({*globals(), *_installed_names()})


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Return where the JupyterLab extension is. Called by ``jupyter labextension develop``."""
    return [{"src": "labextension", "dest": "nb-agents"}]


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Return the Jupyter server extension. Called by ``jupyter server extension enable``."""
    return [{"module": "nb_agents.server"}]


def load_ipython_extension(ip: InteractiveShell) -> None:
    """Register the magics, the panel and the interrupt handler. Called by ``%load_ext``."""
    from nb_agents.imports import garbage_collection_off

    with garbage_collection_off():
        from nb_agents.jupyter.shell_extension import load

        load(ip)


def unload_ipython_extension(ip: InteractiveShell) -> None:
    """Remove the magics, panel and interrupt handler. Called by ``%unload_ext``. Runs continue."""
    from nb_agents.jupyter.shell_extension import unload

    unload(ip)
