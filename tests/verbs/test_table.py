"""All user interfaces offer the verbs of one table, with the same arguments and help."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nb_agents.verbs.table import ROUTES, VERBS
from tests.cli.calls import call_here
from tests.kit.cells import AgentsMagics, actions_of, completions
from tests.kit.cells import verbs as cell_verbs
from tests.kit.servers import document
from tests.kit.verbs import BODIES

WAVE = """
from nb_agents.extend import Extension, Parameter, Reply, Verb, register
def wave(work, caller, *, hand="left", times=1, loud=False):
    "Wave at a run."
    return Reply("It waves back.")
HAND = Parameter("hand", "which", "left", True, "H")
TIMES = Parameter("times", "how often", 1, True, "N", kind=int)
WAVE = Verb("wave", wave, parameters=(HAND, TIMES), route="wave")
STOP = WAVE._replace(name="stop", route="stop")
register(Extension(name="trial", verbs={"wave": "__main__:WAVE", "stop": "__main__:STOP"}))
"""
USES = """
from nb_agents.jupyter.completion import completions
from nb_agents.jupyter.kernel import handle_page_request
from nb_agents.server.openapi import document
from nb_agents.verbs.table import ROUTES, VERBS
from IPython.testing.globalipapp import start_ipython
shell = start_ipython()
shell.run_line_magic("load_ext", "nb_agents")
"""
CHECKS = """
help = shell.object_inspect_text("%agents")
assert "%agents wave [RUN] [--hand H]" in help, help
assert completions("%agents wav", {}) == ["wave"]
assert completions("%agents wave --h", {}) == ["--hand"]
path = document("/")["paths"]["/runs/{id}/wave"]["post"]
assert path["summary"] == "Wave at a run."
body = path["requestBody"]["content"]["application/json"]["schema"]["properties"]
assert body["times"]["default"] == 1, body
assert handle_page_request("wave", {"run": "r", "hand": 3}).refusal.startswith("hand: ")
assert "No run named 'r'" in handle_page_request("wave", {"run": "r", "hand": "left"}).refusal
assert VERBS["stop"].act is ROUTES["stop"].act is not wave
"""
COMMAND = """
import sys
from nb_agents.cli import main
sys.argv = ["nb-agents", "wave", "--help"]
main()
"""


ON_BOTH_LINES = sorted(n for n in cell_verbs.VERBS if n and "terminal" in VERBS[n].interfaces)


@pytest.mark.parametrize("name", ON_BOTH_LINES)
def test_cell_and_terminal_have_the_same_arguments_and_help(name: str) -> None:
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
def test_request_body_has_the_arguments_of_its_verb(route: str) -> None:
    verb = ROUTES[route]
    fields = BODIES[route].model_json_schema()["properties"] if verb.parameters else {}
    assert {each.wire or each.name for each in verb.parameters} <= set(fields)
    assert document("/")["paths"][f"/runs/{{id}}/{route}"]["post"]["summary"] == verb.help


@pytest.mark.parametrize("parts", [(WAVE, USES), (USES, WAVE)], ids=["before", "after"])
def test_verb_of_an_extension_is_offered_if_registered_before_or_after_loading(
    parts: tuple[str, str],
) -> None:
    code = "".join((*parts, CHECKS, COMMAND))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--hand" in done.stdout and "Wave at a run." in done.stdout
