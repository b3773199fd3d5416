"""The gutter of a file's editor that shows which agent wrote each line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

import nb_agents
from nb_agents import RunOptions
from nb_agents.testing import Answer, Call, ScriptedModel, Turn
from tests.browser.lab import Lab, NotebookPage
from tests.browser.test_page import THEMES
from tests.kit.teams import TeamSpec
from tests.team_kit import WAIT_S

TASK = "Write the report on caches with a table, and keep it to one page for the meeting"
MINE = "# Report\n\nMine stays.\n"


@pytest.fixture
def report(lab: Lab, tmp_path: Path) -> Path:
    """A user file that two agents have edited, one of them with a shell command."""
    site = lab.root / "site"
    site.mkdir(exist_ok=True)
    file = site / "report.md"
    file.write_text(MINE)
    text = MINE + "".join(f"\nPoint {n} of the researcher weighs cold reads.\n" for n in range(6))
    play(lab, site, "researcher", Call("write_file", {"path": str(file), "content": text}))
    command = f"printf '\\nThe critic doubts it.\\nFor two reasons.\\n' >> '{file}'"
    play(lab, site, "critic", Call("run_command", {"command": command}))
    return file


def play(lab: Lab, site: Path, name: str, *calls: Call) -> nb_agents.Run:
    model = ScriptedModel(*(Turn(calls=(each,)) for each in calls), Answer("Done."))
    backend = {"type": "python", "instance": model, "enable_mcp_command_line": True}
    places = [{"path": str(site), "permission": "write"}]
    team: dict[str, Any] = {
        "agents": [{"id": name, "backend": backend}],
        "orchestrator": {"skip_voting": True, "context_paths": places},
    }
    options = RunOptions(session_root=lab.root / ".nb_agents" / "sessions")
    run = nb_agents.start(TASK, TeamSpec.model_validate(team), f"by-{name}", options=options)
    run.wait(WAIT_S)
    return run


@pytest.fixture
def page(lab: Lab, fresh_tab: NotebookPage) -> Iterator[NotebookPage]:
    fresh_tab.page.goto(f"{lab.url}/lab?token={lab.token}&reset")
    fresh_tab.page.locator(".jp-LauncherCard").first.wait_for()
    fresh_tab.page.wait_for_selector("#jupyterlab-splash", state="detached")
    yield fresh_tab


def open_file(page: NotebookPage, path: str) -> Locator:
    page.command("docmanager:open", path=path, factory="Editor")
    editor = page.page.locator(".jp-FileEditor:visible")
    expect(editor.locator(".cm-content")).to_be_visible()
    return editor


def authors(editor: Locator) -> list[str]:
    """Return the tooltips' first lines, which are agents, of the marked lines."""
    titles = editor.locator(".nba-author").evaluate_all("all => all.map(each => each.title)")
    return [each.partition("\n")[0] for each in titles]


def test_gutter_names_the_agents_and_the_line_their_calls(
    page: NotebookPage, report: Path, artifacts: Path
) -> None:
    editor = open_file(page, "site/report.md")
    page.command("nb-agents:blame")
    expect(editor.locator(".nba-author")).to_have_count(15)
    assert authors(editor) == ["researcher"] * 12 + ["critic"] * 3
    assert editor.locator(".nba-author:not(:empty)").all_text_contents() == ["researcher", "critic"]
    line = editor.get_by_role("status")
    expect(line).to_have_text(re.compile("^Line 1: from you"))
    editor.get_by_text("The critic doubts it.").click()
    expect(line).to_have_text(re.compile("^Line 17: critic · .*run_command 1.0 · .*by-critic/1"))
    expect(line).to_contain_text(f"“{TASK}”")
    for short, theme in THEMES.items():
        page.set_theme(theme)
        for width in (720, 1400):
            page.page.set_viewport_size({"width": width, "height": 700})
            page.screenshot(artifacts / f"blame-{short}-{width}.png")

    page.command("nb-agents:blame")
    expect(editor.locator(".nba-author")).to_have_count(0)
    expect(line).to_have_count(0)


def test_line_that_the_user_edits_is_no_longer_an_agents(page: NotebookPage, report: Path) -> None:
    editor = open_file(page, "site/report.md")
    page.command("nb-agents:blame")
    expect(editor.locator(".nba-author")).to_have_count(15)
    editor.get_by_text("For two reasons.").click()
    page.page.keyboard.press("End")
    page.page.keyboard.type(" Or three.")
    expect(editor.locator(".nba-author")).to_have_count(14)
    line = editor.get_by_role("status")
    expect(line).to_contain_text("from you")
    expect(line).to_contain_text("The file on disk differs from this text.")
    page.command("docmanager:save")
    page.page.keyboard.press("Enter")
    page.page.keyboard.press("Backspace")
    expect(line).not_to_contain_text("differs")
    assert authors(editor) == ["researcher"] * 12 + ["critic"] * 2
    assert report.read_text().endswith("For two reasons. Or three.\n")


def test_context_menu_shows_the_authors_of_a_file_of_a_turn(
    lab: Lab, page: NotebookPage, report: Path
) -> None:
    note = Call("write_file", {"path": "notes.md", "content": "one\ntwo\n"})
    run = play(lab, report.parent, "ada", note)
    turn = run.path.relative_to(lab.root).as_posix()
    editor = open_file(page, f"nb-agents:{turn}/workspaces/ada/notes.md")
    editor.locator(".cm-content").click(button="right")
    page.page.locator(".lm-Menu-item").filter(has_text="Show Who Wrote Each Line").click()
    expect(editor.locator(".nba-author")).to_have_count(2)
    assert authors(editor) == ["ada", "ada"]


def test_file_without_agents_says_so(lab: Lab, page: NotebookPage) -> None:
    (lab.root / "plain.txt").write_text("mine\n")
    editor = open_file(page, "plain.txt")
    page.command("nb-agents:blame")
    expect(editor.get_by_role("status")).to_have_text("No line of this file is from an agent.")
