"""The card in JupyterLab: its Resume button and the section "What happened"."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nbformat
from playwright.sync_api import Locator, expect

from tests.browser.lab import Lab
from tests.browser.story import Story, agent, server_team
from tests.kit.cards import TURN_MIME
from tests.model_server import ModelServer, Reply, Request, ToolCall

TASK = "Compare three ways to cache embeddings for 10 M documents"
SAYS = "I compare the three stores by their cold reads and by what they cost. " * 20
FIRST = "A **memory-mapped store** wins:\n\n1. a cold read is one page fault,\n2. no copies."
SECOND = (
    "A **memory-mapped store** wins:\n\n1. a cold read is one page fault (0.4 ms),\n2. no copies."
)
THEMES = {
    "dark": "JupyterLab Dark",
    "light": "JupyterLab Light",
}  # the server stores the last theme


def stopped(story: Story, server: ModelServer, options: str = "") -> int:
    """Stop a run of two agents, one of which has answered. Return the card's cell."""
    server.script("quick", agent(FIRST, "I have it. "))
    server.script("slow", agent("Redis is simplest.", SAYS))
    server.hold(30, "slow")
    story.open()
    team = story.team(server_team(server, researcher="quick", critic="slow"))
    i = story.start(TASK, f"{team} {options}".strip())
    story.page.wait_for_text("voted for researcher", i)
    server.wait_chunks(30)
    story.page.click_button("Stop", i)
    story.page.click_button("Stop now", i)
    story.wait_card(i, "stopped")
    server.release()
    return i


def press_resume(story: Story, i: int, number: int = 2) -> None:
    """Press Resume on a card, which the run replaces, and wait until the run is complete."""
    before = story.page.cell_count()
    story.page.click_button("Resume", i)
    story.page.wait_until(lambda: story.turn(number).is_dir(), what="the next turn")
    story.wait_card(i, "complete")
    assert story.page.cell_count() == before


def line_on_card(card: Locator) -> str:
    """The line of the copyable cell."""
    return card.get_by_text(re.compile("%agents resume")).inner_text().splitlines()[-1]


def test_resume_button_replaces_the_card_by_the_run(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    i = stopped(story, server)
    asked = server.count()
    server.hold(20, "slow")
    after = story.run("'a cell that comes after'")  # which is active when the button is pressed
    story.page.click_button("Resume", i)
    story.expect_writing(i, "critic")
    for short, theme in THEMES.items():
        story.page.set_theme(theme)
        for width in (720, 1400):
            story.page.page.set_viewport_size({"width": width, "height": 900})
            story.page.screenshot(artifacts / f"resumed-in-place-{short}-{width}.png")
    server.release()
    story.wait_card(i, "complete")
    assert story.page.cell_count() == after + 1
    assert story.metadata(2)["run_status"] == "completed"
    assert story.events("turn_started", 2)[0]["resumes"] == 1
    assert server.count() > asked
    # It runs in the kernel, not in a process of the server.
    assert "session" in story.page.output_text(story.run("%agents"))
    assert story.page.output_text(after) == "'a cell that comes after'"
    story.page.save()
    [output] = story.page.saved().cells[i].outputs
    assert (output.data[TURN_MIME]["turn"], output.data[TURN_MIME]["state"]) == (2, "complete")


def test_card_of_a_turn_resumed_in_a_later_cell_names_the_later_turn(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    i = stopped(story, server)
    j = story.run(line_on_card(story.card(i)))
    story.wait_card(j, "complete")
    output = story.page.outputs(i)
    expect(output).to_contain_text("Resumed in turn 2: complete.")
    expect(output.get_by_role("button", name="Resume")).to_be_hidden()
    shoot_widths(story, artifacts, "resumed-later", i)
    story.page.save()
    story.page.reload()
    expect(output).to_contain_text("Resumed in turn 2: complete.")
    output.get_by_role("button", name="Show", exact=True).click()
    expect(story.card(j)).to_be_in_viewport()


def shoot_widths(story: Story, where: Path, name: str, i: int) -> None:
    """Save a cell's output in both themes and at two widths of the page."""
    for short, theme in THEMES.items():
        story.page.set_theme(theme)
        for width in (720, 1400):
            story.page.page.set_viewport_size({"width": width, "height": 900})
            story.page.screenshot(where / f"{name}-{short}-{width}.png", i)


def test_resume_with_the_keyboard(story: Story, server: ModelServer) -> None:
    i = stopped(story, server)
    story.page.button("Resume", i).focus()
    story.page.page.keyboard.press("Enter")
    story.wait_card(i, "complete")


def test_resume_after_a_restart_of_the_kernel(story: Story, server: ModelServer) -> None:
    i = stopped(story, server)
    story.page.restart_kernel()
    press_resume(story, i)
    assert story.events("turn_started", 2)[0]["resumes"] == 1


def test_resume_after_the_kernel_was_shut_down(story: Story, server: ModelServer) -> None:
    i = stopped(story, server)
    story.page.save()
    story.page.shutdown_kernel()
    story.page.open_notebook(f"{story.folder.name}/story.ipynb", kernel=False)
    story.page.wait_idle()
    press_resume(story, i)
    assert story.metadata(2)["run_status"] == "completed"


def test_resume_in_another_folder_and_with_a_space_in_the_name(
    story: Story, server: ModelServer
) -> None:
    i = stopped(story, server, '--session-root "my sessions" --session "first try"')
    line = '%agents resume "first try" --session-root "my sessions"'
    assert line_on_card(story.card(i)) == line
    story.page.click_button("Resume", i)
    story.wait_card(i, "complete")
    assert (story.folder / "my sessions" / "first try" / "turn_2" / "answer.txt").exists()


def test_resume_on_the_card_inside_the_panel(story: Story, server: ModelServer) -> None:
    """A page that was reloaded during the run shows the card inside the panel."""
    server.script("m", agent("Done.", SAYS))
    server.hold(5)
    story.open()
    i = story.start(TASK, story.team(server_team(server, ada="m", ben="m")))
    story.wait_running(i)
    story.page.save()
    story.page.reload()
    story.panel(i).wait_for()
    story.page.click_button("Stop", i)
    story.page.click_button("Stop now", i)
    expect(story.card(i)).to_contain_text("Incomplete turn. Stopped by you")
    server.release()
    press_resume(story, i)


def test_continue_adds_a_cell_for_the_next_task(story: Story, server: ModelServer) -> None:
    i = stopped(story, server)
    story.page.click_button("Continue…", i)
    page = story.page.page
    expect(story.page.cell(i + 1).locator(".cm-content")).to_be_focused()
    page.keyboard.type("And which is cheapest?")
    page.keyboard.press("Control+Enter")
    story.wait_card(i + 1, "complete")
    assert story.metadata(2)["task"] == "And which is cheapest?"
    assert not story.events("turn_started", 2)[0]["resumes"]


def test_without_a_kernel_the_server_resumes_and_continues(
    story: Story, server: ModelServer
) -> None:
    i = stopped(story, server)
    story.page.save()
    story.page.shutdown_kernel()
    saved = story.page.saved()
    saved.metadata = {}  # no information about the kernel
    nbformat.write(saved, story.folder / "story.ipynb")
    story.page.open_notebook(story.page.notebook, kernel=False)
    page = story.page.page
    page.locator(".jp-Dialog").get_by_role("button", name="No Kernel").click()
    before = story.page.cell_count()
    press_resume(story, i)
    assert story.events("turn_started", 2)[0]["resumes"] == 1

    story.page.command("nb-agents:show-sessions")
    page.locator(".nba-sessions").get_by_role("button", name="Continue…").click()
    tab = page.locator(".nba-tab:visible")
    page.locator(".jp-Dialog textarea").fill("And which is cheapest?")
    story.page.accept_dialog()
    expect(tab.filter(has_text="And which is cheapest?")).to_contain_text("✓ complete")
    assert story.metadata(3)["task"] == "And which is cheapest?"
    assert story.page.cell_count() == before


def test_history_can_be_read_without_a_kernel(story: Story, server: ModelServer, lab: Lab) -> None:
    i = stopped(story, server)
    story.page.save()
    story.page.shutdown_kernel()
    saved = story.page.saved()
    for has_journal in (True, False):
        if not has_journal:  # as in a notebook from another user
            story.harmless.append(r"404 \(Not Found\) .*/turn_1\?")  # the card's turn
            shutil.rmtree(story.folder / ".nb_agents")
        for trusted in (True, False):
            path = f"{story.folder.name}/copy_{has_journal}_{trusted}.ipynb"
            saved.metadata = {} if trusted else {"from": "a stranger"}
            nbformat.write(saved, lab.root / path)
            if trusted:
                lab.api(f"contents/{path}/trust", "POST")
            read_what_happened(story, path, i, trusted, is_drawn=trusted or has_journal)


def read_what_happened(story: Story, path: str, i: int, trusted: bool, is_drawn: bool) -> None:
    """Open a notebook without a kernel and read the section on its card."""
    story.page.show_notebook(path, kernel=False)
    story.page.page.locator(".jp-Dialog").get_by_role("button", name="No Kernel").click()
    assert story.page._ask("panel.content.model.cells.get(1).trusted") is trusted
    section = open_what_happened(story.page.outputs(i))  # the sanitiser drops the card's role
    drawing = section.get_by_role("group", name=re.compile("^Timeline of 2 agents"))
    words = section.get_by_role("cell", name=re.compile("answer 1"))
    if is_drawn:
        expect(drawing).to_be_visible()
        expect(words).to_have_count(0)
    else:
        # JupyterLab removes SVG there but not its text, which is hidden.
        expect(drawing).to_have_count(0)
        expect(words).to_be_visible()
        assert section.inner_text().count("answer 1") == 1
    expect(section).to_contain_text("→ researcher")


def test_timeline_pictures_match_the_events(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    redis = agent("Redis is simplest, and many have it already.", SAYS[:700])
    files = {"bench/cache.py": "x" * 2100, "bench/data.py": "y" * 800}
    builder = agent("It depends on the working set.", SAYS, files)
    for model, part in {"gpt-5-mini": reviser, "gpt-4o": redis, "gpt-4.1-mini": builder}.items():
        server.script(model, paced(part))
    story.page.page.set_viewport_size({"width": 1280, "height": 1900})
    story.open()
    models = {"researcher": "gpt-5-mini", "critic": "gpt-4o", "builder": "gpt-4.1-mini"}
    i = story.start(TASK, story.team(server_team(server, **models)))
    story.page.wait_until(lambda: len(story.events("answer_given")) == 3, what="three answers")
    server.hold(8)  # otherwise the run may end before the second click
    story.page.click_button("Stop", i)
    story.page.click_button("Stop now", i)
    card = story.wait_card(i, "stopped")
    server.release()
    shoot(story, card, artifacts, "what-happened-stopped")
    i = press_resume(story, i)
    shoot(story, story.card(i), artifacts, "what-happened-resumed")


def reviser(request: Request) -> Reply:
    """An agent that answers again once it has seen another's answer."""
    seen = len(re.findall(r'<ANSWER from="agent\d+">', request.prompt))
    if seen != 2 or "0.4 ms" in request.prompt:
        return agent(FIRST, SAYS[:400])(request)
    call = ToolCall("new_answer", {"content": SECOND})
    return Reply(text=SAYS[:400], tool_calls=(call,))


def paced(part: Callable[[Request], Reply]) -> Callable[[Request], Reply]:
    """Let an agent speak slowly enough to be seen."""
    return lambda request: replace(part(request), words_per_second=40)


def open_what_happened(card: Locator) -> Locator:
    """Open the section, and return it."""
    section = card.locator("details", has=card.page.get_by_text(re.compile("^What happened")))
    section.locator("summary").first.click()
    return section


def shoot(story: Story, card: Locator, where: Path, name: str) -> None:
    """Save a card with its section open, in both themes."""
    open_what_happened(card)
    for short, theme in THEMES.items():
        story.page.set_theme(theme)
        card.screenshot(path=where / f"{name}-{short}.png")
