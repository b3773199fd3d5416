"""What a person should know of agents' tools before any of them works.

A run says it at its start and ``%agents check`` before that: both ask here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nb_agents.config.command_line import command_line
from nb_agents.config.report import tool_notices
from nb_agents.config.tools import ToolKeys
from nb_agents.tools.sandbox import confinement

__all__ = ["announcements"]


def announcements(
    agents: Iterable[tuple[str, ToolKeys]], *, has_protected_paths: bool
) -> Iterator[str]:
    """Say which tools agents do not get, and whose commands are not confined.

    It looks at the machine, which takes a moment: not on the event loop.

    Args:
        agents: All that may work in the run, with what their configuration gives them.
        has_protected_paths: Whether the team's file protects paths.
    """
    for agent, keys in agents:
        # The machine is looked at for those that ask for it.
        found = confinement(keys.sandbox and keys.enable_mcp_command_line)
        notices = tool_notices(
            keys, is_confined=found.is_confined, has_protected_paths=has_protected_paths
        )
        yield from (f"{agent}: {text}" for text in notices)
        line = command_line(
            keys, is_confined=found.is_confined, has_protected_paths=has_protected_paths
        )
        if line.has_shell and (told := found.notice(agent)):
            yield told
