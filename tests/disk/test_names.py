"""Paths from user input are found in either Unicode normal form."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nb_agents
from nb_agents.disk.names import as_on_disk
from nb_agents.testing import Answer, ScriptedModel, scripted_team
from tests.kit.cards import complete_path
from tests.kit.recipes import Recipe, find_recipe
from tests.kit.sessions import find_session, find_turn
from tests.kit.sweeps import read_rows
from tests.kit.teams import TeamSpec, check_file, mentions, team_from_options

FORMS = ("NFC", "NFD")
NAME = "Prüfung_é_ậ_가"
TEAM = "agents: [{id: a, backend: {type: demo}}]\n"
STEPS = "steps: [{id: a, type: bash, command: ls}]\n"
RECIPE = f"name: r\ndescription: d\nversion: 1.0.0\n{STEPS}"


def spelled(form: str, text: str = NAME) -> str:
    return unicodedata.normalize(form, text)  # type: ignore[arg-type]


@pytest.fixture(params=[(a, b) for a in FORMS for b in FORMS], ids="written {0[0]}".format)
def names(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, Path]]:
    """A directory name as stored on disk, and as a user types it."""
    monkeypatch.chdir(tmp_path)
    written, typed = request.param
    folder = Path(spelled(written))
    folder.mkdir()
    yield folder, Path(spelled(typed))


def with_files(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)


EDGES: dict[str, Callable[[Path], object]] = {
    "--config": lambda at: TeamSpec.from_file(at / "team.yaml").agents,
    "--recipe": lambda at: Recipe.from_file(at / "recipe.yaml").stages,
    "check": lambda at: check_file(str(at / "team.yaml"), None, ()).can_start,
    "@path": lambda at: mentions(f'See @"{at}/rows.csv".').paths,
    "@path of a directory": lambda at: mentions(f'See @"{at}".').paths,
    "--over": lambda at: read_rows(at / "rows.csv"),
    "context_paths": lambda at: (
        TeamSpec.from_text(
            f"{TEAM}orchestrator: {{context_paths: ['{at}/rows.csv']}}", "t.yaml"
        ).readable_paths
    ),
    "options": lambda at: TeamSpec.from_model("demo:").reading([at / "rows.csv"]).readable_paths,
    "upload": lambda at: (
        not TeamSpec.from_text(
            "agents: [{id: a, backend: {type: demo, "
            f"upload_files: [{{file_path: '{at}/rows.csv'}}]}}}}]",
            "t.yaml",
        )
        .agents[0]
        .backend.upload_files[0]
        .fault
    ),
    "a step's recipe": lambda at: find_recipe(f"{at}/recipe.yaml", None, {}),
    "--bundle": lambda at: find_recipe(
        "@b:recipe.yaml",
        None,
        team_from_options(None, None, [f"b={at}"]).bundles,  # type: ignore[union-attr]
    ),
    "completion": lambda at: complete_path(f"{at}/te"),
    "completion of a name": lambda at: complete_path(str(at)[:6]),
}


@pytest.mark.parametrize("edge", EDGES)
def test_a_path_is_found_in_either_form(names: tuple[Path, Path], edge: str) -> None:
    there, typed = names
    with_files(there, team_yaml=TEAM, recipe_yaml=RECIPE, rows_csv="a\n1\n")
    assert EDGES[edge](typed)


def test_a_session_is_found_in_either_form(names: tuple[Path, Path], tmp_path: Path) -> None:
    there, typed = (spelled(form, "Prüfung") for form in ("NFC", "NFD"))
    team = scripted_team(a=ScriptedModel(Answer("done")))
    nb_agents.start("A task", team, there).wait()
    root = tmp_path / ".nb_agents" / "sessions"
    assert find_session(root, typed).name == there
    assert find_turn(root, f"{typed}/1").session == there


def test_a_protected_path_is_protected_in_either_form(names: tuple[Path, Path]) -> None:
    from tests.kit.runs import writable_context_paths

    there, typed = names
    spec = TeamSpec.from_text(
        f"{TEAM}orchestrator: {{context_paths: [{{path: ., permission: write, "
        f"protected_paths: ['{typed}']}}]}}",
        "t.yaml",
    )
    [place] = writable_context_paths(spec, Path("sessions").absolute())
    assert place.is_protected((str(there),))


@given(st.lists(st.text("aéü가ậ.", min_size=1, max_size=5), min_size=1, max_size=4), st.booleans())
def test_missing_path_is_returned_unchanged(parts: list[str], is_absolute: bool) -> None:
    path = Path("/nowhere-at-all" if is_absolute else "nowhere-at-all", *parts)
    assert as_on_disk(path) == path
