"""Tools in real runs: all kinds, approvals by a user, and stops."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions, TeamSpec
from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.options import ApprovalConfig
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, Vote
from tests.kit.cards import card_bundle
from tests.kit.processes import bubblewrap
from tests.kit.runs import Run
from tests.model_server import wait_until
from tests.recipes.live import commands_alive, over, write
from tests.team_kit import WAIT_S, events, finish, prompt

SERVER = Path(__file__).parent.parent / "tools" / "mcp_server.py"
FINE = Turn(text="fine")
SLEEP = "touch begun; sleep 1000"


def calls(*made: Call) -> Turn:
    return Turn(calls=made)


def run_command(command: str) -> Call:
    return Call("run_command", {"command": command})


def run_python(code: str) -> Call:
    return Call("run_python", {"code": code})


def team_of(*models: ScriptedModel, **keys: Any) -> TeamSpec:
    """A team, a, b, …, in which every agent has these keys."""
    agents = [
        {"id": name, "backend": {"type": "python", "instance": model, **keys}}
        for name, model in zip("abc", models, strict=False)
    ]
    return TeamSpec.model_validate({"agents": agents})


def start(root: Path, *turns: Any, tools: Any = (), **keys: Any) -> tuple[Run, ScriptedModel]:
    """Start one agent that plays these turns, and then answers."""
    model = ScriptedModel(*turns, Answer("done"))
    team = team_of(model, **keys)
    return nb_agents.start(
        "the task", team, options=RunOptions(session_root=root), tools=list(tools)
    ), model


def shell_run(root: Path, *turns: Any, **keys: Any) -> tuple[Run, ScriptedModel]:
    return start(root, *turns, enable_mcp_command_line=True, **keys)


def finished(run: Run) -> list[ev.ToolFinished]:
    return events(run, ev.ToolFinished)


def results(run: Run) -> list[str]:
    return [each.result for each in finished(run)]


def workspace(run: Run, agent: str = "a") -> Path:
    return run.path / "workspaces" / agent


def begun(run: Run) -> None:
    wait_until((workspace(run) / "begun").exists, WAIT_S, "the tool's beginning", lambda: run.view)


def asked(run: Run, count: int = 1) -> list[str]:
    """Wait until calls wait for the user. Return their gates."""
    wait_until(lambda: len(run.view.gates) == count or run.is_over, WAIT_S, "a question")
    return list(run.view.gates)


def mcp_server(root: Path, how: str = "") -> dict[str, Any]:
    """A server that adds; `how` is what is wrong with it."""
    return {"name": "t", "command": [sys.executable, str(SERVER), str(root / "alive"), how]}


# Kinds of tools


def area(width: float, height: float) -> float:
    """Compute an area."""
    return width * height


FAMILIES: dict[str, tuple[Call, dict[str, Any], str]] = {
    "shell": (run_command("echo $((6*7))"), {"enable_mcp_command_line": True}, "42"),
    "python": (run_python("6*7"), {"enable_mcp_command_line": True}, "42"),
    "data store": (Call("data_set", {"key": "k", "value": [42]}), {"data_store": True}, "k"),
    "function": (Call("area", {"width": 6, "height": 7}), {}, "42"),
    "files": (Call("write_file", {"path": "42", "content": "x"}), {}, "42"),
    "mcp": (Call("mcp__t__add", {"a": 20, "b": 22}), {"mcp_servers": []}, "42"),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Call, dict[str, Any], str]:
    call, keys, told = FAMILIES[request.param]
    if "mcp_servers" in keys:
        (tmp_path / "alive").touch()
        keys = {"mcp_servers": [mcp_server(tmp_path)]}
    return call, keys, told


def test_each_kind_of_tool_works_in_a_team(tmp_path: Path, family: Any) -> None:
    call, keys, told = family
    run, model = start(tmp_path, calls(call), tools=[area], **keys)
    finish(run)
    assert run.result == "done"
    [over] = finished(run)
    assert (over.outcome, told in over.result) == ("ok", True), over
    assert told in prompt(model, 1)
    assert run.receipt.tools == ((f"a: {call.tool}", "finished"),)


def test_each_kind_of_tool_works_in_a_recipe_step(tmp_path: Path, family: Any) -> None:
    call, keys, told = family
    recipe = write(tmp_path, "steps:\n- {id: do, agent: worker, prompt: go, output: said}\n")
    model = ScriptedModel(calls(call), Turn(text="done"))
    team = team_of(model, **keys)
    run = nb_agents.start(
        recipe=recipe,
        config=team,
        session="s",
        options=RunOptions(session_root=tmp_path / "s"),
        tools=[area],
    )
    finish(run)
    assert run.result == {"said": "done"}
    [over] = finished(run)
    assert (over.agent, over.outcome, told in over.result) == ("do", "ok", True), over


IN_SHELL = "echo words; until [ -e go ]; do sleep 0.05; done; rm go"
IN_PYTHON = """
import os, time
print("words")
while not os.path.exists("go"):
    time.sleep(0.05)
os.remove("go")
"""


@pytest.mark.parametrize(
    "say", [run_command(IN_SHELL), run_python(IN_PYTHON)], ids=lambda c: c.tool
)
def test_tool_output_is_shown_at_the_calling_step(tmp_path: Path, say: Call) -> None:
    recipe = write(tmp_path, "steps: [{id: x, agent: a, prompt: p}, {id: y, agent: a, prompt: p}]")
    # Both steps use the same agent, and share its interpreter.
    model = ScriptedModel(calls(say), Turn(text="one"), calls(say), Turn(text="two"))
    team = team_of(model, enable_mcp_command_line=True)
    run = nb_agents.start(
        recipe=recipe, config=team, session="s", options=RunOptions(session_root=tmp_path / "s")
    )
    for step in ("x", "y"):
        tail = lambda: step in run.view.agents and run.view.agents[step].tool_tail  # noqa: E731, B023
        wait_until(tail, WAIT_S, f"words at {step}", lambda: run.view)
        assert "words" in run.view.agents[step].tool_tail
        (workspace(run, run.view.recipe) / "go").touch()
    finish(run)
    assert run.status == "completed"


ANOTHERS_MODEL = """
steps:
- {id: first, agent: worker, prompt: go, provider: demo, model: x}
- {id: second, agent: worker, prompt: go}
"""


@pytest.mark.parametrize(
    "call, keys, outcome",
    [
        (Call("data_set", {"key": "k", "value": 42}), {"data_store": True}, "ok"),
        (
            Call("area", {"width": 6, "height": 7}),
            {"tool_policy": [{"match": "area", "action": "deny"}]},
            "error",
        ),
    ],
    ids=["its tools", "its rules"],
)
def test_step_with_another_providers_model_does_not_change_the_next(
    tmp_path: Path, call: Call, keys: dict[str, Any], outcome: str
) -> None:
    model = ScriptedModel(calls(call), Turn(text="done"))
    run = nb_agents.start(
        recipe=write(tmp_path, ANOTHERS_MODEL),
        config=team_of(model, **keys),
        session="s",
        options=RunOptions(session_root=tmp_path / "s"),
        tools=[area],
    )
    finish(run)
    assert [e.outcome for e in finished(run) if e.agent == "second"] == [outcome], finished(run)


def test_excluded_tools_are_unknown(tmp_path: Path) -> None:
    run, _ = shell_run(
        tmp_path, calls(run_command("true"), run_python("1")), exclude_tools=["run_command"]
    )
    finish(run)
    first, second = finished(run)
    assert (first.outcome, second.outcome) == ("error", "ok")
    assert "no tool 'run_command'" in first.result and "run_python" in first.result


def without_bubblewrap(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setattr(bubblewrap, "installed", lambda: None)
    return "are not sandboxed: bubblewrap "


def with_one_that_is_not_permitted(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    program = folder / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "installed", lambda: str(program))
    return "can't run commands: bubblewrap is installed but does not work here "


def with_a_persons_word(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    return "are not sandboxed: its backend has `sandbox: off`."


@pytest.mark.parametrize(
    "machine, runs",
    [
        (without_bubblewrap, True),
        (with_one_that_is_not_permitted, False),
        (with_a_persons_word, True),
    ],
)
def test_missing_sandbox_is_reported_before_any_agent_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Any, runs: bool
) -> None:
    told = machine(monkeypatch, tmp_path)
    models = [ScriptedModel(calls(run_command("echo hi")), Answer("done")) for _ in "ab"]
    keys = {"enable_mcp_command_line": True, "sandbox": machine is not with_a_persons_word}
    run = nb_agents.start(
        "the task", team_of(*models, **keys), options=RunOptions(session_root=tmp_path)
    )
    finish(run)
    assert [each.outcome for each in finished(run)] == ["ok" if runs else "error"] * 2
    notices = [n for n in run.view.notices if told in n]
    assert len(notices) == 2 and ("a " in notices[0]) and ("b " in notices[1])
    journal = (run.path / "events.jsonl").read_text("utf-8")
    assert journal.rindex(told) < journal.index('"model_started"')


def test_missing_sandbox_is_reported_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = without_bubblewrap(monkeypatch, tmp_path)
    recipe = write(
        tmp_path,
        "steps:\n- {id: first, type: bash, command: echo one}\n"
        "- {id: do, agent: worker, prompt: go, output: said}\n",
    )
    team = team_of(ScriptedModel(Turn(text="done")), enable_mcp_command_line=True)
    run = nb_agents.start(
        recipe=recipe, config=team, session="s", options=RunOptions(session_root=tmp_path / "s")
    )
    finish(run)
    journal = (run.path / "events.jsonl").read_text("utf-8")
    assert journal.count(told) == 1
    assert journal.index(told) < journal.index('"step_started"')


def test_failed_server_start_is_reported_without_ending_the_run(tmp_path: Path) -> None:
    (tmp_path / "alive").touch()
    run, _ = start(
        tmp_path, calls(Call("mcp__t__add", {})), mcp_servers=[mcp_server(tmp_path, "broken")]
    )
    finish(run)
    assert run.result == "done"
    assert [n for n in run.view.notices if "'t' did not start" in n]
    assert finished(run)[0].outcome == "error"


def test_duplicate_function_names_are_rejected(tmp_path: Path) -> None:
    def run_command(command: str) -> str:
        return command

    def data_get(key: str) -> str:
        return key

    for taken in (run_command, data_get):
        with pytest.raises(UserError, match=f"There is already a tool '{taken.__name__}'"):
            start(tmp_path, tools=[taken])
    assert not list(tmp_path.iterdir())


def test_planning_team_has_only_read_only_tools(tmp_path: Path) -> None:
    models = [
        ScriptedModel(calls(run_command("touch x"), Call("area", {})), Answer("A"), Vote("agent1")),
        ScriptedModel(Answer("B"), Vote("agent1")),
    ]
    team = team_of(*models, enable_mcp_command_line=True, data_store=True)
    team = TeamSpec.model_validate(
        {
            "agents": team.agents,
            "orchestrator": {"coordination": {"enable_planning_mode": True}},
        }
    )
    run = nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path), tools=[area])
    finish(run)
    assert [each.outcome for each in finished(run)][:2] == ["error", "error"]
    assert "no tool 'run_command'" in results(run)[0] and "no tool 'area'" in results(run)[1]


# Events


def test_call_event_has_size_and_duration(tmp_path: Path) -> None:
    run, _ = shell_run(tmp_path, calls(run_command("echo hi; sleep 0.2")))
    finish(run)
    [over] = finished(run)
    assert over.size == len(over.result) > 0
    assert 0.2 <= over.seconds < WAIT_S
    [seen] = run.view.tools
    assert (seen.size, seen.seconds) == (over.size, over.seconds)
    assert seen.summary == "echo hi; sleep 0.2"


def test_a_key_of_the_team_is_not_in_the_events_of_tools(tmp_path: Path) -> None:
    key = "sk-1f9Qz7LmX02pTeamKey"
    run, model = start(
        tmp_path,
        calls(Call("repeat", {"text": f"it is {key}"})),
        calls(Call("log_in", {"password": "hunter2", "user": "ann"})),
        tools=[repeat, log_in],
        api_key=key,
    )
    finish(run)
    assert key in prompt(model, 1)  # only what is written down is masked
    first, second = events(run, ev.ToolStarted)
    assert json.loads(first.args) == {"text": "it is [key]"}
    assert (first.summary, results(run)[0]) == ("it is [key]", "it is [key]")
    assert json.loads(second.args) == {"password": "[key]", "user": "ann"}
    assert "hunter2" not in f"{second.summary}{run.view.tools}"


def test_team_key_is_not_in_requests_and_calls(tmp_path: Path) -> None:
    key = "sk-1f9Qz7LmX02pTeamKey"
    helper = {"id": "helper", "backend": {"type": "python", "instance": ScriptedModel(FINE)}}
    model = ScriptedModel(
        calls(Call("repeat", {"text": key})),
        calls(Call("log_in", {"password": "hunter2", "user": "ann"})),
        calls(Call("call_agent", {"name": "helper", "input": f"use {key}"})),
        Answer("done"),
    )
    backend = {"type": "python", "instance": model, "api_key": key, "can_call": "*"}
    backend["tool_policy"] = [{"match": name, "action": "ask"} for name in ("repeat", "log_in")]
    team = TeamSpec.model_validate(
        {"agents": [{"id": "a", "backend": backend}], "callable_agents": [helper]}
    )
    run = nb_agents.start(
        "the task", team, options=RunOptions(session_root=tmp_path), tools=[repeat, log_in]
    )
    for _ in ("repeat", "log_in"):
        [gate] = asked(run)
        run.decide(True, f"with {key}", gate=gate)
        wait_until(lambda: gate not in run.view.gates, WAIT_S, "the decision")  # noqa: B023
    finish(run)
    first, second = events(run, ev.ApprovalAsked)
    assert first.prompt == "a wants to call repeat(text='[key]')"
    assert second.prompt == "a wants to call log_in(password='[key]', user='ann')"
    assert events(run, ev.ApprovalGiven)[0].message == "with [key]"
    assert [each.input for each in events(run, ev.AgentCalled)] == ["use [key]"]


def repeat(text: str) -> str:
    """Say it again."""
    return text


def log_in(password: str, user: str) -> str:
    """Log in."""
    return f"{user} is in"


def test_view_shows_the_latest_output_of_a_running_tool(tmp_path: Path) -> None:
    run, _ = shell_run(tmp_path, calls(run_command("echo step 1 of 9; sleep 1000")))
    wait_until(lambda: "step 1 of 9" in run.view.agents["a"].tool_tail, WAIT_S, "the words")
    assert run.view.agents["a"].phase == "tool"
    run.stop(now=True)
    finish(run)


# Approvals


ASK = [{"match": "run_*", "action": "ask"}]
ASK_OR_STOP = [{"match": "run_*", "action": "ask", "on_denial": "stop"}]


def test_approved_call_is_made(tmp_path: Path) -> None:
    run, _ = shell_run(tmp_path, calls(run_command("touch done")), tool_policy=ASK)
    [gate] = asked(run)
    assert run.status == "awaiting"
    assert "a wants to call run_command: touch done" in run.view.gates[gate].prompt
    assert not (workspace(run) / "done").exists()
    run.approve(by="ann")
    finish(run)
    assert (workspace(run) / "done").exists()
    [given] = run.view.approvals
    assert (given.address, given.approved, given.by) == (gate, True, "ann")


@nb_agents.tool(asks=True)
def grow(region: str, years: int = 1) -> str:
    """Return the growth of a region."""
    return f"{region} grew"


@pytest.mark.parametrize("action", ["", "allow"])
def test_function_that_asks_needs_no_team_file_but_obeys_one(tmp_path: Path, action: str) -> None:
    policy = [{"match": "grow", "action": action}] if action else []
    model = ScriptedModel(calls(Call("grow", {"region": "north", "years": 2})), Answer("done"))
    backend = {"type": "python", "instance": model, "tool_policy": policy}
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    run = nb_agents.start("x", team, options=RunOptions(session_root=tmp_path), tools=[grow])
    if not action:
        [gate] = asked(run)
        assert run.view.gates[gate].prompt == "a wants to call grow(region='north', years=2)"
        run.approve()
    finish(run)
    assert len(events(run, ev.ApprovalAsked)) == (0 if action else 1)
    assert [each.result for each in events(run, ev.ToolFinished)] == ["north grew"]


def test_model_is_told_about_a_denial_and_continues(tmp_path: Path) -> None:
    run, model = shell_run(tmp_path, calls(run_command("touch done")), tool_policy=ASK)
    asked(run)
    run.deny("use the file tools")
    finish(run)
    assert run.result == "done"
    told = "Error: the user denied this call to run_command: use the file tools"
    assert results(run) == [told] and told in prompt(model, 1)
    assert not (workspace(run) / "done").exists()


def test_denial_stops_the_run_if_the_team_file_says_so(tmp_path: Path) -> None:
    run, _ = shell_run(tmp_path, calls(run_command("touch done")), tool_policy=ASK_OR_STOP)
    [gate] = asked(run)
    run.deny("too risky", by="ann")
    finish(run)
    assert (run.status, run.receipt.source) == ("cancelled", "approval")
    assert run.receipt.reason == "a's call of run_command was denied by ann: too risky"
    assert run.view.stop is not None
    assert (run.view.stop.source, run.view.stop.gate) == ("approval", gate)
    card = str(card_bundle(run.view, str(run.path))["text/plain"])
    assert (
        "Stopped by an approval gate (a's call of run_command was denied by ann: too risky)" in card
    )
    assert not (workspace(run) / "done").exists()


def test_denied_call_is_refused_without_asking(tmp_path: Path) -> None:
    rules = [{"match": "run_command", "action": "deny"}, *ASK]
    run, _ = shell_run(tmp_path, calls(run_command("touch done")), tool_policy=rules)
    finish(run)
    assert results(run) == ["Error: the team file denies run_command."]
    assert run.view.approvals == ()


def test_rules_of_the_team_file_apply_to_file_tools(tmp_path: Path) -> None:
    keys = {
        "exclude_tools": ["edit_file"],
        "tool_policy": [
            {"match": "delete_file", "action": "deny"},
            {"match": "write_file", "action": "ask"},
        ],
    }
    write_it = Call("write_file", {"path": "made", "content": "x"})
    edit = Call("edit_file", {"path": "made", "old": "x", "new": "y"})
    turn = calls(write_it, edit, Call("delete_file", {"path": "made"}))
    run, _ = start(tmp_path, turn, **keys)
    [gate] = asked(run)
    assert not (workspace(run) / "made").exists()
    run.decide(True, gate=gate)
    finish(run)
    assert (workspace(run) / "made").exists()
    wrote, edited, deleted = results(run)
    assert "Error" not in wrote and "no tool 'edit_file'" in edited
    assert deleted == "Error: the team file denies delete_file."


def test_time_of_an_approval_does_not_count_for_the_round(tmp_path: Path) -> None:
    model = ScriptedModel(calls(Call("area", {"width": 6, "height": 7})), Answer("done"))
    rule = {"match": "area", "action": "ask"}
    backend = {"type": "python", "instance": model}
    team = TeamSpec.model_validate(
        {
            "agents": [{"id": "a", "backend": {**backend, "tool_policy": [rule]}}],
            "timeout_settings": {
                "initial_round_timeout_seconds": 3,
                "round_timeout_grace_seconds": 0,
            },
        }
    )
    approval = ApprovalConfig(timeout=3.5, auto_approve_on_timeout=True)
    waits = RunOptions(session_root=tmp_path, approval=approval)
    run = nb_agents.start("t", team, tools=[area], options=waits)
    finish(run)
    assert (run.result, run.view.approvals[0].by) == ("done", "timeout")
    assert "of this round: 0 s" not in prompt(model, 1)


@pytest.mark.parametrize("now", [False, True])
def test_stop_ends_the_wait_without_a_call(tmp_path: Path, now: bool) -> None:
    run, _ = shell_run(tmp_path, calls(run_command("touch done")), tool_policy=ASK)
    asked(run)
    run.stop(now=now)
    finish(run)
    assert run.status == "cancelled"
    assert not (workspace(run) / "done").exists()
    assert [each.outcome for each in finished(run)] == ["cancelled"]
    with pytest.raises(UserError, match="is not waiting for an approval"):
        run.approve()
    again = run.resume()
    assert len(asked(again)) == 1  # a resume asks again
    again.approve()
    assert over(again).result == "done"
    assert (workspace(again) / "done").exists()


@pytest.mark.parametrize("now", [False, True])
def test_stop_of_an_agent_ends_the_wait_of_its_call(tmp_path: Path, now: bool) -> None:
    asking = ScriptedModel(calls(run_command("touch done")), Answer("A's"))
    gate = Gate()
    other = ScriptedModel(Answer("B's", gate=gate), Vote("agent1"))
    team = team_of(asking, other, enable_mcp_command_line=True, tool_policy=ASK)
    run = nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path))
    asked(run)
    run.stop(now=now, agent="a")
    wait_until(lambda: not run.view.gates, WAIT_S, "the end of the question", lambda: run.view)
    gate.open()
    finish(run)
    assert (run.status, run.result) == ("completed", "B's")
    assert [each.outcome for each in finished(run)] == ["cancelled"]
    assert not (workspace(run) / "done").exists()


def test_concurrent_calls_have_separate_gates(tmp_path: Path) -> None:
    touch = [
        ScriptedModel(calls(run_command("touch done")), Answer(n), Vote("agent1")) for n in "AB"
    ]
    team = team_of(*touch, enable_mcp_command_line=True, tool_policy=ASK)
    run = nb_agents.start("the task", team, options=RunOptions(session_root=tmp_path))
    gates = {gate.split(":")[0]: gate for gate in asked(run, 2)}
    assert set(gates) == {"a", "b"}
    run.decide(False, "no", gate=gates["b"])
    wait_until(lambda: list(run.view.gates) == [gates["a"]], WAIT_S, "one gate")
    with pytest.raises(UserError, match="is not waiting at a gate"):
        run.decide(True, gate=gates["b"])
    run.approve()
    finish(run)
    assert (workspace(run, "a") / "done").exists()
    assert not (workspace(run, "b") / "done").exists()


# Stops


def test_immediate_stop_ends_a_command_and_its_child_processes(tmp_path: Path) -> None:
    run, _ = shell_run(tmp_path, calls(run_command(f"sleep 1000 & {SLEEP}")))
    begun(run)
    assert commands_alive(tmp_path)
    run.stop(now=True)
    finish(run)
    assert commands_alive(tmp_path) == []
    assert run.receipt.tools == (("a: run_command", "killed"),)


def test_an_immediate_stop_ends_a_cell_and_its_interpreter(tmp_path: Path) -> None:
    code = "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(1000)"
    run, _ = shell_run(tmp_path, calls(run_python(code)))
    begun(run)
    run.stop(now=True)
    finish(run)
    assert commands_alive(tmp_path) == []
    assert run.receipt.tools == (("a: run_python", "killed"),)


@pytest.mark.parametrize("now", [False, True])
def test_stop_of_either_level_reaches_a_function_that_checks(tmp_path: Path, now: bool) -> None:
    entered, left = Event(), Event()

    def ask() -> str:
        try:
            while True:
                entered.set()
                nb_agents.checkpoint()
        finally:
            left.set()

    run, _ = start(tmp_path, calls(Call("ask", {})), tools=[ask])
    assert entered.wait(WAIT_S)
    run.stop(now=now)
    finish(run)
    assert left.wait(WAIT_S)
    assert (run.status, run.receipt.tools) == ("cancelled", (("a: ask", "killed"),))


@pytest.mark.parametrize("kind", ["run_command", "run_python"])
def test_a_graceful_stop_lets_the_running_tool_finish(tmp_path: Path, kind: str) -> None:
    made = {
        "run_command": run_command("touch begun; until [ -e go ]; do sleep 0.02; done; touch end"),
        "run_python": run_python(
            "import pathlib as p, time\np.Path('begun').touch()\n"
            "while not p.Path('go').exists(): time.sleep(.02)\np.Path('end').touch()"
        ),
    }[kind]
    run, _ = shell_run(tmp_path, calls(made, run_command("touch never")))
    begun(run)
    run.stop()
    wait_until(lambda: run.view.stop, WAIT_S, "the stop")
    (workspace(run) / "go").touch()
    finish(run)
    assert run.status == "cancelled"
    assert (workspace(run) / "end").exists() and not (workspace(run) / "never").exists()
    assert run.receipt.tools == ((f"a: {kind}", "finished"), ("a: run_command", "never started"))
    assert commands_alive(tmp_path) == []


# Resuming


def test_only_interrupted_repeatable_calls_are_made_again(
    tmp_path: Path,
) -> None:
    made: list[str] = []
    entered = Event()
    hold = [True]

    def first() -> str:
        made.append("first")
        return "one"

    @nb_agents.tool(repeatable=True)
    def second() -> str:
        made.append("second")
        entered.set()
        while hold:
            nb_agents.checkpoint()
        return "two"

    both = calls(Call("first", {}), Call("second", {}))
    run, model = start(tmp_path, both, tools=[first, second])
    assert entered.wait(WAIT_S)
    run.stop(now=True)
    finish(run)
    hold.clear()
    # The functions are the run's own: nobody need name them again.
    again = over(run.resume())
    assert again.result == "done"
    assert made == ["first", "second", "second"]
    assert "one" in prompt(model, 1) and "two" in prompt(model, 1)
    assert [tool.outcome for tool in again.view.tools] == ["ok"]


def test_interrupted_command_is_not_blindly_repeated(tmp_path: Path) -> None:
    run, model = shell_run(tmp_path, calls(run_command(SLEEP)))
    begun(run)
    run.stop(now=True)
    finish(run)
    again = over(run.resume())
    assert again.result == "done"
    assert "Check the current state first, then do only" in prompt(model, 1)


def test_resume_without_its_functions_returns_an_error_to_the_model(tmp_path: Path) -> None:
    entered = Event()

    @nb_agents.tool(repeatable=True)
    def ask() -> str:
        entered.set()
        while True:
            nb_agents.checkpoint()

    run, model = start(tmp_path, calls(Call("ask", {})), tools=[ask])
    assert entered.wait(WAIT_S)
    run.stop(now=True)
    finish(run)
    again = over(run.resume(tools=[]))
    assert again.result == "done"
    assert "no tool 'ask'" in prompt(model, 1)
