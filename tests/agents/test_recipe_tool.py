"""Agents that run recipes with the tool `recipes`: results, costs, stops, and resumes."""

import json
from pathlib import Path
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn
from tests.kit.models import Backend
from tests.kit.runs import Run, find_live
from tests.kit.sessions import SessionStore
from tests.kit.teams import TeamSpec
from tests.model_server import wait_until
from tests.recipes.live import commands_alive, hold, let_go, wait_held
from tests.team_kit import WAIT_S, events, finish

BODY = """
name: review
description: d
version: 1.0.0
context: {what: nothing}
steps:
- {id: think, agent: a, prompt: "think of {{what}}", output: thought}
- {id: say, type: bash, command: "echo said {{what}}", output: said}
outputs: {thought: "{{thought}}", said: "{{said}}"}
"""
DEEP = Turn(text="deep")
"""What the recipe's first step gets: the same model works on it."""
SESSION = "a-review.yaml-1"


def held_body() -> str:
    """A recipe whose first step is held."""
    return f"""
name: review
description: d
version: 1.0.0
steps:
- {{id: one, type: bash, output: one, command: "{hold("one")}"}}
- {{id: two, type: bash, output: two, command: "echo two"}}
"""


def use(operation: str, **more: Any) -> Turn:
    return Turn(calls=(Call("recipes", {"operation": operation, **more}),))


def execute(**context: Any) -> Turn:
    return use("execute", recipe_path="review.yaml", context=context)


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "review.yaml"
    path.write_text(BODY)
    return path


def begin(allowed: Any = "review.yaml", **models: Backend) -> Run:
    def agent(name: str, model: Backend, **keys: Any) -> dict[str, Any]:
        return {"id": name, "backend": {"type": "python", "instance": model, **keys}}

    members = [agent(name, model, recipes=allowed) for name, model in models.items()]
    team = TeamSpec.model_validate({"agents": members})
    return nb_agents.start("the task", team, "s", options=RunOptions(session_root="sessions"))


def told(run: Run, agent: str = "a") -> list[str]:
    """Return the results of the agent's tool calls, as its model received them."""
    return [e.result for e in events(run, ev.ToolFinished) if e.agent == agent]


def inner_of(run: Run) -> Run:
    """The run of the recipe that an agent of a run runs."""
    root = run.path.parent / "recipes"
    wait_until(lambda: nb_agents.runs(root), WAIT_S, "the recipe's run", lambda: told(run))
    return nb_agents.runs(root)[0]


def test_an_agent_runs_a_recipe_and_gets_its_outputs() -> None:
    a = ScriptedModel(execute(what="cats"), DEEP, Answer("A's"))
    run = finish(begin(a=a))
    [result] = told(run)
    assert json.loads(result) == {
        "session_id": SESSION,
        "status": "completed",
        "result": {"thought": "deep", "said": "said cats"},
    }


def test_a_recipe_is_a_row_whose_tokens_and_cost_count() -> None:
    run = finish(begin(a=ScriptedModel(execute(), DEEP, Answer("A's"))))
    row = run.view.agents["a/review.yaml#1"]
    [inner] = nb_agents.runs(run.path.parent / "recipes")
    assert (row.caller, row.tokens, row.outcome) == ("a", inner.receipt.tokens, "finished")
    assert row.tokens > 0
    assert run.receipt.tokens == row.tokens + run.view.agents["a"].tokens


def test_the_tool_is_offered_only_where_the_team_lists_recipes() -> None:
    a = ScriptedModel(execute(), Answer("A's"))
    run = finish(begin(allowed=(), a=a))
    assert "no tool 'recipes'" in told(run)[0]


def test_errors_are_results_of_the_call() -> None:
    a = ScriptedModel(
        use("execute", recipe_path="/etc/other.yaml"),
        use("cancel", session_id="../../s"),
        use("resume", session_id=".."),
        use("erase"),
        Answer("A's"),
    )
    other, cancelled, resumed, unknown = told(finish(begin(a=a)))
    assert "there is no recipe '/etc/other.yaml'. Your recipes: review.yaml" in other
    assert "there is no session '../../s'" in cancelled
    assert "there is no session '..'" in resumed
    assert "erase" in unknown or "operation" in unknown


def test_a_recipe_with_a_fault_is_not_valid(recipe: Path) -> None:
    recipe.write_text(BODY.replace("type: bash,", "type: bush,"))
    a = ScriptedModel(use("validate", recipe_path="review.yaml"), execute(), Answer("A's"))
    checked, executed = told(finish(begin(a=a)))
    report = json.loads(checked)
    assert report["is_valid"] is False
    assert "steps.1.type" in report["errors"][0]
    assert "steps.1.type" in executed


@pytest.mark.parametrize("immediate", [False, True])
def test_another_agent_lists_and_cancels_a_recipe(recipe: Path, immediate: bool) -> None:
    recipe.write_text(held_body())
    gate = Gate()
    wanted = {"session_id": SESSION, "immediate": immediate}
    b = ScriptedModel(
        Turn(calls=(Call("recipes", {"operation": "list"}),), gate=gate),
        use("cancel", **wanted),
        use("list"),
        Answer("B's"),
    )
    run = begin(a=ScriptedModel(execute(), Answer("A's")), b=b)
    inner = inner_of(run)
    wait_held(inner, "one")
    gate.open()
    wait_until(lambda: len(told(run, "b")) >= 2, WAIT_S, "the cancellation")
    if not immediate:
        let_go(inner, "one")
    finish(run)
    before, cancel, _ = map(json.loads, told(run, "b"))
    assert before["recipes"] == ["review.yaml"]
    assert [s["state"] for s in before["sessions"]] == ["running"]
    assert cancel["changed"] is True
    [error] = told(run)
    assert f'recipes(operation="resume", session_id={SESSION!r}) continues it' in error
    store = SessionStore(run.path.parent / "recipes")
    assert store.get_cancellation_status(SESSION).name == "CANCELLED"
    assert inner.receipt.reason == "cancelled by b"
    assert dict(inner.receipt.steps)["one"] == ("killed" if immediate else "finished")
    assert run.view.agents["a/review.yaml#1"].outcome == "stopped"


def test_a_stop_of_the_run_stops_the_recipe_and_a_resume_continues_it(recipe: Path) -> None:
    recipe.write_text(held_body())
    a = ScriptedModel(execute(), Answer("A's"))
    run = begin(a=a)
    inner = inner_of(run)
    wait_held(inner, "one")
    assert nb_agents.runs()[-1].path == inner.path
    assert find_live().id == run.id
    find_live().stop(now=True)
    finish(run)
    assert (inner.state, inner.receipt.source) == ("stopped", "parent")
    assert commands_alive(run.path.parent) == []
    assert run.view.agents["a/review.yaml#1"].outcome == "stopped"
    let_go(inner, "one")
    again = finish(run.resume())
    assert json.loads(told(again)[0])["session_id"] == SESSION
    assert [p.name for p in (run.path.parent / "recipes").glob("*")] == [SESSION]
    assert again.result == "A's"


def test_a_finished_recipe_is_not_run_again_by_a_resume(recipe: Path) -> None:
    gate = Gate()
    a = ScriptedModel(execute(), DEEP, Answer("A's", gate=gate))
    run = begin(a=a)
    gate.wait_reached()
    run.stop(now=True)
    finish(run)
    gate.open()
    again = finish(run.resume())
    assert [*(run.path.parent / "recipes" / SESSION).glob("turn_*")] == [
        run.path.parent / "recipes" / SESSION / "turn_1"
    ]
    assert (again.result, told(again)) == ("A's", [])
