"""Agents propose changes of cells in JupyterLab; the user accepts and rejects them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Locator, expect

from tests.browser.lab import Lab, NotebookPage
from tests.browser.story import Story, server_team
from tests.browser.test_cells import shoot
from tests.kit.notebook_cells import (
    CELL,
    Caller,
    TurnPaths,
    attach,
    cells_claim,
    late_events,
)
from tests.model_server import ModelServer, Reply, Request, ToolCall

LOOP = "total = 0\nfor n in numbers:\n    total += n"
SUM = "total = sum(numbers)"
CHECK = "assert total == 6"
Script = Callable[[Request], Reply]


def tool(name: str, **args: Any) -> Reply:
    return Reply(text="I look at the notebook. ", tool_calls=(ToolCall(name, args),))


def proposing(*wanted: Callable[[str, str], dict[str, Any]], until: str = "") -> Script:
    """Return a model that reads the cell with the loop, proposes changes of it, and waits.

    Args:
        wanted: Functions of the cell's id and digest that return a change.
        until: A regular expression for the notes after which the agent answers. "" waits forever.
    """

    def reply(request: Request) -> Reply:
        texts = [str(m["content"]) for m in request.messages if m["role"] == "tool"]
        if not texts:
            return tool("notebook_read")
        (cell,) = re.findall(r"^(\S+) \[code, 3 lines\] total = 0$", texts[0], re.MULTILINE)
        if len(texts) == 1:
            return tool("notebook_read", ids=[cell])
        if len(texts) == 2:
            (digest,) = re.findall(r"\[code\] digest (\w+)", texts[1])
            changes = [make(cell, digest) for make in wanted]
            return tool("notebook_propose", changes=changes, why="A built-in is faster.")
        if until and re.search(until, request.prompt, re.DOTALL):
            return Reply(text="", tool_calls=(ToolCall("new_answer", {"content": "Done."}),))
        if until:
            return Reply(
                text="I wait. " * 3, tool_calls=(ToolCall("notebook_read", {}),), delay_s=0.2
            )
        return Reply(text="I wait for the user. " * 4, hang_after=3)

    return reply


def replaces(cell: str, digest: str, source: str = SUM) -> dict[str, Any]:
    return {"op": "replace", "id": cell, "digest": digest, "source": source}


def inserts(cell: str, digest: str) -> dict[str, Any]:
    return {"op": "insert", "after": cell, "source": CHECK}


def start(story: Story, server: ModelServer, script: Script, *cells: str) -> int:
    server.script("m", script)
    story.open("numbers = [1, 2, 3]", LOOP, *cells)
    return story.start(
        "Improve the loop", f"--notebook propose {story.team(server_team(server, ada='m'))}"
    )


def boxes(story: Story) -> Locator:
    return story.page.page.locator(".nba-change:visible")


def decisions(story: Story) -> list[tuple[int, str]]:
    return [(each["number"], each["how"]) for each in story.events("change_decided")]


def sources(story: Story) -> list[str]:
    count = story.page.cell_count()
    return [story.page.cell_source(i) for i in range(count)]


def test_accepted_change_is_applied_and_rejected_one_is_not(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    script = proposing(
        replaces, inserts, until="was accepted.*was rejected|was rejected.*was accepted"
    )
    i = start(story, server, script)
    expect(boxes(story)).to_have_count(2)
    assert sources(story)[2] == LOOP
    replacing, inserting = boxes(story).first, boxes(story).last
    expect(replacing).to_contain_text("ada proposes to change this cell")
    expect(replacing.locator(".removed")).to_have_count(3)
    expect(replacing.locator(".added")).to_have_text(SUM)
    bar = story.page.page.locator(".nba-changes")
    expect(bar).to_contain_text("2 proposed changes")
    shoot(story, artifacts, "proposals")

    # The cursor stays at the user's text, and undo takes back the change in one step.
    editor = story.page.cell(2).locator(".cm-content").first
    editor.click()
    story.page.page.keyboard.press("Control+End")
    replacing.get_by_role("button", name="Accept").click()
    expect(boxes(story)).to_have_count(1)
    assert sources(story)[2] == SUM
    editor.click()
    story.page.page.keyboard.press("Control+End")
    story.page.page.keyboard.type("  # mine")
    assert sources(story)[2] == f"{SUM}  # mine"
    for _ in range(2):
        story.page.page.keyboard.press("Control+z")
    assert sources(story)[2] == LOOP

    inserting.get_by_role("button", name="Reject").click()
    expect(boxes(story)).to_have_count(0)
    expect(bar).to_have_count(0)
    card = story.wait_card(i, "complete")
    expect(card).to_contain_text("2 proposed changes of cells")
    assert decisions(story) == [(1, "accepted"), (2, "rejected")]
    assert CHECK not in sources(story)


def test_change_of_a_cell_that_the_user_has_edited_is_a_conflict(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    start(story, server, proposing(replaces))
    expect(boxes(story)).to_have_count(1)
    story.page.cell(2).locator(".cm-content").first.click()
    story.page.page.keyboard.press("Control+End")
    story.page.page.keyboard.type("  # mine")
    box = boxes(story).first
    expect(box).to_contain_text("The cell has changed since the agent read it")
    expect(box.get_by_role("button", name="Accept")).to_be_hidden()
    shoot(story, artifacts, "proposals-conflict")
    box.get_by_role("button", name="Insert as a new cell").click()
    expect(boxes(story)).to_have_count(0)
    assert sources(story)[2:4] == [f"{LOOP}  # mine", SUM]
    story.page.wait_until(lambda: decisions(story) == [(1, "inserted")], what="the decision")
    story.page.command("nb-agents:stop-all-now")


def test_stop_withdraws_the_open_proposals(story: Story, server: ModelServer) -> None:
    i = start(story, server, proposing(replaces, inserts))
    expect(boxes(story)).to_have_count(2)
    story.page.command("nb-agents:stop-all-now")
    story.wait_card(i, "stopped")
    expect(boxes(story)).to_have_count(0)
    assert decisions(story) == [(1, "withdrawn"), (2, "withdrawn")]
    assert sources(story)[2] == LOOP


def test_proposal_is_decided_after_the_end_and_survives_a_reload(
    story: Story, server: ModelServer
) -> None:
    evil = "<img src=x onerror='alert(1)'>\n<b>bold</b>"
    i = start(story, server, proposing(lambda *cell: replaces(*cell, evil), inserts, until="."))
    story.wait_card(i, "complete")
    expect(boxes(story)).to_have_count(2)
    expect(boxes(story).first.locator(".added").first).to_have_text(evil.splitlines()[0])
    expect(boxes(story).locator("img, b")).to_have_count(0)
    story.page.save()
    story.page.reload()
    expect(boxes(story)).to_have_count(2)
    boxes(story).last.get_by_role("button", name="Accept").click()
    expect(boxes(story)).to_have_count(1)
    assert sources(story)[3] == CHECK
    decided = story.page.page.get_by_text(re.compile("2: insert .* by ada: accepted by"))
    expect(decided).to_be_visible()
    story.page.save()
    story.page.reload()
    expect(boxes(story)).to_have_count(1)
    assert sources(story)[3] == CHECK
    expect(decided).to_be_visible()


def test_change_is_applied_once_if_two_pages_accept_it(
    story: Story, server: ModelServer, lab: Lab, browser: BrowserContext
) -> None:
    i = start(story, server, proposing(replaces, inserts, until="."))
    story.wait_card(i, "complete")
    story.page.save()
    with NotebookPage(lab, browser) as other:
        other.open_notebook(f"{story.folder.name}/story.ipynb")
        pages = [story.page.page, other.page]
        for page in pages:
            expect(page.locator(".nba-change:visible")).to_have_count(2)
        accept = "document.querySelectorAll('.nba-changes button')[1].click()"
        for page in pages:
            page.evaluate(accept)
        story.page.wait_until(lambda: len(late_decisions(story)) == 2, what="the decisions")
        found = [tab.cell_source(n) for tab in (story.page, other) for n in (2, 3)]
        assert (found.count(SUM), found.count(CHECK)) == (1, 1)
        for page in pages:
            expect(page.locator(".nba-change:visible")).to_have_count(0)
            expect(page.get_by_text(re.compile("by ada: accepted by"))).to_have_count(2)


def test_proposal_that_another_page_has_claimed_is_decided_only_after_a_question(
    story: Story, server: ModelServer
) -> None:
    i = start(story, server, proposing(replaces, until="."))
    story.wait_card(i, "complete")
    run = attach(story.turn())
    cells_claim(run, Caller("rest", CELL), number=1, page="a page that is gone")
    box = boxes(story).first
    box.get_by_role("button", name="Accept").click()
    expect(box).to_contain_text("Another page decides this proposal.")
    assert sources(story)[2] == LOOP
    box.get_by_role("button", name="Decide here").click()
    expect(box).not_to_contain_text("Another page")
    box.get_by_role("button", name="Accept").click()
    expect(boxes(story)).to_have_count(0)
    assert sources(story)[2] == SUM


def late_decisions(story: Story) -> list[str]:
    return [each.how for each in late_events(TurnPaths(story.turn())) if hasattr(each, "how")]


def test_team_is_asked_about_an_error_and_its_code_goes_into_cells(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    prompts: list[str] = []

    def reply(request: Request) -> Reply:
        prompts.append(request.prompt)
        answer = "Use another divisor:\n\n```python\nratio = 1 / 2\n```\n"
        return Reply(text="", tool_calls=(ToolCall("new_answer", {"content": answer}),))

    server.script("m", reply)
    team = story.team(server_team(server, ada="m"))
    story.open("divisor = 0", "ratio = 1 / divisor", f"%%agents {team}\nLater")
    page = story.page.page
    for number in (1, 2):
        story.page.run_cell(number)
    ask = page.get_by_role("button", name="Ask the team")
    expect(ask).to_have_count(1)
    shoot(story, artifacts, "ask-team")
    ask.click()
    expect(page.locator(".jp-Notebook > .jp-WindowedPanel-outer .jp-Cell")).to_have_count(5)
    task = story.page.cell_source(3)
    assert task.startswith(f"%%agents {team} --notebook propose\nExplain this error of @cell:3")
    assert "@cell:2 and @cell:5" in task and "ZeroDivisionError" in task
    assert not server.count()

    story.page.run_cell(3)
    card = story.wait_card(3, "complete")
    for source in ("=== cell", "divisor = 0", "ratio = 1 / divisor", "Later"):
        assert source in prompts[0]
    card.get_by_role("button", name="Insert below").click()
    assert sources(story)[4] == "ratio = 1 / 2"
    shoot(story, artifacts, "answer-code")

    story.page.cell(2).locator(".cm-content").first.click()
    replace = card.get_by_role("button", name="Replace cell")
    replace.hover()
    expect(replace).to_have_attribute("title", re.compile("Replaces cell 3"))
    replace.click()
    assert sources(story)[2] == "ratio = 1 / 2"
    story.page.cell(2).locator(".cm-content").first.click()
    page.keyboard.press("Control+z")
    assert sources(story)[2] == "ratio = 1 / divisor"
