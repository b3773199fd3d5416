"""Tests of the notes on the time left."""

import pytest

from tests.kit.agents import Elapsed, duration, is_late, prompts, round_is_over, time_note


@pytest.mark.parametrize(
    ("elapsed", "late", "over"),
    [
        (Elapsed(0, 100), False, False),
        (Elapsed(79.9, 100), False, False),
        (Elapsed(80, 100), True, False),
        (Elapsed(500, 100), True, False),
        (Elapsed(1, 100, 9.9, 10, 5), False, False),
        (Elapsed(1, 100, 10, 10, 5), False, True),
        (Elapsed(1, 100, 99, None, 5), False, False),
    ],
)
def test_limits_of_turn_and_round(elapsed: Elapsed, late: bool, over: bool) -> None:
    assert (is_late(elapsed), round_is_over(elapsed)) == (late, over)


ROUND_OVER = prompts.ROUND_OVER.format(tools="vote", grace="4 s")


@pytest.mark.parametrize(
    ("elapsed", "wraps_up", "note"),
    [
        (Elapsed(297, 1800), False, "[Time left: 25 min 3 s of 30 min]"),
        (Elapsed(90, 100), True, f"[Time left: 10 s of 1 min 40 s]\n{prompts.WRAP_UP}"),
        (Elapsed(101, 100), False, "[Time left: none of 1 min 40 s]"),
        (Elapsed(0, 60, 5, 20, 5), False, "[Time left: 1 min of 1 min; of this round: 15 s]"),
        (
            Elapsed(59, 60, 21, 20, 5),
            True,
            f"[Time left: 1 s of 1 min; of this round: 0 s]\n{ROUND_OVER}",
        ),
    ],
)
def test_note_includes_the_remaining_time(elapsed: Elapsed, wraps_up: bool, note: str) -> None:
    assert time_note(elapsed, "vote", wraps_up=wraps_up) == note


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "0.25 s"),
        (9.96, "10 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
    ],
)
def test_durations_are_written_for_a_reader(seconds: float, text: str) -> None:
    assert duration(seconds) == text
