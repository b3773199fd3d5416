"""The task plan capability of a team's agents or a recipe's steps."""

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

_TASK_PLAN = """Plan all work that has more than one step. Before you begin, make the plan with
create_task_plan: give each task the tasks that it depends on and a way to verify it. Set a task to
in_progress when you start it, to completed when it is done, and to verified after you have checked
it. You can verify several tasks together. Add tasks that turn out to be necessary. Leave no
task pending or in_progress when you submit: do it, or delete it and say why."""

_PLAN_IN_ANSWER = "End your answer with a list of the tasks and the status of each."

_PLAN_FILES = """Your plan is the file tasks/plan.json in your workspace. You can write notes in the
same directory. Find the other agents' plans under `peers/` at the same path."""


class Planning(Capability):
    """Gives agents and steps the tools for a task plan.

    Args:
        coordination: The team file's settings.
        of_steps: Parent directory of the steps' plans, because steps share a workspace. None for a
            team's agents, whose plans are in their workspaces.
    """

    def __init__(self, coordination: CoordinationSpec, of_steps: Path | None = None) -> None:
        self._spec = coordination
        self._of_steps = of_steps

    async def tools(self, agent: str, workspace: Path) -> Sequence[Tool]:
        """Return the tools that edit a plan."""
        if self._of_steps is not None:
            workspace = self._of_steps / re.sub(r"[^\w.+-]", "_", f"plan+{agent}")[-120:]
            await to_thread.run_sync(partial(workspace.mkdir, parents=True, exist_ok=True))
        return TaskPlan(workspace, self._spec.max_tasks_per_plan).tools()

    def guide(self, agent: str, tools: Collection[str]) -> str:
        """Return the instructions for working with a plan.

        A step is not asked to list its tasks, because its result is used verbatim.
        """
        if "create_task_plan" not in tools:
            return ""
        if self._of_steps is not None:
            return _TASK_PLAN
        files = f"\n\n{_PLAN_FILES}" if self._spec.task_planning_filesystem_mode else ""
        return f"{_TASK_PLAN} {_PLAN_IN_ANSWER}{files}"
