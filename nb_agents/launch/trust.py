"""Decides whether a session may be continued: only the user's own, or one that the user trusts.

Every run needs its session's owner mark, which only `trusted_mark` returns.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nb_agents.agents.message_json import calls_of
from nb_agents.config.backends import BACKEND_TYPES
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.disk.entry import printable_name
from nb_agents.errors import NotYoursError
from nb_agents.options import RunOptions
from nb_agents.session.layout import PROGRAMS
from nb_agents.session.ownership import (
    OwnerMark,
    confirm_turns,
    evidence_of,
    find_owner_mark,
    new_mark,
    user_mark,
)
from nb_agents.turns.turn_spec import mask_for

if TYPE_CHECKING:
    from nb_agents.agents.replay import Past

MAX_LINES = 200
MAX_CHARS = 2_000
"""Maximum characters of each line."""


def trusted_mark(
    session: Path | None, options: RunOptions, would_run: Callable[[], Iterable[str]]
) -> OwnerMark:
    """Return the owner mark for the next turn of a session.

    Args:
        session: The session's directory, or None for a new one.
        options: The run's options. With `trust`, the session counts as this user's from now on.
        would_run: Returns lines about what would run. Only called for another user's session.

    Raises:
        NotYoursError: The session is not this user's and was not trusted before.
        StorageError: The session can't be written.
    """
    turns = evidence_of(session) if session else ()
    if session is None or not turns:
        return new_mark()
    mark = find_owner_mark(turns, user_mark)
    if mark is not None:
        return mark
    if not options.trust:
        raise NotYoursError(session.name, (*would_run(), *_settings_of_programs(session)))
    return confirm_turns(turns)


def _settings_of_programs(session: Path) -> Iterator[str]:
    """Yield a line for each external agent's settings, which no mark covers."""
    for path in sorted((session / PROGRAMS).glob("*")):
        path_text = printable_name(str(path))
        yield f"commands in the settings {path_text} of the agent {printable_name(path.name)}"


def is_yours(session: Path) -> bool:
    """Return whether a session can be continued without asking the user for trust."""
    turns = evidence_of(session)
    return not turns or find_owner_mark(turns, user_mark) is not None


def would_run(
    team: TeamSpec, work: Iterable[str] = (), calls: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return lines about everything that a run would run or call, for a user to check.

    Args:
        work: Lines about what the turn's work would run.
        calls: Tool calls that would run first.
    """
    mask = mask_for(team)
    lines = [*work, *calls, *(each for a in team.everyone for each in _of_agent(a))]
    masked_lines = [mask.text(" ".join(line.split())) for line in dict.fromkeys(lines)]
    shortened = [
        line if len(line) <= MAX_CHARS else f"{line[:MAX_CHARS]}…" for line in masked_lines
    ]
    omitted = len(shortened) - MAX_LINES
    more = (
        [f"… and {omitted} more: read the session's files before you trust it"]
        if omitted > 0
        else []
    )
    return (*shortened[:MAX_LINES], *more)


def _of_agent(agent: AgentSpec) -> Iterator[str]:
    spec, name = agent.backend, agent.id
    kind = BACKEND_TYPES.get(spec.type)
    address = spec.base_url or (kind.base_url if kind else None)
    if spec.enable_mcp_command_line:
        yield f"commands that {name} writes{'' if spec.sandbox else ', without a sandbox'}"
    for tool in spec.custom_tools:
        yield f"custom tools of {name}: {', '.join(tool.function)} of {tool.path or 'MassGen'}"
    if spec.recipes:
        yield f"recipes that {name} may run: {', '.join(spec.recipes)}"
    for server in spec.mcp_servers:
        target = server.url or shlex.join([*server.command, *server.args])
        yield f"MCP server {server.name} of {name}: {target}"
    if spec.object:
        yield f"code of {name}: imports {spec.object}"
    model = f"{spec.type} {spec.model or ''}".strip()
    yield f"model of {name}: {model}{f' at {address}' if address else ''}"


def calls_again(past: Past) -> Iterator[str]:
    """Yield the tool calls that have no result yet."""
    for agent, each in past.rounds.items():
        if each.was_asking or not each.exchanges:
            continue
        last = each.exchanges[-1]
        for number, call in enumerate(calls_of(last.response)):
            if number not in last.results:
                yield f"call of {agent}: {call.tool} {call.arguments}"
