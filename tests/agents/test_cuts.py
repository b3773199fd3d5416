"""Tests of truncated replies: the saved part, and the continuation."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart

from tests.kit.agents import Cut, cut_message, cut_of, join, mark_incomplete

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
        ([CALL, ToolCallPart("write_file", None)], Cut(LIMIT, call=1)),
        ([CALL, ToolCallPart("write_file", {})], Cut(LIMIT, call=1)),
        ([CALL, ToolCallPart("write_file", ""), TextPart(" ")], Cut(LIMIT, call=1)),
        ([CALL, ToolCallPart("list_files", ""), CALL], None),
        ([ToolCallPart("list_files", ""), ThinkingPart("and then")], None),
        ([ToolCallPart("list_files", ""), ToolCallPart("vote", None)], Cut(LIMIT, call=1)),
        ([ToolCallPart("new_answer", None)], Cut(LIMIT, is_call=True)),
        ([CALL], None),
        ([CALL, TextPart("and then")], None),
        ([ToolCallPart("write_file", {"path": "a"})], None),
        ([ThinkingPart("hm")], Cut(LIMIT)),
        ([], Cut(LIMIT)),
    ],
)
def test_valid_part_of_a_truncated_reply_is_kept(parts: list[Any], cut: Cut | None) -> None:
    assert _cut(*parts) == cut
    assert _cut(*parts, reason="stop") is None


def test_truncated_plain_text_is_kept_if_it_counts() -> None:
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
def test_truncated_answer_continues_where_it_stopped(
    kept: str, more: str, whole: str | None
) -> None:
    assert join(kept, more) == (whole or "and these are the last words that I wrote")


@given(st.text(max_size=80), st.lists(st.text(min_size=1, max_size=15), max_size=6))
def test_joining_pieces_loses_no_text(first: str, pieces: list[str]) -> None:
    """Pieces that are too short to be recognized as repetitions are all kept."""
    answer = first
    for piece in pieces:
        answer = join(answer, piece)
    kept = [p for p in pieces if p.strip().rstrip(".") != "END"]
    assert answer == first + "".join(kept)


def test_message_about_a_cut_names_cause_and_next_step() -> None:
    text = cut_message(Cut(LIMIT, "so far"), "all so far", "")
    assert LIMIT in text and "ends with: all so far\n" in text and "Write only the rest" in text
    assert "Call new_answer again with only the rest" in cut_message(
        Cut(LIMIT, "x", True), "x", "new_answer"
    )
    assert "was not executed" in cut_message(Cut(LIMIT, call=0), "", "new_answer")
    silent = cut_message(Cut("by its server (abort)"), "", "new_answer or vote")
    assert "by its server (abort)" in silent and "call new_answer or vote right away" in silent


def test_incomplete_answer_is_marked() -> None:
    assert mark_incomplete("so far \n", Cut(LIMIT)) == f"so far\n\n[Cut off here {LIMIT}.]"
