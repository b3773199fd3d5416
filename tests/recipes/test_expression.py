"""Conditions: Amplifier's language, in which no value can change the condition."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tblib import pickling_support

from nb_agents.config.expression import Comparison, as_text, evaluate, lookup, parse
from nb_agents.errors import RecipeError

CONTEXT: dict[str, Any] = {
    "word": "high",
    "empty": "",
    "n": 5,
    "score": "0.85",
    "zero": 0,
    "yes": True,
    "no": False,
    "nothing": None,
    "items": ["a"],
    "none_left": [],
    "step": {"result": {"ok": "true", "list": [1, 2]}, "bare": {}},
    "quote": 'it\'s "so"',
    "mode": "critics-only",
    "day": "2026-01-02",
    "in": 1,
}


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "  ",
        "{{word}} == 'high'",
        '{{word}} == "high"',
        "{{word}} == high",
        "{{mode}} == critics-only",
        "mode != critics and {{day}} == 2026-01-02",
        "'ig' in word",
        "'x' not in {{word}} and 'a' in items",
        "2 in step.result.list",
        "word is defined and {{missing}} is not defined",
        "not missing.key is defined",
        "nothing is defined",
        "in == 1 and {{word}} != in",
        "{{word}} != 'none'",
        "'{{word}}' == 'high'",
        '"{{n}}" == 5',
        "{{ word }} == 'high'",
        "word == 'high'",
        "{{step.result.ok}} == 'true'",
        "step.result.ok",
        "{{n}} == 5.0",
        "{{n}} == '5'",
        "{{n}} > -1",
        "{{n}} >= 5 and {{n}} <= 5",
        "{{score}} > 0.8",
        "'10' > '9'",
        "'b' > 'a'",
        "{{yes}}",
        "{{yes}} == true",
        "{{yes}} == True",
        "{{no}} == 'false'",
        "not {{no}}",
        "not not {{yes}}",
        "not {{empty}} and not {{zero}} and not {{nothing}} and not {{none_left}}",
        "not {{step.bare}}",
        "{{items}}",
        "{{items}} == {{items}}",
        "{{items}} != {{none_left}}",
        "{{none_left}} == '[]'",
        "{{step.result.list}} == '[1, 2]'",
        "{{nothing}} == null",
        "{{nothing}} == None",
        "{{nothing}} == ''",
        "{{word}} != null",
        "{{yes}} or {{no}} and {{no}}",
        "not {{no}} == {{yes}}",
        "({{no}} or {{yes}}) and ({{word}} == 'x' or {{n}} == 5)",
        r"{{quote}} == 'it\'s \"so\"'",
        "{{yes}} or {{missing}}",
        "{{word}} contains 'ig'",
        "{{items}} contains 'a'",
        "{{step.result.list}} contains 2",
        "{{step.result}} contains '\"ok\"'",
        "not {{word}} contains 'x' and {{word}} contains {{word}}",
        "true",
    ],
)
def test_true_conditions(condition: str) -> None:
    assert evaluate(parse(condition), CONTEXT)


@pytest.mark.parametrize(
    "condition",
    [
        "{{word}}=='low'",
        "{{word}} == 'HIGH'",
        "{{n}} < 5",
        "'10' < '9'",
        "({{yes}} or {{no}}) and {{no}}",
        "not ({{yes}})",
        "{{no}} and {{missing}}",
        "{{none_left}}",
        "{{nothing}}",
        "{{nothing}} != 'none'",
        "false",
        "0",
        "'none'",
        "''",
        "{{word}} contains 'HIGH'",
        "{{items}} contains ''",
        "'' in word",
        "'high' not in word",
        "missing is defined",
        "word is not defined",
        "{{word}} contains ''",
        "{{word}} contains {{nothing}}",
        "{{nothing}} contains 'x'",
        "'high' contains {{step.result.ok}}",
        "{{big}} == 9223372036854775806",
    ],
)
def test_false_conditions(condition: str) -> None:
    assert not evaluate(parse(condition), {**CONTEXT, "big": 9223372036854775807})


@pytest.mark.parametrize(
    "condition, column, what",
    [
        ("{{a}} ==", 9, "expected a value, found the end"),
        ("{{a}} and or {{b}}", 11, "expected a value, found `or`"),
        ("({{a}}", 7, "expected `)`, found the end"),
        ("{{a}} orb", 7, "found `orb`"),
        ("{{a}} {{b}}", 7, "expected `and` or `or`"),
        ("{{a}} == 'x", 10, "a quote is not closed"),
        ("{{a}} contains", 15, "expected a value, found the end"),
        ("{{a}} contains 1 == 2", 18, "found `==`"),
        ("{{a}} = 1", 7, "unexpected character '='"),
        ("{{a}} == 'a {{b}}'", 10, "variables inside other text"),
        ("{{a}} == 1 == 2", 12, "found `==`"),
        ("{{a}}.upper()", 6, "unexpected character '.'"),
        ("__import__('os')", 11, "functions are not supported"),
        ("found['key'] > 0", 6, "write a field as {{name.key}}"),
        ("{{n}} == 1 and 'a' is defined", 16, "only a variable can be tested"),
        ("a-b == 'c'", 1, "expected a value, found `a-b`"),
    ],
)
def test_syntax_error_has_column_and_expectation(condition: str, column: int, what: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(condition)
    assert what in str(caught.value) and f"column {column}:" in str(caught.value)


@pytest.mark.parametrize(
    "condition, words",
    [
        ("{{missing}} == 1", ["{{missing}} is not defined", "word, empty"]),
        ("{{wrod}}", ["Did you mean {{word}}?"]),
        ("{{step.reslt}}", ["{{step.reslt}}", "Did you mean {{step.result}}?"]),
        ("{{word.x}}", ["'word' is text"]),
        ("{{nothing}} > 3", ["`>` needs numbers or text", "one side is empty"]),
        ("{{items}} < 3", ["a list or mapping"]),
    ],
)
def test_evaluation_error_names_the_value(condition: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        evaluate(parse(condition), CONTEXT)
    assert all(word in str(caught.value) for word in [*words, condition])


def test_error_survives_pickling() -> None:
    pickling_support.install(RecipeError)  # as Dask does for each error
    with pytest.raises(RecipeError) as caught:
        parse("{{a}} ==")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_variables_of_a_condition_are_listed_in_order() -> None:
    assert parse("{{b.c}} == word and (a or {{b.c}}) or true").variables == ("b.c", "a")


@pytest.mark.parametrize(
    "condition, found",
    [
        ("{{a.b}} == 'ok'", [("a.b", "==", "ok", True)]),
        ("'ok' != {{a}} or 3 < {{b}}", [("a", "!=", "ok", True), ("b", ">", "3", True)]),
        ("not ({{a}} >= 5 and not {{b}})", [("a", ">=", "5", False), ("b", "", "", True)]),
        ("{{a}} contains 'it\\'s'", [("a", "contains", "it's", True)]),
        ("'ok' contains {{a}}", []),
        ("{{a}} == {{b}} or 'x' == 'x' or true or ({{a}}) == ({{b}} or 1)", []),
        ("", []),
    ],
)
def test_comparisons_of_a_condition_are_listed(
    condition: str, found: list[tuple[Any, ...]]
) -> None:
    assert parse(condition).comparisons == tuple(Comparison(*each) for each in found)


@pytest.mark.parametrize(
    "value, text",
    [
        (None, ""),
        (True, "true"),
        (["é", None], '["é", null]'),
        ({"a": 1}, '{"a": 1}'),
        (1.5, "1.5"),
    ],
)
def test_value_as_text(value: object, text: str) -> None:
    assert as_text(value) == text


def test_value_is_found_by_its_path() -> None:
    assert lookup(CONTEXT, "step.result.list") == [1, 2]


HOSTILE = st.one_of(
    st.text(),
    st.lists(
        st.sampled_from(["'", '"', "\\", " or ", "==", "true", "{{yes}}", ")", "(", "not ", "1"])
    ).map("".join),
)


@given(value=HOSTILE)
def test_value_cannot_change_the_structure_of_a_condition(value: str) -> None:
    context = {"value": value, "no": False, "yes": True}
    assert evaluate(parse("{{value}} == 'x1' or {{no}}"), context) is (value == "x1")
    assert evaluate(parse("{{value}} != 'x1' and {{yes}}"), context) is (value != "x1")
    assert evaluate(parse("{{value}} == {{value}}"), context)


@given(
    st.recursive(
        st.sampled_from(["a", "b"]),
        lambda inner: st.one_of(
            inner.map("not {}".format),
            st.tuples(inner, inner).map(lambda pair: f"({pair[0]} or {pair[1]})"),
            st.tuples(inner, inner).map(" and ".join),
            st.tuples(inner, inner).map(" or ".join),
        ),
        max_leaves=12,
    ),
    st.booleans(),
    st.booleans(),
)
def test_operators_have_the_precedence_of_python(text: str, a: bool, b: bool) -> None:
    assert evaluate(parse(text), {"a": a, "b": b}) is bool(eval(text, {"a": a, "b": b}))
