"""What the live panel costs the page: the main thread of a real JupyterLab in Chromium."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.server import BenchServer
from tests.bench.table import print_table, verdict
from tests.browser.lab import NotebookPage, chromium, start_lab
from tests.browser.story import Story

AGENTS = 5
WORDS_PER_SECOND = 50
WINDOW_S = 15
PANELS = (0, 1, 10)
SHARE = 0.08


def main(server: BenchServer) -> None:
    server.set_pace(WORDS_PER_SECOND)
    shares = {}
    with TemporaryDirectory() as root, start_lab(Path(root)) as lab, chromium() as browser:
        for count in PANELS:
            with NotebookPage(lab, browser) as page:
                story = Story(page, Path(root, str(count)))
                story.folder.mkdir()
                shares[count] = _share(story, server, count)
            lab.end_kernels()
    rows = [
        [
            str(count),
            f"{share:.1%}",
            f"<= {SHARE:.0%}" if count == 1 else "",
            verdict(share <= SHARE) if count == 1 else "",
        ]
        for count, share in shares.items()
    ]
    title = (
        f"panel: share of a core that the page's main thread needs, {AGENTS} agents x "
        f"{WORDS_PER_SECOND} words/s in each panel, over {WINDOW_S} s"
    )
    print_table(title, ("panels", "share", "aim", ""), rows)


def _share(story: Story, server: BenchServer, count: int) -> float:
    backend = {"type": "openai", "model": "bench", "base_url": server.url, "api_key": "k"}
    team = {"agents": [{"id": f"a{n}", "backend": backend} for n in range(AGENTS)]}
    story.open()
    for _ in range(count):
        story.start("Write.", story.team(team))
    if count:
        server.wait_streaming(count * AGENTS)
    devtools = story.page.page.context.new_cdp_session(story.page.page)
    devtools.send("Performance.enable")

    def busy_s() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")

    before = busy_s()
    time.sleep(WINDOW_S)
    return (busy_s() - before) / WINDOW_S
