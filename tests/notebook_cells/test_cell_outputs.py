"""Outputs and variables as text for models."""

from __future__ import annotations

from typing import Any

from nb_agents.extensions.notebook_cells.cell_outputs import (
    MAX_OUTPUT,
    MAX_VARIABLES,
    output_text,
    quoted,
    variables_text,
)


def test_outputs_are_text_without_terminal_codes_and_images_are_named() -> None:
    outputs: list[Any] = [
        {"output_type": "stream", "text": ["a\n", "b\x1b[31m!\x1b[0m\x00\n"]},
        {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": "<Figure>"}},
        {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["line 1"]},
        "damaged",
    ]
    text = output_text(outputs)
    assert text == "a\nb!\n<Figure>\n[image/png]\nline 1"
    assert output_text([{**outputs[2], "traceback": []}]) == "ValueError: no"
    assert output_text(None) == ""


def test_long_output_keeps_its_end() -> None:
    text = output_text([{"output_type": "stream", "text": "x" * 10_000 + "end"}])
    assert text.endswith("xend") and len(text) < MAX_OUTPUT + 50
    assert text.startswith("[6003 characters left out]")


def test_quoted_output_cannot_pass_for_a_heading() -> None:
    assert quoted("a\n=== cell b") == "> a\n> === cell b"


def test_variables_have_types_and_shapes_but_no_values() -> None:
    class Table:
        shape = (3, 2)

    Table.__module__ = "pandas.core.frame"
    described = variables_text({"key": "s3cret", "df": Table(), "f": len, "_1": 1, "n": 5})
    assert described == "Variables: key: str of 6; df: Table of shape (3, 2); n: int"
    assert variables_text({"In": [], "_": 1}) == ""


def test_shape_of_a_class_of_the_user_is_not_read() -> None:
    class Odd:
        @property
        def shape(self) -> Any:
            raise SystemExit

    assert variables_text({"odd": Odd()}) == "Variables: odd: Odd"


def test_number_of_variables_is_bounded() -> None:
    text = variables_text({f"v{i}": i for i in range(MAX_VARIABLES + 7)})
    assert text.endswith("(7 more)")
