"""Fixtures of the tests of sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nb_agents import RunOptions
from tests.kit.runs import registry
from tests.model_server import ModelServer


@pytest.fixture
def options(tmp_path: Path) -> Iterator[RunOptions]:
    yield RunOptions(session_root=tmp_path / "sessions")
    for group in registry.groups():
        group.stop(True, reason="the test is over", source="parent")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server
