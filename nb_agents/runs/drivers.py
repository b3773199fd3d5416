"""What drives a run: a team, or a recipe. Made on the loop from the run's work."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio import to_thread

from nb_agents import events as ev
from nb_agents.agents.caller import current_caller
from nb_agents.agents.team import Result, Team
from nb_agents.cancel import CancellationStatus, CancelToken, StopRequest
from nb_agents.config.backends import BACKEND_TYPES
from nb_agents.config.secrets import secrets_of_environment
from nb_agents.config.team import AgentSpec, TeamSpec
from nb_agents.config.tools import ToolKeys
from nb_agents.models.backend import Backend
from nb_agents.models.providers import backend_for, is_usable
from nb_agents.recipes.executor import Executor, Models
from nb_agents.recipes.progress import fold
from nb_agents.runs.children import Children, Home
from nb_agents.session.cancellation import read_stop
from nb_agents.tools.kit import ToolKit, ToolPlaces
from nb_agents.tools.policy import AgentTools

if TYPE_CHECKING:
    import httpx2

    from nb_agents.runs.execution import Execution

__all__ = ["Driver", "children_for", "driver_for", "kit_for"]


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


async def driver_for(
    run: Execution, client: httpx2.AsyncClient, kit: ToolKit, children: Children
) -> Team | Executor:
    """Make what does a run's work.

    Args:
        run: The run.
        client: Its HTTP client.
        kit: Its tools.
        children: The agents that are called in it.

    Returns:
        The driver.
    """
    make = _executor if run.work.recipe else _team
    return await make(run, client, kit, children)


def children_for(run: Execution, client: httpx2.AsyncClient, kit: ToolKit) -> Children:
    """Make what works on the calls of a run's agents; it ends with the run's tools."""

    def admit(agent: str, token: CancelToken) -> None:
        # Another one, because a thread that stops an agent may be reading this.
        run.agents = {**run.agents, agent: token}

    work = run.work
    children = Children(
        Home(
            work.spec,
            _maker(run, client),
            kit.open,
            work.paths.live_workspaces,
            work.context,
            run.limits.emit,
            admit,
        )
    )
    kit.call_at_end(children.close)
    return children


def kit_for(run: Execution) -> ToolKit:
    """Make the tools of a run; they start when it does."""
    work = run.work
    places = ToolPlaces(
        work.paths.path.parent,
        work.paths.tools,
        work.context,
        _uninherited(work.spec),
        work.mask,
        work.writable,
        work.spec.orchestrator.protects_paths,
    )
    return ToolKit(places, work.functions, run.recorder.note, run.approvals.ask, current_caller)


async def _team(
    run: Execution, client: httpx2.AsyncClient, kit: ToolKit, children: Children
) -> Team:
    work, spec = run.work, run.work.spec
    tools: dict[str, AgentTools] = {}

    async def open_tools(agent: AgentSpec) -> None:
        space = work.paths.live_workspaces / agent.id
        others = children.tools(agent.id, agent.backend)
        tools[agent.id] = await kit.open(agent.id, space, agent.backend, others)

    async with anyio.create_task_group() as group:
        for agent in spec.agents:
            group.start_soon(open_tools, agent)

    make = _maker(run, client)

    def backends() -> dict[str, Backend]:
        return {a.id: make(a) for a in spec.agents}

    return Team(
        spec,
        await to_thread.run_sync(backends),
        work.paths,
        work.task,
        work.history,
        work.context,
        run.token,
        run.agents,
        run.limits.emit,
        work.resumed.past if work.resumed else None,
        work.timeout_s,
        tools,
    )


async def _executor(
    run: Execution, client: httpx2.AsyncClient, kit: ToolKit, children: Children
) -> Executor:
    async def open_tools(agent: str, workspace: Path, keys: ToolKeys) -> AgentTools:
        return await kit.open(agent, workspace, keys, children.tools(agent, keys))

    work = run.work
    assert work.recipe is not None
    resumed, make = work.resumed, _maker(run, client)
    loaded = ev.RecipeLoaded(step="", path=str(work.recipe.path or ""), text=work.recipe.text)
    started = replace(work.started(), at=run.view.started_at)
    progress = resumed.progress if resumed and resumed.progress else fold([started])
    return Executor(
        fold([loaded], progress),
        Models(work.spec, make, is_usable, open_tools, work.paths.tools, _uninherited(work.spec)),
        work.paths.live_workspaces / work.recipe.name,
        work.context,
        run.token,
        run.limits.emit,
        _denier(run),
        _looker(run),
        # What was said in this turn before there was a driver is heard by it apart.
        resumed.view.said if resumed else (),
        resumed.past if resumed else None,
        work.options.approval,
    )


def _maker(run: Execution, client: httpx2.AsyncClient) -> Callable[[AgentSpec], Backend]:
    def make(agent: AgentSpec) -> Backend:
        # It takes the key that is set now, which may be another than when the run began.
        run.work.mask.add(secrets_of_environment())
        return backend_for(agent, client)

    return make


def _uninherited(spec: TeamSpec) -> list[str]:
    """Give the values that no process of an agent or a command inherits."""
    own = [a.backend.api_key.get_secret_value() for a in spec.everyone if a.backend.api_key]
    variables = {name for row in BACKEND_TYPES.values() for name in row.variables}
    return [*own, *(os.environ.get(name, "") for name in variables)]


def _denier(run: Execution) -> Callable[[str], None]:
    def deny(why: str) -> None:
        run.stops.request(StopRequest(CancellationStatus.REQUESTED, "approval", why))

    return deny


def _looker(run: Execution) -> Callable[[], None]:
    def look() -> None:
        if (request := read_stop(run.work.paths)) is not None:
            run.stops.request(request)

    return look
