"""Cells of agents in JupyterLab: how they are edited, run again, and found again."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.story import Story, agent, demo_team, server_team
from tests.model_server import ModelServer

THEMES = {
    "dark": "JupyterLab Dark",
    "light": "JupyterLab Light",
}  # the server stores the last theme


def shoot(story: Story, artifacts: Path, name: str) -> None:
    """Save the page in both themes, narrow and wide."""
    for short, theme in THEMES.items():
        story.page.set_theme(theme)
        for width in (720, 1400):
            story.page.page.set_viewport_size({"width": width, "height": 800})
            story.page.screenshot(artifacts / f"cells-{name}-{short}-{width}.png")


def test_once_cell_is_rerun_only_by_its_button(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    server.script("m", agent("A memory-mapped store wins."))
    story.open("%agents once on")
    story.page.run_cell(1)
    i = story.start("Compare three caches", story.team(server_team(server, ada="m")))
    story.wait_card(i, "complete")
    paid = server.count()
    story.page.run_cell(i)
    strip = story.page.outputs(i).locator(".nba-strip")
    expect(strip).to_contain_text("Nothing was paid")
    assert server.count() == paid
    shoot(story, artifacts, "once")
    source = story.page.cell_source(i)
    strip.get_by_role("button", name="Run again").click()
    story.page.wait_until(lambda: server.count() > paid, what="a request to the model")
    expect(strip).to_have_count(0)
    story.wait_card(i, "complete")
    assert story.page.cell_source(i) == source
    assert len(story.sessions()) == 2


def test_rerun_cell_shows_and_stops_its_live_run(story: Story, artifacts: Path) -> None:
    story.open()
    i = story.start("Compare three caches", story.team(demo_team(1)))
    story.wait_running(i)
    story.page.run_cell(i)
    strip = story.page.outputs(i).locator(".nba-strip")
    expect(strip).to_contain_text("An earlier run of this cell is still running.")
    story.wait_running(i)
    shoot(story, artifacts, "beside")
    # The toolbar's button is in sight, however narrow the page is.
    stop_all = story.page.page.locator(".jp-NotebookPanel-toolbar .nba-stop-all")
    expect(stop_all).to_have_text("Stop 2 runs")
    story.page.page.set_viewport_size({"width": 720, "height": 800})
    expect(stop_all).to_be_in_viewport(ratio=1)
    strip.get_by_role("button", name="Stop").click()
    story.page.wait_until(
        lambda: story.events("stop_requested", session=0), what="a stop of the first run"
    )
    assert not story.events("stop_requested", session=1)
    story.page.command("nb-agents:stop-all-now")
    expect(strip).to_be_hidden()


def test_link_leads_to_the_cell_of_a_run_and_reports_cleared_output(
    story: Story, artifacts: Path
) -> None:
    story.open(*("'a cell in between'" for _ in range(12)))
    i = story.start("Compare three caches", story.team(demo_team(1)))
    story.wait_running(i)
    page = story.page.page
    story.page.command("nb-agents:show-sessions")
    title = page.locator(f'summary .task[title$="{story.sessions()[0].name}"]')
    row = page.locator(".nba-sessions .session", has=title)
    expect(row.locator("summary small")).to_contain_text(f"story.ipynb, cell {i + 1}")
    story.page.run_cell(0)
    row.locator("li button").first.click()
    expect(story.panel(i)).to_be_in_viewport()
    active = "panel.content.activeCellIndex"
    assert story.page._ask(active) == i
    shoot(story, artifacts, "sidebar")

    story.page.command("notebook:clear-cell-output")
    told = page.locator(".jp-toast, .Toastify__toast", has_text="whose output was cleared").last
    told.get_by_role("button", name="Show").click()
    expect(page.locator(".nba-tab:visible .nba header .chip")).to_have_text("running")
    story.page.command("nb-agents:stop-all-now")
    expect(page.locator(".nba-tab:visible")).to_contain_text("stopped")


def test_a_task_is_edited_as_prose_and_values_as_yaml(story: Story, artifacts: Path) -> None:
    words = "Read @src/app.py for {{question}}, and import nothing from it. " * 4
    story.open(
        f"%%agents --wait\n{words}",
        "%%agents --recipe review.yaml\ndepth: 3\nwho: [ada, ben]",
        "import os\nprint(os.sep)",
    )
    task, values, code = (story.page.cell(i).locator(".cm-editor") for i in (1, 2, 3))
    expect(task.locator(".nba-variable").first).to_have_text("{{question}}")
    expect(task.locator(".nba-file").first).to_have_text("@src/app.py")
    expect(task.locator(".cm-content")).to_have_class(re.compile("cm-lineWrapping"))
    python = task.locator(".cm-line").nth(1).locator("span:not(.nba-variable, .nba-file, span *)")
    expect(python).to_have_count(0)
    expect(values).to_have_class(re.compile("nba-values"))
    expect(values.locator(".cm-line").nth(1).locator("span").first).to_have_text("depth")
    expect(code.locator(".cm-content")).not_to_have_class(re.compile("cm-lineWrapping"))
    shoot(story, artifacts, "prose")
    # A cell becomes an agents cell, or stops being one, while it is edited.
    story.page.set_cell_source(3, "%%agents\nimport os {{x}}")
    expect(code.locator(".nba-variable")).to_have_text("{{x}}")
    story.page.set_cell_source(1, "import os")
    expect(task.locator(".cm-content")).not_to_have_class(re.compile("cm-lineWrapping"))
