"""A sweep runs every row once, can be stopped and continued, and pays for nothing twice."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import Any

import pandas
import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.errors import SessionBusyError, SessionUnreadableError, TaskError, UserError
from nb_agents.extensions.sweeps import sweep as sweep_module
from nb_agents.extensions.sweeps.sweep import Sweep, SweepSpec
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, scripted_team
from tests import processes
from tests.kit.cells import handle_page_request
from tests.kit.runs import Run, StartRequest, registry
from tests.kit.sessions import sessions_in, turns_of
from tests.kit.sweeps import (
    Row,
    RowResult,
    SweepFold,
    SweepReader,
    fold_notes,
    has_died,
    is_live_sweep,
    mapping,
    over_budget,
    read_rows,
)
from tests.kit.teams import TeamSpec
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.team_kit import ROOT, WAIT_S
from tests.warm import WarmProcess

TASK = "Answer: {{q}}"


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "q": f"what is {number}?"} for number in range(count)]


def answering(text: str = "So.") -> TeamSpec:
    return scripted_team(a=ScriptedModel(Answer(text)))


def held() -> tuple[TeamSpec, Gate, ScriptedModel]:
    """Return a team that streams two words for each row, then waits before it answers."""
    gate = Gate()
    model = ScriptedModel(replace(Answer("So."), text="two words ", gate=gate))
    return scripted_team(a=model), gate, model


def statuses(sweep: Sweep) -> Counter[str]:
    return Counter(record["status"] for record in sweep.table())


def test_every_row_is_answered_in_its_own_session(options: RunOptions) -> None:
    sweep = nb_agents.map(rows(12), TASK, answering("Forty-two."), limit=5, options=options)
    view = sweep.wait(WAIT_S)
    assert (view.status, view.completed, view.failed) == ("completed", 12, 0)
    table = sweep.table()
    assert [record["id"] for record in table] == list(range(12))
    assert {record["answer"] for record in table} == {"Forty-two."}
    assert len(sessions_in(sweep.path).by_use) == 12
    for number, record in enumerate(table):
        metadata = (Path(record["session"]) / "turn_1" / "metadata.json").read_text()
        assert f"Answer: what is {number}?" in metadata


def test_sweep_in_the_default_folder_is_ignored_by_git(tmp_path: Path) -> None:
    options = RunOptions(session_root=tmp_path / ".nb_agents" / "sessions")
    nb_agents.map(rows(1), TASK, answering(), options=options).wait(WAIT_S)
    assert (tmp_path / ".nb_agents" / ".gitignore").read_text() == "*\n"


def test_number_of_concurrent_rows_is_limited(options: RunOptions) -> None:
    team, gate, _ = held()
    sweep = nb_agents.map(rows(9), TASK, team, limit=3, options=options)
    gate.wait_reached(3)
    seen = list[int]()
    sweep.subscribe(lambda view: seen.append(len(view.live)))
    wait_until(lambda: len(sweep.runs) == 3, WAIT_S)  # set a moment after they start
    assert statuses(sweep) == {"running": 3, "waiting": 6}
    gate.open()
    sweep.wait(WAIT_S)
    assert max(seen) <= 3


@pytest.mark.parametrize("now", [False, True])
def test_stopped_sweep_continues_with_missing_rows_only(options: RunOptions, now: bool) -> None:
    team, gate, model = held()
    sweep = nb_agents.map(rows(4), TASK, team, limit=2, options=options)
    gate.wait_reached(2)
    assert sweep.stop(now, reason="wrong path").status == ("stopping-now" if now else "stopping")
    if not now:
        wait_until(lambda: sweep.status == "stopping", WAIT_S)
        gate.open()
    view = sweep.wait(WAIT_S)
    gate.open()
    assert (view.status, view.reason) == ("cancelled", "wrong path")
    assert sweep.stop().status == "finished"
    assert statuses(sweep)["waiting"] == 2

    again = sweep.resume()
    assert again.wait(WAIT_S).status == "completed"
    assert (again.path, statuses(again)) == (sweep.path, {"complete": 4})
    # Only interrupted calls are repeated.
    assert len(model.requests) == 4 + 2 * now
    nb_agents.map(rows(4), TASK, team, options=options, name=sweep.name).wait(WAIT_S)
    assert len(model.requests) == 4 + 2 * now


def test_same_call_finds_its_sweep_and_adds_new_rows(options: RunOptions, tmp_path: Path) -> None:
    file = tmp_path / "questions.csv"
    file.write_text("q\nwhy\nhow\n")
    first = nb_agents.map(file, TASK, answering(), options=options, name="ask")
    first.wait(WAIT_S)
    file.write_text("q\nnew\nhow\nwhy\n")
    second = nb_agents.map(file, TASK, answering("Later."), options=options, name="ask")
    second.wait(WAIT_S)
    assert first.path == second.path
    assert [r["answer"] for r in second.table()] == ["Later.", "So.", "So."]


def test_unnamed_sweep_is_identified_by_source_task_and_team(
    options: RunOptions, tmp_path: Path
) -> None:
    file = tmp_path / "questions.csv"
    file.write_text("q\nwhy\n")
    team, others = answering(), rows(1)

    def name(source: Any, task: str, team: TeamSpec) -> str:
        sweep = nb_agents.map(source, task, team, options=options)
        sweep.wait(WAIT_S)
        return sweep.name

    made = [name(file, TASK, team), name(file, "{{q}}", team), name(others, TASK, team)]
    assert len(set(made)) == 3
    assert [name(file, TASK, team), name(others, TASK, team)] == [made[0], made[2]]
    assert made[0].startswith("sweep_questions_")


def test_sweep_runs_in_one_process_only(options: RunOptions) -> None:
    team, gate, _ = held()
    sweep = nb_agents.map(rows(1), TASK, team, options=options, name="ask")
    gate.wait_reached()
    with pytest.raises(SessionBusyError, match="ask"):
        nb_agents.map(rows(1), TASK, team, options=options, name="ask")
    gate.open()
    sweep.wait(WAIT_S)


def test_failed_row_does_not_affect_others_and_is_retried_on_request(
    options: RunOptions,
) -> None:
    failing = scripted_team(
        a=ScriptedModel(
            lambda said: Turn(error=ValueError("no")) if "is 1?" in str(said) else Answer("So.")
        )
    )
    sweep = nb_agents.map(rows(3), TASK, failing, options=options, name="ask")
    view = sweep.wait(WAIT_S)
    assert (view.status, view.completed, view.failed) == ("completed", 2, 1)
    assert "The call failed" in view.failures[0].error
    resumed = sweep.resume(retry_failed=True).wait(WAIT_S)
    assert (resumed.completed, resumed.failed) == (2, 1)  # it ran again, and failed again
    assert sum(len(turns_of(sweep.path / row.name)) for row in sweep.rows) == 4
    for is_wanted, left in ((False, "failed"), (True, "complete")):
        again = nb_agents.map(
            rows(3), TASK, answering(), options=options, name="ask", retry_failed=is_wanted
        )
        again.wait(WAIT_S)
        assert again.table()[1]["status"] == left


def test_one_row_is_stopped_and_the_others_continue(options: RunOptions) -> None:
    team, gate, _ = held()
    sweep = nb_agents.map(rows(2), TASK, team, options=options)
    gate.wait_reached(2)
    row = sweep.rows[0].name
    wait_until(lambda: row in sweep.runs, WAIT_S)  # set a moment after it starts
    assert sweep.stop(True, row).changed
    wait_until(lambda: row not in sweep.runs, WAIT_S)
    gate.open()
    assert sweep.wait(WAIT_S).status == "cancelled"
    assert statuses(sweep) == {"stopped": 1, "complete": 1}
    with pytest.raises(UserError, match="no running row"):
        sweep.stop(row="nobody")


def test_pause_starts_no_row_and_resume_continues(options: RunOptions) -> None:
    team, gate, _ = held()
    sweep = nb_agents.map(rows(3), TASK, team, limit=1, options=options)
    gate.wait_reached(1)
    sweep.pause()
    wait_until(lambda: sweep.status == "paused", WAIT_S)
    wait_until(lambda: sweep.runs, WAIT_S)  # set a moment after it starts
    run = next(iter(sweep.runs.values()))
    wait_until(lambda: run.view.is_paused, WAIT_S)
    gate.open()
    assert sweep.resume() is sweep
    assert sweep.wait(WAIT_S).status == "completed"


@pytest.mark.parametrize("returned", [None, "good", float("nan"), float("inf"), 10**400])
def test_what_is_no_finite_number_is_no_score(options: RunOptions, returned: object) -> None:
    sweep = nb_agents.map(
        rows(2), TASK, answering(), score=lambda task, answer: returned, options=options
    )
    view = sweep.wait(WAIT_S)
    assert (view.status, view.score) == ("completed", None)
    for record in sweep.table():
        assert record["score"] is None
        assert re.match("The score function returned .*, which is no number.$", record["error"])
    assert "which is no number" in sweep._card()["text/plain"]


def test_stored_scores_that_are_no_number_are_ignored() -> None:
    fold = SweepFold(2)
    fold.apply(RowResult("a", "completed", score=float("nan")))
    fold.apply(RowResult("b", "completed", score=1.0))
    assert fold.view("s", [], 0.0, 0.0).score == (1.0, 0.0)


@pytest.mark.parametrize("is_async", [False, True])
def test_answers_are_scored_and_a_failed_score_keeps_the_answer(
    options: RunOptions, is_async: bool
) -> None:
    def score(task: str, answer: Any) -> float:
        if "is 0?" in task:
            raise ValueError("no scale")
        return float(len(answer))

    async def later(task: str, answer: Any) -> float:
        await asyncio.sleep(0)
        return score(task, answer)

    sweep = nb_agents.map(
        rows(3), TASK, answering("abcd"), score=later if is_async else score, options=options
    )
    view = sweep.wait(WAIT_S)
    assert (view.status, view.score) == ("completed", (4.0, 0.0))
    table = sweep.table()
    assert [record["score"] for record in table] == [None, 4.0, 4.0]
    assert "no scale" in table[0]["error"]

    asked = list[str]()
    nb_agents.map(
        rows(3),
        TASK,
        name=sweep.name,
        score=lambda task, _: asked.append(task) or 1.0,
        options=options,
    ).wait(WAIT_S)
    assert asked == ["Answer: what is 0?"]
    results = fold_notes(sweep.path).results
    assert [results[row.name].score for row in sweep.rows] == [1.0, 4.0, 4.0]
    assert not any(result.error for result in results.values())


def test_budget_stops_the_sweep_if_a_price_is_unknown(options: RunOptions) -> None:
    sweep = nb_agents.map(rows(5), TASK, answering(), limit=1, max_cost=1.0, options=options)
    view = sweep.wait(WAIT_S)
    assert view.status == "cancelled"
    assert "price is unknown" in view.reason
    assert view.completed < 5


def test_recipe_gets_the_values_of_a_row(options: RunOptions, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "name: shout\ndescription: d\nversion: 1.0.0\n"
        "steps:\n  - {id: say, type: bash, command: 'echo {{q}}', output: said}\n"
    )
    sweep = nb_agents.map(rows(3), recipe=recipe, config=answering(), options=options)
    assert sweep.wait(WAIT_S).status == "completed"
    assert [record["said"].strip() for record in sweep.table()] == [r["q"] for r in rows(3)]


def test_row_at_a_gate_does_not_delay_others(options: RunOptions, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "name: r\ndescription: d\nversion: 1.0.0\nstages:\n"
        "  - name: look\n"
        "    steps: [{id: see, type: bash, command: echo x}]\n"
        "    approval: {required: true, prompt: 'Buy {{q}}?'}\n"
        "  - name: tell\n"
        "    steps: [{id: say, type: bash, command: 'echo {{_approval_message}}', output: said}]\n"
    )
    sweep = nb_agents.map(rows(2), recipe=recipe, config=answering(), options=options)
    wait_until(lambda: sweep.view.waiting == 2, WAIT_S)
    first, second = (sweep.runs[row.name] for row in sweep.rows)
    first.approve("matt")
    wait_until(lambda: sweep.view.completed == 1, WAIT_S)
    assert sweep.view.waiting == 1
    (gate,) = sweep.view.live[0].view.gates.values()
    assert gate.prompt == "Buy what is 1??"
    second.approve("bright")
    assert sweep.wait(WAIT_S).completed == 2
    assert [record["said"].strip() for record in sweep.table()] == ["matt", "bright"]


def test_subscribers_are_called_at_most_five_times_a_second(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sweep_module.SHOW_S == 1 / 5
    monkeypatch.setattr(sweep_module, "SHOW_S", 1_000.0)  # longer than any test
    team, gate, _ = held()
    sweep = nb_agents.map(rows(12), TASK, team, limit=4, options=options)
    wait_until(lambda: len(sweep.runs) == 4, WAIT_S)  # set when it is first shown
    seen = list[str]()
    sweep.subscribe(lambda view: seen.append(view.status))
    gate.open()
    sweep.wait(WAIT_S)
    assert seen == ["completed"]


def test_no_column_or_output_is_hidden_by_another_of_its_name(
    options: RunOptions, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "name: r\ndescription: d\nversion: 1.0.0\nsteps:\n"
        "  - {id: one, type: bash, command: echo 7, output: tokens}\n"
        "  - {id: two, type: bash, command: 'echo {{answer}}', output: said}\n"
    )
    given = {"answer": "mine", "status": "old", "said": "before", "row.status": "older", "q": 1}
    sweep = nb_agents.map([given], recipe=recipe, config=answering(), options=options)
    sweep.wait(WAIT_S)
    (record,) = sweep.table()
    (row,) = sweep.rows
    known = {
        "row.answer": "mine",
        "row.row.status": "old",
        "row.said": "before",
        "row.status": "older",
        "q": 1,
    }
    assert {name: record[name] for name in known} == known
    assert (record["row"], record["status"]) == (row.name, "complete")
    assert (record["said"].strip(), str(record["output.tokens"]).strip()) == ("mine", "7")
    assert record["tokens"] == 0


def test_frame_is_available_anytime_and_round_trips_through_files(
    options: RunOptions, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "name: r\ndescription: d\nversion: 1.0.0\nsteps:\n"
        "  - {id: s, type: bash, command: 'until [ -e {{go}} ]; do sleep 0.02; done;"
        " echo {{says}}', output: said, parse_json: true}\n"
    )
    go = tmp_path / "go"
    says = ["word", "[1, 2]", '{"a": [true]}', "7"]
    given = [{"says": each, "go": str(go), "error": None} for each in says]
    sweep = nb_agents.map(given, recipe=recipe, config=answering(), limit=1, options=options)
    wait_until(lambda: sweep.runs, WAIT_S)
    assert list(sweep.to_frame().status) == ["running", "waiting", "waiting", "waiting"]
    sweep.stop()
    go.touch()
    sweep.wait(WAIT_S)
    assert sweep.to_frame().status.to_list()[1:] == ["waiting"] * 3
    sweep = sweep.resume()
    sweep.wait(WAIT_S)
    frame = sweep.to_frame()
    own = ["error", "tokens", "cost", "is_estimated", "seconds", "score", "session"]
    assert [*frame.columns] == ["says", "go", "row.error", "row", "status", "said", *own]
    assert [json.loads(cell) for cell in frame.said[1:]] == [[1, 2], {"a": [True]}, 7]
    csv, parquet = tmp_path / "table.csv", tmp_path / "table.parquet"
    frame.to_csv(csv, index=False)
    frame.to_parquet(parquet)
    for read in (pandas.read_csv(csv), pandas.read_parquet(parquet)):
        assert [*read.columns] == [*frame.columns]
        assert read.said.to_list() == frame.said.to_list()
        assert read.cost.to_list() == frame.cost.to_list()
    assert [row.values["said"] for row in read_rows(parquet)] == frame.said.to_list()


def test_numbers_are_numbers_in_the_frame(options: RunOptions, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("n,code,price,note\n1,007,9.50,\n2,008,10,10%\n")
    sweep = nb_agents.map(source, "Say {{n}}", answering(), options=options)
    sweep.wait(WAIT_S)
    frame = sweep.to_frame()
    assert (frame.n.to_list(), frame.price.to_list()) == ([1, 2], [9.5, 10.0])
    assert frame.code.to_list() == ["007", "008"]  # a number would lose the zeros
    assert {str(frame[name].dtype) for name in ("tokens", "n")} == {"int64"}
    assert {str(frame[name].dtype) for name in ("cost", "seconds", "score")} == {"float64"}


def test_ended_rows_are_readable_by_their_values_in_any_process(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [{"city": "Bonn", "lang": "de", "key": "sk-1f9Qz7LmX02p"}]
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1f9Qz7LmX02p")
    sweep = nb_agents.map(given, "Describe {{city}}", answering(), options=options)
    sweep.wait(WAIT_S)
    for handle in (sweep, SweepReader(sweep.path)):
        [ended] = handle.view.recent
        values = {"city": "Bonn", "lang": "de", "key": "[key]"}
        assert handle.view.values == {ended.result.row: values}
        run = handle.run_of(ended.result.row)
        assert run is not None and run.is_over
        assert handle.run_of("..") is None


def test_task_uses_columns_of_any_name(options: RunOptions) -> None:
    table = [{"Company name": "Acme", "user-id": 7, "Price ($)": 5}]
    task = r"{{Company name}} {{ user-id }} {{Price ($)}} {{x | upper}} \{{Other one}}"
    model = ScriptedModel(Answer("So."))
    nb_agents.map(table, task, scripted_team(a=model), options=options).wait()
    assert "Acme 7 5 {{x | upper}} {{Other one}}" in str(model.requests[0])


def test_recipe_uses_columns_of_any_name(options: RunOptions, tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: r\ndescription: d\nversion: 1.0.0\n"
        "steps: [{id: a, agent: a, prompt: 'About {{Company name}}'}]\n"
    )
    model = ScriptedModel(Turn(text="So."))
    team, table = scripted_team(a=model), [{"Company name": "Acme"}]
    nb_agents.map(table, config=team, recipe=recipe, options=options).wait()
    assert "About Acme" in str(model.requests[0])


@pytest.mark.parametrize(
    "more, says",
    [
        ({"task": "Answer: {{question}}"}, "no such column. It has: id, q"),
        ({"task": "{{ids}}"}, "Did you mean 'id'?"),
        ({"task": "{{user-id}}"}, "uses {{user-id}}, but row 1 has no such column"),
        ({"task": "{{Company name}}"}, r"For literal braces, write \{{Company name}}"),
        ({"task": ""}, "Provide either a task"),
        ({"limit": 0}, "The limit is 0"),
        ({"max_cost": -1}, "max_cost is -1"),
        ({"name": "../out"}, "Invalid sweep name '../out'"),
    ],
)
def test_mistake_is_reported_before_anything_starts(
    options: RunOptions, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError) as caught:
        nb_agents.map(rows(2), **{"task": TASK, "config": answering(), "options": options} | more)
    assert says in str(caught.value)
    assert not os.path.exists(options.session_root or "")
    assert isinstance(caught.value, TaskError) or "task" not in more


def test_unusable_team_or_recipe_is_refused_once(options: RunOptions, tmp_path: Path) -> None:
    keyless = TeamSpec.model_validate({"agents": [{"id": "a", "backend": {"type": "openai"}}]})
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: x\n")
    wrongs: list[dict[str, Any]] = [
        {"task": TASK, "config": keyless},
        {"task": TASK, "config": tmp_path / "nowhere.yaml"},
        {"recipe": broken, "config": answering()},
        {"task": TASK, "config": answering(), "tools": (7,)},
    ]
    for wrong in wrongs:
        with pytest.raises(UserError):
            nb_agents.map(rows(3), **wrong, options=options)
        assert not os.path.exists(options.session_root or "")
    assert registry.groups() == ()


def test_hanging_score_function_does_not_delay_a_stop(options: RunOptions) -> None:
    asked, go_on = Event(), Event()

    def hang(task: str, answer: Any) -> float:
        asked.set()
        go_on.wait()
        return 1.0

    sweep = nb_agents.map(rows(1), TASK, answering(), score=hang, options=options)
    try:
        assert asked.wait(WAIT_S)
        sweep.stop()
        assert sweep.wait(WAIT_S).completed == 1
    finally:
        go_on.set()


def test_exiting_score_function_ends_only_itself(options: RunOptions) -> None:
    sweep = nb_agents.map(
        rows(2), TASK, answering(), score=lambda t, a: sys.exit(1), options=options
    )
    assert sweep.wait(WAIT_S).completed == 2
    assert {"SystemExit" in record["error"] for record in sweep.table()} == {True}


def test_stop_reaches_a_row_that_starts_waiting_late(tmp_path: Path) -> None:
    begins, asked, comes, withdrawn = Event(), Event(), Event(), Event()

    def begin(row: Row, timeout: float | None) -> Run:
        begins.set()
        comes.wait(WAIT_S)
        withdrawn.clear()  # earlier withdrawals did not reach this one
        assert withdrawn.wait(WAIT_S)
        raise UserError("It was withdrawn.")

    def withdraw() -> None:
        asked.set()
        withdrawn.set()

    row = Row("one", {})
    sweep = Sweep(SweepSpec(tmp_path / "sweep", {}, (row,), begin, limit=1, withdraw=withdraw))
    assert begins.wait(WAIT_S)
    sweep.stop(True)
    assert asked.wait(WAIT_S)
    comes.set()
    assert sweep.wait(WAIT_S).status == "cancelled"
    assert statuses(sweep) == {"waiting": 1}


def test_rows_to_retry_are_not_over_after_an_early_stop(
    options: RunOptions,
) -> None:
    wrong = scripted_team(a=ScriptedModel(Turn(error=ValueError("no"))))
    nb_agents.map(rows(3), TASK, wrong, options=options, name="ask").wait(WAIT_S)
    team, gate, _ = held()
    sweep = nb_agents.map(
        rows(3), TASK, team, options=options, name="ask", retry_failed=True, limit=1
    )
    gate.wait_reached()
    assert sweep.view.failed == 0
    sweep.stop(now=True)
    assert sweep.wait(WAIT_S).status == "cancelled"


def test_row_that_crashes_at_its_start_does_not_affect_others(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = mapping.start_row

    def start(request: StartRequest) -> Run:
        if "is 1?" in request.task:
            raise ValueError("a defect")
        return begin(request)

    monkeypatch.setattr(mapping, "start_row", start)
    view = nb_agents.map(rows(3), TASK, answering(), options=options).wait(WAIT_S)
    assert (view.status, view.completed, view.failed) == ("completed", 2, 1)


def test_budget_counts_the_cost_of_all_rows() -> None:
    rows_done = {f"row-{n}": RowResult(f"row-{n}", "completed", cost=0.5) for n in range(2)}
    totals = SweepFold()
    for result in rows_done.values():
        totals.apply(result)
    assert over_budget(totals.spent, None) == over_budget(totals.spent, 1.5) == ""
    assert over_budget(totals.spent, 1.0) == "max_cost of 1 US dollars was reached"
    totals.apply(replace(rows_done["row-0"], cost=0.1))
    assert over_budget(totals.spent, 1.0) == ""


def test_unreadable_sweep_is_reported_and_not_taken_as_ended(
    tmp_path: Path,
) -> None:
    with pytest.raises(SessionUnreadableError, match="gone"):
        has_died(tmp_path / "gone", SweepFold())


def test_interrupt_and_process_end_reach_a_sweep(options: RunOptions) -> None:
    team, gate, _ = held()
    sweep = nb_agents.map(rows(8), TASK, team, limit=2, options=options)
    gate.wait_reached(2)
    assert handle_page_request("stop", {"sweep": sweep.name}).facts["changed"]
    sweep.press()
    assert sweep.wait(WAIT_S).status == "cancelled"
    assert registry.groups() == ()

    sweep = sweep.resume()
    gate.wait_reached(4)
    registry.stop_all()
    assert sweep.wait(WAIT_S).status == "cancelled"


def test_terminal_stops_a_sweep_of_another_process(options: RunOptions) -> None:
    team, gate, _ = held()
    sweep = nb_agents.map(rows(8), TASK, team, limit=2, options=options, name="ask")
    gate.wait_reached(2)
    argv = [
        sys.executable,
        "-m",
        "nb_agents.cli",
        "stop",
        "ask",
        "--now",
        "--reason",
        "seen enough",
    ]
    argv += ["--session-root", str(options.session_root)]
    done = processes.run(argv, cwd=ROOT)
    assert done.stdout.startswith("Sweep ask will stop")
    view = sweep.wait(WAIT_S)
    assert (view.status, view.reason) == ("cancelled", "seen enough")
    again = processes.run(argv, cwd=ROOT)
    assert again.stdout.startswith("Sweep ask is already over")


def test_row_whose_process_died_before_its_first_line_starts_again(options: RunOptions) -> None:
    sweep = nb_agents.map(rows(1), TASK, answering(), options=options)
    sweep.wait(WAIT_S)
    (sweep.path / "rows.jsonl").unlink()
    turn = sweep.path / sweep.rows[0].name / "turn_1"
    (turn / "events.jsonl").write_text("")
    (turn / "metadata.json").unlink()
    (turn / "answer.txt").unlink()
    again = sweep.resume()
    assert again.wait(WAIT_S).completed == 1


def test_row_with_a_lost_note_is_not_repeated(options: RunOptions) -> None:
    team, gate, model = held()
    gate.open()
    sweep = nb_agents.map(rows(3), TASK, team, options=options)
    sweep.wait(WAIT_S)
    lines = (sweep.path / "rows.jsonl").read_text()
    (sweep.path / "rows.jsonl").write_text(lines[: len(lines) // 2])
    again = sweep.resume()
    assert again.wait(WAIT_S).completed == 3
    assert {record["answer"] for record in again.table()} == {"So."}
    assert len(model.requests) == 3


_SCRIPT = """
import sys, nb_agents
url, root, count = sys.argv[1:]
team = nb_agents.TeamSpec.model_validate({"agents": [{"id": "a", "backend": {
    "type": "chatcompletion", "model": "m", "base_url": url, "api_key": "k"}}]})
rows = [{"q": f"row-{number}-row"} for number in range(int(count))]
sweep = nb_agents.map(rows, "Answer: {{q}}", team, name="killed", limit=6,
                      options=nb_agents.RunOptions(session_root=root))
print("at work", flush=True)
print(sweep.wait().completed, flush=True)
"""


def test_killed_sweep_is_continued_without_repeating_an_answer(
    tmp_path: Path,
) -> None:
    count = 40
    answered = Counter[str]()
    is_killed = Event()

    def reply(request: Request) -> Reply:
        is_held = request.number >= count // 2 and not is_killed.is_set()
        text = f"The answer to {_question(request)}."
        return Reply(text=text, hang_after=1 if is_held else None)

    def command(server: ModelServer) -> list[str]:
        return [sys.executable, "-c", _SCRIPT, server.url, str(tmp_path), str(count)]

    with ModelServer() as server:
        server.script("m", reply)
        with WarmProcess(command(server), cwd=ROOT, stdout=subprocess.PIPE) as killed:
            wait_until(lambda: len(fold_notes(tmp_path / "killed").results) >= count // 3, WAIT_S)
            killed.send_signal(signal.SIGKILL)
        is_killed.set()
        assert not is_live_sweep(tmp_path / "killed")
        before = len(server.requests)
        assert before < count
        done = processes.run(command(server), cwd=ROOT)
        assert done.stdout.split()[-1] == str(count), done.stderr
        for request in server.requests:
            answered[_question(request)] += 1
    results = fold_notes(tmp_path / "killed").results.values()
    assert Counter(result.status for result in results) == {"completed": count}
    assert {result.answer for result in results} == {
        f"The answer to row-{n}-row." for n in range(count)
    }
    # Only calls that were in progress when it was killed are repeated.
    assert set(answered) == {f"row-{number}-row" for number in range(count)}
    assert sum(answered.values()) <= count + 6


def _question(request: Request) -> str:
    found = re.search(r"row-\d+-row", str(request.messages))
    assert found is not None
    return found[0]


def test_row_submitted_to_a_cluster_by_a_killed_process_does_not_start_late(
    options: RunOptions,
) -> None:
    ticket = Path(str(options.session_root), "ask", ".tickets", "nb_agents-1")
    ticket.parent.mkdir(parents=True)
    ticket.touch()
    nb_agents.map(rows(1), TASK, answering(), options=options, name="ask").wait(WAIT_S)
    assert not ticket.exists()


def test_another_task_or_recipe_under_the_same_name_is_refused(
    options: RunOptions, tmp_path: Path
) -> None:
    model = ScriptedModel(Answer("So."))
    nb_agents.map(rows(1), TASK, scripted_team(a=model), options=options, name="ask").wait(WAIT_S)
    about = Path(str(options.session_root), "ask", "sweep.json")
    before = about.read_text()
    recipe = tmp_path / "recipe.yaml"
    steps = "steps:\n  - {id: s, type: bash, command: 'true'}\n"
    recipe.write_text(f"name: r\ndescription: d\nversion: 1.0.0\n{steps}")
    for asks in ({"task": "Refute: {{q}}"}, {"recipe": recipe}):
        with pytest.raises(UserError, match="has the task 'Answer: {{q}}', but this") as told:
            nb_agents.map(
                rows(1), config=scripted_team(a=model), options=options, name="ask", **asks
            )
        assert "another name=" in str(told.value)
    assert (about.read_text(), len(model.requests)) == (before, 1)
    # The task matters, but not the team, the source or the score.
    others = scripted_team(b=ScriptedModel(Answer("Later.")))
    again = nb_agents.map(
        rows(2), TASK, others, options=options, name="ask", score=lambda task, answer: 1.0
    )
    assert again.wait(WAIT_S).completed == 2
    assert [record["answer"] for record in again.table()] == ["So.", "Later."]
    assert not [*about.parent.glob("*.tmp")] and not [*about.parent.glob(".*.tmp")]


PRICED = "gpt-5-mini"


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """Return a server with a model of known price."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with ModelServer() as server:
        server.script(PRICED, lambda request: Reply(f"The answer to {_question(request)}."))
        yield server


def team_with_a_price(server: ModelServer) -> TeamSpec:
    backend = {"type": "openai", "model": PRICED, "base_url": server.url}
    return TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})


def numbered(count: int) -> list[dict[str, str]]:
    return [{"q": f"row-{number}-row"} for number in range(count)]


def test_next_call_with_a_spent_budget_starts_no_row(
    options: RunOptions, priced: ModelServer
) -> None:
    def sweep(max_cost: float) -> Sweep:
        team = team_with_a_price(priced)
        made = nb_agents.map(
            numbered(6), TASK, team, name="ask", limit=2, max_cost=max_cost, options=options
        )
        made.wait(WAIT_S)
        return made

    first = sweep(1e-9)
    assert (first.status, first.view.reason) == (
        "cancelled",
        "max_cost of 1e-09 US dollars was reached",
    )
    spent, asked = first.view.cost, len(priced.requests)
    assert spent and 1 <= asked <= 2
    again = sweep(1e-9)
    assert (again.view.reason, again.view.cost) == (first.view.reason, spent)
    assert len(priced.requests) == asked
    assert sweep(1.0).view.completed == 6
    assert len(priced.requests) == asked + 6 - first.view.completed


def test_row_that_spends_the_budget_stops_the_others(
    options: RunOptions, priced: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def over_budget_once_all_are_asked(cost: float | None, limit: float | None) -> str:
        return over_budget(cost, limit) if len(priced.requests) >= 3 else ""

    monkeypatch.setattr(sweep_module, "over_budget", over_budget_once_all_are_asked)

    def reply(request: Request) -> Reply:
        if "row-0-row" in str(request.messages) and len(request.messages) < 3:
            return Reply(tool_calls=(ToolCall("note", {"text": "x"}),), output_tokens=10**6)
        return Reply("two words", hang_after=1)

    def note(text: str) -> str:
        """Note."""
        return text

    priced.script(PRICED, reply)
    sweep = nb_agents.map(
        numbered(6),
        TASK,
        team_with_a_price(priced),
        limit=2,
        max_cost=1.0,
        tools=[note],
        options=options,
    )

    stops: dict[str, str] = {}

    def are_stopped() -> bool:
        stops.update((row.name, row.view.stop.source) for row in sweep.view.live if row.view.stop)
        return len(stops) == 2

    wait_until(are_stopped, WAIT_S)
    assert {*stops.values()} == {"budget"}
    assert "max_cost of 1 US dollars" in sweep.view.reason
    sweep.stop(True)
    sweep.wait(WAIT_S)
    assert statuses(sweep) == {"stopped": 2, "waiting": 4}
    assert len(priced.requests) == 3


def test_table_tells_whether_the_cost_of_a_row_is_estimated(
    options: RunOptions, priced: ModelServer
) -> None:
    done = Reply(tool_calls=(ToolCall("new_answer", {"content": "Done."}),))
    priced.script(PRICED, done, Reply("two words", hang_after=1))
    sweep = nb_agents.map(
        numbered(2), TASK, team_with_a_price(priced), limit=1, name="ask", options=options
    )

    def is_writing_second() -> bool:
        agents = [a for row in sweep.view.live for a in row.view.agents.values()]
        return any("two" in agent.partial for agent in agents)

    wait_until(is_writing_second, WAIT_S)
    assert [row["is_estimated"] for row in sweep.table()] == [False, False]
    sweep.stop(True)
    sweep.wait(WAIT_S)
    assert [row["is_estimated"] for row in sweep.table()] == [False, True]
    noted = fold_notes(sweep.path).results.values()
    assert [result.is_estimated for result in noted] == [False, True]


def test_cost_of_a_killed_row_counts_before_another_starts(
    options: RunOptions, priced: ModelServer
) -> None:
    def sweep(rows: int, **more: Any) -> Sweep:
        team = team_with_a_price(priced)
        made = nb_agents.map(numbered(rows), TASK, team, name="ask", options=options, **more)
        made.wait(WAIT_S)
        return made

    first = sweep(1)
    (row,) = first.rows
    # As after a kill between the answer and its note.
    noted = first.path / "rows.jsonl"
    noted.write_text(json.dumps({"kind": "row_began", "row": row.name, "turn": 1}) + "\n")
    journal = first.path / row.name / "turn_1" / "events.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(takewhile(lambda line: '"turn_ended"' not in line, lines)))
    again = sweep(3, max_cost=1e-9)
    assert again.view.reason == "max_cost of 1e-09 US dollars was reached"
    assert again.view.cost == first.view.cost
    assert len(priced.requests) == 1


_DETACHED = """
import sys, nb_agents, signal
url, root = sys.argv[1:]
team = nb_agents.TeamSpec.model_validate({"detach": True, "agents": [{"id": "a", "backend": {
    "type": "chatcompletion", "model": "m", "base_url": url, "api_key": "k"}}]})
rows = [{"q": f"row-{number}-row"} for number in range(4)]
sweep = nb_agents.map(rows, "Answer: {{q}}", team, name="killed", limit=2,
                      options=nb_agents.RunOptions(session_root=root))
signal.pause()
"""


def test_rows_that_outlive_a_killed_process_are_followed_by_the_same_call(tmp_path: Path) -> None:
    with ModelServer() as server:
        server.script("m", lambda request: Reply(f"The answer to {_question(request)}."))
        server.hold(after=1)
        command = [sys.executable, "-c", _DETACHED, server.url, str(tmp_path)]
        with WarmProcess(command, cwd=ROOT) as killed:
            wait_until(lambda: len(fold_notes(tmp_path / "killed").at_work) == 2, WAIT_S)
            wait_until(lambda: len(server.requests) == 2, WAIT_S)
            killed.kill()
        backend = {"type": "chatcompletion", "model": "m", "base_url": server.url, "api_key": "k"}
        team = TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})
        again = nb_agents.map(
            numbered(4),
            TASK,
            team,
            name="killed",
            limit=2,
            options=RunOptions(session_root=tmp_path),
        )
        wait_until(lambda: len(again.runs) == 2, WAIT_S)
        assert all(run.where for run in again.runs.values())
        assert statuses(again) == {"running": 2, "waiting": 2}
        server.release()
        assert again.wait(WAIT_S).completed == 4
        assert Counter(map(_question, server.requests)) == {f"row-{n}-row": 1 for n in range(4)}
