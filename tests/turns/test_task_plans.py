"""Task plans that a team file enables: saved, visible to other agents, and resumed."""

import json
from pathlib import Path

import nb_agents
from nb_agents import TeamSpec
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.kit.runs import Run
from tests.kit.tools import PLAN_TOOLS
from tests.model_server import ModelServer, Reply, ToolCall, wait_until
from tests.team_kit import events, finish, prompt
from tests.turns.team_files import killed_at, options, write_team

FILE = """\
# One agent that plans
agents:
  - id: "agent_a"
    backend:
      type: "chatcompletion"
      model: "m"
      base_url: SERVER
      api_key: "k"
      cwd: "workspace1"
orchestrator:
  snapshot_storage: "snapshots"
  agent_temporary_workspace: "temp_workspaces"
  coordination:
    enable_agent_task_planning: true
    task_planning_filesystem_mode: true
    max_tasks_per_plan: 2
ui:
  display_type: "textual_terminal"
"""
PLAN = {"tasks": [{"description": "look"}, {"description": "write", "depends_on": [0]}]}
DONE = {"task_id": "task_1", "status": "completed"}


def plan_of(run: Run, agent: str) -> dict[str, str]:
    file = run.path / "workspaces" / agent / "tasks" / "plan.json"
    return {task["id"]: task["status"] for task in json.loads(file.read_text())["tasks"]}


def team(coordination: dict[str, object], **models: ScriptedModel) -> TeamSpec:
    agents = [
        {"id": name, "backend": {"type": "python", "instance": model}}
        for name, model in models.items()
    ]
    return TeamSpec.model_validate(
        {"agents": agents, "orchestrator": {"coordination": coordination}}
    )


def test_killed_plan_continues_in_another_process_without_repetition(
    tmp_path: Path, server: ModelServer
) -> None:
    write_team(tmp_path, server, FILE)
    server.script(
        "m",
        Reply(tool_calls=(ToolCall("create_task_plan", PLAN),)),
        Reply(tool_calls=(ToolCall("update_task_status", DONE),)),
        Reply(text="one two", hang_after=1),
        Reply(tool_calls=(ToolCall("add_task", {"description": "too many"}),)),
        Reply(tool_calls=(ToolCall("get_task_plan"),)),
        Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),)),
    )
    run = killed_at(tmp_path, tmp_path / "s", lambda: server.count() == 3, server)
    assert finish(run).result == "done"
    assert plan_of(run, "agent_a") == {"task_1": "completed", "task_2": "pending"}
    calls = [(e.tool, e.outcome) for e in events(run, ev.ToolFinished)]
    assert calls == [("add_task", "error"), ("get_task_plan", "ok")]
    assert server.count() == 6  # the one that was cut was sent again, and none before it
    assert "a plan can have at most 2 tasks" in server.requests[-1].prompt
    assert {*PLAN_TOOLS} <= {*server.requests[0].tool_names}


def test_agents_can_read_all_plans_and_write_their_own(
    tmp_path: Path,
) -> None:
    gate = Gate()
    a = ScriptedModel(
        Turn(calls=(Call("create_task_plan", PLAN),)), Answer("A's"), Vote("agent1"), Turn("done")
    )
    b = ScriptedModel(
        Turn(
            text="hm ",
            gate=gate,
            calls=(
                Call("read_file", {"path": "peers/agent1/tasks/plan.json"}),
                Call("delete_file", {"path": "peers/agent1/tasks/plan.json"}),
                Call("delete_task", {"task_id": "task_1"}),
            ),
        ),
        Vote("agent1"),
    )
    wanted = {"enable_agent_task_planning": True, "task_planning_filesystem_mode": True}
    run = nb_agents.start("t", team(wanted, a=a, b=b), options=options(tmp_path))
    gate.wait_reached()
    wait_until(lambda: run.view.agents["a"].answers)
    gate.open()
    finish(run)
    told = {e.tool: (e.outcome, e.result) for e in events(run, ev.ToolFinished) if e.agent == "b"}
    assert '"look"' in told["read_file"][1]
    assert told["delete_file"] == ("error", "Error: other agents' files can only be read")
    assert told["delete_task"][0] == "error"  # it has no plan of its own
    assert plan_of(run, "a") == {"task_1": "pending", "task_2": "pending"}
    for model in (a, b):
        assert "create_task_plan" in prompt(model, 0) and "tasks/plan.json" in prompt(model, 0)


def test_tools_are_missing_without_the_key_and_in_planning_teams(tmp_path: Path) -> None:
    for wanted in ({}, {"enable_agent_task_planning": True, "enable_planning_mode": True}):
        a, b = ScriptedModel(Answer("A's"), Vote("agent1")), ScriptedModel(Vote("agent1"))
        run = nb_agents.start("t", team(wanted, a=a, b=b), options=options(tmp_path))
        finish(run)
        assert "create_task_plan" not in prompt(a, 0)


def test_agents_tool_list_can_exclude_them(tmp_path: Path) -> None:
    model = ScriptedModel(Turn(calls=(Call("add_task", {"description": "x"}),)), Answer("A's"))
    backend = {"type": "python", "instance": model, "exclude_tools": [*PLAN_TOOLS]}
    spec = TeamSpec.model_validate(
        {
            "agent": {"id": "a", "backend": backend},
            "orchestrator": {"coordination": {"enable_agent_task_planning": True}},
        }
    )
    run = finish(nb_agents.start("t", spec, options=options(tmp_path)))
    assert [e.outcome for e in events(run, ev.ToolFinished)] == ["error"]
    assert "create_task_plan" not in prompt(model, 0)
