"""An open row shows everything that an agent writes and does, while it happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.story import Story, agent, server_team
from tests.browser.test_look import THEMES, overflows
from tests.model_server import ModelServer, Reply

TASK = "Compare three ways to cache embeddings for 10 M documents"
ANSWER = "The **memory-mapped** store wins."
SAYS = " ".join(f"Point{n} weighs cold reads." for n in range(400))


@pytest.fixture
def at_work(story: Story, server: ModelServer) -> int:
    """Start a team of two: one has written a file, answered and voted, the other writes."""
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
    """Open a row by a click on its text. Return the opened part."""
    story.row(i, name).locator(".what").click()
    shown = transcript(story, i, name)
    shown.wait_for()
    return shown


def transcript(story: Story, i: int, name: str) -> Locator:
    return story.panel(i).get_by_role("log", name=f"Transcript of {name}")


def test_open_row_shows_the_agents_text_as_it_arrives(
    story: Story, server: ModelServer, at_work: int
) -> None:
    shown = open_row(story, at_work, "critic")
    expect(shown).to_contain_text("Point0 weighs cold reads. Point1 weighs")
    expect(shown).not_to_contain_text("Point399")
    server.release()
    expect(shown.or_(story.card(at_work)).first).to_contain_text(re.compile("Point39|Redis"))
    story.wait_card(at_work, "complete")


def test_open_row_shows_tools_answers_and_votes_and_closes_on_a_click(
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


def test_large_team_has_a_summary_failed_agents_first_and_texts_below_their_rows(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    names = ("ada", "ben", "cleo", "dan", "eve", "fay")
    for name in names:
        server.script(f"m-{name}", agent(ANSWER, SAYS))
    server.script("m-dan", Reply(status=401))
    server.hold(60)
    story.open()
    team = story.team(server_team(server, **{name: f"m-{name}" for name in names}))
    i = story.start(TASK, team)
    panel = story.panel(i)
    expect(panel.locator(".summary")).to_have_text("5 writing · 1 failed")
    expect(panel.locator("tbody .id").first).to_have_text("dan")
    open_row(story, i, "ben")
    expect(panel.locator("tr.below")).to_have_count(1)
    above, below = story.row(i, "ben").bounding_box(), panel.locator("tr.below").bounding_box()
    assert above and below and above["y"] + above["height"] == pytest.approx(below["y"], abs=2)
    open_row(story, i, "cleo")
    for short, theme in THEMES.items():
        story.page.set_theme(theme)
        for width in (720, 1400):
            story.page.page.set_viewport_size({"width": width, "height": 1500})
            assert overflows(panel) == []
            story.page.screenshot(artifacts / f"large-team-{short}-{width}.png", i)
    panel.get_by_role("button", name="Wide").click()
    expect(panel.locator("tr.below")).to_have_count(0)
    story.page.screenshot(artifacts / "large-team-wide.png", i)
    story.page.click_button("Stop", i)


def test_stop_in_the_toolbar_stays_visible_on_a_narrow_page(story: Story, at_work: int) -> None:
    story.page.page.set_viewport_size({"width": 720, "height": 900})
    stop = story.page.page.locator(".jp-NotebookPanel-toolbar .nba-stop-all")
    expect(stop).to_be_in_viewport(ratio=1)
    stop.click()
    expect(story.chip(at_work)).to_have_text(re.compile("Stopping"))
