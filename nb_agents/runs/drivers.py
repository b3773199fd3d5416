"""Creating what does a run's work, a team or the executor of a recipe, from the turn's spec."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio import to_thread

from nb_agents import events as ev
from nb_agents.agents.capabilities import Capability
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
from nb_agents.config.tools import ToolKeys
from nb_agents.models.providers import SharedClient, is_usable
from nb_agents.runs.approvals import denial
from nb_agents.runs.turn_spec import TurnSpec
from nb_agents.tools.policy import AgentTools, ApprovalDecision, Ask
from nb_agents.tools.run_tools import KeepFiles, RunTools, ToolPlaces

if TYPE_CHECKING:
    from nb_agents.recipes.executor import Executor


@dataclass(frozen=True)
class DriverDeps:
    """A turn's spec, and the run's functions that the driver calls.

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
        wake: Called, from any thread, when there is something new to show.
        keep: Keeps what a writer may change; None keeps nothing.
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
    keep: KeepFiles | None = None


class Driver(Protocol):
    """Does a run's work, and emits its events."""

    async def run(self) -> TurnResult:
        """Work until there is a result, or raise `AgentStopped` on a stop."""
        ...

    def flush(self) -> None:
        """Emit the text that has arrived in all open model calls."""
        ...

    def hear(self, event: ev.Said) -> None:
        """Pass on a follow-up text of the user, which is journalled already."""
        ...

    def decide(self, approved: bool, message: str, by: str, gate: str = "") -> str:
        """Decide one of the driver's gates; return its address, or "" when it is not open."""
        ...

    def next(self) -> tuple[str, ...]:
        """Return the addresses of the next steps; empty for a team."""
        ...


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
    make = _executor if deps.spec.recipe else _team
    return await make(deps, runners, run_tools, children)


def subagents_for(deps: DriverDeps, runners: Runners, run_tools: RunTools) -> SubAgents:
    """Return the sub-agents of a run, which are closed with the run's tools."""
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
    """Return the tools of a run; they are started when they are entered."""
    spec = deps.spec
    wanted = spec.team.orchestrator
    copies = [repository_of(spec.paths)] if wanted.copies_context_paths else []
    places = ToolPlaces(
        spec.paths.path.parent,
        spec.paths.tools,
        [*spec.context, *copies],
        withheld_keys(spec.team),
        spec.mask,
        spec.writable if wanted.writes_context_paths else (),
        wanted.protects_paths,
        spec.project,
        deps.keep,
    )
    return RunTools(places, spec.functions, deps.note, deps.ask, deps.wake)


async def _team(
    deps: DriverDeps, runners: Runners, run_tools: RunTools, children: SubAgents
) -> Team:
    spec, team = deps.spec, deps.spec.team
    tools: dict[str, AgentTools] = {}
    capabilities = await _capabilities(deps, children)

    async def open_tools(agent: AgentSpec) -> None:
        space = spec.paths.live_workspaces / agent.id
        given = [await each.tools(agent.id, space) for each in capabilities]
        others = [*children.tools(agent.id, agent.backend), *chain(*given)]
        tools[agent.id] = await run_tools.open(agent.id, space, agent.backend, others)

    async with anyio.create_task_group() as group:
        for agent in team.agents:
            group.start_soon(open_tools, agent)

    for agent in team.agents:
        await runners.of(agent)
    for each in capabilities:
        await each.go_on(deps.agents)
    briefing = Briefing(
        team,
        rules_of(team, spec.timeout_s),
        spec.paths,
        spec.task,
        spec.history,
        spec.context,
        tools,
        capabilities,
    )
    past = spec.resumed.past if spec.resumed else None
    return Team(briefing, runners, deps.token, deps.agents, deps.emit, past)


async def _capabilities(deps: DriverDeps, children: SubAgents) -> list[Capability]:
    """Return what a team's agents can do by its file, in the order in which they are told."""
    spec, resumed = deps.spec, deps.spec.resumed
    wanted, found = spec.team.orchestrator.coordination, list[Capability]()
    if wanted.enable_agent_task_planning:
        found.append(Planning(wanted))
    if wanted.enable_subagents:
        found.append(Spawning(children, wanted, resumed.past if resumed else None))
    if wanted.enable_memory_filesystem_mode:
        found.append(MemoryNotes(spec.paths.live_workspaces))
    if spec.team.orchestrator.copies_context_paths:
        past = resumed.view.worktrees if resumed else ()
        policy = wanted.drift_conflict_policy
        found.append(Worktrees(spec.writable, spec.paths, deps.emit, past, policy, deps.keep))
    return [*found, *await _skills(spec)]


async def _step_capabilities(spec: TurnSpec) -> list[Capability]:
    """Return what a recipe's steps can do by their team's file."""
    wanted = spec.team.orchestrator.coordination
    plans = Planning(wanted, spec.paths.live_workspaces)
    return [*[plans] * wanted.enable_agent_task_planning, *await _skills(spec)]


async def _skills(spec: TurnSpec) -> list[Skills]:
    path = spec.team.orchestrator.coordination.skills_path
    return [Skills(await to_thread.run_sync(find_skills, path))] if path else []


async def _executor(
    deps: DriverDeps, runners: Runners, run_tools: RunTools, children: SubAgents
) -> Executor:
    async def open_tools(agent: str, workspace: Path, keys: ToolKeys) -> AgentTools:
        return await run_tools.open(agent, workspace, keys, children.tools(agent, keys))

    from nb_agents.recipes.executor import Executor, Models  # not needed by teams
    from nb_agents.recipes.progress import fold

    spec = deps.spec
    assert spec.recipe is not None
    resumed = spec.resumed
    loaded = ev.RecipeLoaded(step="", path=str(spec.recipe.path or ""), text=spec.recipe.text)
    started = replace(spec.started, at=deps.started_at)
    progress = resumed.progress if resumed and resumed.progress else fold([started])
    return Executor(
        fold([loaded], progress),
        Models(
            spec.team,
            runners,
            is_usable,
            open_tools,
            spec.paths.tools,
            withheld_keys(spec.team),
            await _step_capabilities(spec),
            deps.ask_about,
            deps.keep,
        ),
        spec.project.path if spec.project else spec.paths.live_workspaces / spec.recipe.name,
        spec.context,
        deps.token,
        deps.emit,
        _denier(deps),
        # Follow-ups sent in this turn before there was a driver are passed on separately.
        resumed.view.said if resumed else (),
        resumed.past if resumed else None,
        spec.approval,
        spec.project,
    )


def runners_for(deps: DriverDeps, client: SharedClient) -> Runners:
    """Return the runners of a turn's agents."""

    def make(agent: AgentSpec) -> AgentRunner:
        # The key that is set now may differ from the one set when the run started.
        deps.spec.mask.add(secrets_of_environment())
        return runner_for(agent, client.get)

    return Runners(make)


def withheld_keys(team: TeamSpec) -> list[str]:
    """Return the values of keys, which no process of an agent or a command inherits."""
    own = [a.backend.api_key.get_secret_value() for a in team.everyone if a.backend.api_key]
    variables = {name for row in BACKEND_TYPES.values() for name in row.variables}
    return [*own, *(os.environ.get(name, "") for name in variables)]


def _denier(deps: DriverDeps) -> Callable[[str, ApprovalDecision], None]:
    def deny(gate: str, decision: ApprovalDecision) -> None:
        deps.stop(denial(gate, f"the gate of {gate!r}", decision))

    return deny
