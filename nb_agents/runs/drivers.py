"""What drives a run: a team, or a recipe. Made on the loop from the run's work."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio import to_thread

from nb_agents import events as ev
from nb_agents.agents.decisions import Results
from nb_agents.agents.guides import find_skills, skills_guide
from nb_agents.agents.team_driver import Result, Team
from nb_agents.agents.worktrees import Worktrees, repository_of
from nb_agents.cancel import CancelToken, StopRequest
from nb_agents.config.backends import BACKEND_TYPES
from nb_agents.config.secrets import secrets_of_environment
from nb_agents.config.team import AgentSpec, CoordinationSpec, TeamSpec
from nb_agents.config.tools import ToolKeys
from nb_agents.models.backend import Backend
from nb_agents.models.providers import backend_for, is_usable
from nb_agents.runs.approvals import denial
from nb_agents.runs.spawning import Spawner
from nb_agents.runs.subagents import Home, SubAgents
from nb_agents.runs.turn_spec import TurnSpec
from nb_agents.tools.base import Tool
from nb_agents.tools.policy import AgentTools, Ask, Decision
from nb_agents.tools.run_tools import RunTools, ToolPlaces
from nb_agents.tools.task_plan import TaskPlan

if TYPE_CHECKING:
    import httpx2

    from nb_agents.recipes.executor import Executor

__all__ = ["Driver", "Job", "driver_for", "subagents_for", "tools_for", "uninherited"]


@dataclass(frozen=True)
class Job:
    """What a run gives to those who do its work.

    Attributes:
        spec: What to do.
        started_at: When it began, in Unix seconds.
        token: The run's.
        agents: By id, those of its agents that are members of the team.
        emit: Takes what happens.
        note: Tells a person something.
        admit: Is given the token of each agent that is called later.
        ask: Asks a person whether a call may be made.
        stop: Stops the run.
        look: Looks whether another process has asked for a stop.
        wake: Told, from any thread, when there is something new to show.
    """

    spec: TurnSpec
    started_at: float
    token: CancelToken
    agents: Mapping[str, CancelToken]
    emit: Callable[[ev.Event], None]
    note: Callable[[str], None]
    admit: Callable[[str, CancelToken], None]
    ask: Ask
    stop: Callable[[StopRequest], object]
    look: Callable[[], None]
    wake: Callable[[], None]


class Driver(Protocol):
    """Does a run's work, and tells what happens."""

    async def run(self) -> Result:
        """Work until there is a result, or a stop ends it (AgentStopped)."""
        ...

    def flush(self) -> None:
        """Emit the words that have arrived in all open calls."""
        ...

    def hear(self, event: ev.Said) -> None:
        """Take a follow-up text of the person, which is journalled already."""
        ...

    def decide(self, approved: bool, message: str, by: str, gate: str = "") -> str:
        """Decide a gate of its own: the gate's address, or "" when none such waits."""
        ...

    def next(self) -> tuple[str, ...]:
        """Say what it would do next, by address; of a team that is not known."""
        ...


async def driver_for(
    job: Job, client: httpx2.AsyncClient, kit: RunTools, children: SubAgents
) -> Driver:
    """Make what does a run's work.

    Args:
        job: What the run gives.
        client: Its HTTP client.
        kit: Its tools.
        children: The agents that are called in it.

    Returns:
        The driver.
    """
    make = _executor if job.spec.recipe else _team
    return await make(job, client, kit, children)


def subagents_for(job: Job, client: httpx2.AsyncClient, kit: RunTools) -> SubAgents:
    """Make what works on the calls of a run's agents; it ends with the run's tools."""
    spec = job.spec
    children = SubAgents(
        Home(
            spec.team,
            _maker(job, client),
            kit.open,
            spec.paths.live_workspaces,
            spec.context,
            job.emit,
            job.admit,
        )
    )
    kit.call_at_end(children.close)
    return children


def tools_for(job: Job) -> RunTools:
    """Make the tools of a run; they start when it does."""
    spec = job.spec
    wanted = spec.team.orchestrator
    copies = [repository_of(spec.paths)] if wanted.copies_context_paths else []
    places = ToolPlaces(
        spec.paths.path.parent,
        spec.paths.tools,
        [*spec.context, *copies],
        uninherited(spec.team),
        spec.mask,
        spec.writable if wanted.writes_context_paths else (),
        wanted.protects_paths,
        spec.project,
    )
    return RunTools(places, spec.functions, job.note, job.ask, job.wake)


async def _team(job: Job, client: httpx2.AsyncClient, kit: RunTools, children: SubAgents) -> Team:
    spec, team = job.spec, job.spec.team
    tools: dict[str, AgentTools] = {}
    results: dict[str, Callable[[], Results]] = {}

    wanted = team.orchestrator.coordination
    spawned = spec.resumed.past.spawned if spec.resumed else {}
    worktrees = Worktrees(
        spec.writable if team.orchestrator.copies_context_paths else (),
        spec.paths,
        job.emit,
        spec.resumed.view.worktrees if spec.resumed else (),
        wanted.drift_conflict_policy,
    )

    async def open_tools(agent: AgentSpec) -> None:
        space = spec.paths.live_workspaces / agent.id
        await worktrees.open(agent.id)
        others = [*children.tools(agent.id, agent.backend), *_own_tools(wanted, space)]
        if wanted.enable_subagents:
            spawner = Spawner(agent.id, children, wanted, spawned)
            others += spawner.tools()
            results[agent.id] = spawner.take_results
        tools[agent.id] = await kit.open(agent.id, space, agent.backend, others)

    async with anyio.create_task_group() as group:
        for agent in team.agents:
            group.start_soon(open_tools, agent)

    make = _maker(job, client)

    def backends() -> dict[str, Backend]:
        return {a.id: make(a) for a in team.agents}

    skills = wanted.skills_path

    return Team(
        team,
        backends=await to_thread.run_sync(backends),
        paths=spec.paths,
        task=spec.task,
        history=spec.history,
        context=spec.context,
        token=job.token,
        tokens=job.agents,
        emit=job.emit,
        past=spec.resumed.past if spec.resumed else None,
        timeout_s=spec.timeout_s,
        tools=tools,
        skills=await to_thread.run_sync(find_skills, skills) if skills else (),
        worktrees=worktrees,
        results=results,
    )


def _step_tools(team: TeamSpec, workspaces: Path) -> Callable[[str], list[Tool]]:
    """Give what makes the tools over a step's own files, which are beside the shared workspace."""
    wanted = team.orchestrator.coordination

    def make(address: str) -> list[Tool]:
        folder = workspaces / re.sub(r"[^\w.+-]", "_", f"plan+{address}")[-120:]
        if wanted.enable_agent_task_planning:
            folder.mkdir(parents=True, exist_ok=True)
        return _own_tools(wanted, folder)

    return make


def _own_tools(wanted: CoordinationSpec, workspace: Path) -> list[Tool]:
    """Give the tools over an agent's own files that the team's file asks for."""
    if not wanted.enable_agent_task_planning:
        return []
    return TaskPlan(workspace, wanted.max_tasks_per_plan).tools()


async def _executor(
    job: Job, client: httpx2.AsyncClient, kit: RunTools, children: SubAgents
) -> Executor:
    async def open_tools(agent: str, workspace: Path, keys: ToolKeys) -> AgentTools:
        return await kit.open(agent, workspace, keys, children.tools(agent, keys))

    from nb_agents.recipes.executor import Executor, Models  # what a team never needs
    from nb_agents.recipes.progress import fold

    spec = job.spec
    assert spec.recipe is not None
    resumed, make = spec.resumed, _maker(job, client)
    loaded = ev.RecipeLoaded(step="", path=str(spec.recipe.path or ""), text=spec.recipe.text)
    started = replace(spec.started(), at=job.started_at)
    progress = resumed.progress if resumed and resumed.progress else fold([started])
    skills = spec.team.orchestrator.coordination.skills_path
    found = await to_thread.run_sync(find_skills, skills) if skills else ()
    return Executor(
        fold([loaded], progress),
        Models(
            spec.team,
            make,
            is_usable,
            open_tools,
            spec.paths.tools,
            uninherited(spec.team),
            _step_tools(spec.team, spec.paths.live_workspaces),
            skills_guide(found),
        ),
        spec.project.path if spec.project else spec.paths.live_workspaces / spec.recipe.name,
        spec.context,
        job.token,
        job.emit,
        _denier(job),
        job.look,
        # What was said in this turn before there was a driver is heard by it apart.
        resumed.view.said if resumed else (),
        resumed.past if resumed else None,
        spec.approval,
        spec.project,
    )


def _maker(job: Job, client: httpx2.AsyncClient) -> Callable[[AgentSpec], Backend]:
    def make(agent: AgentSpec) -> Backend:
        # It takes the key that is set now, which may be another than when the run began.
        job.spec.mask.add(secrets_of_environment())
        return backend_for(agent, client)

    return make


def uninherited(team: TeamSpec) -> list[str]:
    """Give the values that no process of an agent or a command inherits."""
    own = [a.backend.api_key.get_secret_value() for a in team.everyone if a.backend.api_key]
    variables = {name for row in BACKEND_TYPES.values() for name in row.variables}
    return [*own, *(os.environ.get(name, "") for name in variables)]


def _denier(job: Job) -> Callable[[str, Decision], None]:
    def deny(gate: str, decision: Decision) -> None:
        job.stop(denial(gate, f"the gate of {gate!r}", decision))

    return deny
