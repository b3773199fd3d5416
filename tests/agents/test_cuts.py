"""Answers that come in pieces: what is kept of a reply that was cut off, and how it goes on."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart

from nb_agents.agents.stream_buffer import Cut, cut_message, cut_of, join, marked

LIMIT = "at its token limit (max_tokens)"


def _cut(*parts: Any, text_counts: bool = False, reason: Any = "length") -> Cut | None:
    return cut_of(ModelResponse(parts=parts, finish_reason=reason), text_counts=text_counts)


CALL = ToolCallPart("write_file", '{"path": "a", "content": "b"}')
HALF_CALL = ToolCallPart("write_file", '{"path": "a", "content": "b')
HALF_ANSWER = ToolCallPart("new_answer", '{"content": "so far')


@pytest.mark.parametrize(
    ("parts", "cut"),
    [
        ([TextPart("so ")], None),  # refused anyway
        ([TextPart("so "), HALF_ANSWER], Cut(LIMIT, "so far", is_call=True)),
        ([CALL, HALF_CALL], Cut(LIMIT, call=1)),
        ([CALL, ToolCallPart("write_file", "")], Cut(LIMIT, call=1)),
        ([CALL], None),
        ([CALL, TextPart("and then")], None),
        ([ToolCallPart("write_file", {"path": "a"})], None),
        ([ThinkingPart("hm")], Cut(LIMIT)),
        ([], Cut(LIMIT)),
    ],
)
def test_a_reply_is_kept_as_far_as_it_counts(parts: list[Any], cut: Cut | None) -> None:
    assert _cut(*parts) == cut
    assert _cut(*parts, reason="stop") is None


def test_plain_text_is_kept_where_it_counts() -> None:
    assert _cut(TextPart("so far"), text_counts=True) == Cut(LIMIT, "so far")


@pytest.mark.parametrize(
    ("kept", "more", "whole"),
    [
        ("", "all of it", "all of it"),
        ("the quick bro", "wn fox", "the quick brown fox"),
        ("the quick", " brown fox", "the quick brown fox"),
        ("It is done.", "END", "It is done."),
        ("It is done.", " END. ", "It is done."),
        ("It is at its ", "END of the road", "It is at its END of the road"),
        ("and these are the last words", "are the last words that I wrote", None),
        ("x" * 50 + " and so", "x" * 50 + " and so on", "x" * 50 + " and so on"),
        ("1, 2, 3, ", "3, 4", "1, 2, 3, 3, 4"),
    ],
)
def test_an_answer_goes_on_where_it_stopped(kept: str, more: str, whole: str | None) -> None:
    assert join(kept, more) == (whole or "and these are the last words that I wrote")


@given(st.text(max_size=80), st.lists(st.text(min_size=1, max_size=15), max_size=6))
def test_no_word_of_a_piece_is_lost(first: str, pieces: list[str]) -> None:
    """Pieces too short to be taken for what is there already are all there in the end."""
    answer = first
    for piece in pieces:
        answer = join(answer, piece)
    kept = [p for p in pieces if p.strip().rstrip(".") != "END"]
    assert answer == first + "".join(kept)


def test_what_is_told_names_the_cause_and_the_way_on() -> None:
    text = cut_message(Cut(LIMIT, "so far"), "all so far", "")
    assert LIMIT in text and "ends in: all so far\n" in text and "Write the rest alone" in text
    assert "Call new_answer again with the rest" in cut_message(
        Cut(LIMIT, "x", True), "x", "new_answer"
    )
    assert "nothing of it was done" in cut_message(Cut(LIMIT, call=0), "", "new_answer")
    silent = cut_message(Cut("by its server (abort)"), "", "new_answer or vote")
    assert "by its server (abort)" in silent and "calling new_answer or vote" in silent


def test_an_answer_that_stays_cut_says_so() -> None:
    assert marked("so far \n", Cut(LIMIT)) == f"so far\n\n[Cut off here {LIMIT}.]"
