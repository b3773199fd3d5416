"""An agent's task plan: a file in its workspace, and tools to edit it.

The file contains the whole plan. It survives stops, kills and resumes, the agent can also edit it
with its file tools, and other agents can read it. A task can depend only on earlier tasks, so there
are no cycles.

Source: MassGen 0.1.97, `mcp_tools/planning` (names and arguments of the tools, task states, file
name and keys).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from anyio import to_thread
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)

from nb_agents.disk.directory import Directory
from nb_agents.tools.base import BuiltInTool, Tool, ToolError, current_call, declare
from nb_agents.unicode import json_text

PLAN_FILE = "tasks/plan.json"
MAX_PLAN_BYTES = 1_000_000
MAX_CHARS = 2_000
"""Maximum length of each text of a task."""

PLAN_TOOLS = declare(
    BuiltInTool("create_task_plan", "write_file", file=PLAN_FILE),
    BuiltInTool("add_task", "write_file", file=PLAN_FILE),
    BuiltInTool("update_task_status", "write_file", file=PLAN_FILE),
    BuiltInTool("edit_task", "write_file", file=PLAN_FILE),
    BuiltInTool("delete_task", "write_file", file=PLAN_FILE),
    BuiltInTool("get_task_plan", "read_file", file=PLAN_FILE),
    BuiltInTool("get_ready_tasks", "read_file", file=PLAN_FILE),
    BuiltInTool("get_blocked_tasks", "read_file", file=PLAN_FILE),
)
"""Names of the tools."""

Priority = Literal["low", "medium", "high"]
Status = Literal["pending", "in_progress", "completed", "verified", "blocked"]
_Text = Annotated[str, Field(max_length=MAX_CHARS)]
_Name = Annotated[str, Field(min_length=1, max_length=100)]

_DONE = frozenset({"completed", "verified"})


class NewTask(BaseModel):
    """A task of a new plan.

    Attributes:
        description: The work to do.
        id: A unique name. By default, the task gets one.
        depends_on: The tasks that must be done first: ids of earlier tasks, or their positions in
            the list, starting at 0.
        priority: The importance for the result.
        verification: The evidence that shows that the task is done.
        verification_method: How to check the evidence.
    """

    description: _Text
    id: _Name | None = None
    depends_on: tuple[int | str, ...] = ()
    priority: Priority = "medium"
    verification: _Text = ""
    verification_method: _Text = ""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"description": value} if isinstance(value, str) else value

    def named(self, task_id: str, dependencies: Sequence[str]) -> Task:
        """Return the task with an id and the ids of its dependencies."""
        notes = {
            "verification": self.verification,
            "verification_method": self.verification_method,
        }
        return Task(
            id=task_id,
            description=self.description,
            priority=self.priority,
            dependencies=tuple(dependencies),
            metadata={key: text for key, text in notes.items() if text},
        )


class Task(BaseModel):
    """A task, as stored in the plan's file."""

    model_config = ConfigDict(frozen=True)

    id: _Name
    description: str
    status: Status = "pending"
    priority: Priority = "medium"
    dependencies: tuple[str, ...] = Field(
        (), validation_alias=AliasChoices("dependencies", "depends_on")
    )
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class _File(BaseModel):
    tasks: tuple[Task, ...] = ()


_Tasks = tuple[Task, ...]


class TaskPlan:
    """An agent's plan.

    Args:
        workspace: The agent's directory.
        max_tasks: Maximum number of tasks.
    """

    def __init__(self, workspace: Path, max_tasks: int) -> None:
        self._workspace = workspace
        self._max = max_tasks

    def tools(self) -> list[Tool]:
        """Return the tools that read and change the plan."""
        return [Tool(getattr(self, name), is_repeatable=True) for name in PLAN_TOOLS]

    async def create_task_plan(self, tasks: list[NewTask]) -> str:
        """Create your task plan. This works once; use add_task afterwards.

        Args:
            tasks: The tasks, in the order in which you will do them.
        """

        def create(old: _Tasks) -> _Tasks:
            new = _numbered(tasks)
            if old and not (current_call().is_repeated and old == new):
                raise ToolError(
                    f"you already have a plan with {len(old)} tasks. Read it with get_task_plan "
                    "and extend it with add_task"
                )
            return new

        return _plan_json(await self._change(create))

    async def add_task(
        self,
        description: _Text,
        after_task_id: str = "",
        depends_on: list[str] | None = None,
        priority: Priority = "medium",
        verification: _Text = "",
        verification_method: _Text = "",
    ) -> str:
        """Add a task to your plan.

        Args:
            description: The work to do.
            after_task_id: Id of the task to insert it after. By default, it becomes the last task.
            depends_on: Ids of the tasks that must be done first.
            priority: The importance for the result.
            verification: The evidence that shows that the task is done.
            verification_method: How to check the evidence.
        """
        new = NewTask(
            description=description,
            priority=priority,
            verification=verification,
            verification_method=verification_method,
        )
        added = await self._change(lambda old: _with(old, new, depends_on or [], after_task_id))
        return _tasks_json(task for task in added if task.description == description)

    async def update_task_status(
        self, task_id: str, status: Status, completion_notes: _Text = ""
    ) -> str:
        """Set the status of a task.

        Args:
            task_id: Id of the task.
            status: The new status. Use verified after you have checked a completed task.
            completion_notes: How the task was done or checked.
        """
        key = "verification_notes" if status == "verified" else "completion_notes"
        noted = {key: completion_notes} if completion_notes else {}

        def update(task: Task) -> Task:
            metadata = {**task.metadata, **noted}
            return task.model_copy(update={"status": status, "metadata": metadata})

        tasks = await self._change(lambda old: _changed(old, task_id, update))
        freed = [task.id for task in _ready(tasks) if task_id in task.dependencies]
        return _json({"task": _find_task(tasks, task_id), "newly_ready_tasks": freed})

    async def edit_task(self, task_id: str, description: _Text) -> str:
        """Change the description of a task.

        Args:
            task_id: Id of the task.
            description: The work to do.
        """
        changes = {"description": description}
        tasks = await self._change(
            lambda old: _changed(old, task_id, lambda task: task.model_copy(update=changes))
        )
        return _tasks_json([_find_task(tasks, task_id)])

    async def delete_task(self, task_id: str) -> str:
        """Delete a task from your plan. No other task may depend on it.

        Args:
            task_id: Id of the task.
        """
        await self._change(lambda old: _without(old, task_id))
        return f"Deleted {task_id}."

    async def get_task_plan(self) -> str:
        """Get all tasks of your plan with their status."""
        return _plan_json(await self._tasks())

    async def get_ready_tasks(self) -> str:
        """Get the tasks that you can start now: pending, with all dependencies done."""
        return _tasks_json(_ready(await self._tasks()))

    async def get_blocked_tasks(self) -> str:
        """Get the pending tasks that wait for other tasks, with the ids of those tasks."""
        tasks = await self._tasks()
        unfinished = {task.id for task in tasks if task.status not in _DONE}
        waiting = {
            task.id: [each for each in task.dependencies if each in unfinished]
            for task in tasks
            if task.status == "pending"
        }
        return _json({"waits_for": {task: ids for task, ids in waiting.items() if ids}})

    async def _tasks(self) -> _Tasks:
        return await to_thread.run_sync(self._read)

    async def _change(self, change: Callable[[_Tasks], _Tasks]) -> _Tasks:
        return await to_thread.run_sync(self._replace, change)

    # In a worker thread -------------------------------------------------------------------------

    def _replace(self, change: Callable[[_Tasks], _Tasks]) -> _Tasks:
        old = self._read()
        new = change(old)
        if len(new) > max(self._max, len(old)):
            raise ToolError(
                f"a plan can have at most {self._max} tasks, and this plan would have {len(new)}. "
                "Make fewer and larger tasks"
            )
        data = json_text({"tasks": _dumped(new)}, ensure_ascii=False, indent=2)
        with self._directory() as directory:
            try:
                directory.replace(PLAN_FILE, data.encode("utf-8", "replace"))
            except OSError as exc:
                raise ToolError(f"{PLAN_FILE!r} can't be written: {exc.strerror}") from exc
        return new

    def _read(self) -> _Tasks:
        try:
            with self._directory() as directory:
                data = directory.read(PLAN_FILE, MAX_PLAN_BYTES, follow=False)
            return _File.model_validate_json(data).tasks
        except FileNotFoundError:
            return ()
        except OSError as exc:
            raise ToolError(f"{PLAN_FILE!r} can't be read: {exc.strerror}") from exc
        except ValidationError as exc:
            fault = exc.errors(include_url=False, include_input=False)[0]
            at = ".".join(map(str, fault["loc"])) or "the file"
            raise ToolError(
                f"{PLAN_FILE!r} is not a valid plan ({at}: {fault['msg']}). Fix it or delete it"
            ) from None

    def _directory(self) -> Directory:
        return Directory.made(self._workspace)


def _numbered(new_tasks: Sequence[NewTask]) -> _Tasks:
    """Give ids to the tasks of a new plan and resolve their dependencies."""
    tasks: _Tasks = ()
    for task in new_tasks:
        name = task.id or _free_name(tasks, [each.id for each in new_tasks])
        if any(name == each.id for each in tasks):
            raise ToolError(f"two tasks have the id {name!r}. Give each task a different id")
        tasks = (*tasks, task.named(name, _earlier(tasks, task.depends_on)))
    return tasks


def _free_name(tasks: _Tasks, used_names: Sequence[str | None] = ()) -> str:
    names = {*(task.id for task in tasks), *used_names}
    return next(n for i in range(1, len(names) + 2) if (n := f"task_{i}") not in names)


def _earlier(tasks: _Tasks, references: Iterable[int | str]) -> list[str]:
    names = [task.id for task in tasks]
    ids = []
    for each in references:
        name = names[each] if isinstance(each, int) and 0 <= each < len(names) else each
        if name not in names:
            valid = ", ".join(names) or "none"
            raise ToolError(
                f"a task can depend only on earlier tasks, not on {each!r}. Earlier tasks: {valid}"
            )
        ids.append(str(name))
    return ids


def _with(tasks: _Tasks, new: NewTask, depends_on: Sequence[str], after: str) -> _Tasks:
    task = new.named(_free_name(tasks), _earlier(tasks, depends_on))
    if current_call().is_repeated and any(_is_same(task, each) for each in tasks):
        return tasks
    if not after:
        return (*tasks, task)
    index = tasks.index(_find_task(tasks, after)) + 1
    return (*tasks[:index], task, *tasks[index:])


def _is_same(one: Task, other: Task) -> bool:
    return one.model_copy(update={"id": other.id}) == other


def _changed(tasks: _Tasks, task_id: str, change: Callable[[Task], Task]) -> _Tasks:
    target = _find_task(tasks, task_id)
    return tuple(change(task) if task is target else task for task in tasks)


def _without(tasks: _Tasks, task_id: str) -> _Tasks:
    if current_call().is_repeated and all(task.id != task_id for task in tasks):
        return tasks
    target = _find_task(tasks, task_id)
    needing = [task.id for task in tasks if task_id in task.dependencies]
    if needing:
        raise ToolError(
            f"{', '.join(needing)} depends on {task_id!r}. Delete {', '.join(needing)} first"
        )
    return tuple(task for task in tasks if task is not target)


def _find_task(tasks: _Tasks, task_id: str) -> Task:
    for task in tasks:
        if task.id == task_id:
            return task
    ids = ", ".join(task.id for task in tasks) or "none"
    raise ToolError(f"there is no task {task_id!r}. Your tasks: {ids}")


def _ready(tasks: _Tasks) -> list[Task]:
    unfinished = {task.id for task in tasks if task.status not in _DONE}
    return [t for t in tasks if t.status == "pending" and not unfinished & {*t.dependencies}]


def _plan_json(tasks: _Tasks) -> str:
    counts = Counter(task.status for task in tasks)
    ready = [task.id for task in _ready(tasks)]
    return _json({"tasks": _dumped(tasks), "counts": counts, "ready_tasks": ready})


def _tasks_json(tasks: Iterable[Task]) -> str:
    return _json({"tasks": _dumped(tasks)})


def _dumped(tasks: Iterable[Task]) -> list[JsonValue]:
    return [task.model_dump(mode="json") for task in tasks]


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, default=Task.model_dump)
