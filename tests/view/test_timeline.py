"""The timeline: a limited number of ordered spans and marks, folded from events."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.testing import Answer, Gate, ScriptedModel, Turn, Vote
from nb_agents.view import timeline as tl
from nb_agents.view.timeline import Timeline, TimelineEntry, TimelineFold, fold_timeline
from tests.kit.runs import Run
from tests.kit.sessions import TurnPaths, past_events
from tests.strategies import AGENTS, EVENTS, STARTED
from tests.team_kit import finish, start

USAGE = ev.Usage(input_tokens=100, output_tokens=20, cost=0.5)


def folded(*events: ev.Event, **options: Any) -> Timeline:
    return fold_timeline([STARTED, *events], **options)


def told(timeline: Timeline) -> list[tuple[str, str, str, str]]:
    return [(e.kind, e.agent, e.name, e.outcome) for e in timeline.entries]


def alone(root: Path) -> Run:
    """A finished run of one agent."""
    model = ScriptedModel(Answer("A."), Vote("agent1"), Answer("A."))
    return finish(start(root, ada=model))


def model(at: float, end: ev.Event | None = None, agent: str = "ada") -> list[ev.Event]:
    began = ev.ModelStarted(agent=agent, call=1, at=at)
    return [began, end] if end else [began]


def test_model_call_is_a_span_with_outcome_tokens_and_cost() -> None:
    done = ev.ModelFinished(agent="ada", call=1, response={}, usage=USAGE, at=104.0)
    assert folded(*model(101.0, done)).entries == (
        TimelineEntry("model", "ada", "1", 101.0, 104.0, "finished", 120, 0.5),
    )
    failed = ev.ModelFailed(agent="ada", call=1, error="HTTP 503", retry_in_s=1, at=102.0)
    assert folded(*model(101.0, failed)).entries == (
        TimelineEntry("model", "ada", "1", 101.0, 102.0, "failed", text="HTTP 503"),
    )
    cut = ev.ModelCut(agent="ada", call=1, at=103.0)
    assert folded(*model(101.0, cut)).entries[0].outcome == "cut"


def test_tool_call_is_a_span_and_a_cancelled_one_has_no_duration() -> None:
    timeline = folded(
        ev.ToolStarted(agent="ada", call_id="1", tool="write_file", summary="a.py", at=101.0),
        ev.ToolFinished(agent="ada", call_id="1", tool="write_file", outcome="error", at=103.0),
        ev.ToolFinished(agent="ada", call_id="2", tool="list_files", outcome="cancelled", at=104.0),
    )
    assert timeline.entries == (
        TimelineEntry("tool", "ada", "write_file", 101.0, 103.0, "error", text="a.py"),
        TimelineEntry("tool", "ada", "list_files", 104.0, 104.0, "cancelled"),
    )


def test_model_calls_at_the_same_time_are_separate_spans() -> None:
    timeline = folded(
        ev.ModelStarted(agent="ada", call=1, at=101.0),
        ev.ModelStarted(agent="ada", call=2, at=102.0),
        ev.ModelFinished(agent="ada", call=1, response={}, usage=USAGE, at=103.0),
        ev.ModelFinished(agent="ada", call=2, response={}, usage=USAGE, at=104.0),
    )
    assert [(e.name, e.start, e.end, e.outcome) for e in timeline] == [
        ("1", 101.0, 103.0, "finished"),
        ("2", 102.0, 104.0, "finished"),
    ]


def test_streamed_text_changes_only_the_end_of_open_spans() -> None:
    word = ev.TextStreamed(agent="ada", call=1, channel="text", text="x", at=109.0)
    timeline = folded(*model(101.0), word, is_live=True)
    assert timeline.entries == (TimelineEntry("model", "ada", "1", 101.0, 109.0, "running"),)
    assert timeline.turns[-1].end == 109.0


def test_open_spans_are_cut_when_the_process_died() -> None:
    assert folded(*model(101.0)).entries[0].outcome == "cut"


def test_answers_are_numbered_and_clear_earlier_votes() -> None:
    vote = ev.VoteCast(agent="ben", target="ada", reason="best", at=103.0)
    timeline = folded(
        ev.AnswerGiven(agent="ada", answer="one", at=102.0),
        vote,
        ev.AnswerGiven(agent="ada", answer="two", at=104.0),
        ev.VoteIgnored(agent="ben", target="ada", at=105.0),
        ev.VoteCast(agent="ben", target="ada", reason="still", at=106.0),
        ev.VoteCast(agent="ben", target="ben", reason="mine", at=107.0),
    )
    assert told(timeline) == [
        ("answer", "ada", "1", ""),
        ("vote", "ben", "ada", "cleared"),
        ("answer", "ada", "2", ""),
        ("vote", "ben", "ada", "ignored"),
        ("vote", "ben", "ada", "cleared"),
        ("vote", "ben", "ben", "counts"),
    ]


def test_message_of_the_user_is_a_mark_and_clears_votes() -> None:
    vote = ev.VoteCast(agent="ben", target="ada", reason="best", at=103.0)
    timeline = folded(vote, ev.UserMessage(text="Mind the price.", at=104.0))
    assert told(timeline) == [("vote", "ben", "ada", "cleared"), ("said", "", "", "")]
    assert timeline.entries[1].text == "Mind the price."


def test_new_round_is_a_restart_that_names_the_authors_of_new_answers() -> None:
    timeline = folded(
        ev.RoundStarted(agent="ada", number=1, at=101.0),
        ev.RoundStarted(agent="ada", number=2, seen={"ada": 1, "ben": 2}, at=102.0),
        ev.PresentationStarted(agent="ada", at=103.0),
        ev.RoundStarted(agent="ada", number=3, at=104.0),
    )
    assert told(timeline) == [("restart", "ada", "2", ""), ("presents", "ada", "", "")]
    assert timeline.entries[0].text == "after new answers of ben"


def test_stops_of_run_and_agent_are_marks() -> None:
    timeline = folded(
        ev.StopRequested(level="requested", source="widget", reason="slow", agent="ben", at=101.0),
        ev.StopRequested(level="immediate", source="api", at=102.0),
    )
    assert told(timeline) == [("stop", "ben", "requested", ""), ("stop", "", "now", "")]
    assert [e.text for e in timeline.entries] == ["widget: slow", "api"]


def test_resumed_turn_follows_the_turn_it_resumes() -> None:
    again = ev.TurnStarted(
        session="session_1",
        turn=2,
        task="Why?",
        agents=STARTED.agents,
        timeout_s=60,
        resumes=1,
        at=9000.0,
    )
    answer = ev.AnswerGiven(agent="ada", answer="one", at=103.0)
    second = ev.AnswerGiven(agent="ada", answer="two", at=9001.0)
    timeline = folded(answer, *model(104.0, agent="ben"), again, second)
    assert [(t.turn, t.start, t.end) for t in timeline.turns] == [(1, 100, 104), (2, 9000, 9001)]
    assert told(timeline) == [
        ("answer", "ada", "1", ""),
        ("model", "ben", "1", "cut"),  # at the end of its own turn, not a day later
        ("resumed", "", "2", ""),
        ("answer", "ada", "2", ""),
    ]
    assert timeline.entries[1].end == 104.0


def test_calls_of_a_recipe_step_have_its_address() -> None:
    done = ev.ModelFinished(agent="plan", call=1, response={}, usage=USAGE, at=104.0)
    timeline = folded(
        ev.StepStarted(step="plan", unit="agent", at=101.0),
        *model(102.0, done, agent="plan"),
        ev.StepStarted(step="test", unit="bash", asks="pytest", at=105.0),
        ev.StepFinished(step="test", outcome="ok", at=107.0),
    )
    assert timeline.agents == ("ada", "ben", "plan", "test")
    assert told(timeline) == [("model", "plan", "1", "finished"), ("step", "test", "bash", "ok")]


def test_called_agents_follow_their_caller() -> None:
    def call(agent: str, at: float) -> ev.Event:
        caller, _, name = agent.rpartition("/")
        fields = {"name": name[:-2], "model": "m", "workspace": "w", "input": "i"}
        return ev.AgentCalled(agent=agent, caller=caller, at=at, **fields)

    timeline = folded(
        ev.StepStarted(step="plan", unit="agent", at=101.0),
        ev.StepStarted(step="planet", unit="agent", at=101.0),
        call("plan/critic#1", 102.0),
        call("plan/critic#1/expert#1", 103.0),
        call("plan/critic#2", 104.0),
        *model(105.0, ev.ModelCut(agent="plan/critic#2", call=1, at=106.0), "plan/critic#2"),
    )
    called = ["critic#1", "critic#1/expert#1", "critic#2"]
    assert timeline.agents[2:] == ("plan", *(f"plan/{each}" for each in called), "planet")
    assert told(timeline) == [("model", "plan/critic#2", "1", "cut")]


@given(st.lists(EVENTS, max_size=40))
def test_any_events_are_folded_in_order(events: list[ev.Event]) -> None:
    timeline = folded(*events)
    entries = timeline.entries
    assert list(entries) == sorted(entries, key=lambda e: e.start)
    assert all(e.end >= e.start and e.outcome != "running" for e in entries)
    assert {e.agent for e in entries} <= {*timeline.agents, ""}


@given(st.lists(EVENTS, max_size=30), AGENTS)
def test_timeline_method_does_not_change_the_fold(events: list[ev.Event], agent: str) -> None:
    looked, plain = TimelineFold(), TimelineFold()
    for event in [STARTED, *events]:
        looked.add(event)
        plain.add(event)
        looked.timeline()
    assert looked.timeline() == plain.timeline()


def test_number_of_entries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tl, "MAX_ENTRIES", 3)
    events = [ev.AnswerGiven(agent="ada", answer="x" * 9999, at=101.0 + n) for n in range(5)]
    timeline = folded(*events, ev.VoteCast(agent="ben", target="ada", reason="r", at=109.0))
    assert (len(timeline.entries), timeline.left_out) == (3, 3)
    assert all(len(e.text) <= tl.MAX_TEXT for e in timeline.entries)


def test_timelines_of_run_and_journal_are_equal(tmp_path: Path) -> None:
    run = alone(tmp_path)
    assert run.timeline == fold_timeline(past_events(TurnPaths(run.path)))
    kinds = {e.kind for e in run.timeline.entries}
    assert {"model", "answer"} <= kinds


def test_data_frame_has_a_row_for_each_entry(tmp_path: Path) -> None:
    run = alone(tmp_path)
    frame = run.to_frame()
    assert list(frame.columns) == list(tl.COLUMNS)
    assert len(frame) == len(run.timeline.entries)
    calls = frame[frame.kind == "model"]
    assert (calls.seconds >= 0).all()
    assert str(calls.start.dt.tz) == "UTC"


def test_error_without_pandas_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = alone(tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        run.to_frame()


def test_timeline_of_a_resumed_run_starts_with_the_resumed_turn(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptedModel(Turn(text="so far ", gate=gate), Answer("A's"))
    run = start(tmp_path, ada=model)
    gate.wait_reached()
    run.stop(now=True)
    run.wait(200, raise_on_stop=False)
    again = run.resume()
    again.wait(200, raise_on_stop=False)
    assert [t.turn for t in again.timeline.turns] == [1, 2]
    first, *rest = told(again.timeline)
    assert first == ("model", "ada", "1", "cut")
    assert [kind for kind, *_ in rest][:2] == ["stop", "resumed"]
    assert again.timeline == fold_timeline(past_events(TurnPaths(again.path)))
