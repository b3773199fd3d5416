"""kill -9 of the kernel, the server or the page at each event of a proposal.

Afterwards the notebook and the journal agree: an accepted change is in the notebook once. A
proposal without a recorded decision is shown again, and so is a change that was not saved.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Error, Route, expect

from tests.browser.lab import Lab, NotebookPage, start_lab
from tests.browser.story import Story
from tests.browser.test_proposals import (
    CHECK,
    LOOP,
    SUM,
    boxes,
    inserts,
    proposing,
    replaces,
    sources,
    start,
)
from tests.kit.notebook_cells import ChangeDecided, late_events
from tests.kit.sessions import load_session
from tests.model_server import ModelServer
from tests.samples import IS_FULL

VICTIMS = ("kernel", "server", "page")
EVENTS = ("proposed", "claimed", "applied", "decided")
FEW = [("kernel", "applied"), ("server", "applied"), ("page", "decided")]
CASES = [*product(VICTIMS, EVENTS)] if IS_FULL else FEW


@pytest.fixture(scope="module")
def lab_to_kill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with start_lab(tmp_path_factory.mktemp("killed")) as lab:
        yield lab


@pytest.mark.parametrize(("victim", "event"), CASES)
def test_each_accepted_change_is_in_the_notebook_once(
    request: pytest.FixtureRequest,
    browser: BrowserContext,
    server: ModelServer,
    victim: str,
    event: str,
) -> None:
    lab: Lab = request.getfixturevalue("lab_to_kill" if victim == "server" else "lab")
    folder = lab.root / f"{victim}-{event}"
    folder.mkdir()
    with NotebookPage(lab, browser) as page:
        story = Story(page, folder)
        start(story, server, proposing(replaces, inserts))
        story.run("import os; os.getpid()")
        pid = int(page.output_text(page.cell_count() - 1))
        expect(boxes(story)).to_have_count(2)
        page.save()
        try:
            kill_at(event, story, victim, pid)
            if victim == "page":
                with NotebookPage(lab, browser) as other:
                    other.open_notebook(page.notebook)
                    check(Story(other, folder), set())  # nothing was saved
            else:
                page.save()
                page.reload(kernel=victim == "kernel")
                check(story, {*accepted(story.turn())})
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # a kernel without a server


def kill_at(event: str, story: Story, victim: str, pid: int) -> None:
    """Accept all proposals, and end a process at this event of the first one."""
    held: list[tuple[Route, Any]] = []
    verb = "cells_claim" if event == "claimed" else "cells_decide"

    def hold(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append((route, None if event == "applied" else route.fetch(max_retries=3)))

    if event != "proposed":
        story.page.page.route(f"**/{verb}*", hold)
        story.page.page.get_by_role("button", name="Accept all").click()
        story.page.wait_until(lambda: held, what=verb)
    if victim == "page":
        story.page.page.close()
        return
    if victim == "kernel":
        os.kill(pid, signal.SIGKILL)
    else:
        story.page.lab.kill()
    for route, response in held:
        with suppress(Error):  # the request can fail now
            if response:
                route.fulfill(response=response)
            else:
                route.continue_()
    if victim == "server":
        story.page.lab.restart()
    if event != "proposed":
        story.page.wait_until(lambda: accepted(story.turn()), what="the report")


def check(story: Story, done: set[int]) -> None:
    """The notebook has these changes, and the others are shown and can be accepted."""
    expect(boxes(story)).to_have_count(2 - len(done))
    found = sources(story)
    assert (found.count(SUM), found.count(LOOP)) == ((1, 0) if 1 in done else (0, 1))
    assert found.count(CHECK) == (2 in done)
    while left := boxes(story).count():
        box = boxes(story).first
        box.get_by_role("button", name="Accept").click()
        here = box.get_by_role("button", name="Decide here")
        story.page.wait_until(
            lambda: here.is_visible() or boxes(story).count() < left,  # noqa: B023
            what="the answer to the click",
        )
        if here.is_visible():  # it was claimed by the page that is gone
            here.click()
            box.get_by_role("button", name="Accept").click()
        expect(boxes(story)).to_have_count(left - 1)
    story.page.wait_until(lambda: accepted(story.turn()) == [1, 2], what="the decisions")
    found = sources(story)
    assert (found.count(SUM), found.count(LOOP), found.count(CHECK)) == (1, 0, 1)


def accepted(turn: Path) -> list[int]:
    """Return the numbers of the accepted proposals, from the journal and after the turn's end."""
    [past] = [each for each in load_session(turn.parent).turns if each.paths.path == turn]
    events = [*past.events, *late_events(past.paths)]
    decided = [e for e in events if isinstance(e, ChangeDecided) and e.how == "accepted"]
    return sorted(each.number for each in decided)
