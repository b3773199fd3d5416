"""Each row of the table in ``notebooks/recipes.ipynb``: the result in Amplifier and here.

Amplifier's results were read from its code, b6ee26d. A row with the same result on both sides does
not belong in the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.kit.recipes import Completed
from tests.recipes import (
    test_approvals,
    test_behaviours,
    test_check,
    test_defects,
    test_executor,
    test_project_workspace,
    test_rate_limiter,
    test_shell_values,
)
from tests.recipes.play import Approve, Deny, Fail, Outcomes, Play, recipe

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "recipes.ipynb"


@dataclass(frozen=True)
class Difference:
    """One row, as far as a plan shows it.

    Attributes:
        row: The start of the row's first cell.
        body: A recipe.
        there: The result in Amplifier; "fails" for a failure.
        here: The result here.
        happens: Outcomes by address.
        calls: Recipes that it calls.
        of: Returns the value to compare, from a play that has ended.
    """

    row: str
    body: str
    there: Any
    here: Any
    happens: Outcomes = field(default_factory=dict)
    calls: Mapping[str, str] = field(default_factory=dict)
    of: Callable[[Play], Any] = lambda play: play.outputs


def prompts(play: Play) -> Any:
    """Return the prompts, or "fails"."""
    return [text for _, text in play.asked] if isinstance(play.ended, Completed) else "fails"


def agent(more: str) -> str:
    """Return an agent step."""
    return f"- {{agent: x, {more}}}\n"


NOTHING = "context: {nothing: null, xs: [a, b], none: []}\nsteps:\n"
SAYS = agent("id: a, prompt: p, output: o")
GATED = """stages:
- {name: s, approval: {required: true, prompt: go}, steps: [{id: a, agent: x, prompt: p}]}
- {name: t, steps: [{id: b, agent: x, prompt: q}]}
"""
STAGE = """stages:
- name: s
  %s
  steps: [{id: a, agent: x, prompt: p}]
"""


def resumed(play: Play) -> Any:
    """Return the prompts of a resume."""
    return play.resume({"s": Approve()}).run().addresses


DIFFERENCES = [
    Difference(
        "an empty value",
        NOTHING + agent("id: a, prompt: '<{{nothing}}>'"),
        there=["<None>"],
        here=["<>"],
        of=prompts,
    ),
    Difference(
        "an empty value",
        NOTHING + agent("id: a, prompt: p, condition: \"{{nothing}} == ''\""),
        there="fails",
        here=["p"],
        of=prompts,
    ),
    Difference(
        "lists and mappings in a condition",
        NOTHING + agent("id: a, prompt: p, condition: '{{xs}} and not {{none}}'"),
        there="fails",
        here=["p"],
        of=prompts,
    ),
    Difference(
        "`{{#if x}}",
        NOTHING + agent("id: a, prompt: '{{#if xs}}some{{/if}}'"),
        there=["{{#if xs}}some{{/if}}"],
        here=["some"],
        of=prompts,
    ),
    Difference(
        "a number that an agent", "steps:\n" + SAYS, {"o": 1.1}, {"o": "1.10"}, {"a": "1.10"}
    ),
    Difference(
        "whitespace around", "steps:\n" + SAYS, {"o": "yes\n"}, {"o": "yes"}, {"a": "yes\n"}
    ),
    Difference(
        "whitespace around",
        "steps:\n- {id: a, type: bash, command: c, output: o}\n",
        {"o": " a \n\n"},
        {"o": " a \n"},
        {"a": " a \n\n"},
    ),
    Difference(
        "an output of a sub-recipe",
        "steps:\n- {id: c, type: recipe, recipe: sub.yaml, context: {o: old}, output: r}\n",
        {"r": {}},
        {"r": {"o": "new"}},
        {"c/a": "new"},
        {"sub.yaml": recipe("steps:\n" + SAYS, "sub")},
    ),
    Difference(
        "`break_when`",
        NOTHING + agent("id: a, prompt: '{{item}}', foreach: '{{xs}}', break_when: 'true'"),
        there=["a", "b"],
        here=["a"],
        of=prompts,
    ),
    Difference(
        "`as: recipe`",
        NOTHING
        + agent("id: a, prompt: '{{recipe}}', foreach: '{{xs}}', as: recipe")
        + agent("id: b, prompt: '{{recipe.name}}'"),
        there="fails",
        here=["a", "b", "r"],
        of=prompts,
    ),
    Difference(
        "`max_total_steps",
        "recursion: {max_total_steps: 2}\n"
        + NOTHING
        + agent("id: a, prompt: p, foreach: '{{xs}}'"),
        there="fails",
        here=["p", "p"],
        of=prompts,
    ),
    Difference(
        "unknown keys",
        "steps:\n" + agent("id: a, prompt: p, colour: red"),
        there="fails",
        here=["p"],
        of=prompts,
    ),
    Difference("a stage's", STAGE % "condition: 'false'", ["p"], [], of=prompts),
    Difference("a denied gate", GATED, ["t/b"], ["s", "t/b"], {"s": Deny()}, of=resumed),
    Difference(
        "`retry`",
        "steps:\n- {id: a, type: bash, command: c, retry: {max_attempts: 2}}\n",
        there="fails",
        here=["c", "c"],
        happens={"a": [Fail(), "well"]},
        of=prompts,
    ),
]

ELSEWHERE = {
    "`{{x}}` in a bash command": [
        test_shell_values.test_every_place_gets_the_exact_value_and_no_command_in_it_runs,
        test_shell_values.test_value_is_refused_where_it_would_be_executed,
        test_shell_values.test_raw_value_is_part_of_the_command,
        test_check.test_step_value_in_code_is_reported_with_line_and_advice,
    ],
    "where bash runs": [
        test_executor.test_commands_share_the_workspace_and_see_no_keys,
        test_project_workspace.test_steps_work_in_the_directory_of_the_start,
    ],
    "`min_delay_ms`": [test_rate_limiter.test_parallel_call_is_delayed_too],
    "`timeout` of a gate": [test_approvals.test_timeout_denies],
    "large values": [
        test_defects.test_12_large_values_are_complete_after_a_resume,
        test_behaviours.test_hundred_megabytes_of_output_are_truncated,
    ],
    "a stop while a step runs": [
        test_defects.test_1_stop_request_during_a_step_is_not_lost,
        test_defects.test_3_stop_reaches_nested_recipes,
        test_defects.test_4_stop_of_a_parallel_loop_is_not_a_failure,
    ],
    "resume": [test_behaviours.test_loop_resumes_at_the_open_iteration],
    "`@bundle:path`": [
        test_check.test_bundled_recipe_is_found_in_its_directory,
        test_check.test_bundles_of_the_command_line_override_the_team_file,
    ],
}
"""Rows that no plan shows, and the tests that do."""


@pytest.mark.parametrize("each", DIFFERENCES, ids=lambda each: each.row)
def test_table_describes_our_result_and_not_amplifiers(each: Difference) -> None:
    play = Play(recipe(each.body), each.happens, each.calls).run()
    assert each.of(play) == each.here != each.there


def test_every_row_of_the_table_is_tested() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    rows = re.findall(r"^\| (?!\|)(.+?) \|", "".join(cells[-1]["source"]), re.MULTILINE)
    tested = [each.row for each in DIFFERENCES] + [row for row, tests in ELSEWHERE.items() if tests]
    assert [row for row in rows if not any(row.startswith(name) for name in tested)] == []
    assert [name for name in tested if not any(row.startswith(name) for row in rows)] == []
