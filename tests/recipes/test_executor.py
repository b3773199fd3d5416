"""How the executor reacts to stops: streams, processes and running work."""

from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.options import CancelPolicy
from nb_agents.testing import Call, Gate, ScriptedModel, Turn
from tests.canaries import KEY
from tests.kit.runs import preview
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, wait_until
from tests.recipes.live import (
    begin,
    commands_alive,
    hold,
    let_go,
    ran,
    resume,
    wait_held,
    write,
)
from tests.team_kit import WAIT_S, events, finish

TALK_AND_WORK = """
context: {kinds: [talk, work]}
steps:
- id: both
  foreach: "{{kinds}}"
  parallel: 2
  steps:
  - {id: talk, agent: worker, condition: "{{item}} == 'talk'", prompt: talk}
  - {id: work, type: bash, condition: "{{item}} == 'work'",
     command: "if [ -e go ]; then echo worked; else touch begun; sleep 999 & sleep 999; fi"}
"""


def test_immediate_stop_closes_streams_and_ends_processes(tmp_path: Path) -> None:
    with ModelServer() as server:
        server.script("m", Reply(text="so far", hang_after=2), Reply(text="all of it"))
        backend = {"type": "chatcompletion", "base_url": server.url, "api_key": KEY, "model": "m"}
        team = TeamSpec.model_validate({"agents": [{"id": "worker", "backend": backend}]})
        path = write(tmp_path, TALK_AND_WORK)
        run = nb_agents.start(
            recipe=path, config=team, options=RunOptions(session_root=tmp_path / "sessions")
        )
        workspace = run.path / "workspaces/main"
        wait_until(lambda: (workspace / "begun").exists(), WAIT_S, "the command")
        wait_until(lambda: "both[0]/talk" in run.view.agents, WAIT_S, "the agent")
        said = lambda: run.view.agents["both[0]/talk"].partial  # noqa: E731
        wait_until(lambda: said() == "so far", WAIT_S, "the agent's words", said)
        assert commands_alive(tmp_path) != []
        run.stop(now=True)
        finish(run)
        assert commands_alive(tmp_path) == []
        wait_until(lambda: server.requests[0].closed_by, WAIT_S, "the stream's end")
        assert server.requests[0].closed_by == "client"
        assert run.view.agents["both[0]/talk"].partial == "so far"
        assert dict(run.receipt.steps) == {
            "both[0]/talk": "killed",
            "both[1]/talk": "skipped",
            "both[1]/work": "killed",
        }
        assert str(preview(run.session, session_root=tmp_path / "sessions")) == (
            "Resumes turn 1: 0 finished steps and 0 finished model calls are kept. Runs again: "
            "1 model call interrupted or failed (both[0]/talk), "
            "the command of both[1]/work (interrupted, may be partly done). Next: both[0]/talk."
        )
        (workspace / "go").touch()
        again = finish(run.resume())
        assert again.status == "completed"
        assert len(server.requests) == 2
        assert again.view.steps["both[0]/talk"].output == "all of it"
        assert again.view.steps["both[1]/work"].output == "worked\n"


FAMILIES = {
    "grandchildren": "bash -c 'sleep 999 & bash -c \"sleep 999 & sleep 999\"' &",
    "a session of its own": "setsid bash -c 'sleep 999 & sleep 999' &",
    "an orphan": "(setsid bash -c 'sleep 999 & sleep 999' &)",
    "those that ignore the end": "bash -c 'trap : TERM; while true; do sleep 1; done' &",
}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_immediate_stop_leaves_no_process_of_a_step(tmp_path: Path, family: str) -> None:
    body = f"""
steps:
- id: one
  type: bash
  command: |
    {family}
    {hold("held")}
"""
    run = begin(write(tmp_path, body))
    wait_held(run, "held")
    wait_until(lambda: len(commands_alive(tmp_path)) >= 3, WAIT_S, "the family")
    run.stop(now=True)
    finish(run)
    assert commands_alive(tmp_path) == []
    assert dict(run.receipt.steps) == {"one": "killed"}


def test_graceful_stop_lets_running_work_finish(tmp_path: Path) -> None:
    body = f"""
steps:
- {{id: one, type: bash, output: one, command: "{hold("one")}"}}
- {{id: two, type: bash, command: "echo two"}}
"""
    run = begin(write(tmp_path, body))
    wait_held(run, "one")
    run.stop()
    let_go(run, "one")
    finish(run)
    assert run.status == "cancelled"
    assert dict(run.receipt.steps) == {"one": "finished", "two": "never started"}
    assert run.view.steps["one"].output == "one\n"
    again = finish(resume(run))
    assert (again.result, ran(again)) == ({"one": "one"}, ["two"])


def test_graceful_stop_lets_an_agent_step_finish_all_its_calls(tmp_path: Path) -> None:
    body = """
steps:
- {id: draft, agent: worker, prompt: Draft it, output: draft}
- {id: next, agent: worker, prompt: And now}
"""
    gate = Gate()
    note = Call("write_file", {"path": "note.md", "content": "noted"})
    model = ScriptedModel(Turn(calls=(note,), gate=gate), Turn(text="drafted"))
    run = begin(write(tmp_path, body), model)
    gate.wait_reached()
    run.stop()
    gate.open()
    finish(run)
    assert (run.status, run.view.steps["draft"].output) == ("cancelled", "drafted")
    assert len(model.requests) == 2
    assert (run.path / "workspaces/main/note.md").read_text() == "noted"
    assert dict(run.receipt.steps) == {"draft": "finished", "next": "never started"}


def test_commands_share_the_workspace_and_see_no_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("GREETING", "hello")
    body = """
steps:
- {id: draft, agent: worker, prompt: Draft it}
- id: make
  type: bash
  output: said
  command: pwd > where; echo "$GREETING ${OPENAI_API_KEY-none}"
- {id: read, type: bash, command: "cat draft.md; cat where", output: shared}
- {id: mine, type: bash, command: pwd, cwd: "{{session.project}}", output: mine}
"""
    run = finish(begin(write(tmp_path, body)))
    assert (run.result["mine"], run.result["said"]) == (str(project), "hello none")
    text, where = run.result["shared"].split("/", 1)
    assert (text, where.split("/")[-2:]) == ("Draft it", ["workspaces", "main"])
    assert list(project.iterdir()) == []


def test_step_that_cannot_begin_fails_with_its_position(
    tmp_path: Path,
) -> None:
    inner = "steps:\n- {id: deep, type: bash, command: pwd, cwd: gone, on_error: continue}\n"
    write(tmp_path, inner, "inner")
    must = "{provider: openai, model: gpt-5, required: true}"
    body = f"""
context: {{where: gone.yaml, xs: [1]}}
steps:
- {{id: load, type: recipe, recipe: "{{{{where}}}}", on_error: continue}}
- {{id: work, type: bash, command: pwd, cwd: gone, foreach: "{{{{xs}}}}", on_error: continue}}
- {{id: ask, agent: worker, prompt: p, on_error: continue, provider_preferences: [{must}]}}
- {{id: call, type: recipe, recipe: inner.yaml}}
"""
    path = write(tmp_path, body)
    run = finish(begin(path))
    assert run.status == "completed"
    errors = {step: v.why for step, v in run.view.steps.items()}
    for step, file, part, told in (
        ("load", path, '"{{where}}"', "No recipe 'gone.yaml' next to this one"),
        ("work[0]", path, "gone, foreach", "The directory 'gone' does not exist."),
        ("ask", path, "{id: ask", "Step 'ask' requires openai:gpt-5, which is not available"),
        ("call/deep", tmp_path / "inner.yaml", "gone,", "The directory 'gone' does not exist."),
    ):
        before = file.read_text().partition(part)[0]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        assert errors[step].startswith(f"{file}:{line}:{column}: {told}"), errors[step]


def test_recipe_has_no_default_time_limit(tmp_path: Path) -> None:
    run = begin(
        write(
            tmp_path,
            f"""
steps:
- {{id: one, type: bash, command: "{hold("one")}"}}
""",
        )
    )
    assert run.view.timeout_s == 0
    run.stop(now=True)
    finish(run)


def test_time_waiting_for_the_user_does_not_count(tmp_path: Path) -> None:
    """The gate decides by timeout after the time limit would have passed."""
    body = """
stages:
- name: first
  steps: [{id: one, type: bash, command: echo one}]
  approval: {required: true, prompt: "Go on?", timeout: 3.5, default: approve}
- name: second
  steps: [{id: two, type: bash, command: echo two}]
"""
    run = finish(begin(write(tmp_path, body), timeout=3))
    assert (run.status, run.view.approvals[0].by) == ("completed", "timeout")


def test_stop_in_the_last_step_completes_the_recipe(tmp_path: Path) -> None:
    body = f"""
steps:
- {{id: one, type: bash, output: one, command: "{hold("one")}"}}
"""
    run = begin(write(tmp_path, body))
    wait_held(run, "one")
    run.stop()
    let_go(run, "one")
    finish(run)
    assert (run.status, run.result) == ("completed", {"one": "one"})


def test_slow_graceful_stop_becomes_immediate(tmp_path: Path) -> None:
    body = f"""
steps:
- {{id: one, type: bash, command: "{hold("one")}"}}
"""
    run = begin(write(tmp_path, body), cancel=CancelPolicy(grace_timeout_s=0.05))
    wait_held(run, "one")
    run.stop(reason="enough")
    finish(run)
    assert [e.level for e in events(run, ev.StopRequested)] == ["requested", "immediate"]
    assert dict(run.receipt.steps) == {"one": "killed"}
    assert commands_alive(tmp_path) == []


SLOTS = """
context: {names: [a, b, c]}
rate_limiting: {max_concurrent_llm: 1}
steps:
- {id: each, agent: worker, foreach: "{{names}}", parallel: true, collect: all,
   prompt: "Say {{item}}"}
"""


@pytest.mark.parametrize("now", [False, True])
def test_stop_ends_the_wait_for_a_slot(tmp_path: Path, now: bool) -> None:
    gate = Gate()
    model = ScriptedModel(Turn(text="said", gate=gate))
    run = begin(write(tmp_path, SLOTS), model)
    gate.wait_reached()
    run.stop(now=now)
    if not now:
        gate.open()
    finish(run)
    gate.open()
    assert (run.status, len(model.requests)) == ("cancelled", 1)
    assert run.receipt.steps == (("each[0]", "killed" if now else "finished"),)
    again = finish(resume(run))
    assert again.result == {"all": ["said"] * 3}
    assert len(model.requests) == (4 if now else 3)
