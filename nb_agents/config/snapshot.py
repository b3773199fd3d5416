"""A team as it is written into a journal, so that a resume needs no file: without any secret."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from nb_agents.config.foreign_keys import foreign_keys
from nb_agents.config.mcp_servers import is_storable
from nb_agents.config.secrets import has_secret_argument
from nb_agents.config.team import TeamSpec

__all__ = ["snapshot"]

_LEFT_OUT = {"api_key", "instance"}


def snapshot(team: TeamSpec) -> dict[str, Any] | None:
    """Give a team as plain data that `TeamSpec.model_validate` takes back.

    Only fields that we know go in: a foreign key may hold a token. Of one that withholds a tool it
    is kept that it does. Keys are left out; the provider's environment variable must give them
    again.

    Args:
        team: The team.

    Returns:
        The data, or None when a file can't say it: a model made in Python, a base_url with a
        password in it, or a tool server whose token is written out where a ``${VAR}`` could stand.
    """
    for agent in team.everyone:
        url = urlsplit(agent.backend.base_url or "")
        if agent.backend.type == "python" or url.username or url.password:
            return None
        for server in agent.backend.mcp_servers:
            if has_secret_argument(server) or not is_storable(server):
                return None
    data: dict[str, Any] = _plain(team)
    return data


def _plain(value: Any, section: tuple[str, ...] = ()) -> Any:
    if isinstance(value, BaseModel):
        return {
            name: _plain(field, (*section, "agents" if name == "callable_agents" else name))
            for name in type(value).model_fields
            if name not in _LEFT_OUT and (field := getattr(value, name)) is not None
        } | _restrictions(value, section)
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, SecretStr):  # of a storable tool server; `_LEFT_OUT` has the others
        return value.get_secret_value()
    items = value if isinstance(value, tuple | list) else None
    return value if items is None else [_plain(v, (*section, "*")) for v in items]


def _restrictions(spec: BaseModel, section: tuple[str, ...]) -> dict[str, bool]:
    """Keep that a tool is withheld, and not by which words."""
    return {
        found.key: found.value is not False
        for found in foreign_keys(spec, section=section)
        if found.sort == "withheld" and len(found.path) == 1
    }
