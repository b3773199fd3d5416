"""What the panel and the card of a sweep say, and what a page can ask for on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.jupyter import formatters, panel
from nb_agents.presentation.asking import TERMINAL
from nb_agents.presentation.sweep_card import (
    MAX_FAILURES,
    MAX_LIVE,
    MAX_TABLE,
    OpenedRow,
    sweep_bundle,
    sweep_state,
    sweep_text,
)
from nb_agents.runs import registry
from nb_agents.sweeps.notes import RowResult
from nb_agents.sweeps.sweep import Sweep
from nb_agents.sweeps.sweep_fold import LiveRow, SweepView
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from nb_agents.view.run_view import RunView
from tests.model_server import wait_until
from tests.presentation.recipe_views import asked, began, recipe, wrote
from tests.presentation.test_cards import EVIL, STOPPED, Page, turn
from tests.team_kit import ROOT, WAIT_S

WRITING = turn(
    ev.ModelStarted(agent="ada", call=1),
    ev.TextStreamed(agent="ada", call=1, channel="text", text="so far so good "),
)
STOPPING = replace(turn(ev.StopRequested(level="requested", source="api")), status="in-progress")
CUT = turn(ev.StopRequested(level="immediate", source="api"))
WAITING = recipe(began("gather", "stage"), asked("gather", "Shall it go on?"))


def live(*views: RunView) -> tuple[LiveRow, ...]:
    return tuple(LiveRow(f"row-{i}", f"r{i}", view) for i, view in enumerate(views))


def view(**more: Any) -> SweepView:
    """A sweep of a hundred rows."""
    values = {
        "name": "ask",
        "status": "running",
        "total": 100,
        "completed": 0,
        "failed": 0,
        "tokens": 0,
        "cost": 0.0,
        "elapsed_s": 65.0,
        "left_s": None,
        "live": (),
        "failures": (),
        "scores": (),
    }
    return SweepView(**{**values, **more})


def drawn(opened: OpenedRow | None = None, **more: Any) -> dict[str, Any]:
    return sweep_state(view(**more), "Answer: {{q}}", "here/ask", 200.0, opened)


def failures(count: int, why: str = "no key") -> tuple[RowResult, ...]:
    return tuple(RowResult(f"bad-{i}", "failed", error=why) for i in range(count))


# The panel


def test_the_rows_are_counted_by_how_they_stand_with_those_that_need_a_person_first() -> None:
    state = drawn(completed=20, failed=2, live=live(WRITING, WAITING), to_go=75)
    assert [each["text"] for each in state["counts"]] == [
        "2 failed",
        "1 waits for you",
        "1 at work",
        "20 complete",
        "1 stopped",
        "75 to go",
    ]
    assert (state["round"], state["fraction"]) == ("22 of 100 rows", 0.22)


def test_a_row_that_failed_and_is_tried_again_makes_no_count_negative() -> None:
    state = drawn(total=3, completed=1, failed=1, live=live(WRITING), to_go=1)
    texts = [each["text"] for each in state["counts"]]
    assert texts == ["1 failed", "1 at work", "1 complete", "1 to go"]


def test_the_meter_tells_the_time_to_go_what_was_used_and_the_score() -> None:
    state = drawn(left_s=190.0, tokens=8214, cost=0.019, scores=(0.5, 1.0, 0.75))
    assert state["elapsed"] == "1 min 5 s · about 3 min 10 s to go"
    assert state["cost"].replace("\N{NO-BREAK SPACE}", " ") == "8 214 tok · $0.019"
    assert state["in_flight"] == "score 0.75 ± 0.25 (3)"


def test_an_unknown_price_and_a_time_that_nobody_can_tell_are_left_out() -> None:
    state = drawn(tokens=5, cost=None, left_s=9.0, status="paused")
    assert (state["cost"], state["elapsed"]) == ("5 tok", "1 min 5 s")


@pytest.mark.parametrize(
    "status, rows, chip, status_of_page, now, hold",
    [
        ("running", (WRITING,), "running", "running", False, "pause"),
        ("paused", (WRITING,), "paused", "running", False, "continue"),
        (
            "stopping",
            (STOPPING, CUT),
            "Stopping… (after the calls in flight)",
            "stopping",
            True,
            "",
        ),
        ("stopping", (CUT, CUT), "Stopping now…", "stopping", None, ""),
        ("cancelled", (), "stopped", "stopped", None, ""),
        ("completed", (), "complete", "complete", None, ""),
    ],
)
def test_the_chip_and_the_buttons_follow_from_how_it_stands(
    status: str, rows: Any, chip: str, status_of_page: str, now: bool | None, hold: str
) -> None:
    state = drawn(status=status, live=live(*rows))
    assert (state["chip"], state["status"], state["hold"]) == (chip, status_of_page, hold)
    assert (state["button"] or {"now": None})["now"] is now


def test_a_row_says_what_its_team_does_and_can_be_stopped_alone() -> None:
    row = drawn(live=live(WRITING))["rows"][0]
    assert (row["id"], row["run"], row["model"]) == ("row-0", "r0", "compare caches")
    assert (row["chip"], row["says"], row["writing"]) == ("ada: writing", "so far so good", True)
    stops = [each["stop"] for each in drawn(live=live(WRITING, STOPPING, CUT))["rows"]]
    assert stops == [{"now": False}, {"now": True}, None]


def test_a_row_of_a_recipe_says_which_step_it_is_at() -> None:
    row = drawn(live=live(recipe(*wrote("gather/draft", "so far "))))["rows"][0]
    assert (row["chip"], row["says"]) == ("writing", "so far")


def test_rows_that_wait_for_a_person_come_first_with_their_question() -> None:
    first = drawn(live=live(WRITING, WAITING))["rows"][0]
    assert (first["id"], first["chip"], first["tone"]) == ("row-1", "awaiting approval", "ing")
    assert first["says"] == "Shall it go on?"


def test_hundreds_of_rows_are_no_more_to_send_than_a_person_can_look_at() -> None:
    task = turn(task="long " * 10_000)
    state = drawn(
        failed=900, failures=failures(80, "why " * 5000), live=live(*[task] * 300), total=5000
    )
    assert (len(state["rows"]), state["more_rows"]) == (MAX_LIVE, "240 more at work")
    assert (len(state["failures"]), state["more_failures"]) == (
        MAX_FAILURES,
        "850 more without an answer",
    )
    assert len(json.dumps(state)) < 80_000


def test_the_row_that_is_open_is_drawn_as_the_panel_of_its_run() -> None:
    state = drawn(OpenedRow("row-0", "r0", WRITING), live=live(WRITING, WRITING))
    assert [row["current"] for row in state["rows"]] == [True, False]
    assert state["open"]["row"] == "row-0"
    assert (state["open"]["state"]["run"], state["open"]["state"]["chip"]) == ("r0", "running")


def test_a_row_that_ends_while_it_is_open_leaves_its_card() -> None:
    state = drawn(OpenedRow("gone", "r9", STOPPED, "<b>card</b>"), live=live(WRITING))
    assert state["open"]["state"]["card"] == "<b>card</b>"
    assert [row["current"] for row in state["rows"]] == [False]


# The card


def record(row: str, status: str, **more: Any) -> dict[str, Any]:
    ended = {"error": "", "tokens": 10, "cost": 0.01, "seconds": 1.0, "score": None}
    return {"q": "why?", "row": row, "status": status, "answer": None, **ended, **more}


def card(table: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    return sweep_bundle(view(**more), "Answer: {{q}}", "here/ask", table or [])


def test_a_stopped_card_says_how_to_go_on_and_a_complete_one_has_nothing_to_add() -> None:
    stopped = card(status="cancelled", completed=60, failed=1, reason="lunch")
    for text in stopped["text/html"], stopped["text/plain"]:
        assert "Run the cell again: it goes on with the 39 missing rows" in text
        assert "and pays for nothing twice." in text
        assert "Stopped after 1 min 5 s (lunch). 60 of 100 rows are complete." in text
    complete = card(status="completed", completed=99, failed=1)
    assert "Run the cell again" not in complete["text/html"] + complete["text/plain"]
    assert "■ stopped" in stopped["text/html"]
    assert "✓ complete" in complete["text/html"]


def test_a_card_has_failures_first_and_then_the_first_rows() -> None:
    table = [record(f"row-{i}", "complete", answer=f"so {i}") for i in range(30)]
    ended = {"status": "completed", "completed": 29, "failed": 2, "failures": failures(2)}
    made = card([record("bad-0", "failed", error="no key"), *table], total=31, **ended)
    text = made["text/plain"]
    assert text.index("FAILED bad-0: no key") < text.index("row-0: complete · so 0")
    assert made["text/html"].count("no key") == 2  # of each failure once, and not in the table
    assert f"row-{MAX_TABLE - 2}: complete" in text
    assert f"row-{MAX_TABLE - 1}: complete" not in text
    assert "11 more rows" in text
    assert "--retry-failed" in text


def test_a_card_tells_scores_costs_and_where_it_is() -> None:
    row = record("a", "complete", answer="x", score=0.5)
    made = card([row], status="completed", tokens=10, cost=0.01, scores=(0.5, 1.0))
    for text in made["text/html"], made["text/plain"]:
        assert "0.75 ± 0.35" in text
        assert "here/ask" in text
        assert "$0.010" in text


def test_a_score_that_failed_and_the_outputs_of_a_recipe_are_in_the_table() -> None:
    scored = record("a", "complete", answer="x", error="The score function failed: KeyError: 1")
    ended = record("b", "complete")
    tail = {key: ended.pop(key) for key in ("error", "tokens", "cost", "seconds", "score")}
    ended.pop("answer")
    outputs = {**ended, "summary": "short", "grade": 3, **tail}
    text = card([scored, outputs], status="completed")["text/plain"]
    assert "a: complete · The score function failed: KeyError: 1" in text
    assert "b: complete · summary: short · grade: 3" in text


@pytest.mark.parametrize("status", ["running", "paused", "stopping", "cancelled", "completed"])
def test_nothing_that_strangers_wrote_becomes_markup(status: str) -> None:
    evil = EVIL + "\x1b[2J"
    table = [record(evil, "complete", answer=evil), record("b", "failed", error=evil)]
    more = {"failed": 1, "failures": failures(1, evil), "reason": evil, "status": status}
    made = sweep_bundle(view(**more), evil, evil, table)
    page = Page(made["text/html"])
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "a"} & {tag for tag, _ in page.tags}
    assert "\x1b" not in made["text/plain"]


def test_long_answers_and_reasons_are_cut() -> None:
    table = [record("a", "complete", answer="x" * 10_000)]
    made = card(table, status="completed", failed=1, failures=failures(1, "y" * 10_000))
    assert len(made["text/html"]) < 10_000


def test_what_is_shown_while_it_is_live_is_true_later() -> None:
    text = card(completed=3, live=live(WRITING))["text/plain"]
    assert "This sweep was live when this was written: 3 of 100 rows are complete." in text
    assert "If its kernel is gone: run the cell again" in text


# What a page asks for


class Outputs:
    """Stands for the widget and the outputs of cells."""

    def __init__(self, state: Callable[[], dict[str, Any]], take: Any) -> None:
        self._make, self.state, self.ask = state, state(), take
        self.frozen: list[dict[str, Any]] = []
        self.written = 0

    def show(self, bundle: dict[str, Any]) -> None:
        self.written += 1

    def rewrite(self, bundle: dict[str, Any]) -> None:
        self.written += 1

    def draw(self) -> None:
        self.state = self._make()

    def freeze(self, bundle: dict[str, Any]) -> None:
        self.frozen.append(bundle)


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[Outputs]:
    """The outputs that panels have made."""
    made: list[Outputs] = []

    def make(shown: str, state: Callable[[], dict[str, Any]], take: Any) -> Outputs:
        made.append(Outputs(state, take))
        return made[-1]

    monkeypatch.setattr(panel, "LiveOutputs", make)
    return made


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    """A sweep of three rows, two of which hold still after two words."""
    gate = Gate()
    model = ScriptedModel(replace(Answer("So."), text="two words ", gate=gate))
    options = RunOptions(session_root=tmp_path)
    rows = [{"q": each} for each in ("one", "two", "three")]
    sweep = nb_agents.map(rows, "Answer: {{q}}", scripted_team(a=model), limit=2, options=options)
    try:
        gate.wait_reached(2)
        yield sweep
    finally:
        sweep.stop(now=True)
        gate.open()
        sweep.wait(WAIT_S)


def test_a_page_opens_a_row_and_closes_it(sweep: Sweep, outputs: list[Outputs]) -> None:
    panel.show_sweep(sweep)
    (out,) = outputs
    wait_until(lambda: len(out.state["rows"]) == 2)
    name = out.state["rows"][1]["id"]
    out.ask({"type": "open", "row": name})
    assert out.state["open"]["row"] == name
    assert out.state["open"]["state"]["run"] == out.state["rows"][1]["run"]
    out.ask({"type": "open", "row": ""})
    assert out.state["open"] is None
    out.ask({"type": "open", "row": "no such row"})
    assert out.state["open"] is None


def test_a_page_stops_one_row_and_the_card_of_the_open_row_stays(
    sweep: Sweep, outputs: list[Outputs]
) -> None:
    panel.show_sweep(sweep)
    (out,) = outputs
    wait_until(lambda: len(out.state["rows"]) == 2)
    row = out.state["rows"][0]
    out.ask({"type": "open", "row": row["id"]})
    out.ask({"type": "stop", "run": row["run"], "immediate": True})
    wait_until(lambda: out.state["open"]["state"]["card"])
    assert "stopped" in out.state["open"]["state"]["card"]
    assert sweep.status == "running"


def test_what_rows_at_work_have_used_is_counted_and_once_when_they_are_resumed(
    tmp_path: Path,
) -> None:
    gate, used = Gate(), []
    turns = Turn(calls=(Call("list_files"),)), replace(Answer("So."), gate=gate)
    options = RunOptions(session_root=tmp_path)
    for begun in (0, 1):
        team = scripted_team(a=ScriptedModel(*turns[begun:]))
        sweep = nb_agents.map([{"q": "one"}], "Answer: {{q}}", team, name="s", options=options)
        gate.wait_reached(begun + 1)
        shown: list[SweepView] = []
        sweep.subscribe(shown.append)
        wait_until(lambda: shown and shown[-1].live)  # noqa: B023
        used.append(shown[-1].tokens)
        sweep.stop(now=True)
        used.append(sweep.wait(WAIT_S).tokens)
    assert used == [used[0]] * 4
    assert used[0] > 0


def test_a_page_holds_all_rows_and_lets_them_go_on(sweep: Sweep, outputs: list[Outputs]) -> None:
    panel.show_sweep(sweep)
    (out,) = outputs
    out.ask({"type": "pause", "sweep": sweep.name})
    wait_until(lambda: out.state["chip"] == "paused")
    out.ask({"type": "resume", "sweep": sweep.name})
    wait_until(lambda: out.state["chip"] == "running")


def test_a_page_stops_the_sweep_which_leaves_one_card(sweep: Sweep, outputs: list[Outputs]) -> None:
    panel.show_sweep(sweep)
    panel.show_sweep(sweep)  # in a second cell
    (out,) = outputs
    out.ask({"type": "stop", "sweep": sweep.name, "immediate": False})
    wait_until(lambda: out.state["chip"].startswith("Stopping…"))
    out.ask({"type": "stop", "sweep": sweep.name, "immediate": True})
    sweep.wait(WAIT_S)
    (bundle,) = out.frozen
    assert "Run the cell again: it goes on with the 3 missing rows" in bundle["text/html"]
    in_a_terminal = sweep_text(sweep.view, "", "", sweep.table(), TERMINAL)
    assert "Run the same command again: it goes on with the 3 missing rows" in in_a_terminal
    assert out.state["button"] is None
    end = out.state
    out.ask({"type": "open", "row": ""})
    out.ask({"type": "resume", "sweep": sweep.name})  # would begin another sweep
    assert out.state is end
    assert sweep.name not in [group.name for group in registry.groups()]


@pytest.mark.parametrize(
    "message", [None, "stop", {}, {"type": "stop"}, {"type": "pause"}, {"type": "open", "row": 1}]
)
def test_a_message_that_makes_no_sense_does_nothing(
    sweep: Sweep, outputs: list[Outputs], message: Any
) -> None:
    panel.show_sweep(sweep)
    outputs[0].ask(message)
    assert sweep.status == "running"
    assert outputs[0].state["open"] is None


def test_the_static_part_is_written_at_changes_of_state_alone(
    sweep: Sweep, outputs: list[Outputs]
) -> None:
    panel.show_sweep(sweep)
    (out,) = outputs
    shown: list[SweepView] = []
    sweep.subscribe(shown.append)
    wait_until(lambda: len(shown) > 2)
    assert out.written == 1
    sweep.pause()
    wait_until(lambda: out.written == 2)


# At the end of a cell


def shell() -> Any:
    return SimpleNamespace(display_formatter=DisplayFormatter(), kernel=object())


def test_a_sweep_at_the_end_of_a_cell_shows_its_panel_and_its_view_a_table(
    sweep: Sweep, outputs: list[Outputs]
) -> None:
    ip = shell()
    formatters.register(ip)
    assert ip.display_formatter.format(sweep) == ({}, {})
    assert len(outputs) == 1
    made, _ = ip.display_formatter.format(view(completed=3, scores=(1.0,), to_go=97))
    assert "3 complete, 97 to go" in made["text/html"]
    formatters.unregister(ip)
    assert "text/html" not in ip.display_formatter.format(sweep.view)[0]
    assert ip.display_formatter.format(sweep)[0]["text/plain"] == repr(sweep)


def test_an_extension_that_is_loaded_loads_nothing_of_sweeps() -> None:
    code = (
        "import sys\n"
        "from types import SimpleNamespace\n"
        "from IPython.core.formatters import DisplayFormatter\n"
        "from nb_agents.jupyter import formatters, magic\n"
        "formatters.register(SimpleNamespace(display_formatter=DisplayFormatter(), kernel=1))\n"
        "print([m for m in sys.modules if m.startswith('nb_agents.sweeps.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
