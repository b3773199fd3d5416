"""Rewind in the page: a checkpoint, its files, a message, the fork, and the sidebar."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.story import Story, agent, server_team
from tests.browser.test_page import THEMES
from tests.model_server import ModelServer

TASK = "Compare three ways to cache embeddings"
WORD = "Think of the cost, too."


def test_rewind_by_keyboard_leaves_the_old_turn_unchanged(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    files = {"notes.md": "# Notes\none\ntwo\n"}
    server.script("quick", agent("A **memory-mapped store** wins.", "I have it. ", files))
    server.script("slow", agent("Redis is simplest.", "Let me see. ", {"review.md": "x\n" * 30}))
    story.open()
    team = story.team(server_team(server, researcher="quick", critic="slow"))
    i = story.start(TASK, team)
    story.wait_card(i, "complete")
    before = {path: path.read_bytes() for path in story.turn().rglob("*") if path.is_file()}
    page = story.page.page
    output = story.page.outputs(i)
    output.get_by_role("button", name="Go back…").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    points = dialog.get_by_role("listbox")
    expect(points).to_be_focused()
    page.keyboard.press("Home")
    expect(points.get_by_role("option", selected=True)).to_contain_text("the start")
    expect(dialog.get_by_text("2 files will change:")).to_be_visible()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    chosen = points.get_by_role("option", selected=True).get_attribute("id") or ""
    seen = f"Goes back to event {chosen.rpartition('-')[2]} of"
    expect(dialog.locator(".says")).to_contain_text(seen)
    page.keyboard.press("Tab")
    dialog.locator("summary").first.focus()
    page.keyboard.press("Enter")
    expect(dialog.locator("details[open] pre")).to_contain_text("-")
    for name, theme in THEMES.items():
        story.page.set_theme(theme)
        page.screenshot(path=artifacts / f"rewind-dialog-{name}.png")
    dialog.get_by_role("textbox").focus()
    page.keyboard.type(WORD)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(dialog.get_by_role("spinbutton")).to_be_focused()
    accept = dialog.locator(".jp-mod-accept")
    for _ in range(8):  # Chromium also stops at what scrolls, which depends on the window's size
        if accept.evaluate("button => button === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(accept).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(page.locator(".nba-tab")).to_be_visible()
    story.page.wait_until(lambda: (story.turn(2) / "events.jsonl").exists(), what="the fork")
    story.page.wait_until(lambda: story.events("turn_ended", 2), what="the fork's end")
    assert {path: path.read_bytes() for path in before} == before
    story.page.command("nb-agents:show-sessions")  # a click would hide it where a layout has it
    expect(page.locator(".nba-sessions").get_by_text("↩ from 1 at").first).to_be_visible()
    for name, theme in THEMES.items():
        story.page.set_theme(theme)
        page.screenshot(path=artifacts / f"rewind-tree-{name}.png")


def test_click_on_the_timeline_opens_a_checkpoint_and_forks_are_a_sweep(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    server.script("quick", agent("A **memory-mapped store** wins.", "I have it. ", {}))
    server.script("slow", agent("Redis is simplest.", "Let me see. ", {}))
    story.open()
    team = story.team(server_team(server, researcher="quick", critic="slow"))
    i = story.start(TASK, team)
    card = story.wait_card(i, "complete")
    page = story.page.page
    card.locator("summary", has_text="What happened").click()
    mark = card.locator("svg[data-point]:has(text)").last  # an answer
    at = (mark.get_attribute("data-point") or "").rpartition(":")[2]
    mark.evaluate("mark => mark.scrollIntoView({block: 'center'})")  # from below a notification
    mark.locator("text").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".says")).to_contain_text("Goes back to event")
    chosen = dialog.get_by_role("listbox").get_by_role("option", selected=True)
    point = int((chosen.get_attribute("id") or "").rpartition("-")[2])
    assert point <= int(at)
    ended = story.events("model_finished")
    kept = {(event["agent"], event["call"]) for event in ended if event["seq"] <= point}
    assert kept
    dialog.get_by_role("spinbutton").fill("3")
    for name, theme in THEMES.items():
        story.page.set_theme(theme)
        page.screenshot(path=artifacts / f"rewind-times-{name}.png")
    dialog.get_by_role("button", name="Go back").click()
    tab = page.locator(".nba-tab")
    # A row of the panel or, at the end, of the card's table.
    expect(tab).to_contain_text(re.compile(r"try 3|3\s*✓ complete"), timeout=60_000)
    expect(tab).to_contain_text("complete", timeout=60_000)  # at least of the first attempt
    tries = story.folder / ".nb_agents/sessions"

    def over() -> list[Path]:
        journals = tries.glob("*/try_*/turn_2/events.jsonl")
        return [each for each in journals if '"turn_ended"' in each.read_text()]

    story.page.wait_until(lambda: len(over()) == 3, what="three forks")
    journals = over()
    for journal in journals:
        new = [json.loads(line) for line in journal.read_text().splitlines()]
        asked = {(each["agent"], each["call"]) for each in new if each["kind"] == "model_started"}
        assert asked
        assert asked.isdisjoint(kept)
    for name, theme in THEMES.items():
        story.page.set_theme(theme)
        page.screenshot(path=artifacts / f"rewind-sweep-{name}.png")


@pytest.mark.parametrize("is_cut", [False, True])
def test_rewind_of_a_running_turn_stops_it_first(
    story: Story, server: ModelServer, artifacts: Path, is_cut: bool
) -> None:
    server.script("quick", agent("A **memory-mapped store** wins.", "I have it. ", {}))
    server.script("slow", agent("Redis is simplest.", "Let me see all of it. "))
    server.hold(after=2, model="slow")
    story.open()
    asked: list[str] = []
    page = story.page.page
    page.on("request", lambda request: asked.append(request.url))
    team = story.team(server_team(server, researcher="quick", critic="slow"))
    i = story.start(TASK, team)
    story.page.wait_for_text("voted for researcher", i)
    story.expect_writing(i, "critic")
    panel = story.panel(i)
    timeline = panel.get_by_role("button", name="Timeline")
    expect(timeline).to_have_attribute("aria-expanded", "false")
    expect(panel.locator("svg")).to_have_count(0)
    assert not [url for url in asked if url.endswith("/timeline")]
    timeline.focus()
    page.keyboard.press("Enter")
    marks = panel.locator("[data-point]:has(text)")
    expect(marks).not_to_have_count(0)
    page.keyboard.press("Tab")
    focused = panel.locator("[data-point]:focus")
    expect(focused).to_have_count(1)
    page.keyboard.press("Home")
    [first, *_] = sorted(int(each) for each in _points(panel))
    expect(focused).to_have_attribute("data-point", f"1:{first}")
    page.keyboard.press("ArrowRight")
    expect(focused).not_to_have_attribute("data-point", f"1:{first}")
    at = int((focused.get_attribute("data-point") or "").partition(":")[2])
    for name, theme in THEMES.items():
        story.page.set_theme(theme)
        page.screenshot(path=artifacts / f"timeline-live-{name}.png")
    # Themes are switched for the screenshots. Once, no checkpoint had the focus afterwards.
    panel.locator(f"[data-point='1:{at}']").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    points = dialog.get_by_role("listbox")
    expect(points).to_be_focused()
    chosen = points.get_by_role("option", selected=True).get_attribute("id") or ""
    point = int(chosen.rpartition("-")[2])
    assert first <= point <= at
    cut = dialog.get_by_role("checkbox", name="Interrupt calls in flight")
    expect(cut).to_be_visible()
    if is_cut:
        cut.focus()
        page.keyboard.press("Space")
    dialog.get_by_role("button", name="Go back").focus()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    awaited = "turn_ended" if is_cut else "stop_requested"
    story.page.wait_until(lambda: story.events(awaited), what="the stop")
    server.release("slow")
    story.page.wait_until(lambda: (story.turn(2) / "events.jsonl").exists(), what="the fork")
    story.page.wait_until(lambda: story.events("turn_ended", 2), what="the fork's end")
    [stop, *_] = story.events("stop_requested")
    assert stop["level"] == ("immediate" if is_cut else "requested")
    assert stop["reason"] == "to go back to an earlier checkpoint"
    [started] = story.events("turn_started", 2)
    assert started["resumes"] == 1
    kept = [event for event in story.events("model_finished") if event["seq"] <= point]
    called = {(event["agent"], event["call"]) for event in story.events("model_started", 2)}
    assert kept
    assert called
    assert called.isdisjoint((event["agent"], event["call"]) for event in kept)
    [ended] = story.events("turn_ended", 2)
    assert ended["status"] == "completed"


def _points(shown: Locator) -> list[str]:
    """Return the numbers of the events that a timeline links to."""
    marks = shown.locator("[data-point]").all()
    return [(mark.get_attribute("data-point") or "").partition(":")[2] for mark in marks]
