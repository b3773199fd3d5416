"""Each row of the table in ``notebooks/recipes.ipynb``: what comes of it, here and there.

What comes of it in Amplifier was read from its code, b6ee26d; a row that becomes the same on both
sides has no place in the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nb_agents.recipes.tasks import Completed
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
        row: How the first cell of the row begins.
        body: A recipe.
        there: What comes of it in Amplifier; "fails" for a failure.
        here: What comes of it here.
        happens: Outcomes by address.
        calls: Recipes that it calls.
        of: What is compared, of a play that has ended.
    """

    row: str
    body: str
    there: Any
    here: Any
    happens: Outcomes = field(default_factory=dict)
    calls: Mapping[str, str] = field(default_factory=dict)
    of: Callable[[Play], Any] = lambda play: play.outputs


def prompts(play: Play) -> Any:
    """Return what was asked, or "fails"."""
    return [text for _, text in play.asked] if isinstance(play.ended, Completed) else "fails"


def agent(more: str) -> str:
    """Return an agent's step."""
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
    """Return what a resume asks."""
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
    Difference("text around", "steps:\n" + SAYS, {"o": "yes\n"}, {"o": "yes"}, {"a": "yes\n"}),
    Difference(
        "text around",
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
        test_shell_values.test_every_place_gets_exactly_the_value_and_no_command_in_it_runs,
        test_shell_values.test_where_a_value_would_run_it_is_refused_in_a_sentence,
        test_shell_values.test_a_raw_value_is_a_part_of_the_command,
        test_check.test_a_steps_value_in_code_is_told_with_its_line_and_what_to_do,
    ],
    "where bash runs": [
        test_executor.test_commands_share_the_workspace_may_work_in_the_project_and_see_no_keys,
        test_project_workspace.test_steps_work_in_the_directory_that_the_run_was_started_in,
    ],
    "`min_delay_ms`": [test_rate_limiter.test_a_call_beside_another_waits_too],
    "`timeout` of a gate": [test_approvals.test_time_denies_what_nobody_decides],
    "large values": [
        test_defects.test_12_large_values_are_whole_after_a_resume,
        test_behaviours.test_a_hundred_megabytes_of_output_are_kept_to_the_bound_and_the_recipe_goes_on,
    ],
    "a stop while a step runs": [
        test_defects.test_1_a_request_that_comes_while_a_step_runs_is_not_lost,
        test_defects.test_3_a_stop_reaches_recipes_in_recipes,
        test_defects.test_4_a_stop_of_a_parallel_loop_is_no_failure,
    ],
    "resume": [test_behaviours.test_a_loop_goes_on_at_the_iteration_that_was_open],
    "`@bundle:path`": [
        test_check.test_a_recipe_of_a_bundle_is_found_in_its_directory,
        test_check.test_the_bundles_of_a_team_file_are_beside_it_and_those_of_the_line_go_first,
    ],
}
"""Rows that no plan shows, and the tests that do."""


@pytest.mark.parametrize("each", DIFFERENCES, ids=lambda each: each.row)
def test_what_the_table_says_is_so_here_and_not_there(each: Difference) -> None:
    play = Play(recipe(each.body), each.happens, each.calls).run()
    assert each.of(play) == each.here != each.there


def test_every_row_of_the_table_is_tested() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    rows = re.findall(r"^\| (?!\|)(.+?) \|", "".join(cells[-1]["source"]), re.MULTILINE)
    tested = [each.row for each in DIFFERENCES] + [row for row, tests in ELSEWHERE.items() if tests]
    assert [row for row in rows if not any(row.startswith(name) for name in tested)] == []
    assert [name for name in tested if not any(row.startswith(name) for row in rows)] == []
