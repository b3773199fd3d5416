"""A user types a message into the panel's box, and the models read it."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from tests.browser.story import Story, agent, server_team
from tests.model_server import ModelServer, Request

SAYS = "I compare the three stores by their cold reads. " * 20
TEXT = "abdd: and briefly, please"  # its letters are shortcuts of the notebook


# It sleeps. Before, on request, it blocks the kernel's other threads for four seconds.
SLEEPS = """
import ctypes, os, time
print("asleep", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
open("held", "w").close()
ctypes.PyDLL(None).sleep(4)
time.sleep(600)
"""


def box(story: Story, i: int) -> Locator:
    return story.panel(i).get_by_role("textbox", name="Send a message to the agents")


def readers(server: ModelServer) -> set[str]:
    return {request.model for request in server.requests if TEXT in request.prompt}


def once(requests: list[Request]) -> bool:
    return all(request.prompt.count(TEXT) <= 1 for request in requests)


def test_every_model_reads_a_typed_message(story: Story, server: ModelServer) -> None:
    for model in ("m1", "m2"):
        server.script(model, agent(f"Done by {model}.", SAYS))
    server.hold(5)
    story.open()
    i = story.start("Compare", story.team(server_team(server, ada="m1", ben="m2")))
    story.wait_running(i)
    cells = story.page.page.locator(".jp-Notebook .jp-Cell").count()

    box(story, i).click()
    box(story, i).press_sequentially(TEXT)
    box(story, i).press("Enter")
    expect(story.panel(i).locator(".said")).to_contain_text(f"“{TEXT}”read by 0 of 2")
    expect(box(story, i)).to_have_value("")
    expect(box(story, i)).to_be_focused()
    assert story.page.page.locator(".jp-Notebook .jp-Cell").count() == cells
    assert len(story.events("said")) == 1

    server.release()
    story.wait_card(i, "complete")
    assert readers(server) == {"m1", "m2"} and once(server.requests)


def test_message_is_sent_once_while_the_kernel_is_busy(story: Story, server: ModelServer) -> None:
    server.script("m1", agent("Done.", SAYS))
    server.hold(5)
    story.open()
    i = story.start("Compare", story.team(server_team(server, ada="m1")))
    story.wait_running(i)
    sleeping = story.run(SLEEPS, wait=False)
    story.page.wait_for_text("asleep", sleeping)
    box(story, i).fill(TEXT)
    (story.folder / "go").touch()
    story.page.wait_until((story.folder / "held").exists)
    story.page.click_button("Send", i)
    expect(story.panel(i).locator(".said")).to_contain_text("read by 0 of 1")
    assert story.page.prompt(sleeping) == "[*]:"
    server.release()
    story.wait_card(i, "complete")
    story.page.interrupt()
    story.page.wait_idle()
    # If the shell receives the widget's message only now, it is the same text.
    assert len(story.events("said")) == 1
    assert readers(server) == {"m1"} and once(server.requests)


def test_stop_removes_the_message_box_and_the_card_shows_unread_messages(
    story: Story, server: ModelServer
) -> None:
    server.script("m1", agent("Done.", SAYS))
    server.hold(5)
    story.open()
    i = story.start("Compare", story.team(server_team(server, ada="m1")))
    story.wait_running(i)
    box(story, i).fill(TEXT)
    box(story, i).press("Enter")
    expect(story.panel(i).locator(".said")).to_be_visible()
    story.page.click_button("Stop", i)
    expect(story.chip(i)).to_contain_text("Stopping…")
    expect(box(story, i)).to_be_hidden()
    story.page.click_button("Stop now", i)
    card = story.wait_card(i, "stopped")
    expect(card).to_contain_text(
        f"No agent has read this message yet. The next turn includes it: “{TEXT}”"
    )
