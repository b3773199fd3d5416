"""Creates the executor of a recipe from its turn's spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nb_agents import events as ev
from nb_agents.agents.capabilities import Capability
from nb_agents.agents.planning import Planning
from nb_agents.agents.runner import Runners
from nb_agents.agents.subagents import SubAgents
from nb_agents.config.tools import ToolKeys
from nb_agents.extensions.recipes.executor import Executor, Models
from nb_agents.extensions.recipes.progress import fold
from nb_agents.extensions.recipes.recipe_work import RecipeWork
from nb_agents.models.providers import is_usable
from nb_agents.tools.policy import AgentTools, ApprovalDecision
from nb_agents.tools.run_tools import RunTools
from nb_agents.turns.approvals import denial
from nb_agents.turns.drivers import DriverDeps, skills_for, withheld_keys
from nb_agents.turns.turn_spec import TurnSpec


async def executor_for(
    deps: DriverDeps, runners: Runners, run_tools: RunTools, children: SubAgents
) -> Executor:
    """Return the executor of a turn's recipe.

    Args:
        deps: The turn's spec and the run's functions.
        runners: The runners of the turn's agents.
        run_tools: The run's tools.
        children: The run's sub-agents.
    """

    async def open_tools(agent: str, workspace: Path, keys: ToolKeys) -> AgentTools:
        return await run_tools.open(agent, workspace, keys, children.tools(agent, keys))

    spec, resumed = deps.spec, deps.spec.resumed
    assert isinstance(spec.work, RecipeWork)
    recipe = spec.work.recipe
    loaded = ev.RecipeLoaded(step="", path=str(recipe.path or ""), text=recipe.text)
    started = replace(spec.started, at=deps.started_at)
    progress = spec.work.progress or fold([started])
    return Executor(
        fold([loaded], progress),
        Models(
            spec.team,
            runners,
            spec.stand_in.is_usable if spec.stand_in else is_usable,
            open_tools,
            spec.paths.tools,
            withheld_keys(spec.team),
            await _step_capabilities(spec),
            deps.ask_about,
            deps.keep,
            spec.stand_in,
        ),
        spec.project.path if spec.project else spec.paths.live_workspaces / recipe.name,
        spec.context,
        deps.token,
        deps.emit,
        _denier(deps),
        # Messages sent before this turn had a driver are forwarded separately.
        resumed.view.said if resumed else (),
        resumed.past if resumed else None,
        spec.approval,
        spec.project,
    )


async def _step_capabilities(spec: TurnSpec) -> list[Capability]:
    """Return the capabilities that a team file enables for a recipe's steps."""
    coordination = spec.team.orchestrator.coordination
    plans = Planning(coordination, spec.paths.live_workspaces)
    return [*[plans] * coordination.enable_agent_task_planning, *await skills_for(spec)]


def _denier(deps: DriverDeps) -> Callable[[str, ApprovalDecision], None]:
    def deny(gate: str, decision: ApprovalDecision) -> None:
        deps.stop(denial(gate, f"the gate of {gate!r}", decision))

    return deny
