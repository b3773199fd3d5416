"""The size of a card in a notebook file, and the diff of a notebook that was run twice."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import nbformat
import pytest

from nb_agents import events as ev
from tests import long_cards
from tests.kit.cards import card_bundle
from tests.kit.views import fold, fold_timeline

SENTENCE = "Lorem *ipsum* dolor sit amet, consectetur **adipiscing** elit, sed do eiusmod. "


def turn(agents: int, answer: str, final: str) -> list[ev.Event]:
    """Return the events of a team that answers, votes and presents."""
    ids = [f"agent_{number}" for number in range(agents)]
    events: list[ev.Event] = [
        ev.TurnStarted(
            session="session_20261126_120000",
            turn=1,
            task="Compare three ways to cache embeddings",
            agents=tuple(ev.AgentInfo(id=each, model="gpt-5-mini") for each in ids),
            timeout_s=1800,
        )
    ]
    events += [ev.ModelStarted(agent=each, call=1) for each in ids]
    events += [ev.AnswerGiven(agent=each, answer=answer) for each in ids]
    why = "It is the first, and it says what matters most."
    events += [ev.VoteCast(agent=each, target=ids[0], reason=why, seen={ids[0]: 1}) for each in ids]
    events.append(ev.TurnEnded(status="completed", phase="presenting", answer=final, winner=ids[0]))
    return [replace(each, seq=seq, at=100.0 + seq) for seq, each in enumerate(events, 1)]


def in_notebook(events: list[ev.Event], session: str = "session_20261126_120000") -> str:
    """Return a notebook file with the turn's card as its only output."""
    path = f".nb_agents/sessions/{session}/turn_1"
    bundle = card_bundle(fold(events), path, fold_timeline(events))
    output = nbformat.v4.new_output("display_data", bundle)
    cell = nbformat.v4.new_code_cell("%%agents\nCompare.", id="a", outputs=[output])
    return str(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])))


@pytest.mark.parametrize(
    ("agents", "answer", "final", "limit_kb"),
    [
        (1, "Forty-two.", "Forty-two.", 8),
        (20, SENTENCE * 3, SENTENCE * 8, 40),
        (1, SENTENCE * 190, SENTENCE * 190, 45),
        (3, SENTENCE * 190, SENTENCE * 180, 60),
    ],
    ids=["trivial", "twenty agents", "long answer", "three long answers"],
)
def test_card_is_small_in_the_file(agents: int, answer: str, final: str, limit_kb: float) -> None:
    assert len(in_notebook(turn(agents, answer, final)).encode()) < 1000 * limit_kb


@pytest.mark.parametrize(
    ("make", "limit_kb"),
    [(long_cards.stopped_recipe, 80), (long_cards.complete_recipe, 80), (long_cards.sweep, 70)],
    ids=["stopped recipe", "recipe", "sweep"],
)
def test_long_card_is_small_for_its_content(
    make: Callable[[], dict[str, Any]], limit_kb: float
) -> None:
    output = nbformat.v4.new_output("display_data", make())
    cell = nbformat.v4.new_code_cell("", id="a", outputs=[output])
    text = nbformat.writes(nbformat.v4.new_notebook(cells=[cell]))
    assert len(text.encode()) < 1000 * limit_kb


def test_file_contains_an_answer_twice() -> None:
    answer = "\n\n".join(f"Paragraph {number} of it." for number in range(100))
    text = in_notebook(turn(1, answer, answer))
    assert text.count("Paragraph 77 of it.") == 2


def test_diff_of_a_notebook_run_twice_shows_the_changes() -> None:
    before = in_notebook(turn(3, "Use mmap.", "Use mmap.")).splitlines()
    after = in_notebook(turn(3, "Use mmap.", "Use SQLite.")).splitlines()
    changed = [
        line
        for line in difflib.unified_diff(before, after, n=0)
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert len(changed) < 25
    assert sum("SQLite" in line for line in changed) == 3  # HTML, Markdown, plain text
