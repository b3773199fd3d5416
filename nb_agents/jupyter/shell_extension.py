"""Adds nb_agents to an IPython shell, and removes it; see ``%load_ext``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from nb_agents.jupyter import completion, formatters, kernel, misplaced
from nb_agents.jupyter.in_place import resume_in_place
from nb_agents.jupyter.magic import AgentsMagics, show_cancelled_as_cards
from nb_agents.models import providers
from nb_agents.models.reading import set_cell_running
from nb_agents.presentation import cards
from nb_agents.session.layout import session_root


def load(ip: InteractiveShell) -> None:
    """Register magics, displays and completions with a shell. Can be called more than once."""
    session_root()  # resolved before a cell changes the working directory
    magics = AgentsMagics(ip)
    ip.register_magics(magics)
    show_cancelled_as_cards(ip)
    formatters.register(ip)
    completion.register(ip)
    misplaced.register(ip)
    kernel.install_handlers(ip, resume_in_place)
    kernel.when_idle(ip, cards.load_templates)
    kernel.when_idle(ip, partial(providers.load_in_background, ["openai"]))
    for event, callback in _CALLBACKS:
        ip.events.register(event, callback)
    magics.report_dead_turns()


def unload(ip: InteractiveShell) -> None:
    """Remove everything that `load` registered. Runs continue."""
    kernel.remove_handlers(ip)
    completion.unregister(ip)
    misplaced.unregister(ip)
    formatters.unregister(ip)
    for kind in ("line", "cell"):
        ip.magics_manager.magics[kind].pop("agents", None)
    for event, callback in _CALLBACKS:
        with suppress(ValueError):  # not loaded
            ip.events.unregister(event, callback)
    set_cell_running(False)


def _wait_for_imports(cell: Any) -> None:
    """Wait for background imports before a cell that may import the same modules."""
    if not cell.raw_cell.startswith("%%agents"):
        providers.wait_until_loaded()


def _begin_cell(_: Any) -> None:
    set_cell_running(True)


def _end_cell(_: Any) -> None:
    set_cell_running(False)


_CALLBACKS: tuple[tuple[str, Callable[[Any], None]], ...] = (
    ("pre_run_cell", _wait_for_imports),
    ("pre_run_cell", _begin_cell),
    ("post_run_cell", _end_cell),
)
