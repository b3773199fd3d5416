"""The state of a panel depends on view and clock only. Messages of pages are handled once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from nb_agents import events as ev
from tests.kit.cards import display_of, panel_state
from tests.kit.cells import on_page_message
from tests.kit.sweeps import LiveRow, SweepView, sweep_state
from tests.kit.views import RunView, fold
from tests.presentation.recipe_views import began, recipe

USAGE = ev.Usage(input_tokens=8000, output_tokens=214, cost=0.019)


def view_of(*events: ev.Event) -> RunView:
    agents = (ev.AgentInfo(id="ada", model="gpt-5-mini"), ev.AgentInfo(id="ben", model="demo"))
    started = ev.TurnStarted(
        session="s", turn=2, task="t", agents=agents, timeout_s=1800, seq=1, at=1000.0
    )
    return fold([started, *events])


def test_elapsed_time_has_massgens_wording() -> None:
    state = panel_state(view_of(ev.RoundStarted(agent="ada", number=3)), "r1", 1234.0)
    assert (state["round"], state["elapsed"]) == ("Round: 3/∞", "Elapsed: 234s / 1800s (13%)")
    assert state["fraction"] == pytest.approx(0.13)


def test_running_panel_offers_a_graceful_stop() -> None:
    button = panel_state(view_of(), "r1", 1000.0)["button"]
    assert (button["label"], button["now"]) == ("Stop", False)


def test_stopping_panel_counts_down_and_offers_stop_now() -> None:
    stop = ev.StopRequested(level="requested", source="widget", grace_s=30.0, at=1010.0)
    state = panel_state(view_of(stop), "r1", 1013.0)
    assert state["chip"] == "Stopping… (after current LLM call completes)"
    assert (state["button"]["label"], state["button"]["now"]) == ("Stop now · 27 s", True)


def test_rows_show_how_long_a_model_is_silent() -> None:
    def chips(now: float) -> list[str]:
        row = LiveRow("row-1", "r1", view)
        sweep = SweepView("ask", "running", 1, 0, 0, 0, 0.0, 1.0, None, (row,), (), ())
        return [
            *(r["chip"] for r in panel_state(view, "r1", now)["agents"] if r["id"] == "ada"),
            *(row["chip"] for row in panel_state(steps, "r1", now)["agents"]),
            *(r["chip"].removeprefix("ada: ") for r in sweep_state(sweep, "t", "p", now)["rows"]),
            *(chip for name, chip, _ in display_of(view).lines(view, now, 9) if name == "ada"),
        ]

    asked = ev.ModelStarted(agent="ada", call=1, at=1010.0)
    wrote = ev.TextStreamed(agent="ada", call=1, channel="text", text="so ", at=1040.0)
    step = [replace(each, agent="draft") for each in (asked, wrote)]
    critic = ev.AgentCalled(agent="draft/critic#1", caller="draft", name="critic", model="m",
                            workspace="w", input="?")  # fmt: skip
    below = [replace(each, agent=critic.agent) for each in (asked, wrote)]
    steps = recipe(began("draft", "agent"), *step, critic, *below, outline=())
    view = view_of(asked)
    assert chips(1039.0)[0] == "thinking"
    assert chips(1040.0)[0] == "silent for 30 s"
    view = view_of(asked, wrote)
    assert chips(1069.9) == ["writing"] * 5
    assert chips(1135.0) == ["silent for 1 min 35 s"] * 5
    failed = ev.ModelFailed(agent="ada", call=1, error="x", retry_in_s=90, at=1140.0)
    view = view_of(asked, wrote, failed)
    assert chips(1200.0)[0] == "waiting"


def test_panel_has_no_button_after_an_immediate_stop() -> None:
    stop = ev.StopRequested(level="immediate", source="widget", at=1010.0)
    assert panel_state(view_of(stop), "r1", 1011.0)["button"] is None


ROWS = {
    "answered twice": ([ev.AnswerGiven(agent="ada", answer=a) for a in ("x", "y")], "answered ×2"),
    "writing": ([ev.TextStreamed(agent="ada", call=1, channel="text", text="so ")], "writing"),
    "in a tool": ([ev.ToolStarted(agent="ada", call_id="1", tool="write_file")], "write_file"),
    "out": ([ev.AgentFailed(agent="ada", error="no key")], "failed"),
    "presenting": ([ev.PresentationStarted(agent="ada")], "presenting"),
    "voting": (
        [ev.TextStreamed(agent="ada", call=1, channel="call", tool="vote", text='{"agent_id')],
        "voting",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_row_shows_the_activity_of_its_agent(name: str) -> None:
    events, chip = ROWS[name]
    assert panel_state(view_of(*events), "r1", 1000.0)["agents"][0]["chip"] == chip


def test_row_shows_latest_text_and_usage() -> None:
    state = panel_state(
        view_of(
            ev.ModelFinished(agent="ada", call=1, response={}, usage=USAGE),
            ev.ModelStarted(agent="ada", call=2),
            ev.TextStreamed(agent="ada", call=2, channel="text", text="word " * 100),
        ),
        "r1",
        1000.0,
    )
    row = state["agents"][0]
    assert row["says"].startswith("…")
    assert row["writing"] is True
    assert row["numbers"] == "8,214 tokens · $0.019"
    assert state["in_flight"] == "1 call in flight: ada"


def test_row_shows_latest_output_of_a_running_tool() -> None:
    begun = ev.ToolStarted(agent="ada", call_id="1", tool="run_command", summary="make test")
    told = ev.ToolNotice(agent="ada", text="step 1\nstep 2\n")
    over = ev.ToolFinished(agent="ada", call_id="1", tool="run_command", outcome="ok")
    rows = [
        panel_state(view_of(*events), "r1", 1000.0)["agents"][0]
        for events in ([begun], [begun, told], [begun, told, over])
    ]
    assert [row["says"] for row in rows] == ["make test", "step 1 step 2", ""]
    long = panel_state(view_of(begun, ev.ToolNotice(agent="ada", text="x" * 500)), "r1", 1000.0)
    assert long["agents"][0]["says"] == "…" + "x" * 160


def test_row_shows_a_file_being_written_as_text() -> None:
    text = '{"path": "a.py", "content": "import os'
    streamed = ev.TextStreamed(agent="ada", call=1, channel="call", tool="write_file", text=text)
    row = panel_state(view_of(streamed), "r1", 1000.0)["agents"][0]
    assert (row["chip"], row["says"]) == ("write_file", "a.py · import os")


class Page:
    """Sends to a widget like ipykernel: asks the comm for its route, then calls it on the shell."""

    def __init__(self, take: Callable[[Any], object]) -> None:
        self.comm: Any = SimpleNamespace()
        on_page_message(self, take)

    def on_msg(self, callback: Callable[..., object]) -> None:
        self.by_shell = lambda content: callback(self, content, [])

    def route(self, data: object) -> object:
        return self.comm._reply_subshell_for(data, "as sent")


@pytest.mark.parametrize("kind", ["stop", "say", "approve", "pause"])
def test_verb_message_is_handled_once_without_waiting_for_the_shell(kind: str) -> None:
    taken: SimpleQueue[Any] = SimpleQueue()
    page = Page(taken.put)
    sent = {"type": kind, "run": "r1"}
    for _ in range(2):  # each click counts
        assert page.route({"method": "custom", "content": sent}) == "as sent"
        assert taken.get(timeout=200) == sent
    page.by_shell(sent)
    page.by_shell(sent)
    assert taken.empty()
    page.by_shell(sent)  # without a question for the route before
    assert taken.get(timeout=200) == sent


@pytest.mark.parametrize(
    "data",
    [
        {"method": "custom", "content": {"type": "mounted", "page": "p"}},
        {"method": "custom", "content": ["stop"]},
        {"method": "update", "state": {"type": "stop"}},
        {"content": {"type": "stop"}},
        None,
    ],
)
def test_other_messages_wait_for_the_shell(data: Any) -> None:
    taken: list[Any] = []
    page = Page(taken.append)
    assert page.route(data) == "as sent"
    page.by_shell("x")
    assert taken == ["x"]
