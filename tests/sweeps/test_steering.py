"""A running sweep is steered: limits, models, rows to run again, and scores of partial answers."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import UserError
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests import processes
from tests.kit.recipes import Recipe, models_of
from tests.kit.sessions import TurnPaths, load_turn
from tests.kit.sweeps import (
    InterimScore,
    RowBegan,
    RowResult,
    Steered,
    Steering,
    SteerRequest,
    SweepBegan,
    SweepFold,
    SweepReader,
    WaitingRows,
    fold_notes,
    notes_in,
    text_so_far,
    uses_paused,
)
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.team_kit import ROOT, WAIT_S
from tests.warm import WarmProcess

TASK = "Answer: {{q}}"


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "q": f"what is {number}?"} for number in range(count)]


def held() -> tuple[TeamSpec, Gate]:
    gate = Gate()
    return scripted_team(
        a=ScriptedModel(replace(Answer("So."), text="two words ", gate=gate))
    ), gate


def began(limit: int = 2, **more: Any) -> SweepBegan:
    return SweepBegan(1.0, 3, ("r1", "r2", "r3"), (), False, limit=limit, **more)


def folded(*notes: Any) -> SweepFold:
    fold = SweepFold()
    for note in notes:
        fold.apply(note)
    return fold


# Decisions ----------------------------------------------------------------------------------------


def test_changed_limits_remain_until_the_call_has_other_ones() -> None:
    fold = folded(began(2, max_cost=1.0), Steered(2.0, limit=5, max_cost=3.0, pause_model="openai"))
    assert fold.steering == Steering(5, 3.0, None, ("openai",))
    fold.apply(began(2, max_cost=1.0))
    assert fold.steering == Steering(5, 3.0, None, ("openai",)), "as after a kill"
    fold.apply(began(4, max_cost=1.0))
    assert fold.steering == Steering(4, 3.0, None, ("openai",)), "the call has a new limit"
    fold.apply(Steered(3.0, unpause_model="openai"))
    assert fold.steering.paused == ()


@pytest.mark.parametrize("name", ["openai", "openai:gpt-5", "gpt-5"])
def test_model_is_paused_by_provider_name_or_both(name: str) -> None:
    assert uses_paused({"openai:gpt-5", "gemini:flash"}, {name})
    assert not uses_paused({"gemini:flash", "openai_compatible:gpt-4"}, {name})


def test_models_of_a_recipes_row_come_from_its_values() -> None:
    text = (
        "{name: r, description: d, version: 1.0.0, steps: [{id: a, agent: x, prompt: Go, "
        "provider: openai, model: '{{model}}'}]}"
    )
    recipe = Recipe.from_text(text, "r.yaml")
    team = scripted_team(a=ScriptedModel(Answer("So.")))
    assert models_of(recipe, team, {"model": "gpt-5"}) == {"openai:gpt-5"}
    assert models_of(recipe, team, {}) == {"python"}, "its value is unknown"


def test_failed_row_that_is_requeued_counts_as_not_started() -> None:
    failed = RowResult("r1", "failed", error="Oh.", tokens=7)
    fold = folded(began(), RowBegan("r1", 1), failed, Steered(2.0, rows=("r1",)))
    view = fold.view("s", (), 3.0)
    assert (view.failed, view.to_go, view.tokens, view.recent) == (0, 3, 7, ())
    assert not fold.is_final("r1", retry_failed=False)
    fold.apply(began())
    assert not fold.is_kept("r1"), "after a kill, it is still requeued"
    fold.apply(RowBegan("r1", 2))
    fold.apply(RowResult("r1", "completed", "So.", tokens=9))
    view = fold.view("s", (), 3.0)
    assert (view.completed, view.failed, view.to_go, view.tokens) == (1, 0, 2, 9)
    assert fold.is_final("r1", retry_failed=False)


def test_interim_score_is_dropped_when_the_row_ends_but_its_cost_counts() -> None:
    fold = folded(began(), RowBegan("r1", 1), InterimScore("r1", 0.5, "", 20, 0.25))
    assert fold.interim["r1"].score == 0.5
    fold.apply(RowResult("r1", "completed", "So.", tokens=9, cost=1.0))
    assert (fold.interim, fold.tokens, fold.spent) == ({}, 29, 1.25)
    fold.apply(began())
    assert (fold.tokens, fold.spent) == (29, 1.25)


def test_paused_rows_leave_their_places_and_wait_for_one_when_unpaused() -> None:
    pauses = list[tuple[str, bool]]()
    placed = WaitingRows(lambda run, is_paused: pauses.append((run.name, is_paused)))  # type: ignore[attr-defined]
    a, b = (SimpleNamespace(name=n, view=SimpleNamespace(wait=None)) for n in "ab")
    placed.update({"a": a}, 0, 0.0, 1, {"a"})  # type: ignore[dict-item]
    assert (placed.count, placed.is_held("a")) == (1, True)
    placed.update({"a": a, "b": b}, 0, 0.0, 1)  # type: ignore[dict-item]
    assert (placed.count, placed.is_held("a")) == (1, True), "the only place is taken"
    placed.update({"a": a, "b": b}, 0, 0.0, 2)  # type: ignore[dict-item]
    assert (placed.count, placed.is_held("a")) == (0, False)
    assert (pauses[0], pauses[-1]) == (("a", True), ("a", False))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "Nothing is to be changed. Give one of --limit, --max-cost"),
        ({"limit": 0}, "The limit is 0. Use 1 to"),
        ({"max_cost": -1.0}, "max_cost is -1.0 US dollars"),
        ({"timeout": float("nan")}, "timeout is nan seconds"),
    ],
)
def test_invalid_changes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SteerRequest("s", **changes)


# Running sweeps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_limits_change_while_rows_run(options: RunOptions, is_elsewhere: bool) -> None:
    team, gate = held()
    sweep = nb_agents.map(rows(5), TASK, team, limit=1, options=options)
    gate.wait_reached(1)
    handle = SweepReader(sweep.path) if is_elsewhere else sweep
    handle.steer(limit=3, timeout=900)
    gate.wait_reached(3)
    wait_until(lambda: len(sweep.runs) == 3, WAIT_S)
    assert {run.view.timeout_s for run in sweep.runs.values()} == {900}
    handle.steer(limit=1)
    wait_until(lambda: sweep.view.steering == Steering(1, None, 900), WAIT_S)
    assert len(sweep.runs) == 3, "running rows continue"
    gate.open()
    assert sweep.wait(WAIT_S).completed == 5
    with pytest.raises(UserError, match="is complete, so it can't be steered"):
        handle.steer(limit=2)


def test_lowered_budget_stops_the_sweep(options: RunOptions, server: ModelServer) -> None:
    answer = Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),))
    server.script("gpt-5-mini", *([answer] * 9))
    backend = server.backend("openai", model="gpt-5-mini")
    team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
    sweep = nb_agents.map(rows(3), TASK, team, limit=1, options=options)
    sweep.pause()
    sweep.steer(max_cost=1e-12)
    sweep.resume()
    view = sweep.wait(WAIT_S)
    assert (view.status, view.completed < 3) == ("cancelled", True)
    assert "max_cost of 1e-12 US dollars was reached" in view.reason


def test_rows_of_a_paused_model_wait_while_others_are_answered(
    options: RunOptions, server: ModelServer, tmp_path: Path
) -> None:
    file = tmp_path / "ask.yaml"  # each row names the agent, and so the model
    file.write_text(
        "name: ask\ndescription: d\nversion: 1.0.0\nsteps:\n"
        "- {id: a, agent: '{{who}}', prompt: 'Row {{id}}'}\n"
    )
    server.script("m1", *([Reply("done")] * 3))
    server.script("m2", Reply("a few words", hang_after=1), *([Reply("done")] * 9))
    agents = [{"id": m, "backend": server.backend("openai", model=m)} for m in ("m1", "m2")]
    source = [{"id": n, "who": f"m{2 - n % 2}"} for n in range(6)]
    team = TeamSpec.model_validate({"agents": agents})
    sweep = nb_agents.map(source, config=team, recipe=file, limit=1, options=options)
    wait_until(lambda: any(text_so_far(row.view) for row in sweep.runs.values()), WAIT_S)
    assert sweep.view.models == ("openai:m2", "openai:m1")
    sweep.steer(pause_model="m2")
    wait_until(lambda: sweep.view.completed == 3, WAIT_S)
    [run] = sweep.runs.values()
    assert run.view.is_paused
    with pytest.raises(UserError, match="'openai' is not paused. Paused models: m2"):
        sweep.steer(unpause_model="openai")
    sweep.steer(unpause_model="m2", limit=3)
    wait_until(lambda: sweep.view.completed == 5, WAIT_S)
    assert not run.view.is_paused
    sweep.stop(True)
    sweep.wait(WAIT_S)


def test_row_that_failed_runs_again_while_others_run(
    options: RunOptions, server: ModelServer
) -> None:
    fails = [True]

    def reply(request: Request) -> Reply:
        if "what is 1?" in request.prompt:
            return Reply(text="I am still thinking.", hang_after=1)
        if fails:
            return Reply(status=400, error="Bad.")
        return Reply(tool_calls=(ToolCall("new_answer", {"content": "done"}),))

    server.script("m", *([reply] * 9))
    team = TeamSpec.model_validate(
        {"agents": [{"id": "a", "backend": server.backend("openai", model="m")}]}
    )
    sweep = nb_agents.map(rows(2), TASK, team, options=options)
    wait_until(lambda: sweep.view.failed == 1, WAIT_S)
    [failed] = sweep.view.failures
    fails.clear()
    with pytest.raises(UserError, match="No row 'nothing' has started"):
        sweep.steer(requeue="nothing")
    sweep.steer(requeue="failed")
    wait_until(lambda: sweep.view.completed == 1, WAIT_S)
    assert sweep.view.failed == 0 and not sweep.is_over
    with pytest.raises(UserError, match="The price of a model is unknown"):
        sweep.steer(max_cost=100)
    with pytest.raises(UserError, match="is complete. Only a running or failed row"):
        sweep.steer(requeue=failed.row)
    sweep.stop(True)
    assert sweep.wait(WAIT_S).completed == 1
    assert [note.rows for note in notes_in(sweep.path, Steered)] == [(failed.row,)]


def test_running_row_that_is_requeued_is_resumed_after_the_others(options: RunOptions) -> None:
    team, gate = held()
    sweep = nb_agents.map(rows(2), TASK, team, limit=1, options=options)
    gate.wait_reached(1)
    wait_until(lambda: sweep.runs, WAIT_S)
    [first] = sweep.runs
    sweep.steer(requeue=first)
    wait_until(lambda: sweep.runs and first not in sweep.runs, WAIT_S)
    gate.open()
    assert sweep.wait(WAIT_S).completed == 2
    order = [(note.row, note.turn) for note in notes_in(sweep.path, RowBegan)]
    [second] = {row for row, _ in order} - {first}
    assert order == [(first, 1), (second, 1), (first, 2)]


def test_score_function_rates_what_a_running_row_has_written(options: RunOptions) -> None:
    team, gate = held()
    sweep = nb_agents.map(
        rows(1), TASK, team, score=lambda task, text: len(text.split()), options=options
    )
    gate.wait_reached(1)
    wait_until(lambda: any("two words" in r.view.agents["a"].partial for r in sweep.runs.values()))
    sweep.steer(score=True)
    wait_until(lambda: sweep.view.interim, WAIT_S)
    [interim] = sweep.view.interim.values()
    assert (interim.score, interim.error, sweep.view.scores) == (2.0, "", ())
    gate.open()
    view = sweep.wait(WAIT_S)
    assert (view.scores, dict(view.interim)) == ((1.0,), {})


def test_only_a_sweep_with_a_score_has_interim_scores(options: RunOptions) -> None:
    team, gate = held()
    sweep = nb_agents.map(rows(1), TASK, team, options=options)
    gate.wait_reached(1)
    with pytest.raises(UserError, match="no score function and no judge"):
        sweep.steer(score=True)
    with pytest.raises(UserError, match="No row of the sweep uses 'openai'"):
        sweep.steer(pause_model="openai")
    gate.open()
    sweep.wait(WAIT_S)


_SCRIPT = """
import sys, nb_agents
url, root = sys.argv[1:]
team = nb_agents.TeamSpec.model_validate({"agents": [{"id": "a", "backend": {
    "type": "chatcompletion", "model": "m", "base_url": url, "api_key": "k"}}]})
rows = [{"q": f"what is {number}?"} for number in range(4)]
sweep = nb_agents.map(rows, "Answer: {{q}}", team, name="killed", limit=1,
                      options=nb_agents.RunOptions(session_root=root))
print(sweep.wait().completed, flush=True)
"""


def test_killed_sweep_continues_as_it_was_steered(tmp_path: Path, server: ModelServer) -> None:
    is_killed = list[bool]()

    def reply(request: Request) -> Reply:
        if "what is 0?" in request.prompt and not is_killed:
            return Reply(status=400, error="Bad.")
        return Reply(text="So it is.", hang_after=None if is_killed else 1)

    server.script("m", reply)
    command = [sys.executable, "-c", _SCRIPT, server.url, str(tmp_path)]
    with WarmProcess(command, cwd=ROOT, stdout=subprocess.PIPE) as killed:
        wait_until(lambda: fold_notes(tmp_path / "killed").failures, WAIT_S)
        reader = SweepReader(tmp_path / "killed")
        reader.steer(limit=3, timeout=1234)
        wait_until(lambda: len(fold_notes(reader.path).running) == 3, WAIT_S)
        reader.steer(requeue="failed")
        wait_until(lambda: fold_notes(reader.path).requeued, WAIT_S)
        killed.send_signal(signal.SIGKILL)
    is_killed.append(True)
    fold = fold_notes(reader.path)
    assert (fold.steering.limit, len(fold.requeued)) == (3, 1)
    done = processes.run(command, cwd=ROOT)
    assert done.stdout.split()[-1] == "4", done.stderr
    view = SweepReader(reader.path).view
    assert (view.completed, view.failed, view.steering.limit) == (4, 0, 3)
    for path in reader.path.glob("*/turn_2"):
        assert load_turn(TurnPaths(path)).view.timeout_s == 1234
