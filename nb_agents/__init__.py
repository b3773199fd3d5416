"""Teams of LLM agents in a notebook that a person can stop at any moment, losing nothing.

    %load_ext nb_agents

    %%agents
    Compare three ways to cache embeddings for ten million documents.

From Python: ``run = nb_agents.start(task)``, then ``await run``, ``run.stop()``, ``run.receipt``.
``Client(url, token)`` reaches the runs beside a Jupyter server elsewhere.
What `RunOptions` are made of is in `nb_agents.options`, the other exceptions in `nb_agents.errors`.
Importing this package loads none of the model SDKs.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nb_agents.agents.subagents import call
from nb_agents.cancel import AgentStopped, StopResult, checkpoint, should_stop
from nb_agents.config.team import TeamSpec
from nb_agents.errors import NbAgentsError, RunCancelled, RunFailed, UserError
from nb_agents.launch.api import resume, rewind, start
from nb_agents.launch.once import once
from nb_agents.options import RunOptions
from nb_agents.runs.approvals import ask
from nb_agents.runs.finding import runs
from nb_agents.runs.run import Run, RunDisplay
from nb_agents.session.journal import follow
from nb_agents.tools.base import ToolError
from nb_agents.tools.functions import tool
from nb_agents.unicode import WithoutControls
from nb_agents.view.receipt import Receipt
from nb_agents.view.run_view import RunView

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nb_agents.client import Client
    from nb_agents.config.recipe import Recipe
    from nb_agents.launch.rewind import RewindRequest
    from nb_agents.sweeps.mapping import map
    from nb_agents.sweeps.sweep import Sweep
    from nb_agents.sweeps.sweep_handle import SweepHandle

_logger = logging.getLogger("nb_agents")
# Without a handler, Python prints warnings from the loop thread into whatever cell runs.
_logger.addHandler(logging.NullHandler())
_logger.addFilter(WithoutControls())

__version__ = "0.1.0"

__all__ = [
    "AgentStopped",
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
    "TeamSpec",
    "ToolError",
    "UserError",
    "ask",
    "call",
    "checkpoint",
    "follow",
    "map",
    "once",
    "resume",
    "rewind",
    "runs",
    "should_stop",
    "start",
    "tool",
]


_LATER = {
    "Client": "nb_agents.client",
    "Recipe": "nb_agents.config.recipe",
    "Sweep": "nb_agents.sweeps.sweep",
    "map": "nb_agents.sweeps.mapping",
}
"""What not every run needs, and takes its time to load: by name, where it is."""


def _bundle(run: Run) -> dict[str, Any]:
    from nb_agents.presentation.cards import card_bundle
    from nb_agents.presentation.text import shown_path

    return card_bundle(run.view, shown_path(run.path), run.timeline, run.preview)


def _panel(run: Run) -> Any:
    from nb_agents.jupyter.panel import panel_of

    return panel_of(run)


Run.display = RunDisplay(_bundle, _panel)


def _try_again(request: RewindRequest, times: int) -> Sweep:
    __getattr__("Sweep")  # with its card
    from nb_agents.sweeps.forks import try_again

    return try_again(request, times)


Run.resumer = Run.resumer._replace(try_again=_try_again)


def _sweep_bundle(sweep: SweepHandle) -> dict[str, Any]:
    from nb_agents.presentation.sweep_card import sweep_bundle, sweep_title
    from nb_agents.presentation.text import shown_path

    table = sweep.table() if sweep.is_over else []
    return sweep_bundle(sweep.view, sweep_title(sweep.path), shown_path(sweep.path), table)


def __getattr__(name: str) -> Any:
    """Load what not every run needs when it is first asked for."""
    if name in _LATER:
        found = getattr(import_module(_LATER[name]), name)
        if name in ("Sweep", "map"):
            from nb_agents.sweeps.sweep_handle import SweepHandle

            SweepHandle.bundle_of = _sweep_bundle
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(ip: InteractiveShell) -> None:
    """Load the magics, the panel and the stop doors; called by ``%load_ext nb_agents``."""
    from nb_agents.imports import no_collection

    with no_collection():
        from nb_agents.jupyter import load

        load(ip)


def unload_ipython_extension(ip: InteractiveShell) -> None:
    """Take them away again; called by ``%unload_ext nb_agents``. Runs go on."""
    from nb_agents.jupyter import unload

    unload(ip)
