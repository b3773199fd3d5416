"""A relative path in a file means where the run is started, whichever process works on it."""

from pathlib import Path

import pytest

from nb_agents.config.mcp_servers import McpServerSpec
from nb_agents.config.spec import started_in
from nb_agents.config.team import TeamSpec


@pytest.fixture
def team(tmp_path: Path) -> TeamSpec:
    """A team of another process's, of which one path is there."""
    (tmp_path / "notes").mkdir()
    agents = [{"id": "a", "backend": {"type": "demo"}}]
    paths = ["notes", "gone", "/", "~"]
    with started_in(tmp_path):
        return TeamSpec.model_validate(
            {"agents": agents, "workspace": "project", "orchestrator": {"context_paths": paths}}
        )


def test_a_context_path_and_the_project_are_there(team: TeamSpec, tmp_path: Path) -> None:
    assert [each.path for each in team.orchestrator.context_paths] == [
        str(tmp_path / "notes"),
        str(tmp_path / "gone"),
        "/",
        str(Path.home()),
        str(tmp_path),
    ]
    [missing] = team.missing_paths
    assert str(tmp_path / "gone") in str(missing)


def test_it_stays_there_when_a_journal_is_read_elsewhere(
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
def test_a_server_works_there(tmp_path: Path, given: str | None, meant: str | None) -> None:
    with started_in(tmp_path):
        server = McpServerSpec.model_validate({"name": "s", "command": "c", "cwd": given})
    assert server.cwd == (given if meant is None else str(tmp_path / meant))
