"""The pages of the documentation in a narrow and in a wide window."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext

from tests.browser.site import WIDTHS, broken_words, opened, overflow_px
from tests.docs.site import build_reference

PAGES = ("team-file", "recipe-language", "magics", "command-line", "rest", "events", "errors")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_reference(tmp_path_factory.mktemp("site")) / "reference"


@pytest.mark.parametrize("width", WIDTHS)
def test_reference_fits_its_window_and_no_key_is_broken(
    site: Path, browser: BrowserContext, width: int
) -> None:
    for name in PAGES:
        with opened(browser, site / f"{name}.html", width) as page:
            assert overflow_px(page) <= 0, name
            assert broken_words(page) == [], name
