"""Comparisons of an agent's answers."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from nb_agents.presentation.answer_diffs import compare, revisions
from tests.kit.views import AgentView


def test_revision_shows_removed_and_added_words() -> None:
    changes = compare("one cold read is slow", "one cold read is quick")
    assert [(c.kind, c.text) for c in changes] == [
        ("same", "one cold read is "),
        ("gone", "slow"),
        ("new", "quick"),
    ]


def test_dissimilar_texts_are_shown_one_after_the_other() -> None:
    changes = compare("Redis is simplest.", "Take a memory-mapped store with an index beside it!")
    assert [c.kind for c in changes] == ["gone", "new"]


@given(st.text("ab ,\n", max_size=80), st.text("ab ,\n", max_size=80))
def test_comparison_contains_both_texts(old: str, new: str) -> None:
    changes = compare(old, new)
    assert "".join(c.text for c in changes if c.kind != "new") == old
    assert "".join(c.text for c in changes if c.kind != "gone") == new


def test_each_answer_is_compared_with_the_next_without_long_unchanged_parts() -> None:
    same = " ".join(f"word{n}" for n in range(200))
    agent = AgentView("ada", answers=(f"one {same}", f"two {same}", f"two {same}", f"3 {same}"))
    first, second, third = revisions(agent)
    assert (first.before, first.after, first.is_cut) == (1, 2, False)
    assert sum(len(change.text) for change in first.changes) < 200
    assert (second.has_changes, third.has_changes) == (False, True)


def test_only_the_beginnings_of_long_answers_are_compared() -> None:
    long = " ".join(f"word{n}" for n in range(5000))
    agent = AgentView("ada", answers=(f"one {long}", f"two {long}"))
    [revision] = revisions(agent)
    assert revision.is_cut
    assert sum(len(change.text) for change in revision.changes) < 10_000


def test_comparison_of_texts_with_few_different_words_is_fast() -> None:
    words = ["cache ", "store ", ", "]
    one, other = ("".join(words[n * k % 3] for n in range(800)) for k in (1, 2))
    began = time.process_time()
    compare(one, other)
    assert time.process_time() - began < 0.5
