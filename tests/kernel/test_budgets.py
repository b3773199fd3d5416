"""Budgets in notebooks: the options of a cell, the card of a stop, and the question to raise."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.kernel.notebook import Notebook, Turn
from tests.model_server import ModelServer, wait_until

Open = Callable[..., Notebook]


def wait_asked(turn: Turn) -> dict[str, Any]:
    """Wait until the turn asks to raise its budget. Returns the event of the question."""
    asked = lambda: [e for e in turn.events("approval_asked") if e["about"] == "budget"]  # noqa: E731
    wait_until(lambda: bool(asked()), 60, "the question", turn.events)
    return asked()[-1]


def test_card_of_a_used_up_budget_offers_a_resume_with_a_higher_one(notebook: Notebook) -> None:
    turn = notebook.start("--session lab --max-tokens 300")
    turn.wait_over()
    assert turn.events("stop_requested")[0]["source"] == "budget"
    refused = notebook.text(notebook.kernel.run("%agents resume lab"))
    assert "can't be resumed: its budget is used up" in refused
    [card] = notebook.kernel.run("%agents show lab").displays
    [line] = re.findall(r"%agents resume lab --max-tokens \d+", card.data["text/plain"])
    again = notebook.turn_of(notebook.kernel.send(f"{line}0"))
    again.wait_over()
    assert again.metadata["run_status"] == "completed"


def test_panel_of_the_next_session_shows_the_estimate(notebook: Notebook) -> None:
    notebook.start("--max-tokens 90000").wait_over()
    second = notebook.start("--max-tokens 90000")
    notices = lambda: notebook.panel(second).state["state"]["notices"]  # noqa: E731
    start = "Estimate: 3 agents, about "
    notebook.kernel.wait_until(lambda: notices()[-1:], 60, "the notices", notices)
    [estimate] = [each for each in notices() if each.startswith(start)]
    assert "The last completed run of this team used " in estimate
    second.wait_over()
    [card] = notebook.kernel.run("%agents show").displays
    assert estimate in card.data["text/plain"]


@pytest.mark.parametrize("line", ["%agents approve lab 90000", "nb-agents approve lab 90000"])
def test_question_outlives_the_kernel(open_notebook: Open, server: ModelServer, line: str) -> None:
    first = open_notebook()
    turn = first.start("--session lab --max-tokens 300 --on-budget ask")
    wait_asked(turn)
    first.kernel.kill()
    second = open_notebook()
    seen = len(server.requests)
    [card] = second.kernel.run("%agents show lab").displays
    assert "%agents resume lab --max-tokens" in card.data["text/plain"]
    again = second.turn_of(second.kernel.send("%agents resume lab"))
    prompt = wait_asked(again)["prompt"]
    assert re.match(r"[\d,]+ tokens used\. Raise the budget to [\d,]+ tokens\?", prompt)
    gates = lambda: second.panel(again).state["state"]["gates"]  # noqa: E731
    second.kernel.wait_until(gates, 60, "the question in the panel", gates)
    [gate] = gates()
    assert (gate["asks"], gate["prompt"]) == ("budget", prompt)
    assert len(server.requests) == seen
    second.kernel.run(f"!{line}" if line.startswith("nb-") else line)
    again.wait_over()
    assert again.metadata["run_status"] == "completed"
    assert again.events("budget_raised")[0]["max_tokens"] == 90000
