"""Going on with a session: only with one's own, or with one that its user has looked at and trusts.

Every run is given its session's mark, and only `trusted_mark` has one to give.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nb_agents.agents.message_json import calls_of
from nb_agents.config.backends import BACKEND_TYPES
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.errors import NotYoursError
from nb_agents.options import RunOptions
from nb_agents.runs.turn_spec import mask_for
from nb_agents.session.ownership import (
    OwnerMark,
    confirm_turns,
    evidence_of,
    judge,
    known_mark,
    new_mark,
)

if TYPE_CHECKING:
    from nb_agents.agents.replay import Past
    from nb_agents.config.recipe import Recipe

MAX_LINES = 200
MAX_CHARS = 2_000
"""Characters of each line."""


def trusted_mark(
    session: Path | None, options: RunOptions, would_run: Callable[[], Iterable[str]]
) -> OwnerMark:
    """Return the mark that the next turn of a session gets.

    Args:
        session: The session's directory; None for a new one.
        options: The run's options; with `trust`, the session counts as this user's from now on.
        would_run: Returns what the run would run, in lines; called only for a stranger's session.

    Raises:
        NotYoursError: The session is neither this user's, nor was it trusted before.
        StorageError: The session can't be written.
    """
    turns = evidence_of(session) if session else ()
    if session is None or not turns:
        return new_mark()
    mark = judge(turns, known_mark)
    if mark is not None:
        return mark
    if not options.trust:
        raise NotYoursError(session.name, tuple(would_run()))
    return confirm_turns(turns)


def is_yours(session: Path) -> bool:
    """Return whether `trusted_mark` lets the session be gone on with unasked."""
    turns = evidence_of(session)
    return not turns or judge(turns, known_mark) is not None


def would_run(
    team: TeamSpec, recipes: Iterable[Recipe] = (), calls: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return what a run would run and whom it would ask, in lines that a person can check.

    Args:
        team: The team.
        recipes: The recipes that it would run.
        calls: The calls of tools that it would make first.
    """
    mask = mask_for(team)
    lines = [*_of_recipes(recipes), *calls, *(each for a in team.everyone for each in _of_agent(a))]
    shown = [mask.text(" ".join(line.split())) for line in dict.fromkeys(lines)]
    cut = [line if len(line) <= MAX_CHARS else f"{line[:MAX_CHARS]}…" for line in shown]
    left = len(cut) - MAX_LINES
    more = [f"… and {left} more: read the session's files before you trust it"] if left > 0 else []
    return (*cut[:MAX_LINES], *more)


def _of_recipes(recipes: Iterable[Recipe]) -> Iterator[str]:
    for recipe in recipes:
        for step in recipe.walk():
            if step.command:
                yield f"command of {step.id}: {step.command}"
            elif step.recipe:
                yield f"recipe of {step.id}: {step.recipe}"


def _of_agent(agent: AgentSpec) -> Iterator[str]:
    spec, who = agent.backend, agent.id
    kind = BACKEND_TYPES.get(spec.type)
    address = spec.base_url or (kind.base_url if kind else None)
    if spec.enable_mcp_command_line:
        yield f"commands that {who} writes{'' if spec.sandbox else ', without a sandbox'}"
    for tool in spec.custom_tools:
        yield f"custom tools of {who}: {', '.join(tool.function)} of {tool.path or 'MassGen'}"
    for server in spec.mcp_servers:
        where = server.url or shlex.join([*server.command, *server.args])
        yield f"MCP server {server.name} of {who}: {where}"
    if spec.object:
        yield f"code of {who}: imports {spec.object}"
    model = f"{spec.type} {spec.model or ''}".strip()
    yield f"model of {who}: {model}{f' at {address}' if address else ''}"


def calls_again(past: Past) -> Iterator[str]:
    """Yield the calls of tools that agents have not had the results of."""
    for agent, each in past.rounds.items():
        if each.was_asking or not each.exchanges:
            continue
        last = each.exchanges[-1]
        for number, call in enumerate(calls_of(last.response)):
            if number not in last.results:
                yield f"call of {agent}: {call.tool} {call.arguments}"
