"""Values of steps' outputs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.extensions.recipes.output import Output, final_text
from tests.kit.views import value_of

TWO_BLOCKS = """Like this:

```python
x = [1, 2]
```

The result:

```json
{"k": "v"}
```
"""


@pytest.mark.parametrize(
    "text, plain, searched",
    [
        ("  words \n", "words", "words"),
        ("", "", ""),
        ('\n{"k": [1]}\n', {"k": [1]}, {"k": [1]}),
        ("[]", [], []),
        # A number is JSON only if it is written as JSON would write it.
        ('"quoted"', "quoted", "quoted"),
        ("true", True, True),
        ("null", None, None),
        ("42", 42, 42),
        ("0.5", 0.5, 0.5),
        ("1.10", "1.10", "1.10"),
        ("12e4567", "12e4567", "12e4567"),
        ("1e5", "1e5", "1e5"),
        ("007", "007", "007"),
        ("NaN", "NaN", "NaN"),
        ("9" * 5000, "9" * 5000, "9" * 5000),
        # JSON inside other text.
        ('so: {"k": 1}.', 'so: {"k": 1}.', {"k": 1}),
        ("a [] b {} c [3]", "a [] b {} c [3]", [3]),
        ('f(x[0]) {"k": [1}', 'f(x[0]) {"k": [1}', [0]),
        ("if (a) { b } [see]", "if (a) { b } [see]", "if (a) { b } [see]"),
        (TWO_BLOCKS, TWO_BLOCKS.strip(), {"k": "v"}),
        ("```\n[1]\n```", "```\n[1]\n```", [1]),
        ("```json\n7\n```", "```json\n7\n```", 7),
        ("```json\n{broken\n```", "```json\n{broken\n```", "```json\n{broken\n```"),
        (
            '```\n{"a": 1}\n```\n```\n{"a": 2}\n```',
            '```\n{"a": 1}\n```\n```\n{"a": 2}\n```',
            {"a": 2},
        ),
        ('{"code": "```\\nx\\n```"}', {"code": "```\nx\n```"}, {"code": "```\nx\n```"}),
        ('{"n": 1e999}', '{"n": 1e999}', '{"n": 1e999}'),
        ('{"n": NaN}', '{"n": NaN}', '{"n": NaN}'),
        ("\ufeff{}", "\ufeff{}", "\ufeff{}"),
    ],
)
def test_value_of_command_output_is_text_or_json(text: str, plain: Any, searched: Any) -> None:
    output = Output(text)

    assert (output.value, type(output.value)) == (plain, type(plain))
    assert (output.found, type(output.found)) == (searched, type(searched))


@pytest.mark.parametrize(
    "text, value", [("  a \n", "  a "), ("a\n\n", "a\n"), ("a", "a"), (" 42 \n", 42), ("\n", "")]
)
def test_command_output_loses_only_its_last_newline(text: str, value: Any) -> None:
    assert Output(text, is_of_command=True).found == value


def test_lone_surrogates_are_replaced() -> None:
    value = value_of('{"\\ud83d": ["\\udc00 \\ud83d\\ude00 é"]}')

    assert value == {"\ufffd": ["\ufffd 😀 é"]}
    json.dumps(value, ensure_ascii=False).encode()


@pytest.mark.parametrize("depth", [101, 950, 100_000])
def test_excessive_nesting_stays_text(depth: int) -> None:
    text = "[" * depth + "]" * depth

    assert value_of(text) == text
    assert value_of("so: " + text, parse_json=True) == "so: " + text


def test_ordinary_nesting_is_parsed() -> None:
    assert value_of("[" * 100 + "]" * 100) != "[" * 100 + "]" * 100


@pytest.mark.parametrize(
    "text",
    ["[" * 500_000, '[{"' * 200_000, ("[" * 900 + "x") * 500, "[" * 900 + '"' + "y" * 1_000_000],
    ids=["open", "objects", "deep", "string"],
)
def test_parsing_any_text_is_fast(text: str) -> None:
    # Without the limit, this takes minutes, longer than any test may.
    assert value_of(text, parse_json=True) == text


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)


@given(st.lists(_json) | st.dictionaries(st.text(st.characters(codec="utf-8")), _json))
def test_json_round_trips_in_any_wrapping(value: Any) -> None:
    text = json.dumps(value, indent=1)

    assert value_of(text) == value
    assert value_of(f"Done:\n```json\n{text}\n```\nBye.", parse_json=True) == value
    assert not value or value_of(f"Done: {text} Bye.", parse_json=True) == value


@given(st.text())
def test_value_of_any_text_can_be_written_as_json(text: str) -> None:
    for value in (value_of(text), value_of(text, parse_json=True)):
        json.dumps(value, allow_nan=False)


def test_final_output_or_last_output_is_the_result() -> None:
    assert final_text({"final_output": "f", "x": "last"}) == "f"
    assert final_text({"x": 1, "y": {"k": "é"}}) == '{\n  "k": "é"\n}'
    assert final_text({}) == ""
