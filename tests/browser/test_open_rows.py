"""A row that is opened: all that an agent writes and does, as it comes."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.story import Story, agent, server_team
from tests.model_server import ModelServer

TASK = "Compare three ways to cache embeddings for 10 M documents"
ANSWER = "The **memory-mapped** store wins."
SAYS = " ".join(f"Point{n} weighs cold reads." for n in range(400))


@pytest.fixture
def at_work(story: Story, server: ModelServer) -> int:
    """The cell of a team of two: one has written a file, answered and voted, one writes."""
    server.script("gpt-5-mini", agent(ANSWER, "I have it. ", {"notes.md": "# Notes on caches\n"}))
    server.script("gpt-4o", agent("Redis is simplest.", SAYS))
    server.hold(60, "gpt-4o")
    story.open()
    team = story.team(server_team(server, researcher="gpt-5-mini", critic="gpt-4o"))
    i = story.start(TASK, team)
    story.page.wait_for_text("voted for researcher", i)
    story.wait_running(i)
    return i


def open_row(story: Story, i: int, name: str) -> Locator:
    """Open a row by a click on its words; returns what is open of it."""
    story.row(i, name).locator(".what").click()
    shown = transcript(story, i, name)
    shown.wait_for()
    return shown


def transcript(story: Story, i: int, name: str) -> Locator:
    return story.panel(i).get_by_role("log", name=f"What {name} wrote and did")


def test_a_row_opens_to_what_its_agent_writes_as_it_comes(
    story: Story, server: ModelServer, at_work: int
) -> None:
    shown = open_row(story, at_work, "critic")
    expect(shown).to_contain_text("Point0 weighs cold reads. Point1 weighs")
    expect(shown).not_to_contain_text("Point399")
    server.release()
    expect(shown.or_(story.card(at_work)).first).to_contain_text(re.compile("Point39|Redis"))
    story.wait_card(at_work, "complete")


def test_an_open_row_has_tools_answers_and_votes_and_another_click_closes_it(
    story: Story, at_work: int
) -> None:
    shown = open_row(story, at_work, "researcher")
    expect(shown.locator(".answer strong")).to_have_text("memory-mapped")
    expect(shown.locator(".vote")).to_contain_text("Voted for researcher")
    tool = shown.locator("details.tool").first
    expect(tool.locator(".body")).to_be_hidden()
    tool.locator("summary").click()
    expect(tool.locator(".body")).to_contain_text("# Notes on caches")

    story.panel(at_work).get_by_role("button", name="Answers only").click()
    expect(shown.locator(".answer")).to_be_visible()
    expect(tool).to_be_hidden()
    other = open_row(story, at_work, "critic")
    story.panel(at_work).get_by_role("button", name="Wide").click()
    left, right = shown.bounding_box(), other.bounding_box()
    assert left and right and left["x"] + left["width"] <= right["x"]

    story.row(at_work, "critic").locator("button.open").press("Enter")
    expect(other).to_have_count(0)
    expect(shown).to_be_visible()


def test_the_toolbars_stop_stays_in_view_where_the_page_is_narrow(
    story: Story, at_work: int
) -> None:
    story.page.page.set_viewport_size({"width": 720, "height": 900})
    stop = story.page.page.locator(".jp-NotebookPanel-toolbar .nba-stop-all")
    expect(stop).to_be_in_viewport(ratio=1)
    stop.click()
    expect(story.chip(at_work)).to_have_text(re.compile("Stopping"))
