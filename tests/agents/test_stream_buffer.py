"""Tests of streamed text: extracted from unfinished JSON at any split, and complete at the end."""

import json
from collections.abc import Iterator
from itertools import cycle, repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from nb_agents.agents import stream_buffer
from nb_agents.agents.stream_buffer import StreamBuffer, read_arguments
from nb_agents.errors import ReplyTooLongError

TEXTS = [
    'quotes " and \\ and \\\\" and \n\t\r\b\f',
    "é ü ñ \u2028 \u2029 \x7f \x00",
    "😀 pairs 👩‍👩‍👧 at 🏳️‍🌈 every split 𝄞",
    r"looks like an escape: \ud83d \u00e9 \n",
    '{"content": "nested"}',
    "",
]


def _call(json_text: str, split: int) -> list[str]:
    """Stream a new_answer call in two chunks, and return the new text after each."""
    gathered = StreamBuffer("a", 1)
    gathered.add(PartStartEvent(index=0, part=ToolCallPart("new_answer", json_text[:split])))
    taken = [_words(gathered)]
    delta = ToolCallPartDelta(args_delta=json_text[split:])
    gathered.add(PartDeltaEvent(index=0, delta=delta))
    return [*taken, _words(gathered)]


def _words(gathered: StreamBuffer) -> str:
    return "".join(event.text for event in gathered.take() if event.channel == "answer")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_answer_is_complete_for_any_split(text: str, ascii_only: bool) -> None:
    whole = json.dumps({"content": text}, ensure_ascii=ascii_only)
    for split in range(len(whole) + 1):
        first, second = _call(whole, split)
        assert text.startswith(first)
        assert first + second == text


@given(st.text(max_size=40), st.booleans(), st.data())
def test_streamed_answer_only_grows(text: str, ascii_only: bool, data: st.DataObject) -> None:
    whole = json.dumps({"content": text}, ensure_ascii=ascii_only)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    gathered, words = StreamBuffer("a", 1), ""
    gathered.add(PartStartEvent(index=0, part=ToolCallPart("new_answer", "")))
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        delta = ToolCallPartDelta(args_delta=whole[start:end])
        gathered.add(PartDeltaEvent(index=0, delta=delta))
        words += _words(gathered)
        assert text.startswith(words)
    assert words == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"content": "raw\nline breaks\tand tabs"}', "raw\nline breaks\tand tabs"),
        ('{"content": "half \\ud83d a pair"}', "half \ufffd a pair"),
        ('{"content": "the other \\udc00 half"}', "the other \ufffd half"),
        ('{"content": "whole \\ud83d\\ude00\nand raw"}', "whole 😀\nand raw"),
        ('{"content": "not one \\\\ud83d\nand raw"}', "not one \\ud83d\nand raw"),
    ],
)
def test_lenient_json_is_read(arguments: str, text: str) -> None:
    for split in range(len(arguments) + 1):
        first, second = _call(arguments, split)
        assert first + second == text
    assert read_arguments(arguments) == {"content": text}


@pytest.mark.parametrize("arguments", ['{"content": "cut o', "[1]", "nonsense", "[" * 100_000])
def test_invalid_arguments_differ_from_empty_ones(arguments: str) -> None:
    assert read_arguments(arguments) is None
    assert [read_arguments(""), read_arguments(None), read_arguments("{}")] == [{}] * 3


@pytest.mark.parametrize("content", ["5", "null", '["a"]', '{"x": 1}'])
def test_answer_that_is_not_a_string_is_empty(content: str) -> None:
    assert _call(f'{{"content": {content}}}', 4) == ["", ""]


def test_each_part_has_its_channel() -> None:
    gathered = StreamBuffer("a", 7)
    parts: list[tuple[Any, Any]] = [
        (TextPart("text "), TextPartDelta("more")),
        (ThinkingPart("thought "), ThinkingPartDelta(content_delta="more")),
        (ToolCallPart("write_file", '{"pa'), ToolCallPartDelta(args_delta='th": "x"}')),
    ]
    for index, (part, delta) in enumerate(parts):
        gathered.add(PartStartEvent(index=index, part=part))
        gathered.add(PartDeltaEvent(index=index, delta=delta))
    told = [(e.channel, e.text, e.tool, e.call) for e in gathered.take()]
    assert told == [
        ("text", "text more", "", 7),
        ("thinking", "thought more", "", 7),
        ("call", '{"path": "x"}', "write_file", 7),
    ]
    assert gathered.take() == []


def test_reused_index_keeps_the_earlier_text() -> None:
    gathered = StreamBuffer("a", 1)
    gathered.add(PartStartEvent(index=0, part=TextPart("first ")))
    gathered.add(PartStartEvent(index=0, part=TextPart("second")))
    assert "".join(e.text for e in gathered.take()) == "first second"


def test_words_are_counted_in_the_visible_text() -> None:
    gathered = StreamBuffer("a", 1)
    gathered.add(PartStartEvent(index=0, part=TextPart("I have")))
    gathered.add(PartDeltaEvent(index=0, delta=TextPartDelta(" it.")))
    answer = ToolCallPart("new_answer", '{ "content" : "Redis is')
    gathered.add(PartStartEvent(index=1, part=answer))
    assert gathered.words == 5


def test_a_reply_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_buffer, "MAX_REPLY_CHARS", 10)
    gathered = StreamBuffer("a", 1)
    gathered.add(PartStartEvent(index=0, part=TextPart("01234")))
    with pytest.raises(ReplyTooLongError, match="limit of 10 characters"):
        gathered.add(PartDeltaEvent(index=0, delta=TextPartDelta("56789x")))
    assert gathered.take()[0].text == "0123456789"


def _add_parts(parts: Iterator[Any]) -> int:
    """Start parts until the limit, and return their number."""
    gathered, taken = StreamBuffer("a", 1), 0
    with pytest.raises(ReplyTooLongError) as caught:
        for taken, part in enumerate(parts):
            gathered.add(PartStartEvent(index=taken, part=part))
    assert str(caught.value).startswith("The reply exceeded the limit of ")
    return taken


def test_a_reply_may_make_256_calls_and_no_more() -> None:
    assert _add_parts(repeat(ToolCallPart("f", "{}"))) == 256


def test_a_reply_may_have_1000_parts_and_no_more() -> None:
    assert (
        _add_parts(
            cycle([TextPart(""), ThinkingPart(""), FilePart(BinaryContent(b"", media_type="x/y"))])
        )
        == 1000
    )
