"""A team as it is written into a journal, so that a resume needs no file: without any secret."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from nb_agents.config.team import TeamSpec
from nb_agents.config.tools import is_storable

__all__ = ["snapshot"]

_LEFT_OUT = {"api_key", "instance"}


def snapshot(team: TeamSpec) -> dict[str, Any] | None:
    """Give a team as plain data that `TeamSpec.model_validate` takes back.

    Only fields that we know go in: a foreign key may hold a token. Keys are left out; the
    provider's environment variable must give them again.

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
        if not all(map(is_storable, agent.backend.mcp_servers)):
            return None
    data: dict[str, Any] = _plain(team)
    return data


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {
            name: _plain(field)
            for name in type(value).model_fields
            if name not in _LEFT_OUT and (field := getattr(value, name)) is not None
        }
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, SecretStr):  # of a storable tool server; `_LEFT_OUT` has the others
        return value.get_secret_value()
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value
