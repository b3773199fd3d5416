"""Points of a turn, as a person names them."""

from datetime import datetime

import pytest

from nb_agents.errors import UserError
from nb_agents.view.points import Point, find_point


def _turn(*times: str, first: int = 1) -> list[Point]:
    """A turn with a point at each of these times of 20 November 2026, or of the day after."""
    moments = [datetime.fromisoformat(f"2026-11-{each}").timestamp() for each in times]
    kinds = ["start", *["said"] * len(times)]
    numbered = enumerate(zip(moments, kinds, strict=False), first)
    return [Point(seq, at, "", kind, "", seq, seq) for seq, (at, kind) in numbered]


@pytest.mark.parametrize("to", ["14:30:00", "14:32:04", "00:00"])
def test_a_time_before_the_start_of_a_turn_is_no_point_of_it(to: str) -> None:
    with pytest.raises(UserError, match="lies before the start of turn s/1, which is event 2"):
        find_point(_turn("20 14:32:05", "20 14:33:00", first=2), to, "s/1", 9)


@pytest.mark.parametrize(
    ("to", "seq"), [("23:59:00", 1), ("00:01:00", 2), ("00:05", 3), ("23:59:59", 1), ("12:00", 3)]
)
def test_a_time_after_midnight_is_one_of_the_next_day(to: str, seq: int) -> None:
    turn = _turn("20 23:58:30", "21 00:00:30", "21 00:02:00")
    assert find_point(turn, to, "s/1", 9).seq == seq


def test_the_end_is_the_last_point() -> None:
    assert find_point(_turn("20 14:32:05", "20 14:33:00"), "the end", "s/1", 9).seq == 2


def test_a_number_of_an_event_that_the_turn_lacks_is_told_with_its_last_one() -> None:
    turn = _turn("20 14:32:05", "20 14:33:00")
    assert find_point(turn, "9", "s/1", 9).seq == 2
    with pytest.raises(UserError, match="Turn s/1 has no event 10: its last one is 9"):
        find_point(turn, "10", "s/1", 9)
