"""The load of live panels, and of one with many rows, on JupyterLab's main thread in Chromium."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.server import BenchServer
from bench.table import print_table, verdict
from tests.browser.lab import NotebookPage, chromium, start_lab
from tests.browser.story import Story
from tests.model_server import ModelServer, Reply, ToolCall

AGENTS = 5
WORDS_PER_SECOND = 50
WINDOW_S = 15
SHARE = 0.08
PANELS = {0: None, 1: SHARE, 10: 3 * SHARE}
"""Live panels in the notebook, of which three at most are in sight, and the share aimed at."""
ROWS = 500
LIMIT = 25
SWEEP_SHARE = 0.15
LONG = 1_000_000
"""Characters that an agent has written which is opened."""
OPEN_S = 0.2


def main(server: BenchServer) -> None:
    server.set_pace(WORDS_PER_SECOND)
    shares = {}
    instant = ModelServer(default=Reply(tool_calls=(ToolCall("new_answer", {"content": "So."}),)))
    with TemporaryDirectory() as root, start_lab(Path(root)) as lab, chromium() as browser:
        for count in PANELS:
            with NotebookPage(lab, browser) as page:
                story = Story(page, Path(root, str(count)))
                story.folder.mkdir()
                shares[count] = _share(story, server, count)
            lab.end_kernels()
        with NotebookPage(lab, browser) as page:
            story = Story(page, Path(root, "open"))
            story.folder.mkdir()
            open_share = _share(story, server, 1, opens=True)
        lab.end_kernels()
        with NotebookPage(lab, browser) as page, ModelServer() as long:
            story = Story(page, Path(root, "long"))
            story.folder.mkdir()
            open_s = _open_s(story, long)
        lab.end_kernels()
        with NotebookPage(lab, browser) as page, instant:
            story = Story(page, Path(root, "sweep"))
            story.folder.mkdir()
            sweep_share = _sweep_share(story, instant.url)
    rows = [
        [
            str(count),
            f"{share:.1%}",
            f"<= {aim:.0%}" if aim else "",
            verdict(share <= aim) if aim else "",
        ]
        for (count, aim), share in zip(PANELS.items(), shares.values(), strict=True)
    ]
    title = (
        f"panel: share of a core that the page's main thread needs, {AGENTS} agents x "
        f"{WORDS_PER_SECOND} words/s in each panel, over {WINDOW_S} s"
    )
    print_table(title, ("panels", "share", "aim", ""), rows)
    is_met = verdict(open_share <= SHARE)
    title = f"panel with a row open, {AGENTS} agents x {WORDS_PER_SECOND} words/s"
    print_table(title, ("share", "aim", ""), [[f"{open_share:.1%}", f"<= {SHARE:.0%}", is_met]])
    title = f"an agent that has written {LONG} characters, from the click to their being drawn"
    print_table(
        title, ("s", "aim", ""), [[f"{open_s:.2f}", f"<= {OPEN_S}", verdict(open_s <= OPEN_S)]]
    )
    is_met = verdict(sweep_share <= SWEEP_SHARE)
    title = f"panel of a sweep of {ROWS} rows, {LIMIT} at a time, an instant server"
    print_table(
        title, ("share", "aim", ""), [[f"{sweep_share:.1%}", f"<= {SWEEP_SHARE:.0%}", is_met]]
    )


def _sweep_share(story: Story, url: str) -> float:
    """Give the share while a sweep works; most of it, as its first rows load what is needed."""
    backend = {"type": "openai", "model": "instant", "base_url": url, "api_key": "k"}
    story.open()
    story.team({"agents": [{"id": "a", "backend": backend}]})
    cell = f"nb_agents.map(range({ROWS}), '{{{{value}}}}', 'team.yaml', limit={LIMIT})"
    i = story.run(f"import nb_agents\n{cell}")
    story.panel(i).wait_for()
    return _busy_share(story)


def _share(story: Story, server: BenchServer, count: int, opens: bool = False) -> float:
    backend = {"type": "openai", "model": "bench", "base_url": server.url, "api_key": "k"}
    team = {"agents": [{"id": f"a{n}", "backend": backend} for n in range(AGENTS)]}
    story.open()
    for _ in range(count):
        story.start("Write.", story.team(team))
    if count:
        server.wait_streaming(count * AGENTS)
    if opens:
        story.page.page.locator(".nba button.open").first.click()
        story.page.page.locator(".nba .transcript .part").first.wait_for()
    return _busy_share(story)


_OPEN = """length => new Promise(resolve => {
    const button = document.querySelector('.nba button.open'), began = performance.now();
    const look = () => {
        const shown = document.querySelector('.nba .transcript');
        if ((shown?.textContent.length ?? 0) < length) requestAnimationFrame(look);
        // The frame after this one has been drawn.
        else requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
    };
    button.click();
    look();
})"""


def _open_s(story: Story, server: ModelServer) -> float:
    """Measure how long an agent takes to open, in the page, the second time."""
    # A reply may have 500 kB: three of them, the last of which is held when all is there.
    calls = (ToolCall("write_file", {"path": "a.md", "content": "So."}),)
    server.script("long", _long(300, calls), _long(300, calls), _long(450))
    server.hold(420)
    backend = {"type": "openai", "model": "long", "base_url": server.url, "api_key": "k"}
    story.open()
    story.start("Write.", story.team({"agents": [{"id": "a", "backend": backend}]}))
    server.wait_until(lambda: server.count() == 3)
    server.wait_chunks(420)
    open_button = story.page.page.locator(".nba button.open")
    open_button.wait_for()
    story.page.page.evaluate(_OPEN, LONG)
    open_button.click()
    return float(story.page.page.evaluate(_OPEN, LONG)) / 1000


def _long(words: int, calls: tuple[ToolCall, ...] = ()) -> Reply:
    """A reply of so many thousand characters."""
    return Reply(" ".join(["word-" * 200 + "end"] * words), calls)


def _busy_share(story: Story) -> float:
    """Measure how much of a core the page's main thread takes, by that thread's own clock."""
    devtools = story.page.page.context.new_cdp_session(story.page.page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy_s() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")

    before = busy_s()
    time.sleep(WINDOW_S)
    return (busy_s() - before) / WINDOW_S
