"""Agents run cells in JupyterLab, in the user's kernel and behind the user's own cells."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.browser.story import Story, server_team
from tests.browser.test_cells import shoot
from tests.browser.test_proposals import Script, tool
from tests.model_server import ModelServer, Reply, Request, ToolCall


def running(cell: str = "total = 0", *, reply: str = "Done.") -> Script:
    """Return a model that runs the cell that begins with a line, and then answers."""

    def answer(request: Request) -> Reply:
        texts = [str(m["content"]) for m in request.messages if m["role"] == "tool"]
        if not texts:
            return tool("notebook_read")
        (name,) = re.findall(rf"^(\S+) \[code, .*\] {re.escape(cell)}$", texts[0], re.MULTILINE)
        if len(texts) == 1:
            return tool("notebook_read", ids=[name])
        if len(texts) == 2:
            (digest,) = re.findall(r"\[code\] digest (\w+)", texts[1])
            return tool("notebook_run", id=name, digest=digest)
        return Reply(text="", tool_calls=(ToolCall("new_answer", {"content": texts[-1]}),))

    return answer


def start_running(story: Story, server: ModelServer, cell: str, *cells: str, more: str = "") -> int:
    server.script("m", running(cell.splitlines()[0]))
    story.open("numbers = [1, 2, 3]", cell, *cells)
    team = story.team(server_team(server, ada="m"))
    return story.start("Run the loop", f"--notebook run {more} {team}")


def approve(story: Story, i: int) -> Locator:
    gate = story.panel(i).locator(".gate")
    gate.get_by_role("button", name="Approve").click()
    return gate


def step_of_run(story: Story) -> str:
    """Return the last recorded step of the request to run a cell, or ""."""
    for step in ("ended", "started", "queued", "requested"):
        if found := story.events(f"cell_run_{step}"):
            return f"ended {found[0]['how']}" if step == "ended" else step
    return ""


def outputs(story: Story, i: int) -> Locator:
    return story.page.cell(i).locator(".jp-OutputArea-output")


def test_approved_cell_runs_in_the_notebook_and_the_agent_gets_its_output(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    cell = "import sys\nprint('one', 1 + 1)\nraise ValueError('three')"
    i = start_running(story, server, cell)
    gate = story.panel(i).locator(".gate")
    expect(gate).to_contain_text("raise ValueError('three')")
    shoot(story, artifacts, "cell-run-approval")
    assert outputs(story, 2).count() == 0
    approve(story, i)
    card = story.wait_card(i, "complete")
    expect(outputs(story, 2).first).to_contain_text("one 2")
    assert step_of_run(story) == "ended error"
    expect(card).to_contain_text("the cell raised an error")
    expect(card).to_contain_text("ValueError: three")
    expect(card).to_contain_text("1 request to run a cell")


def test_cell_waits_for_the_cells_of_the_user_and_stop_withdraws_it(
    story: Story, server: ModelServer
) -> None:
    i = start_running(story, server, "print('ran')", "import time; time.sleep(30)", "print('mine')")
    for number in (3, 4):
        story.page.run_cell(number, wait=False)
    approve(story, i)
    story.page.wait_until(lambda: step_of_run(story) == "queued", what="the queue")
    assert story.events("cell_run_queued")[0]["behind"] == "cell 4"
    story.page.command("nb-agents:stop-all-now")
    story.wait_card(i, "stopped")
    assert step_of_run(story) == "ended withdrawn"
    expect(outputs(story, 4)).to_have_count(0)  # the user's cells go on
    story.page.interrupt()
    expect(outputs(story, 3).first).to_contain_text("KeyboardInterrupt")
    assert outputs(story, 2).count() == 0


def test_stop_now_interrupts_only_the_cell_of_the_run(story: Story, server: ModelServer) -> None:
    cell = "import time\nprint('begun')\ntime.sleep(60)"
    i = start_running(story, server, cell, "print('mine')")
    approve(story, i)
    expect(outputs(story, 2).first).to_contain_text("begun")
    story.page.command("nb-agents:stop-all-now")
    story.wait_card(i, "stopped")
    expect(outputs(story, 2).last).to_contain_text("KeyboardInterrupt")
    assert step_of_run(story) == "ended cut"
    story.page.run_cell(3)
    expect(outputs(story, 3).first).to_contain_text("mine")


def test_cell_that_the_user_changed_after_the_approval_is_not_run(
    story: Story, server: ModelServer
) -> None:
    i = start_running(story, server, "print('approved')", "import time; time.sleep(5)")
    story.page.run_cell(3, wait=False)
    approve(story, i)
    story.page.wait_until(lambda: step_of_run(story) == "queued", what="the queue")
    story.page.cell(2).locator(".cm-content").first.click()
    story.page.page.keyboard.type("print('other') # ")
    story.wait_card(i, "complete")
    assert step_of_run(story) == "ended changed"
    assert outputs(story, 2).count() == 0


def test_cell_that_waits_for_the_run_is_reported_instead_of_a_deadlock(
    story: Story, server: ModelServer
) -> None:
    server.script("m", running("print(1)"))
    story.open("print(1)")
    team = story.team(server_team(server, ada="m"))
    i = story.start("Run it", f"--notebook run --wait {team}", wait=False)
    card = story.wait_card(i, "complete")
    expect(card).to_contain_text("waits for this run")
    assert not story.events("cell_run_requested")
