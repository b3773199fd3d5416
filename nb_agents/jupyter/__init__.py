"""The notebook: magics, the live panel, the static cards, and the kernel's stop doors.

Only this package knows IPython, ipykernel and anywidget.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["load", "unload"]


def load(ip: InteractiveShell) -> None:
    """Register everything with a shell; loading twice does no harm."""
    from nb_agents.jupyter import kernel
    from nb_agents.jupyter.errors import show_cancelled_as_cards
    from nb_agents.jupyter.magic import AgentsMagics
    from nb_agents.models.providers import warm

    magics = AgentsMagics(ip)
    ip.register_magics(magics)
    show_cancelled_as_cards(ip)
    kernel.open_doors(ip)
    threading.Thread(target=warm, name="nb_agents warm-up", daemon=True).start()
    magics.tell_of_dead_turns()


def unload(ip: InteractiveShell) -> None:
    """Close the doors and remove the magics; runs go on."""
    from nb_agents.jupyter import kernel

    kernel.close_doors(ip)
    for kind in ("line", "cell"):
        ip.magics_manager.magics[kind].pop("agents", None)
