"""The task plan: its tools, its file, and its errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from nb_agents.tools.task_plan import MAX_CHARS, MAX_PLAN_BYTES, PLAN_FILE, TaskPlan
from tests.kit.tools import PermissionSpec, Toolbox, ToolCall, ToolResult, judge, use_call

pytestmark = pytest.mark.anyio

# The form that MassGen's prompts describe.
THREE = [
    {"id": "research", "description": "Compare providers", "verification": "A table of three"},
    {"description": "Design the flow", "depends_on": [0], "execution": {"mode": "inline"}},
    {"id": "build", "description": "Build it", "depends_on": ["task_1"], "priority": "high"},
]


class Plan:
    """The task plan tools of a workspace, called as a model calls them."""

    def __init__(self, workspace: Path, max_tasks: int = 10) -> None:
        self.file = workspace / PLAN_FILE
        self._tools = Toolbox(TaskPlan(workspace, max_tasks).tools())

    async def call(self, tool: str, *, again: bool = False, **args: Any) -> ToolResult:
        with use_call(ToolCall("a", is_repeated=again)):
            return await self._tools.call(tool, args)

    async def ok(self, tool: str, **args: Any) -> str:
        result = await self.call(tool, **args)
        assert not result.is_error, result
        return result

    async def refused(self, tool: str, **args: Any) -> str:
        result = await self.call(tool, **args)
        assert result.is_error, result
        return result

    async def told(self, tool: str, **args: Any) -> Any:
        return json.loads(await self.ok(tool, **args))

    def statuses(self) -> dict[str, str]:
        return {task["id"]: task["status"] for task in json.loads(self.file.read_text())["tasks"]}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(tmp_path / "a")


async def test_plan_is_stored_in_a_file_throughout(plan: Plan) -> None:
    made = await plan.told("create_task_plan", tasks=THREE)
    assert [task["id"] for task in made["tasks"]] == ["research", "task_1", "build"]
    assert made["ready_tasks"] == ["research"]
    assert [t["id"] for t in (await plan.told("get_ready_tasks"))["tasks"]] == ["research"]
    waits = await plan.told("get_blocked_tasks")
    assert waits == {"waits_for": {"task_1": ["research"], "build": ["task_1"]}}

    await plan.ok("update_task_status", task_id="research", status="in_progress")
    done = await plan.told(
        "update_task_status", task_id="research", status="completed", completion_notes="Three."
    )
    assert done["newly_ready_tasks"] == ["task_1"]
    assert done["task"]["metadata"] == {
        "verification": "A table of three",
        "completion_notes": "Three.",
    }
    assert plan.statuses() == {"research": "completed", "task_1": "pending", "build": "pending"}


async def test_add_edit_and_delete_a_task(plan: Plan) -> None:
    await plan.ok("create_task_plan", tasks=["one", "two"])
    added = await plan.told(
        "add_task", description="between", after_task_id="task_1", depends_on=["task_1"]
    )
    assert added["tasks"][0]["id"] == "task_3"
    assert list(plan.statuses()) == ["task_1", "task_3", "task_2"]
    await plan.ok("edit_task", task_id="task_3", description="in the middle")
    assert "in the middle" in plan.file.read_text()
    told = await plan.refused("delete_task", task_id="task_1")
    assert "task_3 depends on 'task_1'" in told
    await plan.ok("delete_task", task_id="task_3")
    assert list(plan.statuses()) == ["task_1", "task_2"]


async def test_number_of_tasks_is_limited_by_the_team_file(tmp_path: Path) -> None:
    plan = Plan(tmp_path, 2)
    assert "a plan can have at most 2 tasks, and this plan would have 3" in await plan.refused(
        "create_task_plan", tasks=THREE
    )
    assert not plan.file.exists()
    await plan.ok("create_task_plan", tasks=THREE[:2])
    assert "at most 2" in await plan.refused("add_task", description="one more")
    # An existing plan over the limit can still be used.
    plan.file.write_text(json.dumps({"tasks": [{"id": i, "description": i} for i in "abc"]}))
    await plan.ok("update_task_status", task_id="b", status="completed")


@pytest.mark.parametrize(
    "tool, args, told",
    [
        ("create_task_plan", {"tasks": THREE}, "already have a plan with 2 tasks"),
        ("add_task", {"description": "x", "depends_on": ["nowhere"]}, "not on 'nowhere'"),
        ("add_task", {"description": "x", "after_task_id": "z"}, "no task 'z'. Your tasks: task_1"),
        ("add_task", {"description": "x" * (MAX_CHARS + 1)}, "at most 2000 characters"),
        ("update_task_status", {"task_id": "z", "status": "completed"}, "there is no task 'z'"),
        ("update_task_status", {"task_id": "task_1", "status": "nearly"}, "status"),
        ("delete_task", {"task_id": "z"}, "there is no task 'z'"),
    ],
)
async def test_invalid_changes_are_refused(
    plan: Plan, tool: str, args: dict[str, Any], told: str
) -> None:
    await plan.ok("create_task_plan", tasks=["one", "two"])
    before = plan.file.read_bytes()
    assert told in await plan.refused(tool, **args)
    assert plan.file.read_bytes() == before


async def test_task_can_depend_only_on_earlier_tasks(plan: Plan) -> None:
    circle = [
        {"id": "a", "description": "a", "depends_on": ["b"]},
        {"id": "b", "description": "b", "depends_on": ["a"]},
    ]
    assert "not on 'b'" in await plan.refused("create_task_plan", tasks=circle)
    twice = [{"id": "a", "description": "a"}, {"id": "a", "description": "b"}]
    assert "Give each task a different id" in await plan.refused("create_task_plan", tasks=twice)


async def test_repeated_call_has_no_second_effect(plan: Plan) -> None:
    await plan.ok("create_task_plan", tasks=["one"])
    await plan.ok("create_task_plan", tasks=["one"], again=True)
    await plan.ok("add_task", description="two")
    await plan.ok("add_task", description="two", again=True)
    assert list(plan.statuses()) == ["task_1", "task_2"]
    await plan.ok("delete_task", task_id="task_2")
    await plan.ok("delete_task", task_id="task_2", again=True)
    assert list(plan.statuses()) == ["task_1"]


@pytest.mark.parametrize("text", ["{", '{"tasks": [{"description": "no id"}]}', "[]"])
async def test_invalid_plan_file_is_reported_and_not_changed(plan: Plan, text: str) -> None:
    plan.file.parent.mkdir(parents=True)
    plan.file.write_text(text)
    assert "is not a valid plan" in await plan.refused("get_task_plan")
    assert "Fix it or delete it" in await plan.refused("add_task", description="x")
    assert plan.file.read_text() == text


async def test_plan_is_not_read_through_a_link_and_has_a_maximum_size(
    plan: Plan, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"tasks": [{"id": "s", "description": "secret"}]}')
    plan.file.parent.mkdir(parents=True)
    plan.file.symlink_to(secret)
    assert "secret" not in await plan.refused("get_task_plan")
    assert "secret" not in await plan.refused("add_task", description="x")
    plan.file.unlink()
    plan.file.write_bytes(b" " * (MAX_PLAN_BYTES + 1))
    assert "larger than" in await plan.refused("get_task_plan")


def test_file_rules_apply_to_the_plan(tmp_path: Path) -> None:
    none = PermissionSpec.model_validate({"rules": {}})
    assert judge(none, "create_task_plan", {"tasks": []}, tmp_path) == "allow"
    denied = PermissionSpec.model_validate({"rules": {"deny": ["write_file(tasks/*)"]}})
    assert judge(denied, "add_task", {"description": "x"}, tmp_path) == "deny"
    assert judge(denied, "get_task_plan", {}, tmp_path) == "allow"
