"""Take screenshots of the documentation's pages, in light and dark, at two widths.

    make docs && python -m tests.browser.site [DIRECTORY]

It needs Chromium. The pictures go to ``build/screenshots``, or to the given directory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import BrowserContext, Page

from tests.browser.lab import chromium

__all__ = ["WIDTHS", "broken_words", "opened", "overflow_px"]

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "docs"
PAGES = (
    "index",
    "start/first-cell",
    "howto/sweeps",
    "reference/team-file",
    "reference/magics",
    "notebooks/quickstart",
)
WIDTHS = (720, 1400)
"""Widths of a window: half a screen and a whole one."""
THEMES = ("light", "dark")
MAX_HEIGHT = 2400
"""Limit of a picture's height in pixels."""


@contextmanager
def opened(browser: BrowserContext, file: Path, width: int, theme: str = "light") -> Iterator[Page]:
    """Open a page of the site.

    Args:
        browser: The browser.
        file: The HTML file.
        width: The window's width in pixels.
        theme: "light" or "dark".
    """
    page = browser.new_page()
    try:
        page.set_viewport_size({"width": width, "height": 900})
        page.add_init_script(f"localStorage.setItem('mode', '{theme}')")
        page.goto(file.as_uri())
        page.wait_for_selector(f"html[data-theme={theme}]")
        yield page
    finally:
        page.close()


def overflow_px(page: Page) -> int:
    """Return by how many pixels a page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def broken_words(page: Page) -> list[str]:
    """Return the words of code in tables that continue on another line."""
    return list(
        page.evaluate(
            r"""() => [...document.querySelectorAll('article td code')].flatMap(code => {
              const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT), broken = [];
              for (let text; (text = texts.nextNode());) {
                for (const word of text.data.matchAll(/\S+/g)) {
                  const range = document.createRange();
                  range.setStart(text, word.index);
                  range.setEnd(text, word.index + word[0].length);
                  const lines = new Set([...range.getClientRects()].map(r => Math.round(r.top)));
                  if (lines.size > 1) broken.push(word[0]);
                }
              }
              return broken;
            })"""
        )
    )


def main(folder: Path) -> None:
    """Take the pictures, and print how far each page is wider than its window."""
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name in PAGES:
            for width in WIDTHS:
                for theme in THEMES:
                    _shoot(browser, name, width, theme, folder)


def _shoot(browser: BrowserContext, name: str, width: int, theme: str, folder: Path) -> None:
    with opened(browser, SITE / f"{name}.html", width, theme) as page:
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": width, "height": min(height, MAX_HEIGHT)})
        file = folder / f"{name.replace('/', '_')}-{width}-{theme}.png"
        page.screenshot(path=file)
        print(f"{file.name}: {overflow_px(page)} px too wide, broken words: {broken_words(page)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "screenshots")
