"""Checking a team file without a run, for ``%agents check``.

The report has each error with which a start would refuse, and each of its notices, in their words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from nb_agents.agents.programs.program_objects import check_objects
from nb_agents.agents.runner_types import promise_of
from nb_agents.config.report import Unsupported
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.errors import ConfigError, MissingKeyError, UserError
from nb_agents.loop import submit
from nb_agents.models.fit import fit_of
from nb_agents.models.providers import find_key, raised_by, refusals
from nb_agents.process.git import has_git
from nb_agents.runs.drivers import withheld_keys
from nb_agents.runs.turn_spec import mask_for
from nb_agents.tools.custom import without_file
from nb_agents.tools.mcp import without_variables
from nb_agents.tools.policy import ApprovalDecision
from nb_agents.tools.run_tools import RunTools, ToolPlaces, announcements

CAN_START = "Can start."
PROMISES = {
    "goes on": "A resume goes on from what they had said and done",
    "in steps": "A resume starts them again, with their finished calls and steps kept",
    "starts again": "A resume starts them again, with nothing kept",
}
"""What a resume makes of agents that are no models of ours, by what their runners promise."""


class AgentReport(NamedTuple):
    """An agent in the report.

    Attributes:
        agent: The agent's id.
        type: The backend type.
        model: The model, or "".
        key: Where the key comes from, or which variable is missing; "" when it can't run here.
    """

    agent: str
    type: str
    model: str
    key: str


@dataclass(frozen=True)
class TeamReport:
    """A report on a team.

    Attributes:
        agents: The team's agents.
        lines: Timeouts, context paths, ignored options and tools that are not available.
        verdict: Whether the team can start, and if not, why.
    """

    agents: tuple[AgentReport, ...]
    lines: tuple[str, ...]
    verdict: str


def report_on(team: TeamSpec, *, connects: bool = False) -> TeamReport:
    """Return a report on a team, with the checks of a start.

    Args:
        team: The team.
        connects: Whether to load the files of custom tools and start the MCP servers, which are
            ended again.

    Returns:
        The report, which never contains a key.
    """
    gone = {each.agent for each in team.unsupported}
    agents = tuple(_agent(agent, agent.id not in gone) for agent in team.everyone)
    able = [agent for agent in team.everyone if agent.id not in gone]
    lines = [_timeouts(team), *_context_paths(team), *team.notices, *fit_of(team).notices]
    lines += [*_tools(team, able, connects), *_promises(able)]
    return TeamReport(agents, tuple(dict.fromkeys(lines)), _verdict(team))


def skipped(gone: Sequence[Unsupported]) -> str:
    """Return the names and types of agents that can't run here."""
    return ", ".join(f"{each.agent} ({each.type})" for each in gone)


def _agent(agent: AgentSpec, is_supported: bool) -> AgentReport:
    key = _key(agent) if is_supported else ""
    return AgentReport(agent.id, agent.backend.type, agent.backend.model, key)


def _key(agent: AgentSpec) -> str:
    try:
        return find_key(agent).where
    except MissingKeyError as exc:
        return f"{exc.variable} is not set"


def _promises(agents: Sequence[AgentSpec]) -> Iterator[str]:
    for promise, told in PROMISES.items():
        if named := [agent.id for agent in agents if promise_of(agent) == promise]:
            yield f"{told}: {', '.join(named)}"


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
    if given.copies_context_paths and has_git():
        lines.append(f"Changed in copies, which are merged at the end: {', '.join(writable)}")
    return lines


def _tools(team: TeamSpec, able: Sequence[AgentSpec], connects: bool) -> list[str]:
    """Return notices on the tools that agents do not get, as far as known without ``connects``."""
    protects = team.orchestrator.protects_paths
    lines = [*announcements([(a.id, a.backend) for a in able], has_protected_paths=protects)]
    if connects:
        return [*lines, *_tried(team, able)]
    untried: dict[str, None] = {}
    for agent in able:
        for what, missing in _by_part(agent):
            lines += missing
            untried |= {} if missing else {what: None}
    return [*lines, *([f"Not tried, as --connect does: {', '.join(untried)}."] if untried else [])]


def _by_part(agent: AgentSpec) -> Iterator[tuple[str, list[str]]]:
    """Yield each file and server of an agent's tools, and what is known to be missing of it."""
    keys, here = agent.backend, Path.cwd()
    for tool in keys.custom_tools:
        if tool.path:
            missing = without_file(agent.id, [tool], keys.takes)
            yield f"the custom tools of {tool.path!r}", [*missing]
    for server in keys.mcp_servers:
        if not server.fault:
            missing = without_variables(agent.id, [server], here)
            yield f"MCP server {server.name!r}", [*missing]


def _tried(team: TeamSpec, able: Sequence[AgentSpec]) -> list[str]:
    """Start and end the tools of agents; return the notices of a run."""
    trying = submit(_try, team, able)
    try:
        lines = trying.result()
    except BaseException:
        trying.cancel()
        raise
    mask = mask_for(team)
    return [mask.text(line) for line in lines]


async def _try(team: TeamSpec, able: Sequence[AgentSpec]) -> list[str]:
    lines: list[str] = []

    async def nobody(agent: str, tool: str, about: str, stops: bool) -> ApprovalDecision:
        raise UserError("A check calls no tool.")

    with TemporaryDirectory(prefix="nb_agents-check-") as name:
        folder = Path(name)
        places = ToolPlaces(folder, folder / "kept", (), withheld_keys(team), mask_for(team))
        async with RunTools(places, (), lines.append, nobody, lambda: None) as tools:
            for agent in able:
                space = folder / agent.id
                space.mkdir()
                await tools.open(agent.id, space, agent.backend)
    return lines


def _verdict(team: TeamSpec) -> str:
    """Return whether a team can start, with the error messages of a start."""
    reasons = _reasons(team)
    if not reasons:
        return CAN_START
    if not team.unsupported:
        return "\n".join(["Can't start.", *reasons])
    try:
        others = _reasons(team.without_unsupported())
    except ConfigError as exc:
        others = [str(exc)]
    head = f"Can start with --skip-unsupported, without {skipped(team.unsupported)}."
    return "\n".join(dict.fromkeys(["Can't start." if others else head, *reasons, *others]))


def _reasons(team: TeamSpec) -> list[str]:
    """Return the error messages, with only the first of those about the same variable."""
    found: dict[str, str] = {}
    bad = raised_by(check_objects, team)
    for exc in (*refusals(team), *bad, *fit_of(team).refusals, *team.missing_paths):
        said = str(exc)
        found.setdefault(exc.variable if isinstance(exc, MissingKeyError) else said, said)
    return list(found.values())
