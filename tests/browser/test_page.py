"""A page is never empty: what a run left is shown from the disk, whoever is gone."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from playwright.sync_api import BrowserContext, expect

from nb_agents.jupyter.cards import TURN_MIME
from tests.browser.lab import Lab, NotebookPage
from tests.browser.story import Story, agent, server_team
from tests.model_server import ModelServer

TASK = "Compare three ways to cache embeddings"
SAYS = "I compare the three stores by their cold reads and by what they cost. " * 20
THEMES = {"dark": "JupyterLab Dark", "light": "JupyterLab Light"}  # the server keeps the last one


def live_run(story: Story, server: ModelServer) -> int:
    """Start a run of two, of which one has answered and one writes; returns its cell."""
    server.script("quick", agent("A **memory-mapped store** wins.", "I have it. "))
    server.script("slow", agent("Redis is simplest.", SAYS))
    server.hold(30, "slow")
    story.open("import os; print(os.getpid())")
    story.page.run_cell(1)
    i = story.start(TASK, story.team(server_team(server, researcher="quick", critic="slow")))
    story.page.wait_for_text("voted for researcher", i)
    server.wait_chunks(30)
    return i


def kill_kernel(story: Story) -> None:
    """Kill the kernel as a crash does, and wait until the server knows."""
    os.kill(int(story.page.output_text(1)), signal.SIGKILL)


def test_a_notebook_saved_in_mid_run_shows_the_run_after_its_kernel_was_killed(
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


def test_a_run_goes_on_in_a_page_that_was_reloaded_and_its_end_is_saved_with_the_notebook(
    story: Story, server: ModelServer
) -> None:
    i = live_run(story, server)
    story.page.save()
    story.page.reload()
    expect(story.row(i, "critic")).to_contain_text("writing")
    story.page.click_button("Stop", i)
    expect(story.chip(i)).to_have_text(re.compile("Stopping"))
    story.page.click_button("Stop now", i)
    story.wait_card(i, "stopped")
    assert story.metadata()["receipt"]["source"] == "widget"
    story.page.save()
    [output] = story.page.saved().cells[i].outputs
    assert "Incomplete turn" in output.data["text/html"]
    assert output.data[TURN_MIME]["state"] == "stopped"


def test_a_run_that_ended_while_no_page_was_open_shows_its_card(
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
    # Beside a page of the same profile, JupyterLab would first move this one to a new workspace.
    assert browser.browser is not None
    with (
        browser.browser.new_context() as profile,
        NotebookPage(lab, profile) as other,
        Story(other, story.folder) as second,
    ):
        other.open_notebook(story.page.notebook)
        expect(second.row(i, "critic")).to_contain_text("writing")
        for name, theme in THEMES.items():
            other.set_theme(theme)
            second.panel(i).screenshot(path=artifacts / f"second-tab-{name}.png")
        other.click_button("Stop", i)
        other.click_button("Stop now", i)
        second.wait_card(i, "stopped")
        second.check()
    story.wait_card(i, "stopped")


def test_a_notebook_saved_in_mid_run_holds_what_was_reached(
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


def test_what_a_model_wrote_is_no_markup_on_a_page_that_is_opened_later(
    story: Story, server: ModelServer
) -> None:
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
