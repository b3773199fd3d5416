"""exploration"""
import pytest
from tests.browser.story import *
from tests.browser.conftest import *
from pathlib import Path
OUT=Path("/tmp/shots"); 
TASK="Compare three ways to cache embeddings for 10 M documents"

def test_shots(story, server):
    server.script("gpt-5-mini", agent("A **memory-mapped store** wins when the working set is larger than RAM, because:\n\n1. reads are page-cache hits,\n2. nothing is copied.\n\n| store | cold read |\n|---|---:|\n| mmap | 0.4 ms |\n| redis | 0.9 ms |\n", "I have what I need. ", {"notes.md": "# notes\n"*40}))
    server.script("gpt-4o", agent("Redis is simplest.", "I checked both proposals against the published figures, so the second proposal double-counts the index, and the third one leaves out the cost of a cold start which is most of it. " * 3, hang_after=30, files={"review.md":"x"*800}))
    server.script("gpt-4.1-mini", agent("bench", "The benchmark so far covers two of the three stores. Next I run the third with a cold cache and compare the tails. "*3, hang_after=41, files={"bench/cache.py":"x"*2100,"bench/data.py":"y"*800}))
    story.open()
    opt = story.team(server_team(server, researcher="gpt-5-mini", critic="gpt-4o", builder="gpt-4.1-mini"))
    i = story.start(TASK, opt)
    story.wait_running(i)
    story.page.wait_for_text("voted for", i)
    themes=("Light","Dark")
    def shots(name):
        for t in themes:
            story.page.set_theme(f"JupyterLab {t}")
            story.page.page.wait_for_timeout(300)
            story.page.screenshot(OUT/f"{name}-{t.lower()}.png", i)
        story.page.set_theme("JupyterLab Light")
    shots("running")
    story.page.page.set_viewport_size({"width":1000,"height":900})
    print(story.page.outputs(i).bounding_box())
    story.page.screenshot(OUT/"running-narrow.png", i)
    story.page.page.set_viewport_size({"width":1280,"height":1700})
    story.page.click_button("Stop", i)
    story.page.wait_for_text("Stopping…", i)
    shots("stopping")
    story.page.button("Stop now", i).click()
    story.wait_card(i, "stopped")
    shots("incomplete")
    print(story.page.output_text(i))
    for m in ("gpt-4o","gpt-4.1-mini"): server.script(m, agent("Redis: it is *there* already.", "hm. "))
    i = story.start("And which is the cheapest?", opt+" --continue")
    story.page.screenshot(OUT/"continuing.png", i)
    story.wait_card(i, "complete")
    shots("complete")
    print(story.page.output_text(i))
