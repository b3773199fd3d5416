"""Checkpoints of a turn, found by a user's description."""

import re
from datetime import datetime

import pytest

from nb_agents.errors import UserError
from nb_agents.view.points import Checkpoint, find_checkpoint


def _turn(*times: str, first: int = 1) -> list[Checkpoint]:
    """Return checkpoints at these times of 20 November 2026, or of the next day."""
    moments = [datetime.fromisoformat(f"2026-11-{each}").timestamp() for each in times]
    kinds = ["start", *["said"] * len(times)]
    numbered = enumerate(zip(moments, kinds, strict=False), first)
    return [Checkpoint(seq, at, "", kind, "", seq, seq) for seq, (at, kind) in numbered]


@pytest.mark.parametrize("to", ["14:30:00", "14:32:04", "00:00"])
def test_time_before_the_start_of_a_turn_is_an_error(to: str) -> None:
    with pytest.raises(UserError, match="is before the start of turn s/1, which is event 2"):
        find_checkpoint(_turn("20 14:32:05", "20 14:33:00", first=2), to, "s/1", 9)


@pytest.mark.parametrize(
    ("to", "seq"), [("23:59:00", 1), ("00:01:00", 2), ("00:05", 3), ("23:59:59", 1), ("12:00", 3)]
)
def test_time_after_midnight_means_the_next_day(to: str, seq: int) -> None:
    turn = _turn("20 23:58:30", "21 00:00:30", "21 00:02:00")
    assert find_checkpoint(turn, to, "s/1", 9).seq == seq


def test_the_end_is_the_last_checkpoint() -> None:
    assert find_checkpoint(_turn("20 14:32:05", "20 14:33:00"), "the end", "s/1", 9).seq == 2


def test_error_for_an_unknown_event_names_the_last_event() -> None:
    turn = _turn("20 14:32:05", "20 14:33:00")
    assert find_checkpoint(turn, "9", "s/1", 9).seq == 2
    with pytest.raises(UserError, match="Turn s/1 has no event 10. The last one is 9"):
        find_checkpoint(turn, "10", "s/1", 9)


@pytest.mark.parametrize(
    ("to", "proposed"),
    [
        ("before ben's 1st answer", ["ben's 1st model call"]),
        ("eve's 1st answer", ["the start", "ada's 1st model call", "ben's 1st model call"]),
        ("nonsense", ["the start", "ada's 1st model call", "ben's 1st model call"]),
    ],
)
def test_error_proposes_only_checkpoints_that_exist(to: str, proposed: list[str]) -> None:
    points = [Checkpoint(1, 0, "", "start", "", 1, 1)]
    points += [
        Checkpoint(2 + n, 0, agent, "call", "", 1, 1) for n, agent in enumerate(("ada", "ben"))
    ]
    with pytest.raises(UserError) as error:
        find_checkpoint(points, to, "s/1", 9)
    named = re.findall(r'(\d+) or "([^"]+)"', str(error.value))
    assert [text for _, text in named] == proposed
    for seq, text in named:
        found = [find_checkpoint(points, each, "s/1", 9) for each in (seq, text)]
        assert [str(point) for point in found] == [text, text]
