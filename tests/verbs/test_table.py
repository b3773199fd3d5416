"""One table of verbs: each user interface has them all, with the same arguments and help."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nb_agents.jupyter import verbs as cell_verbs
from nb_agents.jupyter.completion import completions
from nb_agents.jupyter.ipython import actions_of
from nb_agents.jupyter.magic import AgentsMagics
from nb_agents.server.openapi import document
from nb_agents.verbs.requests import BODIES
from nb_agents.verbs.table import ROUTES, VERBS
from tests.cli.calls import call_here

A_VERB_MORE = """
import nb_agents.verbs.table as table
from nb_agents.verbs.verb import Outcome, Parameter, Verb
def wave(work, caller, *, hand="left"):
    "Wave at a run."
    return Outcome("It waves back.")
wave = Verb("wave", wave, parameters=(Parameter("hand", "which", "left", True, "H"),), route="wave")
table.VERBS["wave"] = table.ROUTES["wave"] = wave
from nb_agents.cli import main
from nb_agents.jupyter.completion import completions
from nb_agents.jupyter.kernel import do_as_asked
from nb_agents.jupyter.magic import AgentsMagics
from nb_agents.server.handlers import RUN_ROUTES
from nb_agents.server.openapi import document
assert "%agents wave [RUN] [--hand H]" in AgentsMagics.agents_line.__doc__
assert completions("%agents wav", {}) == ["wave"]
assert completions("%agents wave --h", {}) == ["--hand"]
assert document("/")["paths"]["/runs/{id}/wave"]["post"]["summary"] == "Wave at a run."
assert do_as_asked("wave", {"run": "r", "hand": 3}).refusal.startswith("hand: ")
assert "No run named 'r'" in do_as_asked("wave", {"run": "r", "hand": "left"}).refusal
assert any("wave" in pattern for pattern, _ in RUN_ROUTES)
import sys
sys.argv = ["nb-agents", "wave", "--help"]
main()
"""


ON_BOTH_LINES = sorted(n for n in cell_verbs.VERBS if n and "terminal" in VERBS[n].interfaces)


@pytest.mark.parametrize("name", ON_BOTH_LINES)
def test_a_cell_and_a_terminal_have_the_same_arguments_and_help(name: str) -> None:
    verb = VERBS[name]
    cell = cell_verbs.VERBS[name]
    flags = {f for each in verb.on_line("cell") if each.is_option for f in each.spellings}
    declared = {flag for action in actions_of(cell) for flag in action.option_strings}
    assert declared == flags | {"--session-root"}
    terminal = " ".join(call_here(name, "--help").split())
    options = [each for each in verb.on_line("terminal") if each.is_option]
    assert all(each.spellings[0] in terminal for each in options)
    assert verb.help in (cell.__doc__ or "")
    listed = " ".join((AgentsMagics.agents_line.__doc__ or "").split())
    usage = " ".join(each.usage for each in verb.on_line("cell"))
    assert f"%agents {name} {usage} {verb.help}".replace("  ", " ") in listed
    assert name in completions(f"%agents {name[:3]}", {})


@pytest.mark.parametrize("route", ROUTES)
def test_a_request_has_the_arguments_of_its_verb(route: str) -> None:
    verb = ROUTES[route]
    fields = BODIES[route].model_json_schema()["properties"] if verb.parameters else {}
    assert {each.wire or each.name for each in verb.parameters} <= set(fields)
    assert document("/")["paths"][f"/runs/{{id}}/{route}"]["post"]["summary"] == verb.help


def test_a_row_of_the_table_is_all_that_a_new_verb_takes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", A_VERB_MORE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--hand" in done.stdout and "Wave at a run." in done.stdout
