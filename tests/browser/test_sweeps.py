"""A sweep in a notebook: one panel over all rows, one stop, one card."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.browser.conftest import fresh_tab as tab  # noqa: F401
from tests.browser.story import Story, agent, server_team
from tests.browser.test_look import moving, overflows, shoot
from tests.kit.sweeps import SWEEP_MIME
from tests.model_server import ModelServer, Reply, Request
from tests.team_kit import ROOT

ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
SAYS = "I look at the question from three sides, and at what was said of it before. " * 20
CELL = """import nb_agents
questions = [{"q": q} for q in (
    "broken", "Why is the sky blue?", "What is a <b>monad</b>?", "Who wrote Emma?",
    "How far is the moon?", "What is 2 + 2?", "Is P = NP?",
)]
nb_agents.map(questions, "Answer: {{q}}", "team.yaml", limit=3)"""


def answer(request: Request) -> Reply:
    """Fail for one question and answer the others."""
    if "Answer: broken" in request.prompt:
        return Reply(status=401, error="refused the key")
    return agent("It is **so**.", SAYS)(request)


def wait_card(story: Story, i: int, chip: str) -> Locator:
    """Wait for the sweep's card; rows in its table may have chips with the same text."""
    card = story.card(i)
    expect(card.get_by_text(chip, exact=True).first).to_be_visible()
    expect(story.panel(i)).to_have_count(0)
    return card


def rows_of(panel: Locator) -> Locator:
    """Return the running rows on a sweep's panel."""
    rows = panel.get_by_role("region", name="Rows", exact=True).first.locator("tbody tr")
    return rows.filter(has_not=panel.page.locator(".chip:is(.ok, .err, .cut)"))


def test_sweep_is_stopped_and_resumed_in_one_cell(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    server.script("m", answer)
    server.hold(8)
    page = story.page.page
    page.set_viewport_size({"width": 1280, "height": 1500})
    story.open()
    story.team(server_team(server, ada="m"))
    i = story.run(CELL)
    panel = story.page.outputs(i).locator(".nba.sweep")
    rows = rows_of(panel)
    expect(rows).to_have_count(3)
    expect(rows.locator(".caret:visible")).to_have_count(3)
    assert moving(panel) == {"opacity"}
    expect(page.locator(".nba-status-item")).to_have_text("1 sweep")
    expect(panel.locator(".failures li")).to_have_count(1)
    expect(panel.locator(".failures")).to_contain_text("refused the key")
    shoot(story, artifacts, "sweep-running", i)

    # One row is opened: it is the panel of its run.
    monad = rows.filter(has_text="monad")
    monad.locator("button.open").click()
    opened = panel.locator(".opened .nba")
    expect(opened.locator(".task")).to_have_text("Answer: What is a <b>monad</b>?")
    expect(opened.locator(".says")).to_contain_text("I look at the question")
    assert overflows(panel) == []
    shoot(story, artifacts, "sweep-open", i)
    page.set_viewport_size({"width": 860, "height": 1500})
    assert overflows(panel) == []
    story.page.screenshot(artifacts / "sweep-narrow.png", i)
    page.set_viewport_size({"width": 1280, "height": 1500})
    opened.get_by_role("button", name="Stop", exact=True).click()
    expect(opened.locator("header .chip")).to_contain_text("Stopping…")
    opened.get_by_role("button", name="Stop now").click()
    expect(opened).to_contain_text("stopped")
    expect(rows).to_have_count(3)  # the next one has begun
    shoot(story, artifacts, "sweep-row-stopped", i)
    panel.get_by_role("button", name="Close").click()
    expect(opened).to_have_count(0)

    panel.get_by_role("button", name="Pause").click()
    expect(panel.locator("header .chip")).to_have_text("paused")
    panel.get_by_role("button", name="Continue", exact=True).click()
    expect(panel.locator("header .chip")).to_have_text("running")

    # Stop everything while another cell keeps the kernel busy.
    sleeping = story.run("import time\nprint('asleep', flush=True)\ntime.sleep(600)", wait=False)
    story.page.wait_for_text("asleep", sleeping)
    panel.locator("header button").click()
    expect(panel.locator("header .chip")).to_contain_text("Stopping…")
    shoot(story, artifacts, "sweep-stopping", i)
    panel.locator("header button").click()
    card = wait_card(story, i, "■ stopped")
    assert story.page.prompt(sleeping) == "[*]:"
    expect(card).to_contain_text("Run the cell again to continue with the 6 missing rows")
    assert overflows(card) == []
    shoot(story, artifacts, "sweep-stopped", i)
    story.page.interrupt()
    story.page.wait_for_text("KeyboardInterrupt", sleeping)
    story.page.wait_idle()

    server.release()
    story.page.run_cell(i)
    card = wait_card(story, i, "✓ complete")
    expect(card).to_contain_text("6 complete")
    expect(card).to_contain_text("1 failed")
    shoot(story, artifacts, "sweep-complete", i)
    # There are no notifications while the sweep is visible.
    expect(page.locator(".nba-status-item")).to_be_hidden()
    expect(page.locator(".Toastify__toast")).to_have_count(0)


def test_sweep_is_steered_in_its_panel_and_retried_from_its_card(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    server.script("m", answer)
    server.hold(8)
    page = story.page.page
    story.open()
    story.team(server_team(server, ada="m"))
    i = story.run(CELL.replace("limit=3", "limit=1"))
    panel = story.page.outputs(i).locator(".nba.sweep")
    rows = rows_of(panel)
    expect(rows).to_have_count(1)
    panel.get_by_text("Limits", exact=True).click()
    panel.get_by_label("Rows at a time").fill("4")
    panel.get_by_label("Seconds for each row").fill("900")
    panel.get_by_role("button", name="Apply").click()
    expect(rows).to_have_count(4)
    expect(panel.locator(".steer .says")).to_have_text("4 rows at a time · 15 min for each row")
    for width in (720, 1400):
        page.set_viewport_size({"width": width, "height": 1100})
        assert overflows(panel) == []
        shoot(story, artifacts, f"sweep-steered-{width}", i)
    panel.get_by_role("button", name="Retry failed").click()
    expect(panel.locator(".counts")).not_to_contain_text("failed")
    server.script("m", agent("It is **so**.", SAYS))
    server.release()
    card = wait_card(story, i, "✓ complete")
    expect(card).to_contain_text("7 complete")


def test_failed_rows_are_retried_from_the_card(story: Story, server: ModelServer) -> None:
    server.script("m", answer)
    story.open()
    story.team(server_team(server, ada="m"))
    i = story.run(CELL)
    card = wait_card(story, i, "✓ complete")
    expect(card).to_contain_text("1 failed")
    server.script("m", agent("It is **so**.", SAYS))
    card.get_by_role("button", name="Retry failed").click()
    expect(wait_card(story, i + 1, "✓ complete")).to_contain_text("7 complete")


def test_card_of_an_open_row_is_drawn_like_a_markdown_cell(
    story: Story, server: ModelServer
) -> None:
    def one_hangs(request: Request) -> Reply:
        hang_after = 8 if "Answer: two" in request.prompt else None
        return agent("It is **so**: $a < b$.", SAYS, hang_after=hang_after)(request)

    server.script("m", one_hangs)
    server.hold(8)
    story.open()
    story.team(server_team(server, ada="m"))
    cell = 'nb_agents.map([{"q": "one"}, {"q": "two"}], "Answer: {{q}}", "team.yaml")'
    i = story.run(f"import nb_agents\n{cell}")
    panel = story.page.outputs(i).locator(".nba.sweep")
    rows_of(panel).locator("button.open").get_by_text("one", exact=True).click()
    opened = panel.locator(".opened .nba")
    expect(opened.locator(".says")).to_contain_text("I look at the question")
    server.release()
    answer = opened.locator(".nb-answer .jp-RenderedMarkdown")
    expect(answer.locator("mjx-container")).to_have_count(1)
    # Its timeline has rewind links too.
    opened.locator("summary", has_text="What happened").click()
    opened.locator("svg[data-point]:has(text) text").first.click()
    dialog = story.page.page.get_by_role("dialog")
    expect(dialog.locator(".says")).to_contain_text("Goes back to event")
    dialog.get_by_role("button", name="Cancel").click()
    panel.get_by_role("button", name="Stop", exact=True).first.click()
    panel.get_by_role("button", name="Stop now").first.click()
    wait_card(story, i, "■ stopped")


@contextmanager
def working_elsewhere(story: Story) -> Iterator[None]:
    """Run the cell's call in another process, and wait for its end after the block."""
    code = f"{CELL}.wait()"
    with subprocess.Popen([sys.executable, "-c", code], cwd=story.folder, env=ENV) as process:
        try:
            yield
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_sweep_resumed_by_another_process_is_shown_live(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    server.script("m", answer)
    server.hold(8)
    story.page.page.set_viewport_size({"width": 1280, "height": 1500})
    story.open("import os; print(os.getpid())")
    story.page.run_cell(1)
    story.team(server_team(server, ada="m"))
    i = story.run(CELL)
    panel = story.page.outputs(i).locator(".nba.sweep")
    expect(rows_of(panel)).to_have_count(3)
    story.page.save()
    os.kill(int(story.page.output_text(1)), signal.SIGKILL)
    story.page.shutdown_kernel()
    expect(wait_card(story, i, "■ stopped")).to_contain_text("its process died")
    shoot(story, artifacts, "sweep-killed", i)

    story.page.page.goto("about:blank")
    with working_elsewhere(story):
        server.wait_open(3)
        story.page.open_notebook(story.page.notebook, kernel=False)
        rows = rows_of(panel)
        expect(rows).to_have_count(3)
        expect(rows.locator(".caret:visible")).to_have_count(3)
        rows.filter(has_text="monad").locator("button.open").click()
        opened = panel.locator(".opened .nba")
        expect(opened.locator(".says")).to_contain_text("I look at the question")
        opened.get_by_role("textbox", name="Send a message to the agents").fill("Be short")
        opened.get_by_role("button", name="Send").click()
        expect(opened.locator(".said")).to_contain_text("Be short")
        shoot(story, artifacts, "sweep-no-kernel", i)
        opened.get_by_role("button", name="Stop", exact=True).click()
        expect(opened.locator("header .chip")).to_contain_text("Stopping…")
        opened.get_by_role("button", name="Stop now").click()
        expect(opened).to_contain_text("stopped")
        expect(rows).to_have_count(3)  # the next one has begun
        expect(rows.filter(has_text="monad")).to_have_count(0)
        panel.get_by_role("button", name="Pause").click()
        expect(panel.locator("header .chip").first).to_have_text("paused")
        panel.get_by_role("button", name="Continue", exact=True).click()
        expect(panel.locator("header .chip").first).to_have_text("running")
        server.release()
    card = wait_card(story, i, "■ stopped")
    expect(card).to_contain_text("Run the cell again to continue with the missing row")
    shoot(story, artifacts, "sweep-ended-elsewhere", i)
    story.page.save()
    [output] = story.page.saved().cells[i].outputs
    assert (output.data[SWEEP_MIME]["state"], output.data[SWEEP_MIME]["done"]) == ("stopped", 5)
    assert "the missing row" in output.data["text/html"]


def test_sweep_continues_after_a_reload_and_its_end_is_saved(
    story: Story, server: ModelServer
) -> None:
    server.script("m", answer)
    server.hold(8)
    story.open()
    story.team(server_team(server, ada="m"))
    i = story.run(CELL)
    panel = story.page.outputs(i).locator(".nba.sweep")
    expect(rows_of(panel)).to_have_count(3)
    story.page.save()
    story.page.reload()
    expect(rows_of(panel).locator(".caret:visible")).to_have_count(3)
    panel.locator("header button").click()
    expect(panel.locator("header .chip")).to_contain_text("Stopping…")
    panel.locator("header button").click()
    wait_card(story, i, "■ stopped")
    story.page.save()
    [output] = story.page.saved().cells[i].outputs
    assert output.data[SWEEP_MIME]["state"] == "stopped"
    assert "6 missing rows" in output.data["text/html"]


def test_sweep_on_a_cluster_is_shown_and_stopped(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    server.script("m", answer)
    server.hold(8)
    story.open()
    story.team(server_team(server, ada="m"))
    story.run('questions = [{"q": q} for q in ("Why?", "How?", "Who?", "Where?")]')
    i = story.run(
        "%%agents --over questions --config team.yaml --limit 3 --cluster local:1 --name far\n"
        "Answer: {{q}}"
    )
    panel = story.page.outputs(i).locator(".nba.sweep")
    rows = rows_of(panel)
    expect(rows).to_have_count(3, timeout=200_000)  # a worker starts without preloaded imports
    rows.filter(has_text="Why?").locator("button.open").click()
    opened = panel.locator(".opened .nba")
    expect(opened.locator(".says")).to_contain_text("I look at the question")
    shoot(story, artifacts, "sweep-cluster", i)
    panel.locator("header button").first.click()
    expect(panel.locator("header .chip").first).to_contain_text("Stopping…")
    panel.locator("header button").first.click()
    expect(wait_card(story, i, "■ stopped")).to_contain_text("Run the cell again")

    server.release()
    story.page.run_cell(i)
    expect(wait_card(story, i, "✓ complete")).to_contain_text("4 complete")
