"""A team as it is written into a journal, so that a resume needs no file: without any secret."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from nb_agents.config.team import TeamSpec

__all__ = ["snapshot"]

_LEFT_OUT = {"api_key", "instance"}


def snapshot(team: TeamSpec) -> dict[str, Any] | None:
    """Give a team as plain data that `TeamSpec.model_validate` takes back.

    Only fields that we know go in: a foreign key may hold a token. Keys are left out; the
    provider's environment variable must give them again.

    Args:
        team: The team.

    Returns:
        The data, or None when a file can't say it: a model made in Python, or a base_url with a
        password in it.
    """
    for agent in team.agents:
        url = urlsplit(agent.backend.base_url or "")
        if agent.backend.type == "python" or url.username or url.password:
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
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value
