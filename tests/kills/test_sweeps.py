"""A sweep with kills of the cluster; `python -m tests.kills.sweeps` runs many."""

import random
from pathlib import Path

import pytest

from tests.kills.sweeps import arena


@pytest.mark.timeout(600)
def test_sweep_completes_and_pays_once_despite_kills_of_the_cluster(
    tmp_path: Path,
) -> None:
    chance = random.Random(0)
    with arena(tmp_path) as here:
        ended = here.play(["worker", "nanny", "kernel"], chance)
        assert ended.is_right, ended
