"""Tests of tool calls written as text, and of similar texts that are not calls."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.agents.written_calls import written_call

NAMES = {"read_file", "new_answer", "mcp__docs__search-all"}
CALL = '{"name": "read_file", "arguments": {"path": "n.md"}}'
WRITTEN = [
    f"<tool_call>\n{CALL}\n</tool_call>",
    f"Let me look.\n\n<tool_call>{CALL}</tool_call>",
    f"<think>Hm, {CALL}?</think>\n{CALL}",
    f"<|tool_call|>[{CALL}]",
    f"<|python_tag|>{CALL}",
    f"[TOOL_CALLS][{CALL}]",
    f"[TOOL_CALLS] {CALL}",
    '[TOOL_CALLS]read_file{"path": "n.md"}',
    '[TOOL_CALLS]read_file[ARGS]{"path": "n.md"}',
    '<function=read_file>{"path": "n.md"}</function>',
    "<tool_call>\n<function=read_file>\n<parameter=path>\nn.md\n</parameter>\n</function>",
    '<function name="read_file">',
    '<function_calls>\n<invoke name="read_file">\n<parameter name="path">n.md</parameter>',
    '<minimax:tool_call><invoke name="read_file">',
    "<tool_call>read_file\n<arg_key>path</arg_key>\n<arg_value>n.md</arg_value>\n</tool_call>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read_file\n```json\n{}",
    "<｜tool▁call▁begin｜>read_file<｜tool▁sep｜>{}",
    '<|tool_call_begin|>functions.read_file:0<|tool_call_argument_begin|>{"path": "n.md"}',
    '<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>{"path": "n.md"}',
    CALL,
    f"[{CALL}]",
    f"```json\n{CALL}\n```",
    CALL.replace("arguments", "parameters"),
    CALL.removesuffix("}"),  # models forget the last one
    json.dumps({"type": "function", "function": json.loads(CALL)}),
    json.dumps({"id": "c1", "name": "read_file", "arguments": '{"path": "n.md"}'}),
]
NO_CALLS = [
    "",
    "The answer is 42.",
    CALL.replace("read_file", "another"),
    f"<tool_call>{CALL.replace('read_file', 'another')}</tool_call>",
    '{"name": "read_file", "size": 3}',
    '[{"name": "read_file"}, {"name": "new_answer"}]',
    f"Some servers show this:\n\n```\n<tool_call>{CALL}</tool_call>\n```\nSo set it.",
    f"Write `<tool_call>{CALL}</tool_call>` then.",
    f"The log says {CALL} twice.",
    f"{CALL}\n\nis what the model sent.",
    f"{CALL} and {{more}}",
    "Call read_file(path) with the path, or <read_file>.",
    "It goes to=functions.read_file somewhere.",
    "<function=another>",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_a_call_of_a_known_tool_in_a_known_format_is_found(text: str) -> None:
    assert written_call(text, NAMES) == "read_file"
    assert written_call(text, NAMES - {"read_file"}) == ""


@pytest.mark.parametrize("text", NO_CALLS)
def test_ordinary_texts_are_not_calls(text: str) -> None:
    assert written_call(text, NAMES) == ""


def test_names_may_have_dashes() -> None:
    call = CALL.replace("read_file", "mcp__docs__search-all")
    assert written_call(f"<tool_call>{call}", NAMES) == "mcp__docs__search-all"


@pytest.mark.parametrize("text", [CALL[:40], f"<tool_call>{CALL[:40]}", f"```json\n{CALL[:40]}"])
def test_truncated_call_is_recognized(text: str) -> None:
    assert written_call(text, NAMES) == "read_file"


@given(st.text(st.sampled_from('<>{}[]"`:\\ \nname=|tool_calls/function')))
def test_text_without_a_tool_name_is_not_a_call(text: str) -> None:
    assert written_call(text, NAMES) == ""


def test_long_texts_are_checked_quickly() -> None:
    for piece in (
        "<tool_call>",
        "{",
        '{"a":"b",',
        "`",
        "```",
        "<think>",
        "[TOOL_CALLS][",
        "<invoke ",
    ):
        assert written_call(piece * 20_000, NAMES) == ""
