"""What of a team means nothing here, what stops its start, and what can't run here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pydantic import BaseModel

from nb_agents.config.backends import why_unsupported
from nb_agents.config.command_line import command_line
from nb_agents.config.foreign_keys import foreign_keys
from nb_agents.config.mcp_servers import McpServerSpec
from nb_agents.config.orchestrator import OrchestratorSpec
from nb_agents.config.tools import ToolKeys

__all__ = [
    "Unsupported",
    "foreign_values",
    "ignored",
    "left_out",
    "read_only",
    "tool_notices",
    "unknown",
    "unsupported",
]


class Unsupported(NamedTuple):
    """An agent that can't run here.

    Attributes:
        agent: Its id.
        type: Its backend type.
        why: What that is, in a sentence or two.
    """

    agent: str
    type: str
    why: str


def ignored(team: BaseModel) -> Iterator[str]:
    """Give every key of a team that is harmless to ignore, as a dotted path without positions."""
    return (found.name for found in foreign_keys(team) if found.sort == "harmless")


def unknown(team: BaseModel) -> Iterator[str]:
    """Give every key of a team of which nothing is known, as a dotted path without positions."""
    return (found.name for found in foreign_keys(team) if found.sort == "unknown")


def foreign_values(orchestrator: OrchestratorSpec) -> Iterator[str]:
    """Give every value that MassGen knows and we take for another, with the one we take."""
    given, taken = orchestrator.voting_sensitivity, orchestrator.voting_criteria
    if given != taken:
        yield f"orchestrator.voting_sensitivity: {given} ({taken} is used)"


def read_only(orchestrator: OrchestratorSpec) -> Iterator[str]:
    """Say that context paths are only read, where the file lets them be written."""
    is_asked = any(each.permission == "write" for each in orchestrator.context_paths)
    if is_asked and not orchestrator.writes_context_paths:
        yield (
            "Context paths are only read: changes can't be kept apart for a review here, as "
            "`orchestrator.coordination.write_mode` wants it. Write `legacy` to let the presenter "
            "change them."
        )


def tool_notices(keys: ToolKeys, *, is_confined: bool, has_protected_paths: bool) -> Iterator[str]:
    """Say which tools an agent does not get though its configuration asks for them, and why.

    Args:
        keys: Its configuration.
        is_confined: Whether its commands run in a sandbox.
        has_protected_paths: Whether there are files that it must not write, by the team's file.
    """
    for server in keys.mcp_servers:
        if server.fault:
            yield left_out(server)
    line = command_line(keys, is_confined=is_confined, has_protected_paths=has_protected_paths)
    yield from line.notices


def left_out(server: McpServerSpec) -> str:
    """Say that a server which may not be is left out."""
    return f"MCP server {server.name!r} is left out: {server.fault}."


def unsupported(types: Iterable[tuple[str, str]]) -> Iterator[Unsupported]:
    """Give those of some (agent id, backend type) that can't run here."""
    for agent, kind in types:
        if why := why_unsupported(kind):
            yield Unsupported(agent, kind, why)
