"""Commands that run their values as code, in any spelling and behind any wrapper.

``probes.txt`` has one per line, with ``\\n`` for a newline. None accepts values that could be code.
"""

import re
from pathlib import Path

import pytest

from nb_agents.errors import RecipeError
from tests.kit.recipes import render_command
from tests.recipes.test_shell_properties import VALUES

# The program gets a variable, its input or a path as data. What it does with that is up to it.
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
def test_command_that_runs_its_values_accepts_no_code(probe: str) -> None:
    for value in ACTIVE:
        with pytest.raises(RecipeError):
            render_command(probe.replace(r"\n", "\n"), {"x": value, "y": value})
