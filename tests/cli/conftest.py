"""Fixtures for the tests of the command line: a model server and a directory with a team file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import nb_agents
from tests.model_server import ModelServer
from tests.team_kit import kill_writers, wait_others_ended


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a team file. No process that writes there outlives the test."""
    wait_others_ended()
    write_team(tmp_path, server)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(nb_agents.__file__).parents[1]))
    yield tmp_path
    kill_writers(tmp_path)


def write_team(place: Path, server: ModelServer, agents: str = "a", keys: str = "") -> None:
    """Write ``team.yaml``: an agent for each letter, whose model is "m" and whose backend has more.

    Args:
        place: The directory.
        server: Stands for the provider.
        agents: Their ids.
        keys: More keys of each backend, in YAML's flow style.
    """
    backend = f'{{type: vllm, model: m, base_url: "{server.url}", api_key: k{keys}}}'
    lines = [f"  - id: {each}\n    backend: {backend}\n" for each in agents]
    (place / "team.yaml").write_text("agents:\n" + "".join(lines))
