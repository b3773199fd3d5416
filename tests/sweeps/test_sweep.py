"""A sweep: every row once, stopped at any moment, gone on with, nothing paid twice."""

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
from nb_agents.config.team import TeamSpec
from nb_agents.errors import SessionBusyError, SessionUnreadableError, TaskError, UserError
from nb_agents.jupyter.kernel import do_as_asked
from nb_agents.runs import registry
from nb_agents.runs.run import Run
from nb_agents.session.layout import sessions_in
from nb_agents.sweeps import mapping
from nb_agents.sweeps import sweep as sweep_module
from nb_agents.sweeps.manifest import has_died, is_live_sweep
from nb_agents.sweeps.notes import RowResult
from nb_agents.sweeps.source import Row, read_rows
from nb_agents.sweeps.sweep import Sweep, SweepSpec, over_budget
from nb_agents.sweeps.sweep_fold import SweepFold, fold_notes
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, scripted_team
from tests import processes
from tests.model_server import ModelServer, Reply, Request, ToolCall, wait_until
from tests.team_kit import ROOT, WAIT_S
from tests.warm import WarmProcess

TASK = "Answer: {{q}}"


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "q": f"what is {number}?"} for number in range(count)]


@pytest.fixture
def options(tmp_path: Path) -> Iterator[RunOptions]:
    yield RunOptions(session_root=tmp_path / "sessions")
    for group in registry.groups():
        group.stop(True, reason="the test is over", source="parent")


def answering(text: str = "So.") -> TeamSpec:
    return scripted_team(a=ScriptedModel(Answer(text)))


def held() -> tuple[TeamSpec, Gate, ScriptedModel]:
    """A team that says two words for each row and waits there before it answers."""
    gate = Gate()
    model = ScriptedModel(replace(Answer("So."), text="two words ", gate=gate))
    return scripted_team(a=model), gate, model


def statuses(sweep: Sweep) -> Counter[str]:
    return Counter(record["status"] for record in sweep.table())


def test_every_row_is_answered_and_is_a_session_of_its_own(options: RunOptions) -> None:
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


def test_a_sweep_in_the_default_folder_keeps_out_of_gits_sight(tmp_path: Path) -> None:
    options = RunOptions(session_root=tmp_path / ".nb_agents" / "sessions")
    nb_agents.map(rows(1), TASK, answering(), options=options).wait(WAIT_S)
    assert (tmp_path / ".nb_agents" / ".gitignore").read_text() == "*\n"


def test_no_more_rows_are_at_work_than_the_limit_says(options: RunOptions) -> None:
    team, gate, _ = held()
    sweep = nb_agents.map(rows(9), TASK, team, limit=3, options=options)
    gate.wait_reached(3)
    seen = list[int]()
    sweep.subscribe(lambda view: seen.append(len(view.live)))
    wait_until(lambda: len(sweep.runs) == 3, WAIT_S)  # known a moment after they work
    assert statuses(sweep) == {"running": 3, "waiting": 6}
    gate.open()
    sweep.wait(WAIT_S)
    assert max(seen) <= 3


@pytest.mark.parametrize("now", [False, True])
def test_a_stopped_sweep_goes_on_with_what_is_missing_and_asks_nobody_twice(
    options: RunOptions, now: bool
) -> None:
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
    # Those that were cut are made again, and nothing else is.
    assert len(model.requests) == 4 + 2 * now
    nb_agents.map(rows(4), TASK, team, options=options, name=sweep.name).wait(WAIT_S)
    assert len(model.requests) == 4 + 2 * now


def test_the_same_call_finds_its_sweep_and_adds_what_is_new(
    options: RunOptions, tmp_path: Path
) -> None:
    file = tmp_path / "questions.csv"
    file.write_text("q\nwhy\nhow\n")
    first = nb_agents.map(file, TASK, answering(), options=options, name="ask")
    first.wait(WAIT_S)
    file.write_text("q\nnew\nhow\nwhy\n")
    second = nb_agents.map(file, TASK, answering("Later."), options=options, name="ask")
    second.wait(WAIT_S)
    assert first.path == second.path
    assert [r["answer"] for r in second.table()] == ["Later.", "So.", "So."]


def test_a_sweep_without_a_name_is_known_by_source_task_and_team(
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


def test_two_can_not_work_on_one_sweep(options: RunOptions) -> None:
    team, gate, _ = held()
    sweep = nb_agents.map(rows(1), TASK, team, options=options, name="ask")
    gate.wait_reached()
    with pytest.raises(SessionBusyError, match="ask"):
        nb_agents.map(rows(1), TASK, team, options=options, name="ask")
    gate.open()
    sweep.wait(WAIT_S)


def test_a_row_that_failed_costs_no_other_and_is_tried_again_on_request(
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
    for is_wanted, left in ((False, "failed"), (True, "complete")):
        again = nb_agents.map(
            rows(3), TASK, answering(), options=options, name="ask", retry_failed=is_wanted
        )
        again.wait(WAIT_S)
        assert again.table()[1]["status"] == left


def test_one_row_is_stopped_and_the_others_go_on(options: RunOptions) -> None:
    team, gate, _ = held()
    sweep = nb_agents.map(rows(2), TASK, team, options=options)
    gate.wait_reached(2)
    row = sweep.rows[0].name
    wait_until(lambda: row in sweep.runs, WAIT_S)  # known a moment after it works
    assert sweep.stop(True, row).changed
    wait_until(lambda: row not in sweep.runs, WAIT_S)
    gate.open()
    assert sweep.wait(WAIT_S).status == "cancelled"
    assert statuses(sweep) == {"stopped": 1, "complete": 1}
    with pytest.raises(UserError, match="no row"):
        sweep.stop(row="nobody")


def test_a_pause_begins_no_row_and_a_resume_goes_on(options: RunOptions) -> None:
    team, gate, _ = held()
    sweep = nb_agents.map(rows(3), TASK, team, limit=1, options=options)
    gate.wait_reached(1)
    sweep.pause()
    wait_until(lambda: sweep.status == "paused", WAIT_S)
    wait_until(lambda: sweep.runs, WAIT_S)  # known a moment after it works
    run = next(iter(sweep.runs.values()))
    wait_until(lambda: run.view.is_paused, WAIT_S)
    gate.open()
    assert sweep.resume() is sweep
    assert sweep.wait(WAIT_S).status == "completed"


@pytest.mark.parametrize("is_async", [False, True])
def test_answers_are_scored_and_a_score_that_fails_costs_no_answer(
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


def test_a_budget_stops_the_sweep_when_a_price_is_unknown(options: RunOptions) -> None:
    sweep = nb_agents.map(rows(5), TASK, answering(), limit=1, max_cost=1.0, options=options)
    view = sweep.wait(WAIT_S)
    assert view.status == "cancelled"
    assert "price is unknown" in view.reason
    assert view.completed < 5


def test_a_recipe_is_given_the_values_of_a_row(options: RunOptions, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "name: shout\ndescription: d\nversion: 1.0.0\n"
        "steps:\n  - {id: say, type: bash, command: 'echo {{q}}', output: said}\n"
    )
    sweep = nb_agents.map(rows(3), recipe=recipe, config=answering(), options=options)
    assert sweep.wait(WAIT_S).status == "completed"
    assert [record["said"].strip() for record in sweep.table()] == [r["q"] for r in rows(3)]


def test_a_row_at_a_gate_waits_for_a_person_and_holds_up_no_other(
    options: RunOptions, tmp_path: Path
) -> None:
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


def test_who_watches_a_sweep_is_told_five_times_a_second_at_most(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sweep_module.SHOW_S == 1 / 5
    monkeypatch.setattr(sweep_module, "SHOW_S", 1_000.0)  # no test takes so long
    team, gate, _ = held()
    sweep = nb_agents.map(rows(12), TASK, team, limit=4, options=options)
    wait_until(lambda: len(sweep.runs) == 4, WAIT_S)  # known once it was shown for the first time
    seen = list[str]()
    sweep.subscribe(lambda view: seen.append(view.status))
    gate.open()
    sweep.wait(WAIT_S)
    assert seen == ["completed"]


def test_no_column_of_the_source_and_no_output_is_lost_to_another_of_its_name(
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


def test_a_frame_is_there_at_any_time_and_goes_into_files_and_back(
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
    own = ["error", "tokens", "cost", "seconds", "score", "session"]
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


def test_a_task_uses_columns_whatever_they_are_called(options: RunOptions) -> None:
    table = [{"Company name": "Acme", "user-id": 7, "Price ($)": 5}]
    task = r"{{Company name}} {{ user-id }} {{Price ($)}} {{x | upper}} \{{Other one}}"
    model = ScriptedModel(Answer("So."))
    nb_agents.map(table, task, scripted_team(a=model), options=options).wait()
    assert "Acme 7 5 {{x | upper}} {{Other one}}" in str(model.requests[0])


def test_a_recipe_uses_columns_whatever_they_are_called(
    options: RunOptions, tmp_path: Path
) -> None:
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
        ({"task": "{{user-id}}"}, "uses {{user-id}}, and row 1 has no such column"),
        ({"task": "{{Company name}}"}, r"\{{Company name}} stands for the braces themselves"),
        ({"task": ""}, "Give a task"),
        ({"limit": 0}, "The limit is 0"),
        ({"max_cost": -1}, "max_cost is -1"),
        ({"name": "../out"}, "can't be called '../out'"),
    ],
)
def test_a_mistake_is_said_before_anything_begins(
    options: RunOptions, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError) as caught:
        nb_agents.map(rows(2), **{"task": TASK, "config": answering(), "options": options} | more)
    assert says in str(caught.value)
    assert not os.path.exists(options.session_root or "")
    assert isinstance(caught.value, TaskError) or "task" not in more


def test_a_team_or_recipe_that_can_not_run_is_refused_once_and_not_row_by_row(
    options: RunOptions, tmp_path: Path
) -> None:
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


def test_a_score_function_that_hangs_holds_up_no_stop(options: RunOptions) -> None:
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


def test_a_score_function_that_exits_ends_only_itself(options: RunOptions) -> None:
    sweep = nb_agents.map(
        rows(2), TASK, answering(), score=lambda t, a: sys.exit(1), options=options
    )
    assert sweep.wait(WAIT_S).completed == 2
    assert {"SystemExit" in record["error"] for record in sweep.table()} == {True}


def test_a_stop_reaches_a_row_whose_thread_comes_to_wait_only_after_it(tmp_path: Path) -> None:
    begins, asked, comes, withdrawn = Event(), Event(), Event(), Event()

    def begin(row: Row) -> Run:
        begins.set()
        comes.wait(WAIT_S)
        withdrawn.clear()  # what was withdrawn before did not reach this one
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


def test_rows_that_were_to_be_tried_again_are_not_over_when_a_stop_comes_first(
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


def test_a_row_that_can_not_begin_for_a_defect_costs_no_other(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = mapping.start

    def start(task: str, *args: Any, **more: Any) -> Any:
        if "is 1?" in task:
            raise ValueError("a defect")
        return begin(task, *args, **more)

    monkeypatch.setattr(mapping, "start", start)
    view = nb_agents.map(rows(3), TASK, answering(), options=options).wait(WAIT_S)
    assert (view.status, view.completed, view.failed) == ("completed", 2, 1)


def test_a_budget_is_spent_by_what_all_rows_have_cost() -> None:
    rows_done = {f"row-{n}": RowResult(f"row-{n}", "completed", cost=0.5) for n in range(2)}
    totals = SweepFold()
    for result in rows_done.values():
        totals.apply(result)
    assert over_budget(totals.spent, None) == over_budget(totals.spent, 1.5) == ""
    assert over_budget(totals.spent, 1.0) == "max_cost of 1 US dollars is reached"
    totals.apply(replace(rows_done["row-0"], cost=0.1))
    assert over_budget(totals.spent, 1.0) == ""


def test_a_sweep_that_can_not_be_read_is_told_and_not_taken_for_one_that_ended(
    tmp_path: Path,
) -> None:
    with pytest.raises(SessionUnreadableError, match="gone"):
        has_died(tmp_path / "gone", SweepFold())


def test_an_interrupt_and_the_end_of_the_process_reach_a_sweep(options: RunOptions) -> None:
    team, gate, _ = held()
    sweep = nb_agents.map(rows(8), TASK, team, limit=2, options=options)
    gate.wait_reached(2)
    assert do_as_asked("stop", {"sweep": sweep.name}).facts["changed"]
    sweep.press()
    assert sweep.wait(WAIT_S).status == "cancelled"
    assert registry.groups() == ()

    sweep = sweep.resume()
    gate.wait_reached(4)
    registry.stop_all()
    assert sweep.wait(WAIT_S).status == "cancelled"


def test_a_terminal_stops_a_sweep_of_another_process(options: RunOptions) -> None:
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
    assert done.stdout.startswith("Sweep ask is asked to stop")
    view = sweep.wait(WAIT_S)
    assert (view.status, view.reason) == ("cancelled", "seen enough")
    again = processes.run(argv, cwd=ROOT)
    assert again.stdout.startswith("Sweep ask is over already")


def test_a_row_whose_process_died_before_its_first_line_is_begun_anew(options: RunOptions) -> None:
    sweep = nb_agents.map(rows(1), TASK, answering(), options=options)
    sweep.wait(WAIT_S)
    (sweep.path / "rows.jsonl").unlink()
    turn = sweep.path / sweep.rows[0].name / "turn_1"
    (turn / "events.jsonl").write_text("")
    (turn / "metadata.json").unlink()
    (turn / "answer.txt").unlink()
    again = sweep.resume()
    assert again.wait(WAIT_S).completed == 1


def test_a_row_whose_line_was_lost_is_not_asked_again(options: RunOptions) -> None:
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


def test_a_sweep_that_was_killed_is_gone_on_with_and_no_answer_is_asked_for_twice(
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
    # What was in flight when it was killed was cut, and is asked for again; nothing else is.
    assert set(answered) == {f"row-{number}-row" for number in range(count)}
    assert sum(answered.values()) <= count + 6


def _question(request: Request) -> str:
    found = re.search(r"row-\d+-row", str(request.messages))
    assert found is not None
    return found[0]


def test_a_row_that_a_killed_process_had_asked_of_a_cluster_does_not_begin_late(
    options: RunOptions,
) -> None:
    ticket = Path(str(options.session_root), "ask", ".tickets", "nb_agents-1")
    ticket.parent.mkdir(parents=True)
    ticket.touch()
    nb_agents.map(rows(1), TASK, answering(), options=options, name="ask").wait(WAIT_S)
    assert not ticket.exists()


def test_another_task_or_recipe_is_refused_under_the_name_of_a_sweep(
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
        with pytest.raises(UserError, match="asks 'Answer: {{q}}', and this call") as told:
            nb_agents.map(
                rows(1), config=scripted_team(a=model), options=options, name="ask", **asks
            )
        assert "another name=" in str(told.value)
    assert (about.read_text(), len(model.requests)) == (before, 1)
    # What is asked counts, and not who is asked it, what it is put to or how it is scored.
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
    """A server whose model has a price that is known."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with ModelServer() as server:
        server.script(PRICED, lambda request: Reply(f"The answer to {_question(request)}."))
        yield server


def team_with_a_price(server: ModelServer) -> TeamSpec:
    backend = {"type": "openai", "model": PRICED, "base_url": server.url}
    return TeamSpec.model_validate({"agents": [{"id": "a", "backend": backend}]})


def numbered(count: int) -> list[dict[str, str]]:
    return [{"q": f"row-{number}-row"} for number in range(count)]


def test_a_budget_that_is_spent_lets_no_row_begin_in_the_next_call_either(
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
        "max_cost of 1e-09 US dollars is reached",
    )
    spent, asked = first.view.cost, len(priced.requests)
    assert spent and 1 <= asked <= 2
    again = sweep(1e-9)
    assert (again.view.reason, again.view.cost) == (first.view.reason, spent)
    assert len(priced.requests) == asked
    assert sweep(1.0).view.completed == 6
    assert len(priced.requests) == 6


def test_a_row_at_work_that_has_spent_the_budget_stops_its_neighbours(
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


def test_what_a_killed_row_spent_counts_before_another_begins(
    options: RunOptions, priced: ModelServer
) -> None:
    def sweep(rows: int, **more: Any) -> Sweep:
        team = team_with_a_price(priced)
        made = nb_agents.map(numbered(rows), TASK, team, name="ask", options=options, **more)
        made.wait(WAIT_S)
        return made

    first = sweep(1)
    (row,) = first.rows
    # As a kill leaves it, between the answer and the line that notes it.
    noted = first.path / "rows.jsonl"
    noted.write_text(json.dumps({"kind": "row_began", "row": row.name, "turn": 1}) + "\n")
    journal = first.path / row.name / "turn_1" / "events.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(takewhile(lambda line: '"turn_ended"' not in line, lines)))
    again = sweep(3, max_cost=1e-9)
    assert again.view.reason == "max_cost of 1e-09 US dollars is reached"
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
