"""A few sweeps whose cluster is killed in part; `python -m tests.kills.sweeps` plays many."""

import random
from pathlib import Path

import pytest

from tests.kills.sweeps import arena


@pytest.mark.timeout(600)
def test_a_sweep_whose_workers_nannies_scheduler_and_kernel_die_completes_and_pays_once(
    tmp_path: Path,
) -> None:
    chance = random.Random(0)
    with arena(tmp_path) as here:
        for kinds in (["worker", "kernel"], ["nanny", "scheduler"]):
            ended = here.play(kinds, chance)  # type: ignore[arg-type]
            assert ended.is_right, ended
