"""JupyterHub with two users and a prefix: each starts, sees and stops only their own runs."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import BrowserContext

from tests.browser.hub import Hub
from tests.browser.lab import NotebookPage
from tests.browser.story import Story
from tests.browser.test_story import TASK, three_at_work
from tests.model_server import ModelServer

_ASK = """async url => {
  const token = document.cookie.match(/_xsrf=([^;]+)/)[1];
  const answer = await fetch(url, {headers: {'X-XSRFToken': token}});
  return [answer.status, await answer.text()];
}"""


def ask(page: NotebookPage, url: str) -> tuple[int, str]:
    """Send a request from a page with its user's login."""
    status, text = page.page.evaluate(_ASK, url)
    return status, text


def test_hub_user_sees_and_stops_only_own_runs(
    browser: BrowserContext, server: ModelServer
) -> None:
    assert browser.browser is not None
    with (
        TemporaryDirectory(
            prefix="hub-", ignore_cleanup_errors=True
        ) as place,  # sockets' paths are short
        Hub(Path(place)) as hub,
        browser.browser.new_context() as ada_s,
        browser.browser.new_context() as ben_s,
    ):
        ada, ben = hub.log_in("ada", ada_s), hub.log_in("ben", ben_s)
        with NotebookPage(ada, ada_s) as page, NotebookPage(ben, ben_s) as other:
            folder, beside = ada.root / "work", ben.root / "work"
            with Story(page, folder) as story, Story(other, beside) as second:
                story.open()
                i = story.start(TASK, three_at_work(story, server))
                story.wait_running(i)
                second.open()
                status, runs = ask(other, f"{ben.url}nb-agents/runs")
                assert (status, json.loads(runs)) == (200, [])
                assert ask(other, f"{ada.url}nb-agents/runs")[0] == 403

                page.click_button("Stop", i)
                page.click_button("Stop now", i)
                story.wait_card(i, "stopped").get_by_text("Nothing was lost").wait_for()
                assert story.metadata()["receipt"]["source"] == "widget"
                server.wait_closed()
                story.check()
