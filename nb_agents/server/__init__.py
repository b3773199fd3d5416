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
    from nb_agents.server.handlers import routes
    from nb_agents.server.new_files import new_file_routes
    from nb_agents.server.places import Places
    from nb_agents.server.turn_files import file_routes

    places = Places(Path(server_app.root_dir))
    base = server_app.web_app.settings["base_url"]
    made = [each(base, places) for each in (routes, file_routes, new_file_routes)]
    server_app.web_app.add_handlers(".*$", [route for each in made for route in each])
