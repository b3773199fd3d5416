"""An agent's plan of tasks: a file of its workspace, and tools to edit it.

The file holds the whole plan: it survives stops, kills and resumes, its agent may also edit it by
hand, and other agents may read it. A task depends only on earlier tasks, so that cycles are
impossible.

Source: MassGen 0.1.97, `mcp_tools/planning` (names of the tools and their arguments, the states of
a task, the file's name and keys).
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

PLAN_FILE = "tasks/plan.json"
MAX_PLAN_BYTES = 1_000_000
MAX_CHARS = 2_000
"""Limit of each text of a task."""

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
"""The tools of a plan."""

Priority = Literal["low", "medium", "high"]
Status = Literal["pending", "in_progress", "completed", "verified", "blocked"]
_Text = Annotated[str, Field(max_length=MAX_CHARS)]
_Name = Annotated[str, Field(min_length=1, max_length=100)]

_DONE = frozenset({"completed", "verified"})


class NewTask(BaseModel):
    """A task of a new plan.

    Attributes:
        description: What is to be done.
        id: Its name; left out, it gets one.
        depends_on: Earlier tasks that must be done first: their ids, or their places from 0.
        priority: How much the result needs it.
        verification: What shows that it is done.
        verification_method: How to check that.
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
        """Return the task with its id."""
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
    """A task as the file has it."""

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
        max_tasks: How many tasks it may have.
    """

    def __init__(self, workspace: Path, max_tasks: int) -> None:
        self._workspace = workspace
        self._max = max_tasks

    def tools(self) -> list[Tool]:
        """The tools over the plan."""
        return [Tool(getattr(self, name), is_repeatable=True) for name in PLAN_TOOLS]

    async def create_task_plan(self, tasks: list[NewTask]) -> str:
        """Make your plan of tasks; there must be none yet.

        Args:
            tasks: In the order in which they are to be done.
        """

        def create(old: _Tasks) -> _Tasks:
            new = _numbered(tasks)
            if old and not (current_call().is_repeated and old == new):
                raise ToolError(
                    f"you have a plan of {len(old)} tasks already: see get_task_plan, and add_task"
                )
            return new

        return _plan_as_told(await self._change(create))

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
            description: What is to be done.
            after_task_id: Id of the task behind which it is put; by default it comes last.
            depends_on: Ids of tasks that must be done first.
            priority: How much the result needs it.
            verification: What shows that it is done.
            verification_method: How to check that.
        """
        new = NewTask(
            description=description,
            priority=priority,
            verification=verification,
            verification_method=verification_method,
        )
        added = await self._change(lambda old: _with(old, new, depends_on or [], after_task_id))
        return _as_told(task for task in added if task.description == description)

    async def update_task_status(
        self, task_id: str, status: Status, completion_notes: _Text = ""
    ) -> str:
        """Say how far a task is: pending, in_progress, completed, verified (checked), or blocked.

        Args:
            task_id: The task.
            status: How far it is.
            completion_notes: How it was done, or what was checked.
        """
        key = "verification_notes" if status == "verified" else "completion_notes"
        noted = {key: completion_notes} if completion_notes else {}

        def update(task: Task) -> Task:
            metadata = {**task.metadata, **noted}
            return task.model_copy(update={"status": status, "metadata": metadata})

        tasks = await self._change(lambda old: _changed(old, task_id, update))
        freed = [task.id for task in _ready(tasks) if task_id in task.dependencies]
        return _json({"task": _found(tasks, task_id), "newly_ready_tasks": freed})

    async def edit_task(self, task_id: str, description: _Text) -> str:
        """Change what a task is about.

        Args:
            task_id: The task.
            description: What is to be done.
        """
        changes = {"description": description}
        tasks = await self._change(
            lambda old: _changed(old, task_id, lambda task: task.model_copy(update=changes))
        )
        return _as_told([_found(tasks, task_id)])

    async def delete_task(self, task_id: str) -> str:
        """Remove a task from your plan; no other may depend on it.

        Args:
            task_id: The task.
        """
        await self._change(lambda old: _without(old, task_id))
        return f"Deleted {task_id}."

    async def get_task_plan(self) -> str:
        """Get all tasks of your plan."""
        return _plan_as_told(await self._tasks())

    async def get_ready_tasks(self) -> str:
        """Get the tasks that can be begun: pending, with all done that they depend on."""
        return _as_told(_ready(await self._tasks()))

    async def get_blocked_tasks(self) -> str:
        """Get the pending tasks that wait for others, and for which."""
        tasks = await self._tasks()
        left = {task.id for task in tasks if task.status not in _DONE}
        waiting = {
            task.id: [each for each in task.dependencies if each in left]
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
                f"a plan may have {self._max} tasks, and this would be {len(new)}: make fewer of "
                "them, each with more in it"
            )
        data = json.dumps({"tasks": _dumped(new)}, ensure_ascii=False, indent=2)
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
            place = ".".join(map(str, fault["loc"])) or "the file"
            raise ToolError(
                f"{PLAN_FILE!r} is not a plan ({place}: {fault['msg']}); fix or delete it"
            ) from None

    def _directory(self) -> Directory:
        self._workspace.mkdir(parents=True, exist_ok=True)
        return Directory.at(self._workspace)


def _numbered(given: Sequence[NewTask]) -> _Tasks:
    """Number the tasks of a new plan, and resolve what each depends on."""
    made: _Tasks = ()
    for task in given:
        name = task.id or _free_name(made, [each.id for each in given])
        if any(name == each.id for each in made):
            raise ToolError(f"two tasks have the id {name!r}; ids must differ")
        made = (*made, task.named(name, _earlier(made, task.depends_on)))
    return made


def _free_name(tasks: _Tasks, taken: Sequence[str | None] = ()) -> str:
    names = {*(task.id for task in tasks), *taken}
    return next(n for i in range(1, len(names) + 2) if (n := f"task_{i}") not in names)


def _earlier(tasks: _Tasks, wanted: Iterable[int | str]) -> list[str]:
    names = [task.id for task in tasks]
    found = []
    for each in wanted:
        name = names[each] if isinstance(each, int) and 0 <= each < len(names) else each
        if name not in names:
            known = ", ".join(names) or "none"
            raise ToolError(
                f"a task can depend on tasks before it, not on {each!r}; those: {known}"
            )
        found.append(str(name))
    return found


def _with(tasks: _Tasks, new: NewTask, depends_on: Sequence[str], after: str) -> _Tasks:
    task = new.named(_free_name(tasks), _earlier(tasks, depends_on))
    if current_call().is_repeated and any(_is_same(task, each) for each in tasks):
        return tasks
    if not after:
        return (*tasks, task)
    place = tasks.index(_found(tasks, after)) + 1
    return (*tasks[:place], task, *tasks[place:])


def _is_same(one: Task, other: Task) -> bool:
    return one.model_copy(update={"id": other.id}) == other


def _changed(tasks: _Tasks, task_id: str, change: Callable[[Task], Task]) -> _Tasks:
    found = _found(tasks, task_id)
    return tuple(change(task) if task is found else task for task in tasks)


def _without(tasks: _Tasks, task_id: str) -> _Tasks:
    if current_call().is_repeated and all(task.id != task_id for task in tasks):
        return tasks
    found = _found(tasks, task_id)
    needing = [task.id for task in tasks if task_id in task.dependencies]
    if needing:
        raise ToolError(f"{', '.join(needing)} depends on {task_id!r}: delete that first")
    return tuple(task for task in tasks if task is not found)


def _found(tasks: _Tasks, task_id: str) -> Task:
    for task in tasks:
        if task.id == task_id:
            return task
    known = ", ".join(task.id for task in tasks) or "none"
    raise ToolError(f"there is no task {task_id!r}; there are: {known}")


def _ready(tasks: _Tasks) -> list[Task]:
    left = {task.id for task in tasks if task.status not in _DONE}
    return [t for t in tasks if t.status == "pending" and not left & {*t.dependencies}]


def _plan_as_told(tasks: _Tasks) -> str:
    counts = Counter(task.status for task in tasks)
    ready = [task.id for task in _ready(tasks)]
    return _json({"tasks": _dumped(tasks), "counts": counts, "ready_tasks": ready})


def _as_told(tasks: Iterable[Task]) -> str:
    return _json({"tasks": _dumped(tasks)})


def _dumped(tasks: Iterable[Task]) -> list[JsonValue]:
    return [task.model_dump(mode="json") for task in tasks]


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, default=Task.model_dump)
