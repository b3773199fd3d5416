"""What tests of runs share: a model server, and a session root that no process outlives."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nb_agents.runs.live_turns import live_turns
from tests.model_server import ModelServer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A session root; no process that writes below it outlives the test."""
    yield tmp_path / "sessions"
    for turn in live_turns():
        if turn.paths.path.is_relative_to(tmp_path):
            os.kill(turn.pid, signal.SIGKILL)
