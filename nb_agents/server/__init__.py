"""The Jupyter server extension, which serves runs and sessions below ``/nb-agents``.

It needs no kernel. It reads turns from disk and writes commands there. The server's authorizer
decides who may do so. No other package imports jupyter_server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__: list[str] = []


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "nb_agents.server"}]


def _load_jupyter_server_extension(server_app: Any) -> None:
    if server_app.web_app.settings.get("nb_agents"):
        return  # enabled under both of its names, nb_agents and nb_agents.server
    server_app.web_app.settings["nb_agents"] = True
    from nb_agents.server.handler import Shared, handlers

    state = Shared(Path(server_app.root_dir))
    shared = {"shared": state}
    base = server_app.web_app.settings["base_url"].rstrip("/") + "/nb-agents"
    rules = [(f"{base}{pattern}", handler, shared) for pattern, handler in handlers()]
    server_app.web_app.add_handlers(".*$", rules)
    allowed = (server_app.config.get("NbAgents") or {}).get("wait_for_quota", False)
    if str(allowed).lower() == "true":  # on the command line, it is text
        from nb_agents.server.waiting_turns import resume_regularly

        resume_regularly(state)
