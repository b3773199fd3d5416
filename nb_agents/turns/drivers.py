"""Creates a run's driver from the turn's spec: that of a team, or of another kind of work."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol, runtime_checkable

import anyio
from anyio import to_thread

from nb_agents import events as ev
from nb_agents.agents.capabilities import Capability, Results
from nb_agents.agents.earlier_turns import EarlierTurns
from nb_agents.agents.memory_notes import MemoryNotes
from nb_agents.agents.planning import Planning
from nb_agents.agents.prompts import Briefing
from nb_agents.agents.runner import AgentRunner, Runners
from nb_agents.agents.runner_types import runner_for
from nb_agents.agents.skills import Skills, find_skills
from nb_agents.agents.spawning import Spawning
from nb_agents.agents.subagents import SubAgentDeps, SubAgents
from nb_agents.agents.team_driver import Team
from nb_agents.agents.turn_result import TurnResult
from nb_agents.agents.voting import rules_of
from nb_agents.agents.worktrees import Worktrees, repository_of
from nb_agents.cancel import CancelToken, StopRequest
from nb_agents.config.backends import BACKEND_TYPES
from nb_agents.config.secrets import secrets_of_environment
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.config.tools import KEYS_OF_EXTENSIONS, ToolKeys
from nb_agents.config.uploads import without_escapes
from nb_agents.events.work_kinds import TEAM
from nb_agents.models.providers import SharedClient
from nb_agents.plugins import ExtensionPoint
from nb_agents.tools.base import Tool
from nb_agents.tools.policy import AgentTools, ApprovalDecision, Ask
from nb_agents.tools.run_tools import RunTools, RunToolSettings, SnapshotFiles
from nb_agents.turns.recorder import Observer
from nb_agents.turns.turn_spec import TurnSpec


@dataclass(frozen=True)
class DriverDeps:
    """A turn's spec, and the functions of the run that its driver calls.

    Attributes:
        spec: The turn's spec.
        started_at: When the turn started, in Unix seconds.
        token: The run's cancel token.
        agents: The cancel tokens of the team's members, by id.
        emit: Called with each event.
        note: Adds a notice for the user.
        admit: Called with the id and token of each sub-agent.
        ask: Asks the user whether a tool call is allowed.
        ask_about: Asks the user about a step, given its address and the question.
        stop: Stops the run.
        wake: Called from any thread when there is something new to show.
        keep: Takes snapshots of the files that a writer may change. None disables snapshots.
        observe: Adds an observer of the turn's events.
        agent_tools: Make the tools that extensions add to all agents of the run, called agents and
            agents of steps included.
    """

    spec: TurnSpec
    started_at: float
    token: CancelToken
    agents: Mapping[str, CancelToken]
    emit: Callable[[ev.Event], None]
    note: Callable[[str], None]
    admit: Callable[[str, CancelToken], None]
    ask: Ask
    ask_about: Callable[[str, str], Awaitable[ApprovalDecision]]
    stop: Callable[[StopRequest], object]
    wake: Callable[[], None]
    keep: SnapshotFiles | None = None
    observe: Callable[[Observer], None] = lambda observer: None
    agent_tools: Sequence[ExtensionTools] = ()


class ExtensionTools(Protocol):
    """Makes the tools that an extension adds to the agents of one run."""

    def tools(self, keys: ToolKeys) -> Sequence[Tool]:
        """Return the tools that an agent with this configuration gets."""
        ...

    def note(self, agent: str) -> Results:
        """Return what to add to the next request of a team's member; see `Capability.note`."""
        ...


@runtime_checkable
class PromptTools(Protocol):
    """Extension tools that also add to the prompts of a team's members."""

    async def prompt_text(self, agent: str) -> str:
        """Return text for the end of each of an agent's prompts, or ""."""
        ...


@runtime_checkable
class ClosableTools(Protocol):
    """Extension tools that hold something until the end of the turn, such as a process."""

    async def close(self) -> None:
        """Release it."""
        ...


MemberTools = ExtensionTools
"""The name of `ExtensionTools` for tools that only the members of a team get."""


class Driver(Protocol):
    """Runs the agents or steps of a run, and emits its events."""

    async def run(self) -> TurnResult:
        """Work until there is a result, or raise `AgentStopped` on a stop."""
        ...

    def flush(self) -> None:
        """Emit the text received so far by open model calls."""
        ...

    def add_message(self, event: ev.UserMessage) -> None:
        """Forward a user's message, which is already in the journal."""
        ...

    def decide(self, approved: bool, message: str, by: str, gate: str = "") -> str:
        """Decide one of the driver's gates. Returns its address, or "" if the gate is not open."""
        ...

    def next(self) -> tuple[str, ...]:
        """Return the addresses of the next steps. Empty for a team."""
        ...


class DriverMaker(Protocol):
    """The part of a kind of work that makes the drivers of its turns."""

    async def driver(
        self, deps: DriverDeps, runners: Runners, run_tools: RunTools, children: SubAgents
    ) -> Driver:
        """Return the driver of a run; see `driver_for`."""
        ...


class TeamDrivers:
    """Makes the drivers of teams; see `DriverMaker`."""

    async def driver(
        self, deps: DriverDeps, runners: Runners, run_tools: RunTools, children: SubAgents
    ) -> Driver:
        """Return the driver of a team."""
        return await _team(deps, runners, run_tools, children)


class _MemberNotes(Capability):
    """Adds the notes of an extension's tools to the requests of agents."""

    def __init__(self, tools: ExtensionTools) -> None:
        self._tools = tools

    def note(self, agent: str) -> Results:
        return self._tools.note(agent)

    async def shown(self, agent: str, labels: Mapping[str, str]) -> str:
        return await self._tools.prompt_text(agent) if isinstance(self._tools, PromptTools) else ""


_KINDS = ExtensionPoint[DriverMaker]("work_kinds", {TEAM: TeamDrivers()})
_MEMBER_TOOLS = ExtensionPoint[Callable[[DriverDeps], ExtensionTools]]("member_tools")
_AGENT_TOOLS = ExtensionPoint[Callable[[DriverDeps], ExtensionTools]]("agent_tools")


def with_agent_tools(deps: DriverDeps) -> DriverDeps:
    """Return the functions of a run with the tools that extensions add to all of its agents."""
    keys = [key for key in KEYS_OF_EXTENSIONS if key in _AGENT_TOOLS]
    agents = deps.spec.team.everyone
    enabled = [key for key in keys if any(getattr(agent.backend, key) for agent in agents)]
    return replace(deps, agent_tools=tuple(_AGENT_TOOLS[key](deps) for key in enabled))


async def driver_for(
    deps: DriverDeps, runners: Runners, run_tools: RunTools, children: SubAgents
) -> Driver:
    """Return the driver of a run.

    Args:
        deps: The turn's spec and the run's functions.
        runners: The runners of the turn's agents.
        run_tools: The run's tools.
        children: The run's sub-agents.
    """
    maker = _KINDS[deps.spec.work.kind]
    return await maker.driver(deps, runners, run_tools, children)


def subagents_for(deps: DriverDeps, runners: Runners, run_tools: RunTools) -> SubAgents:
    """Return the sub-agents of a run. They are closed together with the run's tools."""
    spec = deps.spec
    children = SubAgents(
        SubAgentDeps(
            spec.team,
            runners,
            run_tools.open,
            spec.paths.live_workspaces,
            spec.context,
            deps.emit,
            deps.admit,
        ),
        spec.resumed.past.children if spec.resumed else {},
    )
    run_tools.call_at_end(children.close)
    return children


def tools_for(deps: DriverDeps) -> RunTools:
    """Return the tools of a run, as a context manager that starts them."""
    spec = deps.spec
    orchestrator = spec.team.orchestrator
    copies = [repository_of(spec.paths)] if orchestrator.copies_context_paths else []
    tool_settings = RunToolSettings(
        spec.paths.path.parent,
        spec.paths.tools,
        [*spec.context, *copies],
        withheld_keys(spec.team),
        spec.mask,
        spec.writable if orchestrator.writes_context_paths else (),
        orchestrator.protects_paths,
        spec.project,
        deps.keep,
    )

    def of_extensions(keys: ToolKeys) -> Iterator[Tool]:
        for each in deps.agent_tools:
            yield from each.tools(keys)

    return RunTools(tool_settings, spec.functions, deps.note, deps.ask, deps.wake, of_extensions)


async def _team(
    deps: DriverDeps, runners: Runners, run_tools: RunTools, children: SubAgents
) -> Team:
    spec, team = deps.spec, deps.spec.team
    tools: dict[str, AgentTools] = {}
    earlier = EarlierTurns(spec.history)
    more = _member_tools(deps)
    notes = map(_MemberNotes, [*more, *deps.agent_tools])
    capabilities = [*await _capabilities(deps, children), earlier, *notes]

    async def open_tools(agent: AgentSpec) -> None:
        space = spec.paths.live_workspaces / agent.id
        extra = [await each.tools(agent.id, space) for each in capabilities]
        sub_agent_tools = children.tools(agent.id, agent.backend)
        extra_tools = [
            *sub_agent_tools,
            *chain(*(each.tools(agent.backend) for each in more), *extra),
        ]
        tools[agent.id] = await run_tools.open(agent.id, space, agent.backend, extra_tools)

    async with anyio.create_task_group() as group:
        for agent in team.agents:
            group.start_soon(open_tools, agent)

    for agent in team.agents:
        await runners.of(agent)
    for each in capabilities:
        await each.resume_work(deps.agents)
    briefing = Briefing(
        team,
        rules_of(team, spec.timeout_s),
        spec.paths,
        without_escapes(spec.task),
        earlier.messages,
        spec.context,
        tools,
        capabilities,
    )
    past = spec.resumed.past if spec.resumed else None
    return Team(briefing, runners, deps.token, deps.agents, deps.emit, past)


def _member_tools(deps: DriverDeps) -> list[ExtensionTools]:
    """Return an object for each extension tool that agents enable, which makes the tool."""
    member_tools = list[ExtensionTools]()
    for key in KEYS_OF_EXTENSIONS:
        if key in _AGENT_TOOLS:
            continue
        agents = [agent.id for agent in deps.spec.team.agents if getattr(agent.backend, key)]
        if not agents:
            continue
        if key in _MEMBER_TOOLS:
            member_tools.append(_MEMBER_TOOLS[key](deps))
        else:
            deps.note(
                f"The extension with the tool `{key}` is not installed. "
                f"Agents without it: {', '.join(agents)}."
            )
    return member_tools


async def _capabilities(deps: DriverDeps, children: SubAgents) -> list[Capability]:
    """Return the capabilities that a team file enables, in the order of the prompt."""
    spec, resumed = deps.spec, deps.spec.resumed
    coordination, enabled = spec.team.orchestrator.coordination, list[Capability]()
    if coordination.enable_agent_task_planning:
        enabled.append(Planning(coordination))
    if coordination.enable_subagents:
        enabled.append(Spawning(children, coordination, resumed.past if resumed else None))
    if coordination.enable_memory_filesystem_mode:
        enabled.append(MemoryNotes(spec.paths.live_workspaces))
    if spec.team.orchestrator.copies_context_paths:
        past = resumed.view.worktrees if resumed else ()
        policy = coordination.drift_conflict_policy
        enabled.append(Worktrees(spec.writable, spec.paths, deps.emit, past, policy, deps.keep))
    return [*enabled, *await skills_for(spec)]


async def skills_for(spec: TurnSpec) -> list[Skills]:
    """Return the skills that a team file enables, as a capability; empty if there are none."""
    path = spec.team.orchestrator.coordination.skills_path
    return [Skills(await to_thread.run_sync(find_skills, path))] if path else []


def runners_for(deps: DriverDeps, client: SharedClient) -> Runners:
    """Return the runners of a turn's agents."""

    def make(agent: AgentSpec) -> AgentRunner:
        if deps.spec.stand_in is not None:
            return deps.spec.stand_in.runner(agent)
        # A key may have changed since the run started.
        deps.spec.mask.add(secrets_of_environment())
        return runner_for(agent, client.get, deps.spec.team)

    return Runners(make, deps.note)


def withheld_keys(team: TeamSpec) -> list[str]:
    """Return the values of API keys to hide from the processes of agents and commands."""
    own = [a.backend.api_key.get_secret_value() for a in team.everyone if a.backend.api_key]
    variables = {name for row in BACKEND_TYPES.all().values() for name in row.variables}
    return [*own, *(os.environ.get(name, "") for name in variables)]
