"""The form for a new team in the launcher, and checks of team files during editing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.lab import Lab, NotebookPage
from tests.browser.test_page import THEMES
from tests.kit.teams import TeamSpec

RECIPE = """name: look
description: Looks at a file.
version: 1.0.0
steps:
  - id: see
    agent: helper
    promt: Look at it.
"""


@pytest.fixture
def page(lab: Lab, fresh_tab: NotebookPage) -> Iterator[NotebookPage]:
    """JupyterLab with its launcher, in an empty directory."""
    fresh_tab.page.goto(f"{lab.url}/lab?token={lab.token}&reset")
    fresh_tab.page.locator(".jp-LauncherCard").first.wait_for()
    fresh_tab.page.wait_for_selector("#jupyterlab-splash", state="detached")
    yield fresh_tab
    for made in (*lab.root.glob("team*.yaml"), *lab.root.glob("team*.ipynb")):
        made.unlink()


def open_form(page: Page) -> Locator:
    page.locator(".jp-LauncherCard").filter(has_text="New Agent Team").click()
    form = page.locator(".nba-new")
    form.wait_for()
    return form


def create(page: Page) -> None:
    page.locator(".jp-Dialog .jp-mod-accept").click()


def editor(page: Page) -> Locator:
    return page.locator(".jp-FileEditor:visible .cm-content")


def test_form_creates_and_opens_a_team_file(lab: Lab, page: NotebookPage, artifacts: Path) -> None:
    for short, theme in THEMES.items():
        page.set_theme(theme)
        form = open_form(page.page)
        expect(form.locator(".agent")).to_have_count(3)
        for width in (720, 1400):
            page.page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(artifacts / f"new-team-{short}-{width}.png")
        if short == "dark":
            page.page.keyboard.press("Escape")
    form.get_by_role("button", name="Remove").first.click()
    form.get_by_label("Name", exact=True).first.fill("critic")
    form.get_by_label("Role").first.fill("You doubt every claim.")
    form.get_by_label("File name").fill("team_mine")
    form.get_by_role("checkbox", name="Search the web").check()
    create(page.page)
    expect(editor(page.page)).to_contain_text("enable_web_search: true")
    team = TeamSpec.from_file(lab.root / "team_mine.yaml")
    assert [agent.id for agent in team.agents] == ["critic", "cleo"]
    assert team.agents[0].system_message == "You doubt every claim."
    assert [agent.backend.type for agent in team.agents] == ["demo", "demo"]
    assert all(agent.backend.enable_web_search for agent in team.agents)


def test_form_shows_a_missing_key_and_refuses_a_taken_file_name(
    lab: Lab, page: NotebookPage
) -> None:
    (lab.root / "team_taken.yaml").write_text("mine")
    form = open_form(page.page)
    form.get_by_label("Provider").first.select_option("together")
    expect(form.locator(".key").first).to_have_text(re.compile("missing: set TOGETHER_API_KEY"))
    form.get_by_label("Provider").first.select_option("vllm")
    form.get_by_label("Model").first.fill("qwen")
    form.get_by_label("Server address").first.fill("http://gpu:8000/v1")
    form.get_by_label("File name").fill("team_taken.yaml")
    create(page.page)
    expect(form.get_by_role("alert")).to_contain_text("team_taken.yaml already exists")
    assert (lab.root / "team_taken.yaml").read_text() == "mine"
    form.get_by_label("File name").fill("team_other.yaml")
    create(page.page)
    expect(editor(page.page)).to_contain_text("base_url: http://gpu:8000/v1")


def test_form_creates_and_opens_a_notebook_of_three_cells(lab: Lab, page: NotebookPage) -> None:
    form = open_form(page.page)
    form.get_by_label("Make").select_option("notebook")
    expect(form.get_by_role("checkbox", name="Search the web")).to_be_hidden()
    create(page.page)
    expect(page.page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(3)
    notebook = nbformat.read(lab.root / "team.ipynb", as_version=4)
    assert notebook.cells[1].source.startswith("%%agents\n")


def marks(page: Page, kind: str) -> Locator:
    return page.locator(f".jp-FileEditor:visible .cm-lintRange-{kind}")


def open_file(page: NotebookPage, name: str, text: str) -> None:
    (page.lab.root / name).write_text(text)
    page.command("docmanager:open", path=name, factory="Editor")
    expect(editor(page.page)).to_be_visible()


def test_a_team_file_is_checked_as_it_is_typed(page: NotebookPage, artifacts: Path) -> None:
    text = "agents:\n  - id: ada\n    backend:\n      type: demo\n      temprature: 1\n"
    open_file(page, "team_typed.yaml", text)
    wrong = marks(page.page, "error")
    expect(wrong).to_have_text("temprature")
    for short, theme in THEMES.items():
        page.set_theme(theme)
        wrong.hover()
        expect(page.page.locator(".cm-tooltip-lint")).to_contain_text("did you mean 'temperature'?")
        page.screenshot(artifacts / f"check-{short}.png")
        page.page.mouse.move(0, 0)
    wrong.dblclick()
    page.page.keyboard.type("temperature")
    expect(wrong).to_have_count(0)
    page.page.keyboard.press("Control+End")
    page.page.keyboard.type("oops")
    expect(marks(page.page, "error")).to_have_text("oops")


def test_recipes_are_checked_and_other_yaml_files_are_not(page: NotebookPage) -> None:
    asked: list[str] = []
    page.page.on("request", lambda each: asked.append(each.url))
    open_file(page, "team_ci.yaml", "stages: [build]\nagents: none\nbuild: {script: make}\n")
    open_file(page, "team_recipe.yaml", RECIPE)
    expect(marks(page.page, "error")).to_have_text("promt")
    assert len([url for url in asked if "/nb-agents/check" in url]) == 1
