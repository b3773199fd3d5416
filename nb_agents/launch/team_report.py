"""Checks a team file without running it, for ``%agents check``.

The report contains every error and notice of a start, with the same wording.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from nb_agents.agents.runner_types import promise_of
from nb_agents.config.file_findings import Finding
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.disk.private import make_folder
from nb_agents.errors import ConfigError, MissingKeyError, UserError
from nb_agents.launch.team_findings import combined_errors, errors_of, findings_and_notices
from nb_agents.loop import submit
from nb_agents.models.providers import find_key
from nb_agents.nouns import amount_in_dollars, token_count
from nb_agents.process.git import has_git
from nb_agents.tools.custom import missing_file_notices
from nb_agents.tools.mcp import missing_variable_notices
from nb_agents.tools.policy import ApprovalDecision
from nb_agents.tools.run_tools import RunTools, RunToolSettings, tool_notices
from nb_agents.turns.drivers import withheld_keys
from nb_agents.turns.turn_spec import mask_for

CAN_START = "Can start."
PROMISES = {
    "goes on": "A resume continues from a summary of their work",
    "in steps": "A resume starts them again, with their finished calls and steps kept",
    "starts again": "A resume starts them again, with nothing kept",
}
"""How a resume continues external agents, by what their runners guarantee."""


class AgentReport(NamedTuple):
    """The part of the report about one agent.

    Attributes:
        agent: The agent's id.
        type: The backend type.
        model: The model, or "".
        key: Where the API key comes from, or which variable is missing. "" if the agent can't run
            here.
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
        lines: Timeouts, context paths, ignored options and unavailable tools.
        verdict: Text that says whether the team can start, and if not, why.
        findings: What prevents a start, and notices.
    """

    agents: tuple[AgentReport, ...]
    lines: tuple[str, ...]
    verdict: str
    findings: tuple[Finding, ...]

    @property
    def can_start(self) -> bool:
        """Whether the team can start."""
        return all(each.severity == "info" for each in self.findings)


def report_on(team: TeamSpec, *, connects: bool = False) -> TeamReport:
    """Check a team in the same way as a start.

    Args:
        connects: Whether to load the files of custom tools, and start and stop the MCP servers.

    Returns:
        The report. It never contains a key.
    """
    unsupported = {each.id for each in team.unsupported}
    agents = tuple(_agent(agent, agent.id not in unsupported) for agent in team.everyone)
    able = [agent for agent in team.everyone if agent.id not in unsupported]
    errors = errors_of(team, imports=True)
    findings = tuple(findings_and_notices(team, errors))
    notices = [each.message for each in findings if each.severity == "info"]
    lines = [_timeouts(team), *_budget(team), *_context_paths(team), *notices]
    lines += [*_tools(team, able, connects), *_promises(able)]
    return TeamReport(agents, tuple(dict.fromkeys(lines)), _verdict(team, errors), findings)


def skipped(unsupported: Sequence[AgentSpec]) -> str:
    """Return the names and types of agents that can't run here."""
    return ", ".join(f"{each.id} ({each.backend.type})" for each in unsupported)


def _agent(agent: AgentSpec, is_supported: bool) -> AgentReport:
    key = _key(agent) if is_supported else ""
    return AgentReport(agent.id, agent.backend.type, agent.backend.model, key)


def _key(agent: AgentSpec) -> str:
    try:
        return find_key(agent).where
    except MissingKeyError as exc:
        return f"{exc.variable} is not set"


def _promises(agents: Sequence[AgentSpec]) -> Iterator[str]:
    for promise, meaning in PROMISES.items():
        if agents_ := [agent.id for agent in agents if promise_of(agent) == promise]:
            yield f"{meaning}: {', '.join(agents_)}"


def _timeouts(team: TeamSpec) -> str:
    limits = team.timeout_settings
    first, later = limits.initial_round_timeout_seconds, limits.subsequent_round_timeout_seconds
    return (
        f"Timeouts: turn {limits.orchestrator_timeout_seconds:g} s ({limits.on_timeout}), "
        f"first round {_seconds(first)}, later rounds {_seconds(later)}, "
        f"then {limits.round_timeout_grace_seconds:g} s more to finish the round"
    )


def _budget(team: TeamSpec) -> list[str]:
    """Return the limits of the team file. The environment may lower them."""
    cost, tokens = team.orchestrator.max_cost, team.orchestrator.max_tokens
    parts = [amount_in_dollars(cost)] if cost is not None else []
    parts += [token_count(tokens)] if tokens is not None else []
    return [f"Budget of a task: {' and '.join(parts)}"] if parts else []


def _seconds(limit: float | None) -> str:
    return "no limit" if limit is None else f"{limit:g} s"


def _context_paths(team: TeamSpec) -> list[str]:
    orchestrator = team.orchestrator
    paths = [each.path for each in orchestrator.context_paths]
    writable = [each.path for each in orchestrator.context_paths if each.permission == "write"]
    lines = [f"Context paths: {', '.join(paths)}"] if paths else []
    if orchestrator.writes_context_paths:
        lines.append(f"Written by the presenter: {', '.join(writable)}")
    if orchestrator.copies_context_paths and has_git():
        lines.append(f"Changed in copies that are merged at the end: {', '.join(writable)}")
    return lines


def _tools(team: TeamSpec, able: Sequence[AgentSpec], connects: bool) -> list[str]:
    """Return notices about unavailable tools.

    Without ``connects``, only those known without a test.
    """
    protects = team.orchestrator.protects_paths
    lines = [*tool_notices([(a.id, a.backend) for a in able], has_protected_paths=protects)]
    if connects:
        return [*lines, *_test_tools(team, able)]
    untested: dict[str, None] = {}
    for agent in able:
        for part, missing in _tool_parts(agent):
            lines += missing
            untested |= {} if missing else {part: None}
    return [*lines, *([f"Not tested (use --connect): {', '.join(untested)}."] if untested else [])]


def _tool_parts(agent: AgentSpec) -> Iterator[tuple[str, list[str]]]:
    """Yield each file and server of an agent's tools, with notices about missing parts."""
    keys, directory = agent.backend, Path.cwd()
    for tool in keys.custom_tools:
        if tool.path:
            missing = missing_file_notices(agent.id, [tool], keys.takes)
            yield f"the custom tools of {tool.path!r}", [*missing]
    for server in keys.mcp_servers:
        if not server.fault:
            missing = missing_variable_notices(agent.id, [server], directory)
            yield f"MCP server {server.name!r}", [*missing]


def _test_tools(team: TeamSpec, able: Sequence[AgentSpec]) -> list[str]:
    """Start and stop the tools of agents. Return the notices that a run would have."""
    future = submit(_open_tools, team, able)
    try:
        lines = future.result()
    except BaseException:
        future.cancel()
        raise
    mask = mask_for(team)
    return [mask.text(line) for line in lines]


async def _open_tools(team: TeamSpec, able: Sequence[AgentSpec]) -> list[str]:
    lines: list[str] = []

    async def nobody(agent: str, tool: str, about: str, stops: bool) -> ApprovalDecision:
        raise UserError("A check calls no tool.")

    with TemporaryDirectory(prefix="nb_agents-check-") as name:
        folder = Path(name)
        tool_settings = RunToolSettings(
            folder, folder / "kept", (), withheld_keys(team), mask_for(team)
        )
        async with RunTools(tool_settings, (), lines.append, nobody, lambda: None) as tools:
            for agent in able:
                space = folder / agent.id
                make_folder(space)
                await tools.open(agent.id, space, agent.backend)
    return lines


def _verdict(team: TeamSpec, errors: list[UserError]) -> str:
    """Return the report's last lines: whether the team can start, and the errors if it can't."""
    if not errors:
        return CAN_START
    error = combined_errors(team, errors)
    reasons = "\n".join(map(str, getattr(error, "others", ()) or (error,)))
    if not team.unsupported:
        return f"Can't start.\n{reasons}"
    try:
        able = team.without_unsupported()
        others = "\n".join(map(str, errors_of(able, imports=True)))
    except ConfigError as exc:
        others = str(exc)
    head = f"Can start with --skip-unsupported, without {skipped(team.unsupported)}."
    lines = ["Can't start." if others else head, reasons]
    return "\n".join([*lines, *(each for each in others.splitlines() if each not in reasons)])
