"""Tests with jupyter-collaboration, which run only if it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.browser.lab import Lab, NotebookPage, chromium, start_lab
from tests.browser.story import Story
from tests.model_server import ModelServer

collect_ignore_glob = [] if find_spec("jupyter_server_ydoc") else ["test_*.py"]

PEOPLE = ("ada", "kim")
USERS = "--ServerApp.identity_provider_class=tests.collaboration.named_users.NamedUsers"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with start_lab(tmp_path, extra=[USERS]) as lab:
        yield lab


@pytest.fixture
def contexts(lab: Lab) -> Iterator[list[BrowserContext]]:
    """A browser for each user."""
    with chromium() as context:
        assert context.browser
        made = [context.browser.new_context() for _ in PEOPLE]
        for each, name in zip(made, PEOPLE, strict=True):
            each.add_cookies([{"name": "login", "value": name, "url": lab.url}])
        yield made


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def stories(
    lab: Lab, contexts: list[BrowserContext], server: ModelServer
) -> Iterator[tuple[Story, Story]]:
    """A page of each user, in one directory."""
    folder = lab.root / "shared"
    folder.mkdir()
    with NotebookPage(lab, contexts[0]) as page, NotebookPage(lab, contexts[1]) as other_page:
        for each in (page, other_page):
            _keep_waiting(each.page)
        yield Story(page, folder), Story(other_page, folder)


def _keep_waiting(page: Page) -> None:
    """Answer JupyterLab's question whether to wait longer for a document, on a busy machine."""
    dialog = page.locator(".jp-Dialog", has_text="is taking some time to load")
    page.add_locator_handler(dialog, lambda shown: shown.get_by_text("Continue waiting").click())


def artifact(name: str) -> Path:
    """Return the path of a file for people to look at."""
    folder = Path("tests/artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name
