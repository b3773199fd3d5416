"""Values are sent to models as JSON that any parser accepts, whatever Python returned."""

import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.json_text import is_missing, json_text, plain
from tests.kit.recipes import render
from tests.kit.sweeps import read_rows
from tests.kit.tools import EMPTY_RESULT, function_tool, result_text
from tests.kit.tools import text as _text

NAN = float("nan")
MISSING = [NAN, np.float32("nan"), pd.NaT, pd.NA, Decimal("NaN"), np.datetime64("NaT")]


def strictly(text: str) -> Any:
    return json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_missing_values_are_null(value: Any) -> None:
    for shown in (value, [value], {"a": {"b": (1, value)}}, [pd.NaT, value]):
        data = strictly(json_text(shown))
        assert "null" in json_text(shown) and data == plain(shown)
    assert strictly(json_text({value: 1})) in ({"null": 1}, {"None": 1})


def test_infinity_keeps_its_sign() -> None:
    infinite = [float("inf"), -np.float64("inf"), np.float32("inf"), NAN]
    assert plain(infinite) == ["Infinity", "-Infinity", "Infinity", None]


def test_data_frames_rows_are_json() -> None:
    frame = pd.DataFrame({"n": [1, None], "at": pd.to_datetime(["2026-01-01", None])})
    rows = strictly(json_text(frame.to_dict("records")))
    assert rows == [{"n": 1, "at": "2026-01-01T00:00:00"}, {"n": None, "at": None}]


def test_value_without_json_form_is_shown_by_its_repr() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert json_text(circle) == "[[...]]"
    assert strictly(json_text([print])) == [repr(print)]
    assert strictly(json_text(["\ud83d", 1])) == ["\ufffd", 1]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=6,
    )
)
def test_any_data_becomes_strict_json_and_finite_data_is_unchanged(value: Any) -> None:
    data = strictly(json_text(value))
    assert data == strictly(json_text(value, is_compact=True)) == plain(value)
    if "NaN" not in json.dumps(value) and "Infinity" not in json.dumps(value):
        assert data == value


def tool_result(value: Any) -> str:
    def measure() -> Any:
        """Measure."""
        return value

    return str(anyio.run(partial(function_tool(measure).call, {})))


def row_in_a_task(value: Any) -> str:
    (row,) = read_rows([{"price": value, "all": [value]}])
    return render('[{{all}}, "{{price}}"]', row.values)


CONVERSIONS: dict[str, Callable[[Any], str]] = {
    "a function's result": tool_result,
    "what a custom tool yields": lambda value: result_text([value]),
    "a row in a task": row_in_a_task,
    "a recipe's variable": lambda value: render("{{a}}", {"a": {"b": value}}),
    "an MCP tool's result": lambda value: _text({"structuredContent": {"a": value}}),
}


@pytest.mark.parametrize("value", MISSING[:5], ids=repr)
@pytest.mark.parametrize("way", CONVERSIONS)
def test_no_text_for_a_model_contains_nan(way: str, value: Any) -> None:
    text = CONVERSIONS[way](value)
    assert "nan" not in text.lower() and "<NA>" not in text and "NaT" not in text
    strictly(text)


def test_missing_value_and_none_render_as_empty_text() -> None:
    assert render("<{{a}}>", {"a": NAN}) == "<>"
    assert result_text(None) == EMPTY_RESULT and is_missing(None)


def test_rows_of_a_file_have_none_instead_of_nan(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": NaN, "b": 1.5}\n')
    (row,) = read_rows(tmp_path / "rows.jsonl")
    assert row.values == {"a": None, "b": 1.5}
