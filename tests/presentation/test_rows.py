"""Rows of a team on the panel: their order, their summary and their latest text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nb_agents import events as ev
from nb_agents.presentation.rows import decision_text, says, summary, team_rows, user_name
from tests.kit.cards import panel_state, text
from tests.kit.views import ApprovalView, RunView, fold, gate_title

NAMES = ("ada", "ben", "cleo", "dan")


def team(*events: ev.Event, names: tuple[str, ...] = NAMES) -> RunView:
    agents = tuple(ev.AgentInfo(id=name, model="m") for name in names)
    start = ev.TurnStarted(session="s", turn=1, task="t", agents=agents, timeout_s=9, seq=1)
    return fold([start, *events])


def writes(agent: str, text: str) -> tuple[ev.Event, ...]:
    started = ev.ModelStarted(agent=agent, call=1)
    return started, ev.TextStreamed(agent=agent, call=1, channel="text", text=text)


AT_WORK = team(
    *writes("ada", "I compare. "),
    *writes("ben", "I measure. "),
    ev.AnswerGiven(agent="cleo", answer="Use mmap."),
    ev.AgentFailed(agent="dan", error="The server refused the key (HTTP 401)."),
)


def test_failed_agents_are_the_first_rows() -> None:
    assert [row["id"] for row in team_rows(AT_WORK, 0.0)] == ["dan", "ada", "ben", "cleo"]


def test_summary_counts_agents_by_activity() -> None:
    assert summary(AT_WORK) == "2 writing · 1 answered · 1 failed"
    assert panel_state(AT_WORK, "s/1", 0.0)["summary"] == summary(AT_WORK)


def test_row_of_an_agent_at_a_gate_says_so() -> None:
    called = ev.ToolStarted(agent="ada", call_id="1.0", tool="growth", args={}, summary="")
    asked = ev.ApprovalAsked(step="ada: growth #1", prompt="ada wants to call growth()")
    [row, *_] = team_rows(team(called, asked), 0.0)
    assert (row["chip"], row["tone"]) == ("awaiting approval", "ing")


@pytest.mark.parametrize(
    ("address", "title"),
    [
        ("ada: custom_tool__growth #1", "ada's call of growth"),
        ("ada: input #12", "ada's question"),
        ("approval #2", "the question"),
        ("budget #1", "the budget"),
        ("checks/look", "the gate of checks/look"),
        ("tidy #3", "the gate of tidy"),
    ],
)
def test_gates_have_titles_without_numbers_and_prefixes(address: str, title: str) -> None:
    assert gate_title(address) == title


def test_decision_of_this_user_is_yours() -> None:
    mine = ApprovalView("ada: growth #1", True, "go on", user_name(), 0.0)
    assert decision_text(mine) == "approved by you: go on"
    assert decision_text(replace(mine, by="ann")) == "approved by ann: go on"


def test_panel_of_a_small_team_has_no_summary() -> None:
    assert "summary" not in panel_state(team(names=("ada", "ben")), "s/1", 0.0)


def test_latest_text_has_no_markdown_signs() -> None:
    view = team(*writes("ada", "## Plan\n\n- a **memory-mapped** store and `mmap()`\n"))
    assert says(view.agents["ada"]) == "Plan - a memory-mapped store and mmap()"


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("snake_case_name and 2 * 3 and a**b", "snake_case_name and 2 * 3 and a**b"),
        ("*one* __two__ ***three***", "one two three"),
        ("| a | b |\n|---|---:|\n| 1 | 2 |", "a | b 1 | 2"),
        ("> quoted\n```python\nx = 1\n```", "quoted x = 1"),
    ],
)
def test_only_signs_of_formatting_are_removed(markdown: str, shown: str) -> None:
    assert text.without_markdown(markdown, 160) == shown
