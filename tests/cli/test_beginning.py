"""The commands ``init`` and ``schema``."""

import json
from pathlib import Path

import nbformat
import pytest

from nb_agents.errors import UserError
from tests.cli.calls import call_here, told_here
from tests.kit.models import BACKEND_TYPES
from tests.kit.teams import TeamSpec, file_schema


@pytest.fixture(autouse=True)
def no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for row in BACKEND_TYPES.values():
        for name in row.variables:
            monkeypatch.delenv(name, raising=False)


def test_new_team_file_runs_and_has_its_schema(tmp_path: Path) -> None:
    assert "demo model" in call_here("init")
    first = (tmp_path / "team.yaml").read_text().splitlines()[0]
    schema = tmp_path / first.partition("$schema=")[2]
    assert json.loads(schema.read_text()) == file_schema("team")
    assert told_here("run", "Why?", "-c", "team.yaml", "--json")["status"] == "complete"


def test_new_team_file_uses_providers_with_api_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    call_here("init", "ours.yaml")
    agents = TeamSpec.from_file(tmp_path / "ours.yaml").agents
    assert [agent.backend.type for agent in agents] == ["claude", "gemini"]


def test_init_refuses_existing_file_and_unknown_provider(
    tmp_path: Path,
) -> None:
    (tmp_path / "team.yaml").write_text("mine")
    with pytest.raises(UserError, match="exists"):
        call_here("init")
    assert (tmp_path / "team.yaml").read_text() == "mine"
    with pytest.raises(UserError, match="opena"):
        call_here("init", "new.yaml", "-m", "opena:gpt-5-mini")
    assert not (tmp_path / "new.yaml").exists()


def test_new_notebook_has_three_cells(tmp_path: Path) -> None:
    call_here("init", "first.ipynb", "-m", "ollama:llama3.2")
    notebook = nbformat.read(tmp_path / "first.ipynb", as_version=4)
    nbformat.validate(notebook)
    load, ask, table = (cell.source for cell in notebook.cells)
    assert load == "%load_ext nb_agents"
    assert ask.startswith("%%agents --model ollama:llama3.2\n")
    assert table == "%agents"


@pytest.mark.parametrize("kind", ["team", "recipe"])
def test_schema_prints_the_schema(kind: str) -> None:
    assert json.loads(call_here("schema", kind)) == file_schema(kind)  # type: ignore[arg-type]
