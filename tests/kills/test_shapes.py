"""A few kills of each shape of work; `python -m tests.kills` kills at every event."""

from collections.abc import Iterator

import pytest

from tests.kills.shapes import FOLDED, SHAPES
from tests.kills.stage import FOLD, Stage, stage
from tests.kills.understudy import Kill
from tests.samples import IS_FULL


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("kills")) as made:
        yield made


FOLDED_KEYS = [key for key, *_ in FOLDED]
OFTEN = [key for key in SHAPES if IS_FULL or key not in FOLDED_KEYS[1:]]


@pytest.mark.parametrize("key", OFTEN)
@pytest.mark.timeout(300)
def test_work_killed_up_to_three_times_ends_like_work_never_killed(here: Stage, key: str) -> None:
    _, events = here.whole(key)
    ways = [
        # These two leave nothing, as the first event is written together with others.
        [Kill(1), Kill(2)],
        [Kill(events // 2)],
        [Kill(events // 2), Kill(1), Kill(events // 4)],
        [Kill(events // 3, 5), Kill(4)],
    ]
    one = ways[[*SHAPES].index(key) % len(ways)]
    for kills in ways if IS_FULL else [one]:
        played = here.play(key, kills)
        assert not (played.differs or played.error), played
        assert len(played.kills) == len(kills)


@pytest.mark.parametrize("key", FOLDED_KEYS)
@pytest.mark.timeout(300)
def test_work_killed_at_two_of_its_folds_ends_like_work_never_killed(here: Stage, key: str) -> None:
    assert here.count(key, FOLD) >= 2
    played = here.play(key, [Kill(1, kind=FOLD), Kill(1, kind=FOLD)])
    assert not (played.differs or played.error or played.left), played
    assert len(played.kills) == 2
