"""Plans of tasks, as a capability of a team's agents or of a recipe's steps."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from anyio import to_thread

from nb_agents.agents.capabilities import Capability
from nb_agents.config.orchestrator import CoordinationSpec
from nb_agents.tools.base import Tool
from nb_agents.tools.task_plan import TaskPlan

_TASK_PLAN = """Work of more than one step goes by a plan of tasks. Make it with create_task_plan
before you begin: each task with what it depends on, and with what will show that it is done. Set a
task to in_progress when you begin it, to completed when it is done, and to verified once you have
checked it, several at once where that makes sense; add what turns out to be needed. Leave none
pending or in_progress when you submit: do it, or delete it and say why."""

_PLAN_IN_ANSWER = "Your answer ends in a list of the tasks, each with how far it is."

_PLAN_FILES = """Your plan is the file tasks/plan.json of your workspace; you may keep notes beside
it. Those of the others are below `peers/`, at the same place."""


class Planning(Capability):
    """Plans of agents, each in its workspace, or of a recipe's steps, which share one.

    Args:
        wanted: The team file's settings.
        of_steps: Where the directory of each step's plan goes; None for a team's agents.
    """

    def __init__(self, wanted: CoordinationSpec, of_steps: Path | None = None) -> None:
        self._wanted = wanted
        self._of_steps = of_steps

    async def tools(self, agent: str, workspace: Path) -> Sequence[Tool]:
        """Return the tools for a plan."""
        if self._of_steps is not None:
            workspace = self._of_steps / re.sub(r"[^\w.+-]", "_", f"plan+{agent}")[-120:]
            await to_thread.run_sync(partial(workspace.mkdir, parents=True, exist_ok=True))
        return TaskPlan(workspace, self._wanted.max_tasks_per_plan).tools()

    def guide(self, agent: str, tools: Collection[str]) -> str:
        """Return how to go by a plan; a step's result is used verbatim, and lists no tasks."""
        if "create_task_plan" not in tools:
            return ""
        if self._of_steps is not None:
            return _TASK_PLAN
        files = f"\n\n{_PLAN_FILES}" if self._wanted.task_planning_filesystem_mode else ""
        return f"{_TASK_PLAN} {_PLAN_IN_ANSWER}{files}"
