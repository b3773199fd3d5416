"""One JupyterLab in each process, one browser for each file; a notebook for each test."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.browser.lab import Lab, NotebookPage, chromium, start_lab
from tests.browser.story import Story
from tests.model_server import ModelServer

expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
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


@pytest.fixture
def story(lab: Lab, browser: BrowserContext, request: pytest.FixtureRequest) -> Iterator[Story]:
    """A notebook's story. After each test the page has shown and done nothing that it must not."""
    file_and_name = request.node.nodeid.rpartition("/")[2]
    folder = lab.root / re.sub(r"\W+", "_", file_and_name)[:100]
    folder.mkdir()
    try:
        with NotebookPage(lab, browser) as page:
            story = Story(page, folder)
            yield story
            story.check()
    finally:
        lab.end_kernels()
