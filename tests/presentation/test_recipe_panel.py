"""The panel of a recipe: the tree of units, and open gates."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from nb_agents import events as ev
from tests.kit.cards import MAX_ITERATIONS, MAX_UNITS, panel_state, units
from tests.kit.views import RunView
from tests.presentation.recipe_views import asked, began, called, finished, over, recipe, wrote

USED = ev.Usage(input_tokens=90, output_tokens=10, cost=0.01)


def rows(view: RunView, now: float = 1012.0) -> dict[str, Any]:
    return {row["id"]: row for row in panel_state(view, "r1", now)["agents"]}


def told(view: RunView, address: str, now: float = 1012.0) -> tuple[str, str, str]:
    row = rows(view, now)[address]
    return row["chip"], row["tone"], row["says"]


def in_loop(count: int, *more: ev.Event) -> RunView:
    """A loop of `count` iterations, of which `more` have started."""
    begun = (began("gather", "stage"), began("gather/each", "foreach", total=count))
    return recipe(*begun, *more)


def iterations(numbers: range, outcome: Any = "") -> list[ev.Event]:
    made: list[ev.Event] = []
    for number in numbers:
        made.append(began(f"gather/each[{number}]", "bash"))
        if outcome:
            made.append(finished(f"gather/each[{number}]", "x", outcome=outcome))
    return made


def test_rows_are_a_tree_in_the_recipes_order_with_pending_units() -> None:
    view = recipe(began("gather", "stage"), *wrote("gather/draft", "so far "))
    shown = [(r["name"], r["depth"], r["pending"], r["current"]) for r in rows(view).values()]
    assert shown == [
        ("gather", 0, False, False),
        ("draft", 1, False, True),
        ("each", 1, True, False),
        ("publish", 0, True, False),
        ("send", 1, True, False),
    ]
    assert rows(view)["gather/each"]["model"] == "for each · bash"


def test_agent_row_shows_agent_model_text_and_prompt() -> None:
    view = recipe(began("gather", "stage"), *wrote("gather/draft", "so far "))
    row = rows(view)["gather/draft"]
    assert (row["model"], row["chip"], row["says"]) == ("writer · gpt-5-mini", "writing", "so far")
    assert (row["writing"], row["title"]) == (True, "Write it.")


def test_command_row_shows_the_end_of_its_output_and_then_the_result() -> None:
    send = began("publish/send", "bash", asks="make all")
    assert told(recipe(send), "publish/send") == ("running", "run", "")
    assert rows(recipe(send))["publish/send"]["title"] == "make all"
    lines = ev.OutputStreamed(step="publish/send", text="line\n" * 90 + "the last")
    says = told(recipe(send, lines), "publish/send")[2]
    assert says.startswith("…") and says.endswith("the last")
    done = finished("publish/send", "made 3 files", exit_code=2)
    assert told(recipe(send, lines, done), "publish/send") == (
        "complete",
        "ok",
        "exit code 2 · made 3 files",
    )


def test_stage_has_the_total_tokens_and_cost_of_its_units() -> None:
    used = [
        ev.ModelFinished(agent=f"gather/each[{n}]", call=1, response={}, usage=USED) for n in (0, 1)
    ]
    words = [event for n in (0, 1) for event in wrote(f"gather/each[{n}]", "x")]
    shown = rows(in_loop(2, *words, *used))
    assert shown["gather/each"]["numbers"] == "200 tokens · $0.020"
    assert shown["gather"]["numbers"] == shown["gather/each"]["numbers"]


def test_failed_attempt_counts_down_to_the_next() -> None:
    failed = ev.StepFailed(
        step="publish/send", attempt=1, error="no net", attempts=3, retry_in_s=4.0, at=1010.0
    )
    view = recipe(began("publish/send", "bash"), failed)
    assert told(view, "publish/send", 1010.0) == ("retry in 4 s (2 of 3)", "ing", "no net")
    assert told(view, "publish/send", 1014.0)[0] == "retrying (2 of 3)"
    again = recipe(began("publish/send", "bash"), failed, began("publish/send", "bash", attempt=2))
    assert told(again, "publish/send")[0] == "running (2 of 3)"


def test_skipped_and_failed_units_show_the_reason() -> None:
    skipped = finished("gather/draft", outcome="skipped", why="its condition is false")
    failed = finished("publish/send", outcome="failed", why="exit code 1")
    view = recipe(skipped, failed)
    assert told(view, "gather/draft") == ("skipped", "cut", "its condition is false")
    assert told(view, "publish/send") == ("failed", "err", "exit code 1")


def test_units_that_never_started_in_a_finished_stage_are_not_pending() -> None:
    view = recipe(began("gather", "stage"), finished("gather"))
    assert list(rows(view)) == ["gather", "publish", "publish/send"]


# Agents that a step's agent called

DRAFT = (began("gather", "stage"), *wrote("gather/draft", "so far "))
CRITIC, EXPERT = "gather/draft/critic#1", "gather/draft/critic#1/expert#1"


def stop(level: Any, agent: str = CRITIC) -> ev.StopRequested:
    return ev.StopRequested(level=level, source="widget", agent=agent)


def ended(outcome: Any, agent: str = CRITIC) -> ev.AgentEnded:
    return ev.AgentEnded(agent=agent, outcome=outcome)


def test_called_agents_have_rows_below_their_callers() -> None:
    second = called("gather/draft/critic#2", "second")
    view = recipe(*DRAFT, *called(CRITIC, "too "), *called(EXPERT, "deep "), *second)
    shown = [(r["name"], r["depth"], r["model"], r["says"]) for r in list(rows(view).values())[:6]]
    assert shown == [
        ("gather", 0, "stage", ""),
        ("draft", 1, "writer · gpt-5-mini", "so far"),
        ("critic#1", 2, "gpt-4o", "too"),
        ("expert#1", 3, "gpt-4o", "deep"),
        ("critic#2", 2, "gpt-4o", "second"),
        ("each", 1, "for each · bash", ""),
    ]
    row = rows(view)[EXPERT]
    assert (row["chip"], row["tone"], row["writing"]) == ("writing", "run", True)
    assert [r["current"] for r in rows(view).values()].count(True) == 1


def test_agent_called_in_a_loop_or_recipe_has_its_row_there() -> None:
    view = in_loop(
        3,
        *(event for n in (0, 1) for event in wrote(f"gather/each[{n}]", "x")),
        *called("gather/each[1]/critic#1", "y"),
        began("publish", "stage"),
        began("publish/send", "recipe"),
        *wrote("publish/send/inner", "z"),
        *called("publish/send/inner/critic#1", "y"),
    )
    shown = [(row["name"], row["depth"]) for row in rows(view).values()]
    for caller, depth in (("each 2", 2), ("inner", 2)):
        assert shown[shown.index((caller, depth)) + 1] == ("critic#1", depth + 1)


def test_tokens_of_a_called_agent_count_for_its_caller() -> None:
    used = [
        ev.ModelFinished(agent=agent, call=1, response={}, usage=USED)
        for agent in ("gather/draft", CRITIC, EXPERT)
    ]
    view = recipe(*DRAFT, *called(CRITIC), *called(EXPERT), *used)
    assert {name: row["numbers"] for name, row in rows(view).items() if row["numbers"]} == {
        "gather": "300 tokens · $0.030",
        "gather/draft": "300 tokens · $0.030",
        CRITIC: "200 tokens · $0.020",
        EXPERT: "100 tokens · $0.010",
    }


def test_agent_that_called_itself_in_a_damaged_journal_has_one_row() -> None:
    fields = {"name": "draft", "model": "m", "workspace": "w", "input": "?"}
    circle = ev.AgentCalled(agent="gather/draft", caller="gather/draft", **fields)
    assert list(rows(recipe(*DRAFT, circle)))[:3] == ["gather", "gather/draft", "gather/each"]


STOPS: dict[str, tuple[list[ev.Event], Any]] = {
    "while it works": ([], {"now": False}),
    "once it is asked to stop": ([stop("requested")], {"now": True}),
    "once it is cut": ([stop("requested"), stop("immediate")], None),
    "once it has ended": ([ended("finished")], None),
    "once the run is stopping": ([stop("requested", "")], None),
    "at the end": ([over("cancelled")], None),
}


@pytest.mark.parametrize("when", STOPS)
def test_row_of_a_called_agent_has_a_stop_button(when: str) -> None:
    events, button = STOPS[when]
    shown = rows(recipe(*DRAFT, *called(CRITIC), *events))
    assert shown[CRITIC]["stop"] == button
    assert {row["stop"] for name, row in shown.items() if name != CRITIC} == {None}


FAILED = ev.AgentFailed(agent=CRITIC, error="no key")
ENDS: dict[str, tuple[list[ev.Event], tuple[str, str, str]]] = {
    "done": ([ended("finished")], ("complete", "ok", "too long")),
    "failed": ([FAILED], ("failed", "err", "no key")),
    "stopped": ([ended("stopped")], ("stopped", "cut", "too long")),
    "never started": ([ended("never started")], ("never started", "cut", "too long")),
    "cut": ([ended("killed")], ("cut", "cut", "too long")),
    "cut by the end of its kernel": ([over("cancelled")], ("cut", "cut", "too long")),
}


@pytest.mark.parametrize("how", ENDS)
def test_row_of_a_called_agent_shows_its_outcome(how: str) -> None:
    events, said = ENDS[how]
    assert told(recipe(*DRAFT, *called(CRITIC, "too long"), *events), CRITIC) == said


@pytest.mark.parametrize("limit", [12, 13, 40, 41])
def test_called_agent_is_left_out_before_its_step(
    limit: int,
) -> None:
    events: list[ev.Event] = [began("gather", "stage")]
    for place in range(30):
        step, critic = f"gather/s{place}", f"gather/s{place}/critic#1"
        failed = ev.AgentFailed(agent=critic, error="no key")
        end = failed if place == 3 else ended("finished", critic)
        events += [*wrote(step, "x"), *called(critic, "y"), end, finished(step, "x")]
    shown = [row.address for row in units(recipe(*events, outline=()), 1012.0, limit)]
    assert len(shown) == limit
    for above, address in pairwise(shown):
        assert "critic" not in address or address == f"{above}/critic#1"
    # What failed stays in sight.
    assert "gather/s3/critic#1" in shown


# Loops


def test_finished_iterations_are_only_counted() -> None:
    view = in_loop(7, *iterations(range(3), "ok"), *iterations(range(3, 4)))
    assert told(view, "gather/each") == ("3 of 7", "run", "3 complete · 1 running")
    assert [r for r in rows(view) if "[" in r] == ["gather/each[3]"]
    assert rows(view)["gather/each[3]"]["name"] == "each 4"


def test_failed_iterations_stay_visible() -> None:
    view = in_loop(7, *iterations(range(2), "failed"), *iterations(range(2, 5), "ok"))
    assert told(view, "gather/each")[2] == "3 complete · 2 failed"
    assert [r for r in rows(view) if "[" in r] == ["gather/each[0]", "gather/each[1]"]


def test_loop_with_many_running_iterations_has_few_rows_and_a_count() -> None:
    view = in_loop(1000, *iterations(range(1000)))
    shown = [r for r in rows(view).values() if r["id"].startswith("gather/each[")]
    assert len(shown) == MAX_ITERATIONS
    assert rows(view)["gather/each/…"]["says"] == f"{1000 - MAX_ITERATIONS} more running or failed"


def test_long_recipe_leaves_out_finished_units_and_counts_them() -> None:
    names = [f"gather/s{n}" for n in range(MAX_UNITS * 2)]
    outline = (
        ev.PlannedUnit("gather", "stage"),
        *(ev.PlannedUnit(name, "bash", "bash") for name in names),
    )
    events = [e for n in names[:-5] for e in (began(n, "bash"), finished(n))]
    last = began(names[-5], "bash")
    shown = rows(recipe(began("gather", "stage"), *events, last, outline=outline))
    assert len(shown) == MAX_UNITS
    assert shown[names[-5]]["current"] is True
    assert list(shown.values())[-1]["says"].endswith("more are not shown")


# Gates


def waiting(**more: Any) -> RunView:
    return recipe(began("gather", "stage"), asked("gather", "Use <b>this</b>?\nyes", **more))


def test_gate_shows_its_question_and_countdown() -> None:
    state = panel_state(waiting(timeout_s=60.0), "r1", 1012.0)
    assert (state["status"], state["chip"]) == ("running", "awaiting approval")
    assert state["gates"] == [
        {
            "id": "gather",
            "name": "gather",
            "asks": "stage",
            "prompt": "Use <b>this</b>?\nyes",
            "countdown": "58 s, then denied",
        }
    ]
    assert told(waiting(), "gather")[0] == "awaiting approval"


def test_gate_waits_without_a_timeout_or_is_approved_by_default() -> None:
    assert panel_state(waiting(), "r1", 1012.0)["gates"][0]["countdown"] == (
        "waits until it is decided"
    )
    approved = waiting(timeout_s=600.0, default="approve")
    assert panel_state(approved, "r1", 1012.0)["gates"][0]["countdown"] == (
        "9 min 58 s, then approved"
    )


def test_gate_has_the_kind_of_its_question() -> None:
    call, text = asked("ada: drop #1", "May it?"), asked("input #2", "Which?", wants="input")
    view = recipe(began("gather", "stage"), asked("gather", "?"), call, text)
    gates = panel_state(view, "r1", 1012.0)["gates"]
    assert [gate["asks"] for gate in gates] == ["stage", "approval", "text"]
    assert gates[2]["countdown"] == "waits until it is answered"


def test_long_question_is_cut_with_the_number_of_removed_characters() -> None:
    view = recipe(began("gather", "stage"), asked("gather", "y" * 9000))
    prompt = panel_state(view, "r1", 1012.0)["gates"][0]["prompt"]
    assert prompt.endswith("… (5000 more characters)")


def test_gates_are_shown_oldest_first() -> None:
    view = recipe(asked("gather", "first"), asked("publish", "second"))
    assert [g["id"] for g in panel_state(view, "r1", 1012.0)["gates"]] == ["gather", "publish"]


def test_decision_removes_the_gate_and_is_shown_on_the_stage() -> None:
    given = ev.ApprovalGiven(step="gather", approved=True, message="go", by="ada")
    view = recipe(began("gather", "stage"), asked("gather", "?"), given)
    assert panel_state(view, "r1", 1012.0)["gates"] == []
    assert told(view, "gather")[2] == "approved by ada: go"


def test_stop_removes_the_gates() -> None:
    stop = ev.StopRequested(level="requested", source="widget")
    state = panel_state(recipe(asked("gather", "?"), stop), "r1", 1012.0)
    assert state["gates"] == []
    assert state["chip"] == "Stopping… (after the current steps)"


# The whole


def test_progress_shows_the_current_step_and_finished_ones() -> None:
    first = recipe(began("gather", "stage"), *wrote("gather/draft", "x"))
    assert panel_state(first, "r1", 1012.0)["round"] == "Step 1 of 3"
    assert panel_state(first, "r1", 1012.0)["fraction"] == 0.0
    send = began("publish/send", "bash")
    later = recipe(finished("gather/draft"), finished("gather/each"), send)
    assert panel_state(later, "r1", 1012.0)["round"] == "Step 3 of 3"
    assert panel_state(later, "r1", 1012.0)["fraction"] == round(2 / 3, 4)


def test_journal_without_an_outline_shows_started_units() -> None:
    view = recipe(began("gather", "stage"), *wrote("gather/draft", "x"), outline=())
    assert list(rows(view)) == ["gather", "gather/draft"]
    assert panel_state(view, "r1", 1012.0)["round"] == "gather/draft"


def test_running_units_are_cut_at_the_end() -> None:
    view = recipe(began("publish", "stage"), began("publish/send", "bash"), over("cancelled"))
    assert told(view, "publish/send")[:2] == ("cut", "cut")
    assert told(view, "publish")[:2] == ("not finished", "cut")


def test_denied_stage_shows_who_denied_it_and_why() -> None:
    denied = ev.ApprovalGiven(step="publish", approved=False, message="too dear", by="ann")
    view = recipe(began("publish", "stage"), denied, over("cancelled"))
    assert told(view, "publish") == ("denied", "cut", "denied by ann: too dear")


def test_message_shows_the_number_of_steps_that_read_it() -> None:
    said = ev.UserMessage(text="In French")
    view = recipe(*wrote("gather/draft", "x"), said)
    assert panel_state(view, "r1", 1012.0)["said"]["read"] == "not read yet"
    heard = ev.RoundStarted(agent="gather/draft", number=1, heard=1)
    view = recipe(*wrote("gather/draft", "x"), said, heard)
    assert panel_state(view, "r1", 1012.0)["said"]["read"] == "read in 1 step"
