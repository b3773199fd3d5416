"""The look of panel and card: screenshots, and measurements of layout and animations."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.story import Story, agent, demo_team, server_team
from tests.model_server import ModelServer, Reply

TASK = "Compare three ways to cache embeddings for 10 M documents"
README_TASK = "Compare three ways to cache embeddings for 10 million documents"
ANSWER = """A **memory-mapped store** wins when the working set is larger than RAM:

1. a cold read is one page fault, without a round trip to a server;
2. nothing is copied between processes.

| store | cold read | RAM |
|---|---:|---:|
| mmap | 0.4 ms | page cache |
| Redis | 0.9 ms | all of it |
"""
CRITIC = (
    "I checked the two proposals against the published figures. The second one counts the index "
    "twice, and the first one leaves out what a cold start costs, which is most of it. " * 3
)
BUILDER = "The benchmark so far covers two of the three stores. Next I run the third one cold. " * 4
THEMES = {
    "dark": "JupyterLab Dark",
    "light": "JupyterLab Light",
}  # the server stores the last theme


@pytest.fixture
def team(story: Story, server: ModelServer) -> str:
    """Return the option for a team of three, in which two agents keep writing."""
    server.script("gpt-5-mini", agent(ANSWER, "I have it. ", {"notes.md": "# Notes\n" * 40}))
    critic = agent("Redis is simplest.", CRITIC, {"review.md": "x" * 800}, hang_after=38)
    server.script("gpt-4o", critic)
    files = {"bench/cache.py": "x" * 2100, "bench/data.py": "y" * 800}
    server.script("gpt-4.1-mini", agent("It depends.", BUILDER, files, hang_after=44))
    models = {"researcher": "gpt-5-mini", "critic": "gpt-4o", "builder": "gpt-4.1-mini"}
    return story.team(server_team(server, **models))


def shoot(story: Story, where: Path, name: str, i: int) -> None:
    """Save a cell's output in both themes."""
    for short, theme in THEMES.items():
        story.page.set_theme(theme)
        story.page.screenshot(where / f"{name}-{short}.png", i)


def moving(shown: Locator) -> set[str]:
    """Return the animated properties. All except opacity need a layout for each frame."""
    return set(
        shown.evaluate(
            """el => {
              const names = el.getAnimations({subtree: true})
                .flatMap(each => each.effect.getKeyframes()).flatMap(Object.keys);
              for (const each of [el, ...el.querySelectorAll('*')]) {
                const style = getComputedStyle(each);
                if (style.transitionDuration !== '0s') names.push(style.transitionProperty);
              }
              const isOfFrame = /^(offset|computedOffset|easing|composite)$/;
              return names.filter(name => !isOfFrame.test(name));
            }"""
        )
    )


def overflows(shown: Locator) -> list[str]:
    """Name the visible elements that stick out at the sides."""
    return list(
        shown.evaluate(
            """el => { const box = el.getBoundingClientRect();
            return [el, ...el.querySelectorAll('*')].filter(e => {
              const b = e.getBoundingClientRect();
              const clipped = e.closest('.says, .nba-sr, [hidden]');
              return b.width && !clipped && (b.right > box.right + 1 || b.left < box.left - 1);
            }).map(e => e.tagName + '.' + e.className); }"""
        )
    )


def test_every_state_in_both_themes(
    story: Story, server: ModelServer, team: str, artifacts: Path
) -> None:
    story.page.page.set_viewport_size({"width": 1280, "height": 1500})
    story.open()
    i = story.start(TASK, team)
    story.page.wait_for_text("voted for researcher", i)
    expect(story.panel(i).locator(".caret:visible")).to_have_count(2)
    shoot(story, artifacts, "running", i)
    panel = _box(story.panel(i).locator(".live"))
    title = _box(story.panel(i).locator("header .task"))
    chip = _box(story.chip(i))
    right_edges = [_box(each)["right"] for each in story.panel(i).locator("tbody .num").all()]
    assert len(set(right_edges)) == 1
    story.page.click_button("Stop", i)
    expect(story.chip(i)).to_contain_text("Stopping…")
    shoot(story, artifacts, "stopping", i)
    assert _box(story.panel(i).locator("header .task"))["y"] == pytest.approx(title["y"], abs=2)
    story.page.click_button("Stop now", i)
    card = story.wait_card(i, "stopped")
    shoot(story, artifacts, "incomplete", i)

    # Freezing moves neither the frame nor the title nor the chip.
    frozen = _box(card)
    assert (frozen["x"], frozen["right"]) == pytest.approx((panel["x"], panel["right"]), abs=1)
    frozen_title = _box(card.get_by_text(TASK, exact=True))
    assert frozen_title["x"] == pytest.approx(title["x"], abs=1)
    offset = frozen_title["y"] - frozen["y"], title["y"] - panel["y"]
    assert offset[0] == pytest.approx(offset[1], abs=2)
    assert _box(card.get_by_text("■ stopped"))["height"] == pytest.approx(chip["height"], abs=2)

    for model in ("gpt-4o", "gpt-4.1-mini"):
        server.script(model, agent("The same."))
    i = story.start("And which is the cheapest?", f"{team} --continue")
    story.wait_card(i, "complete")
    shoot(story, artifacts, "complete", i)
    server.script("gpt-5-mini", Reply(status=401))
    server.script("gpt-4o", Reply(status=404))
    server.script("gpt-4.1-mini", Reply(status=400, error="This model has no tools."))
    i = story.start(TASK, team)
    story.wait_card(i, "failed")
    shoot(story, artifacts, "failed", i)


def test_narrow_notebook_shows_everything(story: Story, team: str, artifacts: Path) -> None:
    story.open()
    story.page.command("application:toggle-left-area")
    story.page.page.set_viewport_size({"width": 760, "height": 1500})
    i = story.start(f"{TASK}, and say for each what it costs with a cold start", team)
    story.page.wait_for_text("voted for researcher", i)
    assert _box(story.page.outputs(i))["width"] < 700
    assert overflows(story.panel(i)) == []
    story.page.screenshot(artifacts / "narrow-running.png", i)
    story.page.click_button("Stop", i)
    expect(story.chip(i)).to_contain_text("Stopping…")
    assert overflows(story.panel(i)) == []
    story.page.click_button("Stop now", i)
    card = story.wait_card(i, "stopped")
    assert overflows(card) == []
    story.page.screenshot(artifacts / "narrow-incomplete.png", i)


def test_panel_outside_of_the_viewport_is_not_updated(story: Story) -> None:
    story.open()
    # A call must take longer than the checks during it.
    i = story.start(TASK, story.team(demo_team(1.5)))
    story.wait_running(i)
    story.run("print('a line\\n' * 200)")
    shown = story.run("%agents show")  # the same run, in sight
    panel, words = story.panel(i), story.row(shown, "ada").locator(".says")
    words.scroll_into_view_if_needed()
    expect(panel).not_to_be_in_viewport()
    story.wait_running(shown)
    panel.evaluate(
        """el => {
          window.changes = [];
          const note = records => window.changes.push(...records.map(r => r.target.className));
          const all = {subtree: true, childList: true, attributes: true, characterData: true};
          new MutationObserver(note).observe(el, all);
        }"""
    )
    for _ in range(5):
        said = words.inner_text()
        story.page.wait_until(lambda said=said: words.inner_text() != said, what="more words")
    assert story.page.page.evaluate("window.changes") == []

    story.page.click_button("Stop", shown)
    expect(story.chip(i)).to_contain_text("Stopping…")  # read by screen readers
    # It also reads the notice about what the stop waits for.
    assert set(story.page.page.evaluate("window.changes")) == {"chip ing", "notices", ""}
    panel.scroll_into_view_if_needed()
    expect(panel.get_by_role("button", name="Stop now", exact=True)).to_be_visible()
    story.page.click_button("Stop now", i)
    story.wait_card(i, "stopped")


def test_pictures_for_the_readme(story: Story, artifacts: Path) -> None:
    story.page.page.set_viewport_size({"width": 1310, "height": 1500})
    story.open()
    paces = {"researcher": 120, "critic": 10, "builder": 8}
    team = demo_team(25)
    for agent_, (name, pace) in zip(team["agents"], paces.items(), strict=True):
        agent_.update(id=name, backend={"type": "demo", "words_per_second": pace})
    i = story.start(README_TASK, story.team(team))
    expect(story.row(i, "researcher").locator(".chip")).to_contain_text("voted for")
    for name in ("critic", "builder"):
        expect(story.row(i, name).locator(".says")).to_contain_text("You asked")
    story.panel(i).screenshot(path=artifacts / "panel.png")
    story.page.click_button("Stop", i)
    story.page.click_button("Stop now", i)
    story.wait_card(i, "stopped").screenshot(path=artifacts / "card.png")


def _box(shown: Locator) -> dict[str, float]:
    box = shown.bounding_box()
    assert box is not None
    return {**box, "right": box["x"] + box["width"]}
