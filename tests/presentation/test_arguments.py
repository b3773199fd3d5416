"""What a cell's task takes from the notebook, and what is refused."""

from __future__ import annotations

import pytest

from nb_agents.errors import TaskError
from nb_agents.presentation.arguments import fill_in


def test_a_task_takes_variables_and_leaves_what_can_be_none() -> None:
    task = r"{{a}} {{ größe }} \{{user-id}} {{x | upper}} {{#each x}} {{'k': 1}} {{1}}"
    filled = "1 2 {{user-id}} {{x | upper}} {{#each x}} {{'k': 1}} {{1}}"
    assert fill_in(task, {"a": 1, "größe": 2}) == filled


@pytest.mark.parametrize(
    "name, why",
    [
        ("b", "no variable 'b' is defined"),
        ("größe", "no variable 'größe' is defined"),
        ("user-id", "no variable of the notebook can be called that"),
        ("Company name", "no variable of the notebook can be called that"),
        ("frame.shape", "no variable of the notebook can be called that"),
    ],
)
def test_what_looks_like_a_variable_is_one_or_refused(name: str, why: str) -> None:
    with pytest.raises(TaskError) as refused:
        fill_in(f"About {{{{{name}}}}}.", {"a": 1})
    assert why in str(refused.value)
    assert f"write \\{{{{{name}}}}} for the braces" in str(refused.value)
