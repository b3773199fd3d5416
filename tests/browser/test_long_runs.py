"""Long runs in JupyterLab: folded conversations, a budget to raise, and a used-up quota."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.browser.story import Story, agent, server_team
from tests.browser.test_look import THEMES, overflows
from tests.browser.test_open_rows import transcript
from tests.hard_window import HardWindow
from tests.model_server import ModelServer, Reply, Request, ToolCall

WINDOW = 6000
CHAPTERS = 9
WIDTHS = (720, 1400)
TASK = "Summarize the nine chapters of the report on caches for embeddings"
ANSWER = "A **memory-mapped store** wins when the working set is larger than RAM."
SUMMARY = (
    "The chapters read so far compare a memory-mapped store with Redis. A cold read takes 0.4 ms "
    "and 0.9 ms. Next: the chapters that are left, then the answer."
)


def shoot(story: Story, artifacts: Path, name: str, i: int, shown: Callable[[], Locator]) -> None:
    """Save a cell's output in both themes, narrow and wide, and check that nothing sticks out."""
    is_open = True
    for width in WIDTHS:
        if is_open == (width < 1000):
            story.page.command("application:toggle-left-area")
            is_open = not is_open
        story.page.page.set_viewport_size({"width": width, "height": 1500})
        for short, theme in THEMES.items():
            story.page.set_theme(theme)
            assert overflows(shown()) == []
            story.page.screenshot(artifacts / f"long-{name}-{short}-{width}.png", i)


def reader(report: Path, may_answer: threading.Event) -> Callable[[Request], Reply]:
    """Return a model that reads the chapters one after the other, then waits, and answers."""
    count = 0

    def reply(request: Request) -> Reply:
        nonlocal count
        if "Write the summary now" in request.prompt[-2000:]:
            return Reply(SUMMARY, output_tokens=60)
        if "<ANSWER" in request.prompt or "<FINAL PRESENTATION>" in request.prompt:
            return agent(ANSWER)(request)
        count += 1
        if count > CHAPTERS:
            may_answer.wait(120)
            return agent(ANSWER)(request)
        says = f"Chapter {count} is about caches. " * 30
        return Reply(says, (ToolCall("read_file", {"path": str(report / f"chapter_{count}.md")}),))

    return reply


def test_fold_shows_its_size_and_cost_and_opens_to_what_was_folded(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    report = story.folder / "report"
    report.mkdir()
    for number in range(1, CHAPTERS + 1):
        text = f"# Chapter {number}\n\n" + f"A cold read in chapter {number} is a page fault. " * 40
        (report / f"chapter_{number}.md").write_text(text)
    may_answer = threading.Event()
    server.script("gpt-5-mini", HardWindow(WINDOW, reader(report, may_answer)))
    server.script("gpt-4o", agent("Redis is simplest.", "I compare them. ", hang_after=2))
    team = server_team(server, researcher="gpt-5-mini", critic="gpt-4o")
    team["agents"][0]["backend"]["context_window"] = WINDOW
    team["orchestrator"] = {"context_paths": [{"path": "report", "permission": "read"}]}
    story.open()
    i = story.start(TASK, story.team(team))
    row = story.row(i, "researcher")
    expect(row.locator(".num")).to_contain_text(re.compile(r"folded ×\d"))
    story.page.wait_until(
        lambda: len(story.events("tool_finished")) == CHAPTERS, what="all chapters"
    )
    folds = story.events("context_folded")
    assert {each["level"] for each in folds} == {"results", "summary"}
    row.get_by_text("researcher", exact=True).click()
    part = transcript(story, i, "researcher").locator(".part", has_text="Conversation folded")
    for number, fold in enumerate(folds):
        opened = part.nth(number)
        opened.locator("summary").click()
        sizes = f"{fold['before']:,} → {fold['after']:,} tokens"
        expect(opened.locator("summary")).to_contain_text(sizes)
        expect(opened.locator(".body")).to_contain_text("read_file")

    def shown() -> Locator:
        part.first.scroll_into_view_if_needed()
        return story.panel(i)

    shoot(story, artifacts, "fold-panel", i, shown)

    story.row(i, "critic").get_by_role("button", name="Stop").click()
    may_answer.set()
    card = story.wait_card(i, "complete")
    opening = card.locator("summary", has_text=re.compile(r"folded ×\d|events|happened"))
    opening.first.click()
    card.locator("summary", has_text=re.compile(r"conversation folded")).click()
    for fold in folds:
        line = card.locator("details details details", has_text=f"{fold['before']:,} →")
        line.locator("summary").click()
        expect(line).to_contain_text("read_file")
    expect(card.get_by_text(SUMMARY).first).to_be_visible()
    expect(card.locator("summary", has_text="summary $").first).to_be_visible()
    shoot(story, artifacts, "fold-card", i, lambda: story.card(i))


def test_budget_is_raised_on_the_panel(story: Story, server: ModelServer, artifacts: Path) -> None:
    server.script("gpt-5-mini", Reply("I read. ", (ToolCall("list_files"),), input_tokens=300))
    team = server_team(server, researcher="gpt-5-mini")
    team["orchestrator"] = {"max_tokens": 1000, "on_budget": "ask"}
    story.open()
    i = story.start(TASK, story.team(team))
    gate = story.panel(i).locator(".gate")
    expect(gate.locator(".prompt")).to_contain_text("Raise the budget to 2,000 tokens?")
    shoot(story, artifacts, "budget", i, lambda: story.panel(i))
    server.script("gpt-5-mini", agent(ANSWER))
    gate.get_by_role("button", name="Raise").click()
    story.wait_card(i, "complete")
    [raised] = story.events("budget_raised")
    assert raised["max_tokens"] == 2000


def test_panel_of_a_waiting_run_shows_until_when_and_stops(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    error = "Rate limit reached for requests per day. Please try again in 50m0s."
    server.script("gpt-5-mini", Reply(status=429, headers={"Retry-After": "3000"}, error=error))
    server.script("gpt-4o", agent("Redis is simplest.", "I compare them. ", hang_after=2))
    team = server_team(server, researcher="gpt-5-mini", critic="gpt-4o")
    team["wait_for_quota"] = 3600
    story.open()
    i = story.start(TASK, story.team(team))
    row = story.row(i, "researcher")
    expect(row).to_contain_text(re.compile(r"waiting for quota until \d\d:\d\d"))
    expect(row).to_contain_text("Rate limit reached")
    shoot(story, artifacts, "one-waits", i, lambda: story.panel(i))
    story.row(i, "critic").get_by_role("button", name="Stop").click()
    expect(story.chip(i)).to_contain_text(re.compile(r"waiting for quota until \d\d:\d\d"))
    expect(story.chip(i)).to_have_class("chip ing")
    shoot(story, artifacts, "all-wait", i, lambda: story.panel(i))
    story.page.click_button("Stop", i)
    card = story.wait_card(i, "stopped")
    expect(card).to_contain_text("Resume")
    shoot(story, artifacts, "waited-card", i, lambda: story.card(i))
    assert server.count() == 2
