"""The Jupyter server extension: runs and sessions under ``/nb-agents``, without a kernel.

It reads turns from the disk and writes commands to it; the server decides who may do so.
Only this package knows jupyter_server, which loads it and so is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__: list[str] = []


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "nb_agents.server"}]


def _load_jupyter_server_extension(server_app: Any) -> None:
    from nb_agents.server.feeds import Feeds
    from nb_agents.server.handlers import RUN_ROUTES
    from nb_agents.server.new_files import NEW_FILE_ROUTES
    from nb_agents.server.places import Places
    from nb_agents.server.turn_files import FILE_ROUTES

    shared = {"places": Places(Path(server_app.root_dir)), "feeds": Feeds()}
    base = server_app.web_app.settings["base_url"].rstrip("/") + "/nb-agents"
    routes = (*RUN_ROUTES, *FILE_ROUTES, *NEW_FILE_ROUTES)
    made = [(f"{base}{pattern}", handler, shared) for pattern, handler in routes]
    server_app.web_app.add_handlers(".*$", made)
