"""Text that can be stored, sent and shown."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.unicode import trailing_half_pair, well_formed

ANY_CHARACTER = st.characters(exclude_categories=[])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.text(ANY_CHARACTER) | st.integers() | st.none(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(ANY_CHARACTER), inner) | st.tuples(inner)
    ),
    max_leaves=10,
)


@dataclass(frozen=True)
class Word:
    text: str
    number: int = 0


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("\ud83d\ude00", "😀"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd😀"),
        ("😀\x00\x1b\ufeff\u2028", "😀\x00\x1b\ufeff\u2028"),
    ],
)
def test_surrogate_halves_are_joined(text: str, whole: str) -> None:
    assert well_formed(text) == whole
    assert well_formed(Word(text, 3)) == Word(whole, 3)
    assert well_formed({text: [(text, 1.5)]}) == {whole: [(whole, 1.5)]}


@given(VALUES)
def test_well_formed_values_can_be_encoded_and_are_stable(value: Any) -> None:
    whole = well_formed(value)
    repr(whole).encode()
    str(_texts(whole)).encode()
    assert well_formed(whole) is whole


@given(st.text())
def test_well_formed_text_is_unchanged(text: str) -> None:
    assert well_formed(text) is text


@given(st.text(ANY_CHARACTER), st.text(ANY_CHARACTER))
def test_incomplete_character_waits_for_the_next_piece(a: str, b: str) -> None:
    half = trailing_half_pair(a)
    assert well_formed(a.removesuffix(half)) + well_formed(half + b) == well_formed(a + b)


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in _texts(each)]
    if isinstance(value, list | tuple):
        return [text for each in value for text in _texts(each)]
    return [value] if isinstance(value, str) else []
