"""Notebook 7: a run is shown, stopped and restored as in JupyterLab."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import fresh_tab as tab  # noqa: F401
from tests.browser.story import Story, server_team
from tests.browser.test_answers import ANSWER, complete
from tests.browser.test_cell_runs import approve, outputs, running
from tests.browser.test_proposals import (
    CHECK,
    LOOP,
    SUM,
    boxes,
    inserts,
    proposing,
    replaces,
    sources,
)
from tests.browser.test_story import TASK, three_at_work
from tests.model_server import ModelServer

NOT_OURS = (
    # Its shortcuts fail if plugins with a toolbar load before them.
    r"Cannot read properties of undefined \(reading 'schema'\)"
    r"|Command 'filebrowser:open-path' not registered"
)


@pytest.fixture
def story(story: Story) -> Story:
    story.harmless.append(NOT_OURS)
    return story


def test_a_run_is_stopped_while_another_cell_sleeps(story: Story, server: ModelServer) -> None:
    story.open(view="notebooks")
    i = story.start(TASK, three_at_work(story, server))
    story.wait_running(i)
    busy = story.run("import time\nwhile True: time.sleep(0.1)", wait=False)
    star = story.page.cell(busy).locator(".jp-InputPrompt")
    expect(star).to_have_text("[*]:")
    story.page.click_button("Stop", i)
    expect(story.chip(i)).to_have_text(re.compile("Stopping"))
    story.page.click_button("Stop now", i)
    expect(story.wait_card(i, "stopped")).to_contain_text("Nothing was lost")
    expect(star).to_have_text("[*]:")
    server.wait_closed()


def test_a_reloaded_page_shows_the_run_and_then_its_card(story: Story, server: ModelServer) -> None:
    story.open(view="notebooks")
    i = story.start(TASK, three_at_work(story, server))
    story.wait_running(i)
    story.page.save()
    story.page.reload()
    story.expect_writing(i, "critic")
    server.release()
    story.wait_card(i, "complete")
    story.page.save()
    [output] = story.page.saved().cells[i].outputs
    assert "Redis" in output.data["text/html"] or "mmap" in output.data["text/html"]


def test_workspace_file_opens_in_its_own_tab(story: Story, server: ModelServer) -> None:
    i = complete(story, server, ANSWER, view="notebooks")
    shown = story.card(i).locator(".nb-answer .jp-RenderedMarkdown")
    expect(shown.get_by_alt_text("the plot")).to_have_js_property("naturalWidth", 300)
    with story.page.page.context.expect_page() as opened:
        shown.get_by_role("link", name="data.csv").click()
    expect(opened.value.locator("body")).to_contain_text("mmap,17")
    assert opened.value.evaluate("window.opener") is None
    opened.value.close()
    # Notebook 7 can't show a turn's other files, so its path is not a link.
    expect(story.card(i).locator(".nb-path")).to_be_visible()
    expect(story.card(i).locator("a .nb-path")).to_have_count(0)


def test_proposals_are_accepted_and_a_cell_of_the_run_is_interrupted(
    story: Story, server: ModelServer
) -> None:
    server.script("m", proposing(replaces, inserts, until="was accepted.*was accepted"))
    server.script("n", running("import time"))
    story.open("numbers = [1, 2, 3]", LOOP, "import time\ntime.sleep(60)", view="notebooks")
    team = story.team(server_team(server, ada="m"))
    i = story.start("Improve the loop", f"--notebook propose {team}")
    expect(boxes(story)).to_have_count(2)
    story.page.page.get_by_role("button", name="Accept all").click()
    expect(boxes(story)).to_have_count(0)
    assert sources(story)[2:4] == [SUM, CHECK]
    story.wait_card(i + 1, "complete")  # below the inserted cell

    team = story.team(server_team(server, ada="n"), "runner.yaml")
    i = story.start("Run the slow cell", f"--notebook run {team}")
    approve(story, i)
    expect(story.page.cell(4).locator(".jp-InputPrompt").first).to_have_text("[*]:")
    story.page.click_button("Stop", i)
    story.page.click_button("Stop now", i)
    story.wait_card(i, "stopped")
    expect(outputs(story, 4).last).to_contain_text("KeyboardInterrupt")
