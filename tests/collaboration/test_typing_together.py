"""Two people edit a notebook while three agents' proposals arrive and both decide them."""

from __future__ import annotations

from random import Random

import pytest
from playwright.sync_api import expect

from tests.browser.story import Story
from tests.browser.test_proposals import boxes
from tests.browser.typing_play import FIRST, OWN, Person, Play, agents_of, append_line
from tests.collaboration.conftest import PEOPLE, artifact
from tests.model_server import ModelServer
from tests.samples import some_or_all

PLAYS = some_or_all(1, 8)
LETTERS = ("ABCDEFGHIJK", "LMNOPQRSTUV")

expect.set_options(timeout=60_000)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(PLAYS))
def test_neither_loses_a_keystroke_and_each_decision_takes_effect_once(
    stories: tuple[Story, Story], server: ModelServer, seed: int
) -> None:
    ada, kim = stories
    agents, team = agents_of(server, seed)
    own = [f"{OWN}{name}\nown = {n}" for name in PEOPLE for n in range(2)]
    ada.open(*FIRST, *own)
    ada.start("Improve the cells", f"--notebook propose {ada.team(team)}")
    kim.page.open_notebook(ada.page.notebook)
    names = zip((ada, kim), LETTERS, PEOPLE, PEOPLE[::-1], strict=True)
    people = [Person(story, letters, name, (other,)) for story, letters, name, other in names]
    for person in people:
        person.start_recording()
        expect(boxes(person.story).first).to_be_visible()
    play = Play(people, agents, Random(seed))
    play.rounds()
    play.check()
    rewound = play.rewinds()
    report = f"seed {seed}: {play.report()}, rewinds to {rewound}"
    append_line(artifact("typing-together.txt"), report)
