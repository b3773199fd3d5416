"""nb_agents without the package of sweeps: everything else works, and errors say what is
missing."""

import json
from collections.abc import Iterator

import pytest

from tests.lean_copy import LeanCopy, lean_copy

MISSING = "is not available, because its package in nb_agents.extensions is missing"

RUN = """
import nb_agents
from nb_agents.testing import Answer, ScriptedModel, scripted_team
team = scripted_team(a=ScriptedModel(Answer("So.")))
run = nb_agents.start("Why?", team)
print(run.wait(), "text/html" in run._repr_mimebundle_())
"""

SERVER = """
import json
from nb_agents.server.handler import handlers
from nb_agents.server.openapi import document
print(len([*handlers()]) > 0, "SweepFacts" in document("/")["components"]["schemas"])
"""

NAMES = """
import nb_agents
for name in ("map", "fork", "Sweep"):
    try:
        getattr(nb_agents, name)
    except AttributeError as exc:
        print(exc)
"""

TIMES = """
import warnings
import nb_agents
from nb_agents.errors import UserError
warnings.simplefilter("ignore")
try:
    nb_agents.rewind(to=3, times=2)
except UserError as exc:
    print(exc)
"""

OVER = """
from IPython.testing.globalipapp import start_ipython
shell = start_ipython()
shell.run_line_magic("load_ext", "nb_agents")
try:
    shell.run_cell_magic("agents", "--over rows.csv", "Why {{q}}?")
except Exception as exc:
    print(exc)
"""


ALL = """
from nb_agents import *
print("start" in globals(), "Sweep" in globals(), "Recipe" in globals())
"""


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeanCopy]:
    """Provide a copy of nb_agents without sweeps."""
    with lean_copy("sweeps", tmp_path_factory.mktemp("lean")) as copy:
        yield copy


def python(lean: LeanCopy, *args: str) -> str:
    done = lean.run(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_runs_and_their_cards_work(lean: LeanCopy) -> None:
    assert python(lean, "-c", RUN).strip() == "So. True"


def test_commands_list_runs_and_sessions_and_prune_them(lean: LeanCopy) -> None:
    python(lean, "-c", RUN)
    assert json.loads(python(lean, "-m", "nb_agents.cli", "runs", "--json")) == []
    (session, *_) = json.loads(python(lean, "-m", "nb_agents.cli", "sessions", "--json"))
    assert session["turns"][0]["task"] == "Why?"
    assert "Would remove" in python(lean, "-m", "nb_agents.cli", "prune", "--older", "0h")


def test_server_has_its_routes_and_a_document_without_sweeps(lean: LeanCopy) -> None:
    assert python(lean, "-c", SERVER).strip() == "True False"


def test_public_names_of_sweeps_say_that_their_package_is_missing(lean: LeanCopy) -> None:
    names = ("map", "fork", "Sweep")
    expected = [f"nb_agents.{name} {MISSING}. Install nb_agents again." for name in names]
    assert python(lean, "-c", NAMES).splitlines() == expected


def test_flags_of_sweeps_say_that_their_package_is_missing(lean: LeanCopy) -> None:
    assert "the extension 'sweeps', which is missing" in python(lean, "-c", RUN + TIMES)
    assert f"--over {MISSING}" in python(lean, "-c", OVER)


def test_all_public_names_that_are_installed_can_be_imported(lean: LeanCopy) -> None:
    assert python(lean, "-c", ALL).split() == ["True", "False", "True"]
