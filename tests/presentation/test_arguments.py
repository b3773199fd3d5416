"""Variables of the notebook in a cell's task, and errors about them."""

from __future__ import annotations

import pytest

from nb_agents.errors import TaskError
from nb_agents.presentation.arguments import insert_variables


def test_fill_in_replaces_variables_and_leaves_other_braces() -> None:
    task = r"{{a}} {{ größe }} \{{user-id}} {{x | upper}} {{#each x}} {{'k': 1}} {{1}}"
    filled = "1 2 {{user-id}} {{x | upper}} {{#each x}} {{'k': 1}} {{1}}"
    assert insert_variables(task, {"a": 1, "größe": 2}) == filled


@pytest.mark.parametrize(
    "name, why",
    [
        ("b", "variable 'b' is not defined"),
        ("größe", "variable 'größe' is not defined"),
        ("user-id", "that is not a valid variable name"),
        ("Company name", "that is not a valid variable name"),
        ("frame.shape", "that is not a valid variable name"),
    ],
)
def test_undefined_or_invalid_variable_is_an_error(name: str, why: str) -> None:
    with pytest.raises(TaskError) as refused:
        insert_variables(f"About {{{{{name}}}}}.", {"a": 1})
    assert why in str(refused.value)
    assert f"write \\{{{{{name}}}}} for literal braces" in str(refused.value)
