"""Jupyter AI's chat sends a task to a team by the Agent Client Protocol, stops and continues it."""

import json
import os
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.lab import NotebookPage, chromium, start_lab
from tests.kit.sessions import load_session
from tests.model_server import wait_until

AGENT = Path(__file__).parents[1] / "acp" / "agent.py"
SAYS = ("say one two", "tool read a.md", "say three", "hold held", "RESUMED", "say four")
FIRST = "--PersonaManager.default_persona_id=jupyter-ai-personas::nb_agents::NbAgentsPersona"
OPEN = "jupyterlab-chat:createAndOpen"


@pytest.mark.timeout(300)
def test_chat_shows_stops_and_continues_a_team(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    backend = {"type": "acp", "command": [sys.executable, str(AGENT), *SAYS]}
    config = root / "team.json"
    team = {"agent": {"id": "ada", "backend": backend}, "cancel": {"grace_timeout": 0.5}}
    config.write_text(json.dumps(team))
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "NB_AGENTS_PERSONA_TEAM": str(config)}
    with start_lab(root, env=state, extra=[FIRST]) as lab, chromium() as browser:
        page = NotebookPage(lab, browser).page
        _close_warnings(page)
        page.goto(f"{lab.url}/lab?token={lab.token}&reset")
        chat = _opened_chat(page)
        _say(page, "Say it.")
        [held] = wait_until(lambda: list(root.rglob("held")))
        for shown in ("ada: one two", "ada: read a.md", "three"):
            expect(chat.get_by_text(shown).first).to_be_visible()
        _keep(page, "words")

        page.get_by_role("button", name="Stop generating").click()
        [session] = (root / ".nb_agents" / "sessions").glob("session_*")
        wait_until(lambda: load_session(session).turns[-1].view.ended_at)
        assert load_session(session).turns[-1].state == "stopped"
        expect(chat.get_by_text("Stopped.").first).to_be_visible()
        _keep(page, "stopped")

        held.unlink()
        _say(page, "resume")
        expect(chat.get_by_text("four").first).to_be_visible()
        wait_until(lambda: load_session(session).turns[-1].is_complete)
        _keep(page, "resumed")


def _opened_chat(page: Page) -> Locator:
    page.wait_for_function(f"window.jupyterapp?.commands.hasCommand('{OPEN}')")
    # Not the promise itself, which Chromium may collect if nothing in the page refers to it.
    page.evaluate("() => { jupyterapp.restored.then(() => { window.isRestored = true }) }")
    page.wait_for_function("window.isRestored")
    page.locator("#jupyterlab-splash").wait_for(state="detached")
    # Its notices about reloaded files cover the buttons.
    page.add_style_tag(content="#react-toastify-container { display: none }")
    args = "{name: 'team', inSidePanel: false}"
    page.evaluate(f"() => {{ jupyterapp.commands.execute('{OPEN}', {args}) }}")
    _box(page).wait_for()
    # A message that is sent earlier gets no answer.
    page.locator("#jp-main-dock-panel").get_by_text("nb_agents", exact=True).first.wait_for()
    return page.locator("#jp-main-dock-panel")


def _close_warnings(page: Page) -> None:
    """Close a dialog of JupyterLab's file browser that was seen once on a busy machine.

    Its cause is unknown. The chat doesn't use the file browser.
    """
    dialog = page.locator(".jp-Dialog", has_text="Directory not found")
    page.add_locator_handler(dialog, lambda found: found.locator(".jp-mod-accept").click())


def _box(page: Page) -> Locator:
    return page.locator("#jp-main-dock-panel textarea:not([aria-hidden])").first


def _say(page: Page, text: str) -> None:
    _box(page).click()
    _box(page).press_sequentially(text)
    _box(page).press("Enter")


def _journal(session: Path) -> str:
    return "".join(each.read_text() for each in session.rglob("events.jsonl"))


def _keep(page: Page, name: str) -> None:
    folder = Path(os.environ.get("NB_AGENTS_ARTIFACTS", "tests/artifacts"))
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"jupyter-ai-{name}.png")
