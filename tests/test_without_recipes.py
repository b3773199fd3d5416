"""nb_agents without the package of recipes: everything else works, and errors say what is
missing."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lean_copy import LeanCopy, lean_copy

ROOT = Path(__file__).parent.parent
JOURNALS = ROOT / "tests" / "golden" / "journals"

MISSING = "There is no extension for work of the kind 'recipe'."

TEAM = """
import nb_agents
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, scripted_team
gate = Gate()
team = scripted_team(a=ScriptedModel(Turn("So", gate=gate), Answer("So.")))
run = nb_agents.start("Why?", team)
gate.wait_reached()
run.stop(now=True)
try:
    run.wait()
except nb_agents.RunCancelled:
    pass
team = scripted_team(a=ScriptedModel(Answer("So.")))
again = run.resume(team)
print(again.wait(), "text/html" in again._repr_mimebundle_())
team = scripted_team(a=ScriptedModel(Answer("Hm.")))
print(again.rewind(1, config=team).wait())
"""

CARD = """
import sys
from pathlib import Path
from nb_agents.presentation.cards import turn_bundle
from nb_agents.session.history import load_session
print(turn_bundle(load_session(Path(sys.argv[1])).turns[-1], "")["text/markdown"])
"""

START = """
import nb_agents
try:
    nb_agents.start(recipe="r.yaml")
except nb_agents.UserError as exc:
    print(exc)
"""

NAME = """
import nb_agents
try:
    nb_agents.Recipe
except AttributeError as exc:
    print(exc)
"""


ALL = """
from nb_agents import *
print("start" in globals(), "Recipe" in globals(), "map" in globals())
"""


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeanCopy]:
    """Provide a copy of nb_agents without recipes, and with files."""
    folder = tmp_path_factory.mktemp("lean")
    shutil.copytree(JOURNALS / "recipe-stopped", folder / "old" / "recipe-stopped")
    steps = "steps: [{id: a, type: bash, command: 'echo hi'}]"
    (folder / "r.yaml").write_text(f"name: a\ndescription: b\nversion: 1.0.0\n{steps}\n")
    agent = "{id: a, backend: {type: demo, recipes: [r.yaml]}}"
    (folder / "team.yaml").write_text(f"agents: [{agent}]\n")
    with lean_copy("recipes", folder) as copy:
        yield copy


def python(lean: LeanCopy, *args: str) -> str:
    """Return what a process prints, with its errors."""
    done = lean.run(*args)
    return done.stdout + done.stderr


def command(lean: LeanCopy, *args: str) -> str:
    return python(lean, "-m", "nb_agents.cli", *args)


def test_team_runs_and_is_stopped_resumed_and_rewound(lean: LeanCopy) -> None:
    assert python(lean, "-c", TEAM).splitlines() == ["So. True", "Hm."]


def test_old_turn_of_a_recipe_is_listed_and_shown(lean: LeanCopy) -> None:
    listed = command(lean, "sessions", "--session-root", str(lean.path / "old"))
    shown = python(lean, "-c", CARD, str(lean.path / "old" / "recipe-stopped"))

    assert "recipe-stopped" in listed
    assert "- first · bash · complete" in shown
    assert "- third (agent worker)" in shown


def test_team_file_is_checked_and_its_recipes_are_left_out(lean: LeanCopy) -> None:
    assert "Can start." in command(lean, "check", "team.yaml")

    ran = command(lean, "run", "Why?", "--config", "team.yaml")
    assert "The extension with the tool `recipes` is not installed. Agents without it: a." in ran


@pytest.mark.parametrize(
    "args", [("run", "--recipe", "r.yaml"), ("plan", "r.yaml"), ("schema", "recipe")]
)
def test_commands_say_that_recipes_are_missing(lean: LeanCopy, args: tuple[str, ...]) -> None:
    assert MISSING in command(lean, *args)


def test_resume_of_a_recipe_says_that_recipes_are_missing(lean: LeanCopy) -> None:
    team = "agents: [{id: worker, backend: {type: demo}}]\n"
    (lean.path / "worker.yaml").write_text(team)
    where = ("--session-root", str(lean.path / "old"), "--config", "worker.yaml", "--trust")

    assert MISSING in command(lean, "resume", "recipe-stopped", *where)


def test_python_says_that_recipes_are_missing(lean: LeanCopy) -> None:
    assert MISSING in python(lean, "-c", START)
    assert "nb_agents.Recipe is not available" in python(lean, "-c", NAME)


def test_all_public_names_that_are_installed_can_be_imported(lean: LeanCopy) -> None:
    assert python(lean, "-c", ALL).split() == ["True", "False", "True"]
