"""A user edits a notebook while three agents' proposals arrive and are decided; nothing is lost."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from playwright.sync_api import expect

from tests.browser.story import Story
from tests.browser.test_proposals import boxes
from tests.browser.typing_play import FIRST, Person, Play, agents_of, append_line
from tests.model_server import ModelServer
from tests.samples import some_or_all

PLAYS = some_or_all(1, 20)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(PLAYS))
def test_interleavings_lose_no_keystroke(
    story: Story, server: ModelServer, artifacts: Path, seed: int
) -> None:
    agents, team = agents_of(server, seed)
    story.open(*FIRST)
    story.start("Improve the cells", f"--notebook propose {story.team(team)}")
    person = Person(story)
    person.start_recording()
    expect(boxes(story).first).to_be_visible()
    play = Play([person], agents, Random(seed))
    play.rounds()
    play.check()
    rewound = play.rewinds()
    report = f"seed {seed}: {play.report()}, rewinds to {rewound}"
    append_line(artifacts / "typing-with-proposals.txt", report)
