"""Commands that run what they are given as code, in any spelling and behind any wrapper.

``probes.txt`` has one a line, ``\\n`` for a line's end. None takes a value that could be code.
"""

import re
from pathlib import Path

import pytest

from nb_agents.errors import RecipeError
from nb_agents.recipes.shell_values import render_command
from tests.recipes.test_shell_properties import VALUES

PROBES = Path(__file__).with_name("probes.txt").read_text("utf-8").splitlines()
ACTIVE = [value for value in VALUES if re.search(r"[^A-Za-z0-9_.-]", value)]

OPTIONS = [
    "sed s/a/b/ {{x}}",
    "tar cf a.tar {{x}}",
    "git log {{x}}",
    "git clone {{x}} b",
    "find {{x}} -name a",
    "sort {{x}}",
    "rsync {{x}} b",
    "curl {{x}}",
    "mytool {{x}}",
    "printf {{x}}",
    "perl -ne print {{x}}",
]


@pytest.mark.parametrize("probe", PROBES)
def test_a_command_that_runs_what_it_is_given_takes_no_code(probe: str) -> None:
    for value in ACTIVE:
        with pytest.raises(RecipeError):
            render_command(probe.replace(r"\n", "\n"), {"x": value, "y": value})


@pytest.mark.parametrize("command", OPTIONS)
def test_an_argument_that_a_program_may_take_for_an_option_is_refused(command: str) -> None:
    for option in ("-e1e: >canary", "--eval=system()", "-va[$(: >canary)]"):
        with pytest.raises(RecipeError, match="may take it for an option"):
            render_command(command, {"x": option})
    assert render_command(command, {"x": "any; $(text)"})
    assert render_command(command.replace("{{x}}", "./{{x}}"), {"x": "-e"})
