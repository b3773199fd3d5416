"""Shared fixtures: a model server, and a session root that no process outlives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model_server import ModelServer
from tests.team_kit import kill_writers


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A session root; no process that writes below it outlives the test."""
    yield tmp_path / "sessions"
    kill_writers(tmp_path)
