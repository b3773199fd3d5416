"""The layout of the timeline's picture."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents import events as ev
from nb_agents.presentation.timeline_picture import (
    MAX_BARS,
    MAX_MARKS,
    Picture,
    Scale,
    picture,
)
from tests.kit.views import Timeline, TimelineEntry, TurnTime, fold_timeline
from tests.strategies import EVENTS, STARTED

DAY_S = 86400.0
ONE = TurnTime(1, 0.0, 30.0)
TWO = TurnTime(2, DAY_S, DAY_S + 10.0)


def drawn(*entries: TimelineEntry, agents: tuple[str, ...] = ("ada", "ben")) -> Timeline:
    return Timeline(agents, (TurnTime(1, 0.0, 100.0),), entries)


def test_time_runs_from_left_to_right() -> None:
    scale = Scale([ONE])
    assert [scale.left(at) for at in (0.0, 15.0, 30.0)] == [0.0, 50.0, 100.0]
    assert scale.gaps == []


def test_time_between_stop_and_resume_is_a_short_gap() -> None:
    scale = Scale([ONE, TWO])
    [(left, width)] = scale.gaps
    assert scale.left(30.0) == left
    assert scale.left(DAY_S) == pytest.approx(left + width, abs=0.1)
    assert width < 10
    assert scale.left(DAY_S + 10.0) == 100.0
    assert scale.seconds(DAY_S + 5.0) == 35.0  # the night is not counted


@pytest.mark.parametrize(
    "total_s, labels",
    [
        (0.25, ["0.00 s", "0.05 s", "0.10 s", "0.15 s", "0.20 s", "0.25 s"]),
        (1.0, ["0.0 s", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1.0 s"]),
        (45.0, ["0 s", "10 s", "20 s", "30 s", "40 s"]),
        (200.0, ["0:00", "1:00", "2:00", "3:00"]),
        (3 * 3600.0, ["0:00", "30:00", "1:00:00", "1:30:00", "2:00:00", "2:30:00", "3:00:00"]),
    ],
)
def test_scale_has_a_few_round_numbers(total_s: float, labels: list[str]) -> None:
    ticks = Scale([TurnTime(1, 0.0, total_s)]).ticks
    assert [t.label.replace("\N{NO-BREAK SPACE}", " ") for t in ticks] == labels


def test_vote_points_to_the_row_of_its_target() -> None:
    vote = TimelineEntry("vote", "ben", "ada", 50.0, 50.0, "counts", text="best")
    stranger = TimelineEntry("vote", "ada", "nobody", 60.0, 60.0, "counts")
    shown = picture(drawn(vote, stranger))
    assert shown is not None
    assert [(r.agent, [(m.left, m.target) for m in r.marks]) for r in shown.rows] == [
        ("ada", [(60.0, -1)]),
        ("ben", [(50.0, 0)]),
    ]
    assert shown.rows[1].words == "0:50 · vote for ada"


def test_called_agent_has_a_short_name_and_is_nested() -> None:
    step = "check/each[2]/review"
    agents = ("check/list", step, f"{step}/critic#1", f"{step}/critic#1/expert#1", "check/end")
    shown = picture(drawn(TimelineEntry("stop", "", "now", 1.0, 1.0), agents=agents))
    assert shown is not None
    assert [(row.name, row.depth) for row in shown.rows] == [
        ("check/list", 0),
        (step, 0),
        ("critic#1", 1),
        ("expert#1", 2),
        ("check/end", 0),
    ]
    assert [row.agent for row in shown.rows] == list(agents)


def test_stops_are_lines_across_all_rows_with_separate_labels() -> None:
    stops = [TimelineEntry("stop", "", n, at, at) for n, at in (("requested", 50.0), ("now", 51.0))]
    third = TimelineEntry("said", "", "", 52.0, 52.0, text="hello")
    shown = picture(drawn(*stops, third))
    assert shown is not None
    assert [(m.name, m.level) for m in shown.lines] == [("stop", 0), ("stop now", 1), ("", 0)]
    assert shown.lines[2].title.endswith("your message · hello")


def test_thousands_of_calls_are_merged_into_a_limited_number_of_bars() -> None:
    entries = [
        TimelineEntry("model" if n % 2 else "tool", "ada", "ls", n / 50, n / 50 + 0.01, "ok")
        for n in range(5000)
    ]
    marks = [TimelineEntry("restart", "ben", str(n), n / 50, n / 50) for n in range(5000)]
    shown = picture(drawn(*entries, *marks))
    assert shown is not None
    assert 20 < sum(len(row.bars) for row in shown.rows) <= MAX_BARS
    assert 20 < sum(len(row.marks) for row in shown.rows) <= MAX_MARKS
    assert "model calls" in shown.rows[0].bars[0].title + shown.rows[0].bars[1].title
    assert shown.rows[0].calls == "2,500 model calls, 2,500 tool calls"


def test_merged_bar_is_red_only_if_most_of_it_failed() -> None:
    calls = [TimelineEntry("tool", "ada", "ls", 10.0, 10.01, o) for o in ("ok", "ok", "error")]
    shown = picture(drawn(*calls))
    assert shown is not None
    assert [bar.tone for bar in shown.rows[0].bars] == ["ok"]


def test_open_and_interrupted_calls_have_different_styles() -> None:
    calls = [
        TimelineEntry("model", "ada", "1", 0.0, 40.0, "cut"),
        TimelineEntry("model", "ada", "2", 50.0, 100.0, "running"),
    ]
    live, over = picture(drawn(*calls)), picture(drawn(*calls[:1]))
    assert live
    assert over
    assert [bar.tone for bar in live.rows[0].bars] == ["cut", "open"]
    assert (live.has_open, over.has_open) == (True, False)


def test_turn_without_a_journal_has_no_picture() -> None:
    assert picture(Timeline()) is None


@given(st.lists(EVENTS, max_size=40))
def test_positions_are_always_inside_the_picture(events: list[ev.Event]) -> None:
    shown = picture(fold_timeline([STARTED, *events]))
    for row in shown.rows if shown else ():
        assert all(0 <= bar.left <= 100 for bar in row.bars)
        assert all(bar.left + bar.width <= 100.5 for bar in row.bars)
        assert all(0 <= mark.left <= 100 for mark in row.marks)
        assert all(-1 <= mark.target < len(shown.rows) for mark in row.marks)


def test_crowded_picture_can_be_spread() -> None:
    def drawing(*times: float) -> Picture:
        shown = picture(drawn(*(TimelineEntry("answer", "ada", "1", at, at) for at in times)))
        assert shown is not None
        return shown

    assert not drawing(0.0, 30.0, 60.0, 61.0).is_crowded, "a few may overlap"
    assert drawing(*(float(n) for n in range(40, 60))).is_crowded
