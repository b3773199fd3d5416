"""Information about all runs outside of cells: status bar, sidebar and notifications."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.browser.conftest import fresh_tab as tab  # noqa: F401
from tests.browser.lab import Lab, NotebookPage
from tests.browser.story import Story, agent, demo_team, server_team
from tests.kernel.driver import Kernel
from tests.model_server import ModelServer

SAYS = "I compare the three stores by their cold reads and by what they cost. " * 20
PANELS = 20
TASK = "Compare three ways to cache embeddings"
EVIL = "Say <img src=x onerror=alert(1)><script>alert(2)</script>"
RECIPE = """
name: survey
description: Waits for a person
version: 1.0.0
stages:
  - name: research
    steps:
      - {id: measure, type: bash, command: "until [ -e go ]; do sleep 0.05; done"}
    approval: {required: true, prompt: "Write the report?", timeout: 600}
  - name: report
    steps:
      - {id: render, type: bash, command: "true"}
"""
THEMES = {
    "dark": "JupyterLab Dark",
    "light": "JupyterLab Light",
}  # the server stores the last theme


def live_run(story: Story, server: ModelServer, task: str = TASK) -> int:
    """Start a run with one agent that is held while it writes. Return its cell."""
    server.script("slow", agent("Redis is simplest.", SAYS))
    server.hold(30, "slow")
    i = story.start(task, story.team(server_team(server, critic="slow")))
    server.wait_chunks(30)
    return i


def status_item(story: Story) -> Locator:
    return story.page.page.locator("#jp-main-statusbar .nba-status-item")


def stop_button(story: Story) -> Locator:
    return story.page.page.locator(".jp-NotebookPanel-toolbar .nba-stop-all")


def sidebar(story: Story) -> Locator:
    return story.page.page.locator("#nb-agents-sessions")


def row(story: Story, name: str) -> Locator:
    """Return a session's row in the sidebar, which also lists sessions of other tests."""
    title = story.page.page.locator(f'summary .task[title$="\\a {name}"]')
    return sidebar(story).locator(".session", has=title)


def toast(story: Story) -> Locator:
    return story.page.page.locator(".Toastify__toast")


def shoot(story: Story, where: Path, name: str) -> None:
    """Save the page in both themes."""
    for short, theme in THEMES.items():
        story.page.set_theme(theme)
        story.page.screenshot(where / f"{name}-{short}.png")


def test_toolbar_counts_and_stops_runs_of_all_kernels(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    page = story.page.page
    server.script("slow", agent("Redis is simplest.", SAYS))
    server.hold(30, "slow")
    option = story.team(server_team(server, critic="slow"))
    story.open(*(f"%%agents {option}\n{TASK}, part {n}" for n in range(1, PANELS + 1)))
    expect(status_item(story)).to_be_hidden()
    expect(stop_button(story)).to_be_hidden()
    page.set_viewport_size({"width": 1280, "height": 5600})
    story.page.command("notebook:run-all-cells")
    expect(status_item(story)).to_have_text(f"{PANELS} runs")
    with Kernel(cwd=story.folder) as other:
        assert other.run("%load_ext nb_agents").status == "ok"
        assert other.run(f"%%agents {option}\nElsewhere").status == "ok"
        expect(status_item(story)).to_have_text(f"{PANELS + 1} runs")
        expect(stop_button(story)).to_have_text(f"Stop {PANELS + 1} runs")
        chips = page.locator(".jp-OutputArea .nba header .chip")
        expect(chips).to_have_text(["running"] * PANELS)
        # All panels are visible, because others are drawn later.
        page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0")
        expect(page.locator(".jp-OutputArea .nba .caret:visible")).to_have_count(PANELS)
        status_item(story).click()
        expect(sidebar(story).locator(".session", has_text="Elsewhere")).to_contain_text("running")
        shoot(story, artifacts, "page-running")
        page.set_viewport_size({"width": 1280, "height": 900})
        stop_button(story).click()
        expect(chips).to_have_text([re.compile("Stopping")] * PANELS)
        expect(stop_button(story)).to_have_text(f"Stop {PANELS + 1} runs now")
        stop_button(story).click()
        for i in range(1, PANELS + 1):
            story.wait_card(i, "stopped")
        expect(status_item(story)).to_be_hidden()
    expect(stop_button(story)).to_be_hidden()
    ended = [story.metadata(session=i) for i in range(PANELS + 1)]
    assert {each["receipt"]["source"] for each in ended} == {"widget"}
    assert "Elsewhere" in [each["task"] for each in ended]
    expect(toast(story)).to_have_count(1)  # only for the run that this page does not show


def test_palette_has_the_commands_and_shortcuts_are_unused_by_others(
    story: Story,
) -> None:
    story.open()
    taken = story.page.page.evaluate(
        """() => {
        const all = jupyterapp.commands.keyBindings;
        const ours = all.filter(each => each.command.startsWith('nb-agents:'));
        const keys = each => each.keys.join();
        const same = one => all.filter(each => keys(each) === keys(one)).map(each => each.command);
        return Object.fromEntries(ours.map(each => [each.command, same(each)]));
        }"""
    )
    commands = ("stop-all", "stop-all-now", "resume-last", "show-sessions")
    assert taken == {f"nb-agents:{each}": [f"nb-agents:{each}"] for each in commands}
    story.page.command("apputils:activate-command-palette")
    palette = story.page.page.locator(".lm-CommandPalette")
    palette.locator("input").fill("agents agent")
    labels = palette.locator(".lm-CommandPalette-itemLabel")
    ours = [
        "New Agent Team",
        "Resume the Last Agent Run",
        "Show Agent Sessions",
        "Stop All Agent Runs",
        "Stop All Agent Runs Now",
    ]
    story.page.wait_until(
        lambda: sorted(labels.all_inner_texts()) == ours, seen=labels.all_inner_texts
    )
    story.page.page.keyboard.press("Escape")


def test_run_menu_has_the_commands(story: Story) -> None:
    story.open()
    page = story.page.page
    page.locator(".lm-MenuBar-item", has_text="Run").click()
    page.locator(".lm-Menu-item", has_text="Agents").hover()
    labels = page.locator(".lm-Menu").last.locator(".lm-Menu-itemLabel")
    expect(labels).to_have_text(
        [
            "Stop All Agent Runs",
            "Stop All Agent Runs Now",
            "Resume the Last Agent Run",
            "Show Agent Sessions",
            "New Agent Team",
        ]
    )
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")


def test_sidebar_lists_all_turns_and_opens_one_next_to_the_notebook(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    story.open()
    server.script("quick", agent(f"I say {EVIL}"))
    i = story.start(EVIL, story.team(server_team(server, ada="quick")))
    story.wait_card(i, "complete")
    j = live_run(story, server)
    status_item(story).click()
    filter = sidebar(story).locator("input")
    expect(filter).to_be_focused()
    done, live = (row(story, path.name) for path in story.sessions())
    expect(live.locator("summary")).to_contain_text(TASK)
    expect(live.locator("summary .state")).to_have_text("running")
    expect(done.locator("summary")).to_contain_text("onerror=alert(1)")
    expect(done.locator("summary .state")).to_have_text("complete")
    shoot(story, artifacts, "page-sidebar")

    page = story.page.page
    filter.press_sequentially("alert(1)")
    expect(live).to_have_count(0)
    done.locator("summary").click()
    done.get_by_role("button", name="Say").click()
    expect(story.card(i)).to_be_in_viewport()
    expect(story.card(i)).to_contain_text("onerror=alert(1)")
    filter.fill("")
    live.get_by_role("button", name=TASK).click()
    expect(story.panel(j)).to_be_in_viewport()
    shoot(story, artifacts, "page-tab")
    assert page.locator("#nb-agents-sessions :is(img, script)").count() == 0
    live.get_by_role("button", name="Stop", exact=True).click()
    live.get_by_role("button", name="Stop now").click()
    expect(live.locator("summary .state")).to_have_text("stopped")
    story.wait_card(j, "stopped")


def test_end_is_notified_if_the_notebook_is_hidden(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    story.open()
    i = live_run(story, server, EVIL)
    expect(status_item(story)).to_have_text("1 run")
    story.page.command("launcher:create")
    server.release()
    expect(status_item(story)).to_be_hidden()
    expect(toast(story)).to_contain_text("Complete: Say <img src=x onerror=alert(1)>")
    shoot(story, artifacts, "page-notice")
    toast(story).get_by_role("button", name="Show").click()
    expect(story.card(i)).to_be_in_viewport()


def test_only_one_of_two_tabs_notifies_of_the_end(
    story: Story, server: ModelServer, lab: Lab, browser: BrowserContext
) -> None:
    story.open()
    live_run(story, server)
    story.page.command("launcher:create")
    with NotebookPage(lab, browser) as other:
        other.page.goto(f"{lab.url}/lab/workspaces/other?token={lab.token}")
        both = [story.page.page, other.page]
        for page in both:
            expect(page.locator(".nba-status-item")).to_have_text("1 run")
        server.release()
        for page in both:
            expect(page.locator(".nba-status-item")).to_be_hidden()
        for page in both:  # the request before each notification is answered too
            page.evaluate("fetch('/nb-agents/sessions')")
        other.wait_until(lambda: toasts(both), what="a notification")
        assert toasts(both) == 1


def toasts(pages: list[Page]) -> int:
    return sum(page.locator(".Toastify__toast").count() for page in pages)


def test_sweep_is_one_entry_with_one_notification(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    page = story.page.page
    server.script("slow", agent("Redis is simplest.", SAYS))
    server.hold(30, "slow")
    story.open()
    story.team(server_team(server, critic="slow"))
    rows = [f"Is {store} enough?" for store in ("Redis", "mmap", EVIL, "SQLite")]
    options = "'{{value}}', 'team.yaml', limit=3, name='stores'"
    story.run(f"import nb_agents\nnb_agents.map({rows}, {options})")
    expect(status_item(story)).to_have_text("1 sweep")
    expect(stop_button(story)).to_have_text("Stop 1 sweep")
    status_item(story).click()
    sweep = row(story, "stores")
    expect(sweep.locator("> summary .state")).to_have_text("0 of 4 rows")
    sweep.locator("> summary").click()
    expect(sweep.locator(".session")).to_have_count(3)
    shoot(story, artifacts, "page-sweep")
    assert sweep.locator("img, script").count() == 0
    story.page.command("launcher:create")
    server.release()
    expect(sweep.locator("> summary .state")).to_have_text("complete")
    expect(toast(story)).to_have_count(1)
    expect(toast(story)).to_contain_text("Complete, 4 of 4 rows: Each value")
    toast(story).get_by_role("button", name="Show").click()
    expect(page.locator(".jp-NotebookPanel")).to_be_visible()
    expect(sweep.locator(".session .state").first).to_be_visible()
    expect(sweep.locator(".session")).to_have_count(4)
    shoot(story, artifacts, "page-sweep-over")
    sweep.locator(".session", has_text="onerror").locator("summary").click()
    sweep.get_by_role("button", name="Is Say").click()
    expect(page.locator(".nba-tab:visible")).to_contain_text("Redis is simplest.")


def test_a_sweep_is_stopped_from_the_sidebar(story: Story, server: ModelServer) -> None:
    server.script("slow", agent("Redis is simplest.", SAYS))
    server.hold(30, "slow")
    story.open()
    story.team(server_team(server, critic="slow"))
    i = story.run(
        "import nb_agents\nnb_agents.map(range(9), '{{value}}', 'team.yaml', name='many')"
    )
    expect(status_item(story)).to_have_text("1 sweep")
    status_item(story).click()
    sweep = row(story, "many")
    sweep.locator("> summary").click()
    sweep.get_by_role("button", name="Stop", exact=True).click()
    sweep.get_by_role("button", name="Stop now").click()
    expect(sweep.locator("> summary .state")).to_have_text("stopped")
    expect(story.card(i)).to_contain_text("Run the cell again")


def test_waiting_run_is_notified_if_the_notebook_is_hidden(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    (story.folder / "survey.yaml").write_text(RECIPE)
    story.open()
    live_run(story, server)
    i = story.run("%agents --recipe survey.yaml", wait=False)
    expect(status_item(story)).to_have_text("2 runs")
    story.page.command("launcher:create")
    workspace = story.turn(session=1) / "workspaces" / "survey"
    story.page.wait_until(workspace.is_dir, what="the step's workspace")
    (workspace / "go").touch()
    expect(status_item(story)).to_have_text("2 runs · 1 waits for you")
    expect(toast(story)).to_contain_text("Waits for you: survey")
    toast(story).get_by_role("button", name="Show").click()
    story.panel(i).get_by_role("button", name="Approve").click()
    expect(status_item(story)).to_have_text("1 run")
    story.page.command("nb-agents:show-sessions")
    shoot(story, artifacts, "page-waits")
    story.page.command("nb-agents:stop-all-now")
    expect(status_item(story)).to_be_hidden()


def test_sessions_are_resumed_continued_renamed_exported_and_deleted(story: Story) -> None:
    story.open()
    i = story.start(TASK, story.team(demo_team(1)))
    story.wait_running(i)
    page = story.page.page
    page.keyboard.press("Alt+Shift+S")
    expect(story.chip(i)).to_have_text(re.compile("Stopping"))
    page.keyboard.press("Alt+Shift+X")
    story.wait_card(i, "stopped")
    page.keyboard.press("Alt+Shift+A")
    session = row(story, story.sessions()[0].name)
    ways: tuple[Callable[[], None], ...] = (
        lambda: page.keyboard.press("Alt+Shift+R"),
        lambda: session.get_by_role("button", name="Resume").click(),
        # On the card in a tab without a notebook.
        lambda: page.locator(".nba-tab:visible").get_by_role("button", name="Resume").click(),
    )
    for number, resume in enumerate(ways, 2):
        resume()
        expect(session.locator("li")).to_have_count(number)
        expect(status_item(story)).to_have_text("1 run")
        expect(page.locator(".nba-tab:visible .nba header .chip")).to_have_text("running")
        page.keyboard.press("Alt+Shift+X")
        expect(session.locator("summary .state")).to_have_text("stopped")
        assert story.events("turn_started", number)[0]["resumes"] == number - 1

    session.get_by_role("button", name="Continue…").click()
    page.locator(".jp-Dialog textarea").fill("And what does it cost?")
    story.page.accept_dialog()
    expect(session.locator("summary")).to_contain_text("And what does it cost?")
    page.keyboard.press("Alt+Shift+X")
    expect(session.locator("summary .state")).to_have_text("stopped")

    story.harmless.append("/rename")  # the browser logs each refusal
    session.get_by_role("button", name="Rename…").click()
    page.locator(".jp-Dialog input").fill("../elsewhere")
    story.page.accept_dialog()
    expect(toast(story)).to_contain_text("can't be a directory name")
    session.get_by_role("button", name="Rename…").click()
    page.locator(".jp-Dialog input").fill("caches")
    story.page.accept_dialog()
    session = row(story, "caches")
    expect(session.locator("summary small")).to_contain_text("5 turns · ")
    with page.expect_download() as download:
        session.get_by_role("button", name="Export").click()
    assert download.value.suggested_filename == "caches.zip"
    names = zipfile.ZipFile(download.value.path()).namelist()
    assert "caches/turn_5/events.jsonl" in names

    session.get_by_role("button", name="Delete…").click()
    page.locator(".jp-Dialog").get_by_role("button", name="Cancel").click()
    expect(session).to_have_count(1)
    session.get_by_role("button", name="Delete…").click()
    page.locator(".jp-Dialog").get_by_role("button", name="Delete").click()
    expect(session).to_have_count(0)
    assert not list(story.folder.glob(".nb_agents/sessions/*"))
