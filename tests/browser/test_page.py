"""Pages show a run from the disk, even without its kernel or the original page."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from playwright.sync_api import BrowserContext, expect

from tests.browser.lab import Lab, NotebookPage, write_notebook
from tests.browser.story import LOAD, Story, agent, server_team
from tests.kit.cards import TURN_MIME
from tests.model_server import ModelServer

TASK = "Compare three ways to cache embeddings"
SAYS = "I compare the three stores by their cold reads and by what they cost. " * 20
THEMES = {
    "dark": "JupyterLab Dark",
    "light": "JupyterLab Light",
}  # the server stores the last theme


def live_run(story: Story, server: ModelServer, options: str = "") -> int:
    """Start a run of two agents, one of which has answered. Return its cell."""
    server.script("quick", agent("A **memory-mapped store** wins.", "I have it. "))
    server.script("slow", agent("Redis is simplest.", SAYS))
    server.hold(30, "slow")
    story.open("import os; print(os.getpid())")
    story.page.run_cell(1)
    team = story.team(server_team(server, researcher="quick", critic="slow"))
    i = story.start(TASK, f"{team} {options}".strip())
    story.page.wait_for_text("voted for researcher", i)
    server.wait_chunks(30)
    return i


def shoot(story: Story, where: Path, name: str) -> None:
    """Save the page in both themes."""
    for short, theme in THEMES.items():
        story.page.set_theme(theme)
        story.page.screenshot(where / f"{name}-{short}.png")


def kill_kernel(story: Story) -> None:
    """Kill the kernel as a crash does, and wait until the server knows."""
    os.kill(int(story.page.output_text(1)), signal.SIGKILL)


def test_notebook_saved_during_a_run_shows_it_after_a_kernel_kill(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    i = live_run(story, server)
    story.page.save()
    kill_kernel(story)
    story.page.shutdown_kernel()
    story.page.open_notebook(story.page.notebook, kernel=False)
    card = story.wait_card(i, "stopped")
    expect(card).to_contain_text("Cut off when the kernel died")
    expect(card).to_contain_text("memory-mapped store")
    for name, theme in THEMES.items():
        story.page.set_theme(theme)
        card.screenshot(path=artifacts / f"killed-{name}.png")


def test_run_continues_after_a_reload_and_its_end_is_saved(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    i = live_run(story, server)
    story.page.save()
    story.page.reload()
    story.expect_writing(i, "critic")
    shoot(story, artifacts, "reloaded")
    story.page.click_button("Stop", i)
    expect(story.chip(i)).to_have_text(re.compile("Stopping"))
    story.page.click_button("Stop now", i)
    story.wait_card(i, "stopped")
    assert story.metadata()["receipt"]["source"] == "widget"
    story.page.save()
    [output] = story.page.saved().cells[i].outputs
    assert "Incomplete turn" in output.data["text/html"]
    assert output.data[TURN_MIME]["state"] == "stopped"


def test_run_that_ended_without_a_page_shows_its_card(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    i = live_run(story, server)
    story.page.save()
    story.page.page.goto("about:blank")
    server.release()
    story.page.wait_until(lambda: story.events("turn_ended"), what="the end of the run")
    story.page.open_notebook(story.page.notebook)
    card = story.wait_card(i, "complete")
    for name, theme in THEMES.items():
        story.page.set_theme(theme)
        card.screenshot(path=artifacts / f"ended-alone-{name}.png")
    story.page.save()
    [output] = story.page.saved().cells[i].outputs
    assert output.data[TURN_MIME]["state"] == "complete"


def test_a_second_tab_shows_the_run_and_can_stop_it(
    story: Story, server: ModelServer, lab: Lab, browser: BrowserContext, artifacts: Path
) -> None:
    i = live_run(story, server)
    story.page.save()
    # With two pages of one profile, JupyterLab would first move this one to a new workspace.
    assert browser.browser is not None
    with (
        browser.browser.new_context() as profile,
        NotebookPage(lab, profile) as other,
        Story(other, story.folder) as second,
    ):
        other.open_notebook(story.page.notebook)
        second.expect_writing(i, "critic")
        for name, theme in THEMES.items():
            other.set_theme(theme)
            second.panel(i).screenshot(path=artifacts / f"second-tab-{name}.png")
        other.click_button("Stop", i)
        other.click_button("Stop now", i)
        second.wait_card(i, "stopped")
        second.check()
    story.wait_card(i, "stopped")


def test_another_notebook_shows_the_run_and_stops_it(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    i = live_run(story, server)
    first = story.page.notebook
    write_notebook(story.folder / "other.ipynb", [LOAD, f"%agents show {story.sessions()[0].name}"])
    story.page.show_notebook(f"{story.folder.name}/other.ipynb")
    story.page.run_cell(0)
    story.page.run_cell(1)
    story.expect_writing(1, "critic")
    shoot(story, artifacts, "another-notebook")
    story.page.click_button("Stop", 1)
    expect(story.chip(1)).to_have_text(re.compile("Stopping"))
    story.page.click_button("Stop now", 1)
    expect(story.wait_card(1, "stopped")).to_contain_text("memory-mapped store")
    story.page.show_notebook(first)
    story.wait_card(i, "stopped")


def test_detached_run_outlives_kernel_and_page(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    i = live_run(story, server, "--detach")
    story.page.restart_kernel()
    server.hold(60, "slow")
    server.wait_chunks(60)
    story.expect_writing(i, "critic")
    shoot(story, artifacts, "detached-restarted")
    story.page.save()
    story.page.page.goto("about:blank")
    server.hold(90, "slow")
    server.wait_chunks(90)
    story.page.open_notebook(story.page.notebook)
    story.expect_writing(i, "critic")
    shoot(story, artifacts, "detached-opened-again")
    story.page.click_button("Stop", i)
    expect(story.chip(i)).to_have_text(re.compile("Stopping"))
    story.page.click_button("Stop now", i)
    expect(story.wait_card(i, "stopped")).to_contain_text("memory-mapped store")
    # No text is lost, regardless of which page was open.
    words = "".join(e["text"] for e in story.events("text_streamed") if e["agent"] == "critic")
    assert SAYS.startswith(words.strip()) and len(words.split()) >= 90


def test_notebook_saved_during_a_run_contains_its_progress(
    story: Story, server: ModelServer
) -> None:
    i = live_run(story, server)

    def saved() -> bool:
        story.page.save()
        [output] = story.page.saved().cells[i].outputs
        assert output.data[TURN_MIME]["state"] == "running"
        return "memory-mapped store" in output.data["text/html"]

    story.page.wait_until(saved, what="the answer in the saved notebook")
    server.release()
    story.wait_card(i, "complete")


def test_model_text_is_escaped_on_a_page_opened_later(story: Story, server: ModelServer) -> None:
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    server.script("evil", agent(f"I say {evil}", evil))
    story.open()
    i = story.start(f"Say {evil}", story.team(server_team(server, evil="evil")))
    story.wait_card(i, "complete")
    story.page.save()
    story.page.reload()
    card = story.wait_card(i, "complete")
    expect(card).to_contain_text("onerror=alert(1)")
    expect(card.locator("img, script")).to_have_count(0)
