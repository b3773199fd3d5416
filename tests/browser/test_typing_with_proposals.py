"""A user types while three agents' proposals arrive and are accepted; nothing is lost."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.browser.story import Story, server_team
from tests.browser.test_proposals import boxes, sources, tool
from tests.model_server import ModelServer, Reply, Request

AGENTS = ("ada", "ben", "eve")
CELLS = [f"# cell {i}\nx{i} = 0\ny{i} = 0" for i in range(4)]
COUNT = int(os.environ.get("TYPING_WITH_PROPOSALS", "12"))
"""Number of words that the user types. A change may be accepted during each."""

CLICK = """([pick, ms]) => setTimeout(() => {
  const all = [...document.querySelectorAll(".nba-change button")];
  const open = all.filter((each) => each.textContent === "Accept" && each.checkVisibility());
  open[pick % open.length]?.click();
}, ms)"""


class Agent:
    """Reads the cells and proposes a new line in one of them, again and again."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    def __call__(self, request: Request) -> Reply:
        texts = [str(m["content"]) for m in request.messages if m["role"] == "tool"]
        if not texts:
            return tool("notebook_read")
        ids = re.findall(r"^(\S+) \[code, \d+ lines\] # cell", texts[0], re.MULTILINE)
        last, _, _ = texts[-1].partition("\n\n<TEAM_MESSAGE>")
        read = re.findall(
            r"=== cell (\S+) \[code\] digest (\w+)\n(.*?)(?=\n=== cell|\Z)", last, re.DOTALL
        )
        if not read:
            return tool("notebook_read", ids=ids)
        self.count += 1
        cell, digest, source = read[self.count % len(read)]
        first, *rest = source.split("\n")
        new = "\n".join([first, f"# {self.name}-{self.count}.", *rest])
        change = {"op": "replace", "id": cell, "digest": digest, "source": new}
        return tool("notebook_propose", changes=[change])


def test_no_keystroke_is_lost_and_each_accepted_change_is_present_once(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    for name in AGENTS:
        server.script(f"m-{name}", Agent(name))
    story.open(*CELLS)
    team = server_team(server, **{name: f"m-{name}" for name in AGENTS})
    story.start("Improve the cells", f"--notebook propose {story.team(team)}")
    expect(boxes(story).first).to_be_visible()
    page, rng, before = story.page.page, random.Random(7), "\n".join(sources(story))
    for n in range(COUNT):
        page.evaluate(CLICK, [rng.randrange(100), rng.randrange(80)])
        editor = story.page.cell(1 + rng.randrange(len(CELLS))).locator(".cm-content").first
        editor.click()
        for _ in range(rng.randrange(4)):
            page.keyboard.press(rng.choice(["ArrowUp", "ArrowDown"]))
        page.keyboard.press("End")
        page.keyboard.type(f" #u{n}u", delay=rng.choice([0, 5, 20]))
    story.page.command("nb-agents:stop-all-now")
    expect(boxes(story)).to_have_count(0)

    text = "\n".join(sources(story))  # arrow keys may have moved the cursor to any cell
    assert [n for n in range(COUNT) if text.count(f" #u{n}u") != 1] == [], text
    expected = accepted_marks(story)
    assert [mark for mark in expected if text.count(mark) != 1] == []
    assert set(re.findall(r"# \w+-\d+\.", text)) == set(expected)
    assert len(text) == len(before) + typed(COUNT) + added(expected)
    assert expected
    report = f"{COUNT} words typed, {len(expected)} changes accepted, nothing lost\n"
    (artifacts / "typing-with-proposals.txt").write_text(report)


def accepted_marks(story: Story) -> list[str]:
    """Return the line that each accepted proposal added."""
    story.page.wait_until(lambda: not open_numbers(story), what="all decisions")
    accepted = {e["number"] for e in story.events("change_decided") if e["how"] == "accepted"}
    proposed = [e for e in story.events("change_proposed") if e["number"] in accepted]
    return [e["source"].split("\n")[1] for e in proposed]


def open_numbers(story: Story) -> set[Any]:
    decided = {e["number"] for e in story.events("change_decided")}
    return {e["number"] for e in story.events("change_proposed")} - decided


def typed(count: int) -> int:
    return sum(len(f" #u{n}u") for n in range(count))


def added(marks: list[str]) -> int:
    return sum(len(mark) + 1 for mark in marks)
