"""The panel and card of a sweep, and the requests that a page can send."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

import nb_agents
from nb_agents import RunOptions
from nb_agents import events as ev
from nb_agents.testing import Answer, Call, Gate, ScriptedModel, Turn, scripted_team
from tests.kit.cards import TERMINAL
from tests.kit.cells import formatters, panel
from tests.kit.runs import registry
from tests.kit.sweeps import (
    MAX_FAILURES,
    MAX_LIVE,
    MAX_TABLE,
    SWEEP_FILE,
    EndedRow,
    InterimScore,
    LiveRow,
    OpenedRow,
    RowOutcome,
    RowResult,
    Steering,
    Sweep,
    SweepView,
    sweep_bundle,
    sweep_state,
    sweep_text,
    sweep_title,
)
from tests.kit.views import RunView
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


def test_rows_are_counted_by_state_with_waiting_rows_first() -> None:
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


def test_retried_row_does_not_make_a_count_negative() -> None:
    state = drawn(total=3, completed=1, failed=1, live=live(WRITING), to_go=1)
    texts = [each["text"] for each in state["counts"]]
    assert texts == ["1 failed", "1 at work", "1 complete", "1 to go"]


def test_panel_shows_remaining_time_usage_and_score() -> None:
    state = drawn(left_s=190.0, tokens=8214, cost=0.019, scores=(0.5, 1.0, 0.75))
    assert state["elapsed"] == "1 min 5 s · about 3 min 10 s to go"
    assert state["cost"] == "8,214 tokens · $0.019"
    assert state["in_flight"] == "score 0.75 (95 % interval: 0.129 to 1.37) (3)"


def test_unknown_price_and_remaining_time_are_left_out() -> None:
    state = drawn(tokens=5, cost=None, left_s=9.0, status="paused")
    assert (state["cost"], state["elapsed"]) == ("5 tokens", "1 min 5 s")


@pytest.mark.parametrize(
    "status, rows, chip, status_of_page, now, hold",
    [
        ("running", (WRITING,), "running", "running", False, "pause"),
        ("paused", (WRITING,), "paused", "running", False, "unpause"),
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
def test_chip_and_buttons_depend_on_the_state(
    status: str, rows: Any, chip: str, status_of_page: str, now: bool | None, hold: str
) -> None:
    state = drawn(status=status, live=live(*rows))
    assert (state["chip"], state["status"], state["hold"]) == (chip, status_of_page, hold)
    assert (state["button"] or {"now": None})["now"] is now


def test_row_shows_its_activity_and_has_a_stop_button() -> None:
    row = drawn(live=live(WRITING))["rows"][0]
    assert (row["id"], row["run"], row["model"]) == ("row-0", "r0", "compare caches")
    assert (row["chip"], row["says"], row["writing"]) == ("ada: writing", "so far so good", True)
    stops = [each["stop"] for each in drawn(live=live(WRITING, STOPPING, CUT))["rows"]]
    assert stops == [{"now": False}, {"now": True}, None]


def ended(row: str, status: RowOutcome, **more: Any) -> EndedRow:
    return EndedRow(RowResult(row, status, **more), 1)


def test_rows_are_titled_by_their_values() -> None:
    values = {"row-0": {"q": "", "city": EVIL, "lang": "de"}, "bad-0": {"city": "Bonn"}}
    state = drawn(live=live(WRITING), failed=1, failures=failures(1), values=values)
    row = state["rows"][0]
    assert (row["name"], row["model"]) == (" ".join(EVIL.split())[:60] + "…", "lang: de")
    assert state["failures"][0]["row"] == "Bonn"


def test_ended_rows_are_listed_below_live_ones_with_their_answers() -> None:
    rows = drawn(
        live=live(WRITING),
        completed=1,
        failed=1,
        recent=(
            ended("moon-1", "completed", answer="It is **far**.", tokens=10, score=0.5),
            ended("bad-2", "failed", error="no key"),
        ),
        values={"moon-1": {"q": "How far is the moon?"}},
    )["rows"]
    assert [row["state"] for row in rows] == ["running", "complete", "failed"]
    moon, bad = rows[1:]
    assert (moon["name"], moon["run"], moon["opens"]) == ("How far is the moon?", "moon-1/1", True)
    assert (moon["says"], moon["score"], moon["stop"]) == ("It is far.", 0.5, None)
    assert (bad["name"], bad["says"]) == ("bad-2", "no key")


def test_score_that_is_not_finite_is_not_sent() -> None:
    row = drawn(recent=(ended("a", "completed", score=float("nan")),))["rows"][0]
    assert row["score"] is None


def test_recipe_row_shows_its_current_step() -> None:
    row = drawn(live=live(recipe(*wrote("gather/draft", "so far "))))["rows"][0]
    assert (row["chip"], row["says"]) == ("writing", "so far")


def test_waiting_rows_come_first_with_their_question() -> None:
    first = drawn(live=live(WRITING, WAITING))["rows"][0]
    assert (first["id"], first["chip"], first["tone"]) == ("row-1", "awaiting approval", "ing")
    assert first["says"] == "Shall it go on?"


def test_number_of_rows_sent_is_limited() -> None:
    task = turn(task="long " * 10_000)
    state = drawn(
        failed=900, failures=failures(80, "why " * 5000), live=live(*[task] * 300), total=5000
    )
    assert (len(state["rows"]), state["more_rows"]) == (
        MAX_LIVE,
        "240 more at work · 900 more ended",
    )
    assert (len(state["failures"]), state["more_failures"]) == (
        MAX_FAILURES,
        "850 more without an answer",
    )
    assert len(json.dumps(state)) < 80_000


def test_open_row_is_drawn_as_the_panel_of_its_run() -> None:
    state = drawn(OpenedRow("row-0", "r0", WRITING), live=live(WRITING, WRITING))
    assert [row["current"] for row in state["rows"]] == [True, False]
    assert state["open"]["row"] == "row-0"
    assert (state["open"]["state"]["run"], state["open"]["state"]["chip"]) == ("r0", "running")


def test_open_row_shows_its_card_when_it_ends() -> None:
    state = drawn(OpenedRow("gone", "r9", STOPPED, "<b>card</b>"), live=live(WRITING))
    assert state["open"]["state"]["card"] == "<b>card</b>"
    assert [row["current"] for row in state["rows"]] == [False]


# The card


def record(row: str, status: str, **more: Any) -> dict[str, Any]:
    ended = {"error": "", "tokens": 10, "cost": 0.01, "seconds": 1.0, "score": None}
    return {"q": "why?", "row": row, "status": status, "answer": None, **ended, **more}


def card(table: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    return sweep_bundle(view(**more), "Answer: {{q}}", "here/ask", table or [])


def test_only_the_card_of_a_stopped_sweep_shows_how_to_continue() -> None:
    stopped = card(status="cancelled", completed=60, failed=1, reason="lunch")
    for text in stopped["text/html"], stopped["text/plain"]:
        assert "Run the cell again to continue with the 39 missing rows" in text
        assert "Finished rows are not repeated." in text
        assert "Stopped after 1 min 5 s (lunch). 60 of 100 rows are complete." in text
    complete = card(status="completed", completed=99, failed=1)
    assert "Run the cell again" not in complete["text/html"] + complete["text/plain"]
    assert "■ stopped" in stopped["text/html"]
    assert "✓ complete" in complete["text/html"]


def test_panel_shows_what_can_be_steered() -> None:
    steering = Steering(1200, 5.0, 90.0, ("openai",))
    models = ("openai:gpt-5", "openai:o3", "demo")
    shown_view = view(steering=steering, models=models, failed=1, has_score=True)
    state = sweep_state(shown_view, "t", "p", 0.0)
    shown = state["steering"]
    assert shown is not None
    assert shown["says"] == "1,200 rows at a time · $5.00 in total · 1 min 30 s for each row"
    assert [(each["name"], each["is_paused"]) for each in shown["models"]] == [
        ("openai", True), ("openai:gpt-5", False), ("openai:o3", False), ("demo", False),
    ]  # fmt: skip
    assert (shown["can_score"], shown["failed"]) == (True, 1)
    only = sweep_state(view(steering=steering._replace(paused=()), models=("demo",)), "t", "p", 0.0)
    assert only["steering"] is not None and only["steering"]["models"] == [], "as Pause does"
    assert sweep_state(view(status="stopping"), "t", "p", 0.0)["steering"] is None


def test_row_shows_the_score_of_its_text_so_far_and_a_failed_row_can_run_again() -> None:
    ended = EndedRow(RowResult("bad", "failed", error="Oh."), 1)
    state = sweep_state(
        view(live=live(WRITING), interim={"row-0": InterimScore("row-0", 0.25)}, recent=(ended,)),
        "t", "p", 0.0,
    )  # fmt: skip
    running, failed = state["rows"]
    assert running["numbers"].endswith("score so far 0.25")
    assert ("again" in running, failed["again"]) == (False, True)


def test_card_of_a_stopped_sweep_has_buttons_that_continue_it() -> None:
    def buttons(**more: Any) -> list[tuple[str, str]]:
        html = sweep_bundle(view(**more), "t", "p", [])["text/html"]
        found = re.findall(r'commandlinker-args="([^"]*)"[^>]*>([^<]*)</button>', html)
        texts = [(label, json.loads(unescape(args))["args"]["text"]) for args, label in found]
        return [(label, text.splitlines()[-1]) for label, text in texts]

    resume, retry = ("Resume", "%agents resume ask"), "%agents resume ask --retry-failed"
    assert buttons(status="cancelled", completed=3) == [resume]
    assert buttons(status="cancelled", failed=1) == [("Retry failed", retry), resume]
    assert buttons(status="completed", completed=99, failed=1) == [("Retry failed", retry)]
    assert buttons(status="completed", completed=100) == buttons(completed=3) == []


def test_card_lists_failures_and_then_the_first_rows() -> None:
    table = [record(f"row-{i}", "complete", answer=f"so {i}") for i in range(30)]
    ended = {"status": "completed", "completed": 29, "failed": 2, "failures": failures(2)}
    made = card([record("bad-0", "failed", error="no key"), *table], total=31, **ended)
    text = made["text/plain"]
    assert text.index("FAILED bad-0: no key") < text.index("row-0: complete · so 0")
    assert made["text/html"].count("no key") == 2  # once per failure, and not again in the table
    assert f"row-{MAX_TABLE - 2}: complete" in text
    assert f"row-{MAX_TABLE - 1}: complete" not in text
    assert "11 more rows" in text
    assert "--retry-failed" in text


def test_card_shows_scores_costs_and_path() -> None:
    row = record("a", "complete", answer="x", score=0.5)
    made = card([row], status="completed", tokens=10, cost=0.01, scores=(0.5, 1.0))
    for text in made["text/html"], made["text/plain"]:
        assert "0.75 (95 % interval: -2.43 to 3.93)" in text
        assert "here/ask" in text
        assert "$0.010" in text


def test_table_contains_failed_scores_and_recipe_outputs() -> None:
    scored = record("a", "complete", answer="x", error="The score function failed: KeyError: 1")
    ended = record("b", "complete")
    tail = {key: ended.pop(key) for key in ("error", "tokens", "cost", "seconds", "score")}
    ended.pop("answer")
    outputs = {**ended, "summary": "short", "grade": 3, **tail}
    text = card([scored, outputs], status="completed")["text/plain"]
    assert "a: complete · The score function failed: KeyError: 1" in text
    assert "b: complete · summary: short · grade: 3" in text


@pytest.mark.parametrize("status", ["running", "paused", "stopping", "cancelled", "completed"])
def test_untrusted_text_is_escaped(status: str) -> None:
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


def test_static_part_of_a_live_sweep_stays_true() -> None:
    text = card(completed=3, live=live(WRITING))["text/plain"]
    assert "This sweep was live when this was written: 3 of 100 rows are complete." in text
    assert "If its kernel has ended: run the cell again" in text


# Requests of a page


class Outputs:
    """A substitute for the widget and the outputs of cells."""

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
    """Return the list of outputs that panels have created."""
    made: list[Outputs] = []

    def make(shown: str, state: Callable[[], dict[str, Any]], take: Any) -> Outputs:
        made.append(Outputs(state, take))
        return made[-1]

    monkeypatch.setattr(panel, "LiveOutputs", make)
    return made


@pytest.mark.parametrize(
    "task, title",
    [
        ("{{question}}", "Each question"),
        (" {{ a.b }}\n", "Each a.b"),
        ("{{a}} {{b}}", "{{a}} {{b}}"),
        ("{{q}}?", "{{q}}?"),
    ],
)
def test_task_that_is_only_a_column_has_a_title_in_words(
    tmp_path: Path, task: str, title: str
) -> None:
    (tmp_path / SWEEP_FILE).write_text(json.dumps({"task": task}))
    assert sweep_title(tmp_path) == title


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    """A sweep of three rows. Two of them wait after two words."""
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


def test_page_opens_and_closes_a_row(sweep: Sweep, outputs: list[Outputs]) -> None:
    panel.show_group(sweep)
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


def test_page_stops_one_row_and_the_open_row_shows_its_card(
    sweep: Sweep, outputs: list[Outputs]
) -> None:
    panel.show_group(sweep)
    (out,) = outputs
    wait_until(lambda: len(out.state["rows"]) == 2)
    row = out.state["rows"][0]
    out.ask({"type": "open", "row": row["id"]})
    out.ask({"type": "stop", "run": row["run"], "immediate": True})
    wait_until(lambda: out.state["open"]["state"]["card"])
    assert "stopped" in out.state["open"]["state"]["card"]
    assert sweep.status == "running"


def test_usage_of_live_rows_is_counted_once_after_a_resume(
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
    finished, cut = used[0], used[1] - used[0]
    assert finished > 0 and cut > 0
    assert used == [finished, finished + cut, finished + cut, finished + 2 * cut]


def test_page_pauses_and_unpauses_all_rows(sweep: Sweep, outputs: list[Outputs]) -> None:
    panel.show_group(sweep)
    (out,) = outputs
    out.ask({"type": "pause", "sweep": sweep.name})
    wait_until(lambda: out.state["chip"] == "paused")
    out.ask({"type": "unpause", "sweep": sweep.name})
    wait_until(lambda: out.state["chip"] == "running")


def test_page_steers_the_sweep(sweep: Sweep, outputs: list[Outputs]) -> None:
    panel.show_group(sweep)
    (out,) = outputs
    out.ask({"type": "steer", "sweep": sweep.name, "limit": 33, "id": "1"})
    wait_until(lambda: out.state["steering"]["limit"] == 33, WAIT_S)


def test_page_stops_the_sweep_which_leaves_one_card(sweep: Sweep, outputs: list[Outputs]) -> None:
    panel.show_group(sweep)
    panel.show_group(sweep)  # in a second cell
    (out,) = outputs
    out.ask({"type": "stop", "sweep": sweep.name, "immediate": False})
    wait_until(lambda: out.state["chip"].startswith("Stopping…"))
    out.ask({"type": "stop", "sweep": sweep.name, "immediate": True})
    sweep.wait(WAIT_S)
    (bundle,) = out.frozen
    assert "Run the cell again to continue with the 3 missing rows" in bundle["text/html"]
    in_a_terminal = sweep_text(sweep.view, "", "", sweep.table(), TERMINAL)
    assert "Run the same command again to continue with the 3 missing rows" in in_a_terminal
    assert out.state["button"] is None
    end = out.state
    out.ask({"type": "open", "row": ""})
    out.ask({"type": "unpause", "sweep": sweep.name})  # would start another sweep
    assert out.state is end
    assert sweep.name not in [group.name for group in registry.groups()]


@pytest.mark.parametrize(
    "message", [None, "stop", {}, {"type": "stop"}, {"type": "pause"}, {"type": "open", "row": 1}]
)
def test_invalid_message_is_ignored(sweep: Sweep, outputs: list[Outputs], message: Any) -> None:
    panel.show_group(sweep)
    outputs[0].ask(message)
    assert sweep.status == "running"
    assert outputs[0].state["open"] is None


def test_static_part_is_written_only_when_the_state_changes(
    sweep: Sweep, outputs: list[Outputs]
) -> None:
    panel.show_group(sweep)
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


def test_sweep_displays_its_panel_and_its_view_a_table(
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


def test_loading_the_extension_imports_only_what_the_verbs_of_sweeps_need() -> None:
    code = (
        "import sys\n"
        "from types import SimpleNamespace\n"
        "from IPython.core.formatters import DisplayFormatter\n"
        "from nb_agents.jupyter import formatters, magic\n"
        "formatters.register(SimpleNamespace(display_formatter=DisplayFormatter(), kernel=1))\n"
        "loaded = (name for name in sys.modules if name.startswith('nb_agents.'))\n"
        "print(sorted(m.rpartition('.')[2] for m in loaded if '.sweeps.' in m))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True
    )
    first = ["confidence", "manifest", "notes", "row_titles", "steering"]
    verbs = ["sweep_file", "sweep_fold", "sweep_handle", "sweep_kind", "sweep_prune", "sweep_verbs"]
    assert (done.stdout.strip(), done.stderr) == (str([*first, *verbs]), "")
