"""The notebook: magics, the live panel, the static cards, and the kernel's stop doors.

Only this package knows IPython, ipykernel and anywidget.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from nb_agents.models.reading import set_cell_running

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["load", "unload"]


def load(ip: InteractiveShell) -> None:
    """Register everything with a shell; loading twice does no harm."""
    from nb_agents.jupyter import completion, formatters, kernel
    from nb_agents.jupyter.in_place import resume_in_place
    from nb_agents.jupyter.magic import AgentsMagics, show_cancelled_as_cards
    from nb_agents.models import providers
    from nb_agents.presentation import cards

    magics = AgentsMagics(ip)
    ip.register_magics(magics)
    show_cancelled_as_cards(ip)
    formatters.register(ip)
    completion.register(ip)
    kernel.open_doors(ip, resume_in_place)
    kernel.when_idle(ip, cards.load_templates)
    kernel.when_idle(ip, partial(providers.load_in_background, ["openai"]))
    for event, callback in _CALLBACKS:
        ip.events.register(event, callback)
    magics.report_dead_turns()


def unload(ip: InteractiveShell) -> None:
    """Close the doors and remove the magics; runs go on."""
    from nb_agents.jupyter import completion, formatters, kernel

    kernel.close_doors(ip)
    completion.unregister(ip)
    formatters.unregister(ip)
    for kind in ("line", "cell"):
        ip.magics_manager.magics[kind].pop("agents", None)
    for event, callback in _CALLBACKS:
        with suppress(ValueError):  # not loaded
            ip.events.unregister(event, callback)
    set_cell_running(False)


def _wait_for_imports(cell: Any) -> None:
    """Let code that may import what we do wait until we have done so; a cell of ours need not."""
    from nb_agents.models import providers

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
