"""Relative paths in a file start at the directory in which the run is started."""

from pathlib import Path

import pytest

from tests.kit.teams import TeamSpec, use_start_directory
from tests.kit.tools import McpServerSpec


@pytest.fixture
def team(tmp_path: Path) -> TeamSpec:
    """A team that another process has loaded, with a path in that process's directory."""
    (tmp_path / "notes").mkdir()
    agents = [{"id": "a", "backend": {"type": "demo"}}]
    paths = ["notes", "gone", "/", "~"]
    with use_start_directory(tmp_path):
        return TeamSpec.model_validate(
            {"agents": agents, "workspace": "project", "orchestrator": {"context_paths": paths}}
        )


def test_context_path_and_project_start_at_the_start_directory(
    team: TeamSpec, tmp_path: Path
) -> None:
    assert [each.path for each in team.orchestrator.context_paths] == [
        str(tmp_path / "notes"),
        str(tmp_path / "gone"),
        "/",
        str(Path.home()),
        str(tmp_path),
    ]
    [missing] = team.missing_paths
    assert str(tmp_path / "gone") in str(missing)


def test_paths_are_unchanged_when_a_journal_is_read_elsewhere(
    team: TeamSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = TeamSpec.model_validate(team.model_dump(mode="json"))
    assert again.orchestrator.context_paths == team.orchestrator.context_paths
    assert again.workspace == team.workspace


@pytest.mark.parametrize(
    "given, meant",
    [(None, ""), ("", ""), ("a/b", "a/b"), ("/a", "/a"), ("~/a", None), ("${A}", None)],
)
def test_server_runs_in_the_start_directory(
    tmp_path: Path, given: str | None, meant: str | None
) -> None:
    with use_start_directory(tmp_path):
        server = McpServerSpec.model_validate({"name": "s", "command": "c", "cwd": given})
    assert server.cwd == (given if meant is None else str(tmp_path / meant))
