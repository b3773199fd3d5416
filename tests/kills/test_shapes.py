"""Each shape of work is killed a few times here; `python -m tests.kills` does so at every event."""

from collections.abc import Iterator

import pytest

from tests.kills.shapes import SHAPES
from tests.kills.stage import Stage, stage
from tests.kills.understudy import Kill


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("kills")) as made:
        yield made


@pytest.mark.parametrize("key", SHAPES)
@pytest.mark.timeout(300)
def test_work_that_is_killed_up_to_three_times_ends_as_if_it_had_not_been(
    here: Stage, key: str
) -> None:
    _, events = here.whole(key)
    # The first event is written with what belongs to it, so that the first two leave nothing.
    for kills in (
        [Kill(1), Kill(2)],
        [Kill(events // 2)],
        [Kill(events // 2), Kill(1), Kill(events // 4)],
        [Kill(events // 3, 5), Kill(4)],
    ):
        played = here.play(key, kills)
        assert not (played.differs or played.error), played
        assert len(played.kills) == len(kills)
