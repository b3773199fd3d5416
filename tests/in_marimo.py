"""Shows runs, a sweep and a live panel in marimo, and stops a run there: ``make marimo``.

Args: the environment that has marimo and nb_agents.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2
from playwright.sync_api import Page, expect

from tests.browser.lab import chromium
from tests.model_server import free_port, wait_until

CELLS = Path(__file__).with_name("marimo_cells.py")
START_S, SHOWN_MS = 60, 60_000


def main(environment: str) -> int:
    """Serve the notebook and check its page. Return the exit status."""
    with tempfile.TemporaryDirectory() as place:
        app = Path(place, CELLS.name)
        app.write_text(CELLS.read_text())
        program, port = Path(environment, "bin", "marimo").absolute(), free_port()
        url = f"http://127.0.0.1:{port}"
        command = [program, "run", app.name, "--headless", "--no-token", f"--port={port}"]
        with subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL) as server:
            try:
                wait_until(lambda: answers(url), START_S, "marimo")
                with chromium() as browser:
                    look_at(browser.new_page(), url)
            finally:
                server.terminate()
    print("4 passed, 0 failed")
    return 0


def answers(url: str) -> bool:
    """Return whether a server answers there."""
    try:
        return httpx2.get(url).is_success
    except httpx2.TransportError:
        return False


def look_at(page: Page, url: str) -> None:
    """Look for the run's card, the sweep's card, and the live panel; stop that run."""
    page.goto(url)
    run, sweep = page.get_by_label("nb_agents: Name a cache."), page.get_by_label("nb_agents: Ans")
    expect(run).to_contain_text("An LRU cache.", timeout=SHOWN_MS)
    expect(run).to_contain_text("✓ complete")
    expect(sweep).to_contain_text("✓ 2 complete", timeout=SHOWN_MS)
    panel = page.get_by_label("Agents: Count to a million.", exact=True)
    expect(panel.locator(".chip").first).to_have_text("running", timeout=SHOWN_MS)
    panel.get_by_role("button", name="Stop", exact=True).first.click()
    expect(panel.get_by_text("■ stopped")).to_be_visible(timeout=SHOWN_MS)
    expect(panel).to_contain_text("Stopped by you")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
