"""A few kills and stops of programs; `python -m tests.kills.programs` runs many."""

import random
from pathlib import Path

import pytest

from tests.kills.programs import KINDS, arena


@pytest.mark.timeout(300)
def test_killed_programs_repeat_no_finished_call_and_mix_up_no_results(
    tmp_path: Path,
) -> None:
    chance = random.Random(1)
    with arena(tmp_path) as here:
        for kind in KINDS:
            ended = here.play(kind, kills=2, stops=1, chance=chance)
            assert ended.is_right, ended
            assert ended.kills + ended.stops >= 1
