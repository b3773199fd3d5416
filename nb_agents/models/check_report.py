"""What would become of a team file, without running it: ``%agents check`` shows this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.errors import ConfigError, MissingKeyError
from nb_agents.models.providers import find_key, refusals

__all__ = ["AgentReport", "TeamReport", "report_on"]


class AgentReport(NamedTuple):
    """An agent, in words.

    Attributes:
        agent: Its id.
        type: Its backend type.
        model: Its model, or "".
        key: Where its key comes from, or which variable is missing; "" when it can't run here.
    """

    agent: str
    type: str
    model: str
    key: str


@dataclass(frozen=True)
class TeamReport:
    """A team, in words.

    Attributes:
        agents: Its agents.
        lines: Timeouts, context paths, what is ignored and what is not supported; each once.
        verdict: Whether it can start, and if not, why.
    """

    agents: tuple[AgentReport, ...]
    lines: tuple[str, ...]
    verdict: str


def report_on(team: TeamSpec) -> TeamReport:
    """Judge a team as starting it would, and start nothing.

    Args:
        team: The team.

    Returns:
        The report; never holds a key.
    """
    gone = {each.agent for each in team.unsupported}
    agents = tuple(_agent(agent, agent.id not in gone) for agent in team.everyone)
    lines = [_timeouts(team), *_context_paths(team)]
    lines += team.notices
    lines += [f"Not supported: {u.agent} ({u.type}). {u.why}" for u in team.unsupported]
    return TeamReport(agents, tuple(lines), _verdict(team))


def _agent(agent: AgentSpec, is_supported: bool) -> AgentReport:
    key = _key(agent) if is_supported else ""
    return AgentReport(agent.id, agent.backend.type, agent.backend.model, key)


def _key(agent: AgentSpec) -> str:
    try:
        return find_key(agent).where
    except MissingKeyError as exc:
        return f"{exc.variable} is not set"


def _timeouts(team: TeamSpec) -> str:
    limits = team.timeout_settings
    first, later = limits.initial_round_timeout_seconds, limits.subsequent_round_timeout_seconds
    return (
        f"Timeouts: turn {limits.orchestrator_timeout_seconds:g} s ({limits.on_timeout}), "
        f"first round {_seconds(first)}, later rounds {_seconds(later)}, "
        f"grace {limits.round_timeout_grace_seconds:g} s"
    )


def _seconds(limit: float | None) -> str:
    return "no limit" if limit is None else f"{limit:g} s"


def _context_paths(team: TeamSpec) -> list[str]:
    given = team.orchestrator
    paths = [each.path for each in given.context_paths]
    writable = [each.path for each in given.context_paths if each.permission == "write"]
    lines = [f"Context paths: {', '.join(paths)}"] if paths else []
    if given.writes_context_paths:
        lines.append(f"Written by the agent that presents: {', '.join(writable)}")
    return lines


def _verdict(team: TeamSpec) -> str:
    """Say whether it starts; if not, each reason."""
    try:
        rest = team.without_unsupported()
    except ConfigError as exc:
        return f"Can't start. {exc.message}"
    reasons = [*_missing(rest), *_faults(rest)]
    if reasons:
        return "\n".join(["Can't start.", *reasons])
    return "Can start." if rest is team else "Can start with --skip-unsupported."


def _missing(team: TeamSpec) -> list[str]:
    """Name the variables to set, each once however many agents want it."""
    names = [exc.variable for exc in refusals(team) if isinstance(exc, MissingKeyError)]
    return [f"Set in the environment first: {', '.join(dict.fromkeys(names))}."] if names else []


def _faults(rest: TeamSpec) -> list[str]:
    faults = [str(exc) for exc in refusals(rest) if not isinstance(exc, MissingKeyError)]
    try:
        _ = rest.context_paths
    except ConfigError as exc:
        faults.append(str(exc))
    return faults
