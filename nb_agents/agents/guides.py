"""What agents are told of the features that a team's file switches on, in their system prompts.

A guide is told where its tools are: not while a team only plans, nor to an agent that has none of
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from nb_agents.config.orchestrator import CoordinationSpec
from nb_agents.events import WorktreeBased

__all__ = ["guides", "step_guides", "worktrees_guide"]

_TASK_PLAN = """Work of more than one step goes by a plan of tasks. Make it with create_task_plan
before you begin: each task with what it depends on, and with what will show that it is done. Set a
task to in_progress when you begin it, to completed when it is done, and to verified once you have
checked it, several at once where that makes sense; add what turns out to be needed. Leave none
pending or in_progress when you submit: do it, or delete it and say why."""

_PLAN_IN_ANSWER = "Your answer ends in a list of the tasks, each with how far it is."

_PLAN_FILES = """Your plan is the file tasks/plan.json of your workspace; you may keep notes beside
it. Those of the others are below `peers/`, at the same place."""

_MEMORY = """You forget all when your round ends, but for files. Note down what you or another agent
will want to know later, and why: memory/short_term/NAME.md of your workspace for what is short and
needed each time, as it is shown to all at the beginning of each round; memory/long_term/NAME.md for
what is long and only needed now and then, as of it the description alone is shown. Each begins with
---
name: NAME
description: in one line, what it holds
---"""

_SUBAGENTS = """Parts of the work that do not need one another can be done by sub-agents, at most
{most} at once: spawn_subagents gives each a task, which must hold all that it has to know, and you
get what it writes last. Small things you do yourself, as each costs as much as you do."""

_BACKGROUND = """With `background: true` you go on meanwhile, and are told what each came to with
the results of your next calls: list_subagents says how they stand, cancel_subagent ends one. Wait
for those that you need, by wait_for_subagents, before you submit."""


_WORKTREES = """You have copies of files of the person who gave the task, as git worktrees in your
workspace, to change as the task asks for:
{copies}
Change these copies, and not what they are copies of: who gives the final answer has its own merged
back. Those of the others are below `peers/`, at the same place."""


def worktrees_guide(worktrees: Sequence[WorktreeBased]) -> str:
    """Say which copies of files an agent may change; "" where there are none.

    Args:
        worktrees: Its own.
    """
    copies = "\n".join(f"- `{each.place}`: of {each.path}" for each in worktrees)
    return _WORKTREES.format(copies=copies) if copies else ""


def guides(tools: Collection[str], wanted: CoordinationSpec) -> Iterator[str]:
    """Say how to use what an agent has.

    Args:
        tools: The names of its tools.
        wanted: What the team's file switches on.
    """
    if "create_task_plan" in tools:
        yield f"{_TASK_PLAN} {_PLAN_IN_ANSWER}"
        if wanted.task_planning_filesystem_mode:
            yield _PLAN_FILES
    if "spawn_subagents" in tools:
        yield _SUBAGENTS.format(most=wanted.subagent_max_concurrent)
        if wanted.background_subagents.enabled:
            yield _BACKGROUND
    if wanted.enable_memory_filesystem_mode:
        yield _MEMORY


def step_guides(tools: Collection[str]) -> Iterator[str]:
    """Say how to use what an agent has for a step of a recipe, whose result others read as it is.

    Args:
        tools: The names of its tools.
    """
    if "create_task_plan" in tools:
        yield _TASK_PLAN
