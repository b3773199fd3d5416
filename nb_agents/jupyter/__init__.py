"""The notebook: magics, the live panel, the static cards, and the kernel's stop doors.

Only this package knows IPython, ipykernel and anywidget.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["load", "unload"]


def load(ip: InteractiveShell) -> None:
    """Register everything with a shell; loading twice does no harm."""
    from nb_agents.jupyter import completion, formatters, kernel
    from nb_agents.jupyter.magic import AgentsMagics, show_cancelled_as_cards
    from nb_agents.models import providers
    from nb_agents.presentation import cards

    magics = AgentsMagics(ip)
    ip.register_magics(magics)
    show_cancelled_as_cards(ip)
    formatters.register(ip)
    completion.register(ip)
    kernel.open_doors(ip)
    kernel.when_idle(ip, cards.load_templates)
    kernel.when_idle(ip, partial(providers.load_in_background, ["openai"]))
    ip.events.register("pre_run_cell", _wait_for_imports)
    magics.tell_of_dead_turns()


def unload(ip: InteractiveShell) -> None:
    """Close the doors and remove the magics; runs go on."""
    from nb_agents.jupyter import completion, formatters, kernel

    kernel.close_doors(ip)
    completion.unregister(ip)
    formatters.unregister(ip)
    for kind in ("line", "cell"):
        ip.magics_manager.magics[kind].pop("agents", None)
    with suppress(ValueError):  # not loaded
        ip.events.unregister("pre_run_cell", _wait_for_imports)


def _wait_for_imports(cell: Any) -> None:
    """Let code that may import what we do wait until we have done so; a cell of ours need not."""
    from nb_agents.models import providers

    if not cell.raw_cell.startswith("%%agents"):
        providers.wait_until_loaded()
