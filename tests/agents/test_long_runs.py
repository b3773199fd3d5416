"""Work of ten times the context window, in each shape and each wire format.

`python -m bench.long_runs` plays three hundred such runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.long_runs import FORMATS, SHAPES, play, rewind_faults
from tests.model_server import ModelServer

COMBINED = [(SHAPES[n % len(SHAPES)], kind) for n, kind in enumerate(FORMATS)]


@pytest.mark.parametrize(("shape", "kind"), COMBINED)
def test_long_run_loses_nothing(tmp_path: Path, shape: str, kind: str) -> None:
    with ModelServer(strict=True) as server:
        played = play(server, tmp_path, shape, kind, times=3)
        assert played.faults == []
        assert {fold.agent for fold in played.folds}


def test_rewind_of_a_called_agent_undoes_its_fold(tmp_path: Path) -> None:
    with ModelServer() as server:
        played = play(server, tmp_path, "sub-agent", "claude", times=2)
        assert played.folds
        assert list(rewind_faults(server, played)) == []
