"""Commands that run what they are given as code, in any spelling and behind any wrapper.

``probes.txt`` has one a line, ``\\n`` for a line's end. None takes a value that could be code.
"""

import re
from pathlib import Path

import pytest

from nb_agents.errors import RecipeError
from nb_agents.recipes.shell_values import render_command
from tests.recipes.test_shell_properties import VALUES

# A program is given a variable, its input or a path as data: what it does with that is its own.
THEIRS = {
    "X={{x}} make -f mk",
    "export X={{x}}; make -f mk",
    "echo {{x}} | bc",
    "git diff --ext-diff {{x}}",
    "y={{x}}; git log $y",
}
PROBES = Path(__file__).with_name("probes.txt").read_text("utf-8").splitlines()
ACTIVE = [value for value in VALUES if re.search(r"[^A-Za-z0-9_.-]", value)]


@pytest.mark.parametrize("probe", [probe for probe in PROBES if probe not in THEIRS])
def test_a_command_that_runs_what_it_is_given_takes_no_code(probe: str) -> None:
    for value in ACTIVE:
        with pytest.raises(RecipeError):
            render_command(probe.replace(r"\n", "\n"), {"x": value, "y": value})
