"""Record the README's animation: a team is stopped, resumed and rewound.

    python -m tests.browser.film [FILE]

It needs Chromium and ``pip install -e '.[test]'``. Each frame is a screenshot of one cell's output
in JupyterLab.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, Locator, expect

from tests.browser.lab import NotebookPage, chromium, start_lab
from tests.browser.story import Story, demo_team

PICTURE = Path(__file__).parents[2] / "notebooks" / "images" / "stop-and-resume.gif"
MAX_BYTES = 600_000
TASK = "Compare three ways to cache embeddings for 10 million documents"
PACES = {"researcher": 60, "critic": 12, "builder": 9}  # words per second
SIZE = (1000, 900)
FRAME_S = 0.4


class Film:
    """Frames of a page.

    Attributes:
        story: The recorded notebook.
        frames: The images so far, with the milliseconds that each is shown.
    """

    def __init__(self, story: Story) -> None:
        self.story = story
        self.frames: list[tuple[Image.Image, int]] = []
        self._clip: FloatRect | None = None

    def shoot(self, shown_ms: int = 400) -> None:
        """Add a frame of the current page."""
        page = self.story.page.page
        if self._clip is None:
            box = page.locator(".jp-NotebookPanel-notebook:visible").first.bounding_box()
            assert box is not None
            self._clip = FloatRect(**box)
        png = page.screenshot(clip=self._clip, animations="allow", caret="initial")
        self.frames.append((Image.open(io.BytesIO(png)).convert("RGB"), shown_ms))

    def roll(self, seconds: float) -> None:
        """Add a frame every `FRAME_S` for this many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            self.shoot()
            time.sleep(max(0.0, FRAME_S - (time.monotonic() - began)))

    def save(self, file: Path) -> None:
        """Write the frames as one GIF with one palette."""
        palette = self._palette()
        images = [frame.quantize(palette=palette, dither=0) for frame, _ in self.frames]
        shown = [ms for _, ms in self.frames]
        first, *rest = images
        first.save(file, save_all=True, append_images=rest, duration=shown, loop=0, optimize=True)

    def _palette(self) -> Image.Image:
        """Return the most frequent colours, such as greys, and rare ones, such as in a diff."""
        kept = [frame for frame, ms in self.frames if ms >= 1000]
        width, height = kept[0].size
        strip = Image.new("RGB", (width, height * len(kept)))
        for place, frame in enumerate(kept):
            strip.paste(frame, (0, place * height))
        common = strip.quantize(96).getpalette() or []
        rare = strip.quantize(32, Image.Quantize.MAXCOVERAGE).getpalette() or []
        palette = Image.new("P", (1, 1))
        palette.putpalette([*common[: 3 * 96], *rare[: 3 * 32]])
        return palette


def record(file: Path) -> None:
    """Start a team, stop it, resume it, and write the animation."""
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state  # other live runs are not shown
        _record(file)


def _record(file: Path) -> None:
    with tempfile.TemporaryDirectory() as root, start_lab(Path(root)) as lab, chromium() as browser:
        folder = lab.root / "film"
        folder.mkdir()
        with Story(NotebookPage(lab, browser), folder) as story:
            _play(story, film := Film(story))
            story.check()
    film.save(file)


def _play(story: Story, film: Film) -> None:
    story.page.page.set_viewport_size({"width": SIZE[0], "height": SIZE[1]})
    story.open()
    story.page.page.keyboard.press("Control+b")  # more space without the file browser
    team = demo_team(25)
    for each, (name, pace) in zip(team["agents"], PACES.items(), strict=True):
        each.update(id=name, backend={"type": "demo", "words_per_second": pace})
    i = story.start(TASK, story.team(team))
    story.wait_running(i)
    film.roll(5)
    story.page.click_button("Stop", i)
    film.roll(2)
    story.page.click_button("Stop now", i)
    story.wait_card(i, "stopped").scroll_into_view_if_needed()
    film.shoot(3000)
    resumed = story.run("%agents resume", wait=False)
    panel = story.panel(resumed)
    panel.get_by_role("button", name="Timeline").click()
    panel.locator(".timeline svg[aria-label]").scroll_into_view_if_needed()
    film.roll(4)
    expect(story.card(resumed)).to_contain_text("complete", timeout=120_000)
    card = story.card(resumed)
    card.scroll_into_view_if_needed()
    film.shoot(2000)
    card.locator("summary", has_text="What happened").click()
    card.locator("svg[aria-label]").scroll_into_view_if_needed()
    film.shoot(2000)
    _go_back(story, film, card)


def _go_back(story: Story, film: Film, card: Locator) -> None:
    """Click on an answer, view the change of a file, write a message, and start the fork."""
    page = story.page.page
    card.locator("svg[data-point]:has(text)").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("summary").first).to_be_visible()
    film.shoot(1800)
    dialog.locator("summary").first.click()
    dialog.locator("pre:visible").evaluate("diff => diff.scrollIntoView({block: 'end'})")
    film.shoot(3000)
    dialog.get_by_role("textbox").focus()
    page.keyboard.type("Think of the cost, too.")
    film.shoot(1800)
    dialog.get_by_role("button", name="Go back").click()
    expect(page.locator(".nba-tab [data-point], .nba-tab .nba").first).to_be_attached(
        timeout=60_000
    )
    film.roll(3)
    expect(page.locator(".nba-tab")).to_contain_text("complete", timeout=120_000)
    film.shoot(3500)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else PICTURE
    record(target)
    print(f"{target}: {target.stat().st_size:,} bytes (at most {MAX_BYTES:,})")
