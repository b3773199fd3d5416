"""One JupyterLab and one page in each process; a notebook for each test.

A page takes seconds to load, and users keep theirs open for days. So the tests share one, in which
they open their notebooks one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from playwright.sync_api import BrowserContext, Page, Request, expect

from tests.browser.lab import Lab, NotebookPage, chromium, start_lab
from tests.browser.story import Story
from tests.model_server import ModelServer

expect.set_options(timeout=60_000)


# While a browser is open, its thread can run no async tests, so it is closed after this directory.
@pytest.fixture(scope="package")
def browser() -> Iterator[BrowserContext]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with start_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="package")
def tabs(browser: BrowserContext) -> Iterator[list[NotebookPage]]:
    """The open page, if there is one."""
    tabs: list[NotebookPage] = []
    yield tabs
    for tab in tabs:
        tab.close()


@pytest.fixture
def tab(lab: Lab, browser: BrowserContext, tabs: list[NotebookPage]) -> NotebookPage:
    """The page shared by consecutive tests with the same JupyterLab."""
    if tabs and tabs[0].lab is not lab:
        tabs.pop().close()
    if not tabs:
        tabs.append(NotebookPage(lab, browser))
    return tabs[0]


@pytest.fixture
def fresh_tab(tab: NotebookPage) -> Iterator[NotebookPage]:
    """The page, reloaded. It replaces `tab` in files that test more than notebooks."""
    tab.leave()
    yield tab
    tab.leave()


@pytest.fixture
def story(lab: Lab, tab: NotebookPage, request: pytest.FixtureRequest) -> Iterator[Story]:
    """A notebook in the page. After each test, the page is checked for errors and requests."""
    failed = request.session.testsfailed
    file_and_name = request.node.nodeid.rpartition("/")[2]
    name = re.sub(r"\W+", "_", file_and_name)[:100]
    attempt = getattr(request.node, "execution_count", 1)
    folder = lab.root / (name if attempt == 1 else f"{name}_{attempt}")
    folder.mkdir()
    is_as_before = False
    try:
        with Story(tab, folder) as story:
            yield story
            story.check()
        is_as_before = tab.is_loaded() and request.session.testsfailed == failed
    finally:
        if is_as_before:
            tab.close_notebooks()
        else:
            tab.leave()  # the next test reloads it
        lab.end_kernels()


class Canary:
    """A server that a page must not ask for anything.

    Attributes:
        url: An address of it.
        asked: The requested paths.
    """

    def __init__(self) -> None:
        asked = self.asked = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret.png"


@pytest.fixture
def canary() -> Iterator[Canary]:
    canary = Canary()
    thread = Thread(target=canary.server.serve_forever)
    thread.start()
    yield canary
    canary.server.shutdown()
    thread.join()
    canary.server.server_close()


def requests_of(page: Page, allowed: str) -> list[str]:
    """Collect the requests of a page to other addresses."""
    asked: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith((allowed, "data:", "blob:", "about:", "file:")):
            asked.append(request.url)

    page.on("request", note)
    return asked
