"""What a step gave, as a value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.recipes.output import Output, final_text, value_of

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
        # A number counts as JSON where it is written as it was.
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
        # Within text.
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
def test_value(text: str, plain: Any, searched: Any) -> None:
    output = Output(text)

    assert (output.value, type(output.value)) == (plain, type(plain))
    assert (output.found, type(output.found)) == (searched, type(searched))


@pytest.mark.parametrize(
    "text, value", [("  a \n", "  a "), ("a\n\n", "a\n"), ("a", "a"), (" 42 \n", 42), ("\n", "")]
)
def test_the_text_of_a_command_loses_its_last_newline_alone(text: str, value: Any) -> None:
    assert Output(text, is_of_command=True).found == value


def test_halves_of_characters_are_replaced() -> None:
    value = value_of('{"\\ud83d": ["\\udc00 \\ud83d\\ude00 é"]}')

    assert value == {"\ufffd": ["\ufffd 😀 é"]}
    json.dumps(value, ensure_ascii=False).encode()


@pytest.mark.parametrize("depth", [101, 950, 100_000])
def test_endless_nesting_stays_text(depth: int) -> None:
    text = "[" * depth + "]" * depth

    assert value_of(text) == text
    assert value_of("so: " + text, parse_json=True) == "so: " + text


def test_nesting_is_allowed_as_people_use_it() -> None:
    assert value_of("[" * 100 + "]" * 100) != "[" * 100 + "]" * 100


@pytest.mark.parametrize(
    "text",
    ["[" * 500_000, '[{"' * 200_000, ("[" * 900 + "x") * 500, "[" * 900 + '"' + "y" * 1_000_000],
    ids=["open", "objects", "deep", "string"],
)
def test_no_text_takes_long(text: str) -> None:
    # Without a limit it is minutes, beyond what any test here may take.
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
def test_json_comes_back_as_it_was_however_it_is_wrapped(value: Any) -> None:
    text = json.dumps(value, indent=1)

    assert value_of(text) == value
    assert value_of(f"Done:\n```json\n{text}\n```\nBye.", parse_json=True) == value
    assert not value or value_of(f"Done: {text} Bye.", parse_json=True) == value


@given(st.text())
def test_any_text_has_a_value_that_is_json(text: str) -> None:
    for value in (value_of(text), value_of(text, parse_json=True)):
        json.dumps(value, allow_nan=False)


def test_the_final_output_stands_for_the_recipe_else_the_last_one() -> None:
    assert final_text({"final_output": "f", "x": "last"}) == "f"
    assert final_text({"x": 1, "y": {"k": "é"}}) == '{\n  "k": "é"\n}'
    assert final_text({}) == ""
