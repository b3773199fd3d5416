"""The main tests of agents in JupyterLab: what a user does and sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import Lab
from tests.browser.story import LOAD, Story, agent, demo_team, server_team
from tests.model_server import ModelServer, Reply

TASK = "Compare three ways to cache embeddings for 10 M documents"
STOPPING = "Stopping… (after current LLM call completes)"
SAYS = "I compare the three stores by their cold reads and by what they cost. " * 20
MARKDOWN = "The **memory-mapped** store wins:\n\n1. no copies,\n2. no server.\n\n`mmap()` does it."
STOPPED_GREY = {  # the server stores the last theme
    "JupyterLab Dark": "rgba(255, 255, 255, 0.54)",
    "JupyterLab Light": "rgba(0, 0, 0, 0.54)",
}


def three_at_work(story: Story, server: ModelServer) -> str:
    """Return a team: one agent has answered and voted, one writes, one writes after two files.

    The writing agents stop after 30 words until `server.release()`.
    """
    server.script("gpt-5-mini", agent(MARKDOWN, "I have it. ", {"notes.md": "# Notes\n" * 40}))
    server.script("gpt-4o", agent("Redis is simplest.", SAYS))
    server.script(
        "gpt-4.1-mini", agent("It depends.", SAYS, {"a.py": "x = 1\n", "b.py": "y = 1\n"})
    )
    for model in ("gpt-4o", "gpt-4.1-mini"):
        server.hold(30, model)
    team = server_team(server, researcher="gpt-5-mini", critic="gpt-4o", builder="gpt-4.1-mini")
    return story.team(team)


def wait_at_work(story: Story, i: int) -> None:
    """Wait until the team of `three_at_work` has reached that state and its text is saved."""
    story.page.wait_for_text("voted for researcher", i)
    story.wait_streamed(critic=30, builder=4 + 4 + 30)


def test_cell_starts_a_team_and_returns_immediately(story: Story) -> None:
    story.open()
    i = story.start(TASK)  # returns after the end of the cell
    assert story.page.prompt(i) == "[2]:"
    expect(story.chip(i)).to_have_text("running")
    elsewhere = story.run("6 * 7")
    assert story.page.output_text(elsewhere) == "42"

    expect(story.panel(i).locator("header .task")).to_have_text(TASK)
    expect(story.panel(i).locator(".meter")).to_contain_text(re.compile(r"Round: [1-9]/∞"))
    elapsed = story.panel(i).get_by_text(re.compile(r"^Elapsed: \d+s / 1800s \(\d%\)$"))
    first = elapsed.inner_text()
    assert story.panel(i).locator("tbody .id").all_inner_texts() == ["ada", "ben", "cleo"]
    words = story.row(i, "ada").locator(".says")
    expect(words).not_to_be_empty()
    said = words.inner_text()
    story.page.wait_until(lambda: words.inner_text() != said, what="more words")
    expect(story.row(i, "ben").locator(".num")).to_have_text(re.compile(r"^\d[\d,]* tokens"))
    story.page.wait_until(lambda: elapsed.inner_text() != first, what="time to pass")
    story.wait_card(i, "complete")
    streamed = "".join(e["text"] for e in story.events("text_streamed") if e["agent"] == "ada")
    assert "I am the demo model." in streamed


def test_stop_lets_calls_in_flight_finish_and_saves_everything(
    story: Story, server: ModelServer
) -> None:
    story.open()
    i = story.start(TASK, three_at_work(story, server))
    wait_at_work(story, i)
    story.wait_running(i)
    story.page.click_button("Stop", i)
    expect(story.chip(i)).to_have_text(STOPPING)
    button = story.page.button("Stop now", i)
    expect(button).to_have_text(re.compile(r"^Stop now · (30|2\d) s$"))
    expect(button).to_have_text(re.compile(r"^Stop now · 2[0-8] s$"))
    expect(story.panel(i)).to_contain_text("2 calls in flight: critic, builder")

    server.release()
    card = story.wait_card(i, "stopped")
    expect(card).to_contain_text("Incomplete turn. Stopped by you after")
    expect(card).to_contain_text("3 answers")  # text of the calls in flight is recorded
    expect(card).to_contain_text("Redis is simplest.")
    assert set(server.endings()) == {"server"}
    assert server.open_count == 0
    assert story.metadata()["status"] == "incomplete"
    assert story.events("turn_ended")[0]["status"] == "cancelled"


def test_stop_now_is_immediate_and_the_card_shows_what_was_saved(
    story: Story, server: ModelServer
) -> None:
    story.open()
    i = story.start(TASK, three_at_work(story, server))
    wait_at_work(story, i)
    story.page.click_button("Stop", i)
    story.page.click_button("Stop now", i)
    card = story.wait_card(i, "stopped")
    assert server.endings().count("client") == 2

    expect(card).to_contain_text(
        "Nothing was lost: 1 answer, 3 partial texts and 3 files were saved."
    )
    for theme, grey in STOPPED_GREY.items():
        story.page.set_theme(theme)
        expect(card.get_by_text("■ stopped")).to_have_css("color", grey)
    states = [summary.inner_text() for summary in card.locator("summary").all()]
    assert [" ".join(state.split()) for state in states] == [
        "researcher answered · voted for researcher · 11 words not submitted · best answer so far",
        "critic no answer yet · was writing (30 words so far)",
        "builder no answer yet · was writing (38 words so far)",
        "What happened · 1 answer · 1 vote (researcher 1)",
    ]
    expect(card.get_by_label("partial text").nth(1)).to_contain_text("I compare the three stores")
    files = card.locator("li", has=story.page.page.locator("code")).all_text_contents()
    assert [" ".join(each.split()) for each in files][-3:] == [
        "notes.md · 320 B",
        "a.py · 6 B",
        "b.py · 6 B",
    ]
    assert card.locator("pre").inner_text() == (
        f"%%agents --continue --session {story.sessions()[0].name}\nWhat should the agents do now?"
    )


def test_cell_on_the_card_resumes_the_run(story: Story, server: ModelServer) -> None:
    story.open()
    options = three_at_work(story, server)
    i = story.start(TASK, options)
    wait_at_work(story, i)
    story.page.click_button("Stop", i)
    story.page.click_button("Stop now", i)
    cell = story.wait_card(i, "stopped").locator("pre").inner_text()

    server.release()
    server.script("gpt-4o", agent("Go on.", first := "Let me see. "))
    before = server.count()
    head, _, _ = cell.partition("\n")
    i = story.run(f"{head} {options}\nAnd which is cheapest?")
    card = story.wait_card(i, "complete")
    expect(card).to_contain_text(": this is turn 2.")
    expect(card).to_contain_text("Turn 1 was stopped while coordinating")
    for request in server.requests[before:][:3]:
        assert "And which is cheapest?" in request.prompt
        assert TASK in request.prompt
        assert "[INCOMPLETE TURN - Session was cancelled before completion]" in request.prompt
        assert "The **memory-mapped** store wins" in request.prompt
        assert first not in request.prompt.split("And which is cheapest?")[0]
    assert "status" not in story.metadata(2)


def test_complete_run_shows_its_answer_as_markdown(story: Story, server: ModelServer) -> None:
    server.script("m", agent(MARKDOWN))
    story.open()
    i = story.start(TASK, story.team(server_team(server, ada="m", ben="m")))
    card = story.wait_card(i, "complete")
    assert card.locator("strong").first.inner_text() == "memory-mapped"
    assert card.locator("ol").first.locator("li").all_inner_texts() == ["no copies,", "no server."]
    assert card.locator("code").first.inner_text() == "mmap()"
    how = card.locator("summary", has_text="What happened")
    expect(how).to_have_text(re.compile(r"What happened · \d answers? · 2 votes .* presented by"))
    how.click()
    expect(card.locator("details", has_text="What happened").first).to_contain_text("voted for")


def test_an_interrupt_of_the_idle_kernel_stops_the_run(story: Story, server: ModelServer) -> None:
    server.script("m", Reply(text=SAYS))
    server.hold(5)
    story.open()
    i = story.start(TASK, story.team(server_team(server, ada="m")))
    story.wait_running(i)
    story.page.wait_idle()
    story.page.interrupt("toolbar")
    expect(story.chip(i)).to_have_text(STOPPING)
    story.page.interrupt("command")
    card = story.wait_card(i, "stopped")
    expect(card).to_contain_text("Stopped by you (interrupt) after")
    assert story.page.output_text(story.run("6 * 7")) == "42"


def test_run_and_panel_survive_a_reload(story: Story, server: ModelServer) -> None:
    server.script("m", agent("Done.", SAYS))
    server.hold(5)
    story.open()
    i = story.start(TASK, story.team(server_team(server, ada="m", ben="m")))
    story.wait_running(i)
    story.page.save()
    story.page.reload()
    server.hold(30)
    story.panel(i).wait_for()  # saved: the same panel, live again
    shown = story.run("%agents show")
    story.wait_running(shown)
    expect(story.row(shown, "ada").locator(".says")).to_contain_text("cold reads")
    story.page.click_button("Stop", shown)
    expect(story.chip(shown)).to_have_text(STOPPING)
    expect(story.chip(i)).to_have_text(STOPPING)
    story.page.click_button("Stop now", shown)
    for cell in (i, shown):  # the reloaded page can't replace its outputs: the card is in the panel
        expect(story.card(cell)).to_contain_text("Incomplete turn. Stopped by you")
        expect(story.page.button("Stop", cell)).to_have_count(0)
    card = story.run("%agents show")
    story.wait_card(card, "stopped")


def test_kernel_sends_no_state_to_a_page_that_reads_the_disk(
    story: Story, server: ModelServer
) -> None:
    server.script("m", agent("Redis is simplest.", SAYS))
    server.hold(30)
    story.open()
    i = story.start(TASK, story.team(server_team(server, ada="m")))
    story.wait_running(i)
    panel = story.panel(i)
    panel.get_by_role("textbox", name="Send a message to the agents").fill("Be short")
    panel.get_by_role("button", name="Send").click()
    expect(panel.locator(".said")).to_contain_text("Be short")
    sent = story.run(
        "import gc\nfrom nb_agents.jupyter.panel import PanelWidget\n"
        "[each.state['said'] for each in gc.get_objects() if isinstance(each, PanelWidget)]"
    )
    assert story.page.output_text(sent) == "[None]"


@pytest.mark.parametrize("trusted", [True, False])
def test_a_saved_notebook_is_read_without_a_kernel(
    story: Story, server: ModelServer, lab: Lab, trusted: bool
) -> None:
    story.open()
    i = story.start(TASK, three_at_work(story, server))
    wait_at_work(story, i)
    story.page.click_button("Stop", i)
    story.page.click_button("Stop now", i)
    story.wait_card(i, "stopped")
    story.page.save()
    story.page.shutdown_kernel()
    saved = story.page.saved()
    assert "widget-view" not in str(saved.cells[i].outputs)
    assert "Incomplete turn" in saved.cells[i].outputs[0].data["text/plain"]
    # Not the signed notebook, and a kernel that this server doesn't have.
    saved.metadata = {} if trusted else {"from": "a stranger"}
    _write(lab, story, saved, trusted)

    story.page.open_notebook(f"{story.folder.name}/copy.ipynb", kernel=False)
    story.page.page.locator(".jp-Dialog").get_by_role("button", name="No Kernel").click()
    assert story.page.kernel_status() is None
    assert story.page._ask("panel.content.model.cells.get(1).trusted") is trusted
    card = story.page.outputs(i)
    for words in (TASK, "■ stopped", "Incomplete turn.", "I compare the three stores", "320 B"):
        expect(card).to_contain_text(words)
    expect(card.locator("summary").first).to_contain_text("answered · voted for researcher")
    expect(card.locator("pre")).to_contain_text("%%agents --continue --session session_")
    card.locator("summary").first.click()
    assert card.locator("strong").first.inner_text() == "memory-mapped"


def _write(lab: Lab, story: Story, notebook: object, trusted: bool) -> None:
    import nbformat

    path = f"{story.folder.name}/copy.ipynb"
    nbformat.write(notebook, lab.root / path)
    if trusted:
        lab.api(f"contents/{path}/trust", "POST")


def test_keyboard_stops_a_run(story: Story, server: ModelServer) -> None:
    server.script("m", agent("Done.", SAYS))
    server.hold(5)
    story.open()
    i = story.start(TASK, story.team(server_team(server, ada="m")))
    story.wait_running(i)
    keyboard = story.page.page.keyboard
    focused = "() => document.activeElement?.innerText ?? ''"
    for _ in range(60):
        if story.page.page.evaluate(focused) == "Stop":
            break
        keyboard.press("Tab")
    assert story.page.page.evaluate(focused) == "Stop"
    keyboard.press("Enter")
    expect(story.chip(i)).to_have_text(STOPPING)
    expect(story.page.button("Stop now", i)).to_be_focused()  # it is the same button
    keyboard.press("Enter")
    story.wait_card(i, "stopped")
    assert story.page.prompt(i) == "[2]:"  # Enter did nothing to the cell


def test_two_concurrent_runs_have_two_panels(story: Story) -> None:
    story.open()
    slow = story.team(demo_team(1))
    one, two = story.start("First task", slow), story.start("Second task", slow)
    for i, task in ((one, "First task"), (two, "Second task")):
        story.wait_running(i)
        expect(story.panel(i).locator("header .task")).to_have_text(task)
    story.page.click_button("Stop", one)
    story.page.click_button("Stop now", one)
    story.wait_card(one, "stopped")
    expect(story.chip(two)).to_have_text("running")
    table = story.run("%agents")
    expect(story.page.outputs(table)).to_contain_text("First task")
    story.page.click_button("Stop", two)
    story.page.click_button("Stop now", two)
    story.wait_card(two, "stopped")


def test_failed_run_is_red_and_shows_the_reason(story: Story, server: ModelServer) -> None:
    server.script("m", Reply(status=401, error="Incorrect API key provided."))
    story.open()
    i = story.start(TASK, story.team(server_team(server, ada="m", ben="m")))
    card = story.wait_card(i, "failed")
    expect(card).to_contain_text("Failed. No agent gave an answer.")
    expect(card.locator("details").first).to_contain_text("The server refused the key")
    chip = card.get_by_text("▲ failed")
    red, green, blue = (
        float(n) for n in re.findall(r"[\d.]+", chip.evaluate("e => getComputedStyle(e).color"))[:3]
    )
    assert red > 2 * max(green, blue)


def test_sixty_agents_are_still_usable(story: Story) -> None:
    story.open()
    i = story.start(TASK, story.team(demo_team(1, 60)))
    story.wait_running(i)
    panel = story.panel(i)
    expect(panel.locator("tbody tr")).to_have_count(60)
    box = panel.bounding_box()
    assert box and box["height"] < 640  # the rows scroll, Stop stays in sight
    panel.locator("tbody tr").last.scroll_into_view_if_needed()
    expect(panel.get_by_text("agent_60", exact=True)).to_be_in_viewport()
    own = panel.get_by_role("button", name="Stop agent_60", exact=True)
    own.focus()
    own.press("Enter")  # one agent, by the keyboard
    story.page.click_button("Stop agent_60 now", i)
    expect(panel.locator("tbody tr").last.locator(".chip")).to_have_text("stopped")
    expect(story.chip(i)).to_have_text("running")
    story.page.click_button("Stop", i)
    expect(story.chip(i)).to_have_text(STOPPING)
    story.page.click_button("Stop now", i)
    card = story.wait_card(i, "stopped")
    expect(card.locator("summary")).to_have_count(61)  # and what happened


def test_panel_keeps_its_text_after_the_kernel_ends(story: Story, artifacts: Path) -> None:
    # JupyterLab's own error: the old kernel's last message is about a closed widget.
    story.harmless.append("^Comm not found")
    story.open()
    i = story.start(TASK, story.team(demo_team(3)))
    story.wait_running(i)
    story.page.restart_kernel()
    story.page.wait_for_text("stopped", i)
    for name in STOPPED_GREY:
        story.page.set_theme(name)
        story.page.screenshot(artifacts / f"restarted-{name.split()[-1].lower()}.png")
    story.run(LOAD)
    said = story.run("%agents sessions")
    expect(story.page.outputs(said)).to_contain_text(TASK)


def test_untrusted_markup_is_escaped(story: Story, server: ModelServer) -> None:
    evil = (
        "<script>alert(1)</script> <img src=x onerror=alert(2)> <svg onload=alert(3)></svg> "
        "[press](javascript:alert(4)) ![seen](https://tracker.invalid/a.png) "
        "<iframe src='https://tracker.invalid/'></iframe> **bold** "
        "<style>body{display:none}</style> <a href='javascript:alert(5)'>here</a> "
    )
    name = "<img src=x onerror=alert(6)>.md"
    server.script("m", agent(evil + "answered", evil * 9, {name: evil}, final=evil + "presented"))
    server.script("slow", agent(evil, evil * 9))
    server.hold(25, "slow")
    story.open()
    i = story.start(evil, story.team(server_team(server, ada="m", ben="slow")))
    story.wait_running(i)
    expect(story.row(i, "ben").locator(".says")).to_contain_text("<iframe")
    _check_inert(story, story.panel(i))
    story.page.click_button("Stop", i)
    story.page.click_button("Stop now", i)
    card = story.wait_card(i, "stopped")
    expect(card).to_contain_text("<script>alert(1)</script>")
    _check_inert(story, card)
    server.release()
    i = story.start(evil, "--config team.yaml --continue")
    card = story.wait_card(i, "complete")
    card.locator("summary", has_text="What happened").click()
    _check_inert(story, card)
    story.page.save()
    story.page.reload()
    expect(story.card(i)).to_contain_text("<script>alert(1)</script>")
    _check_inert(story, story.card(i))


def _check_inert(story: Story, shown: Locator) -> None:
    """Assert that untrusted text created no element; `Story.check` detects other effects."""
    assert shown.locator("script, img, iframe, object, embed, form").count() == 0
    assert shown.locator("style").count() == shown.locator(".nb-card > style").count()
    assert shown.locator("svg:not([class])").count() == 0  # elements of nb_agents have a class
    for link in shown.locator("a[href]").all():
        assert (link.get_attribute("href") or "").startswith(
            ("#", "http://", "https://", "mailto:")
        )
    handlers = "nodes => nodes.flatMap(n => n.getAttributeNames()).filter(a => a.startsWith('on'))"
    assert shown.locator("*").evaluate_all(handlers) == []
    display = "body => getComputedStyle(body).display"
    assert story.page.page.locator("body").evaluate(display) != "none"


def test_mistake_is_reported_in_a_sentence(story: Story) -> None:
    story.open()
    i = story.run("%%agents --config none.yaml\nWhatever")
    assert story.page.output_text(i).startswith("UsageError: ")
    assert "Traceback" not in story.page.output_text(i)
