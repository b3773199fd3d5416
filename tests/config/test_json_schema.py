"""The JSON schemas of team files and recipes, as an editor would use them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from nb_agents.errors import NbAgentsError
from tests.docs.blocks import blocks
from tests.kit.recipes import Recipe
from tests.kit.teams import TeamSpec, file_schema, new_team

ROOT = Path(__file__).parents[2]
TEAM = Draft202012Validator(file_schema("team"))
RECIPE = Draft202012Validator(file_schema("recipe"))
RECIPES = sorted((ROOT / "tests" / "recipes" / "samples").glob("*.yaml"))
MASSGEN = sorted((ROOT / ".venv/massgen-0.1.97/massgen/configs").rglob("*.yaml"))


def plain(text: str) -> Any:
    """Return a file's data as JSON data, in which a date is a string."""
    return json.loads(json.dumps(yaml.safe_load(text), default=str))


@pytest.mark.parametrize("kind", ["team", "recipe"])
def test_schema_describes_all_keys(kind: Any) -> None:
    schema = file_schema(kind)
    Draft202012Validator.check_schema(schema)
    untold = [k for k, told in schema["properties"].items() if not told.get("description")]
    assert not untold


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_sample_recipes_match_the_schema(file: Path) -> None:
    Recipe.from_file(file)
    assert not list(RECIPE.iter_errors(plain(file.read_text())))


@pytest.mark.skipif(not MASSGEN, reason="MassGen's readers are not installed: make readers")
def test_massgens_team_files_match_the_schema() -> None:
    read = 0
    for file in MASSGEN:
        try:
            if not TeamSpec.from_file(file).agents:
                continue
        except (NbAgentsError, UnicodeDecodeError):
            continue
        read += 1
        errors = [error.message for error in TEAM.iter_errors(plain(file.read_text()))]
        assert not errors, (file, errors)
    assert read > 200


def test_documented_team_files_match_the_schema() -> None:
    teams = [b.text for b in blocks("yaml") if b.text.startswith("agents:")]
    assert teams
    for text in teams:
        assert not list(TEAM.iter_errors(plain(text))), text


@pytest.mark.parametrize(
    "mistake",
    [
        "agents: [{id: 3, backend: {type: demo}}]",
        "agents: [{backend: {type: demo}}]",
        "agents: [{id: a, backend: {type: demo, words_per_second: fast}}]",
        "agents: []",
        "orchestrator: {}",
    ],
)
def test_schema_rejects_values_of_a_wrong_type(mistake: str) -> None:
    assert list(TEAM.iter_errors(plain(mistake)))


def test_schema_accepts_keys_without_a_value() -> None:
    text = "agents: [{id: a, system_message: , backend: {type: demo, model: }}]"
    assert not list(TEAM.iter_errors(plain(text)))


@pytest.mark.parametrize("models", [(), ("openai:gpt-5-mini",), ("ollama:llama3.2:1b", "demo")])
def test_new_team_file_matches_the_schema_and_loads(
    models: tuple[str, ...], tmp_path: Path
) -> None:
    text = new_team(models, "team.schema.json", ["enable_web_search"])
    assert text.startswith("# yaml-language-server: $schema=team.schema.json\n")
    assert not list(TEAM.iter_errors(plain(text)))
    (tmp_path / "team.yaml").write_text(text)
    team = TeamSpec.from_file(tmp_path / "team.yaml")
    assert len(team.agents) == (len(models) or 3)
