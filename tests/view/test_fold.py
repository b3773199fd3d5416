"""The fold of events to the view of a turn."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nb_agents import events as ev
from nb_agents.view.fold import apply, fold
from tests.kit.views import AgentView, RunView, ToolView, VoteView, receipt, total_cost
from tests.strategies import EVENTS, STARTED

USAGE = ev.Usage(input_tokens=10, output_tokens=5, cost=0.25)


def said(text: str, agent: str = "ada", **more: str) -> ev.TextStreamed:
    return ev.TextStreamed(agent=agent, call=1, channel="answer", text=text, **more)  # type: ignore[arg-type]


def answer(agent: str, text: str) -> ev.AnswerGiven:
    return ev.AnswerGiven(agent=agent, answer=text)


def vote(agent: str, target: str) -> ev.VoteCast:
    return ev.VoteCast(agent=agent, target=target, reason="best")


def ended(status: str = "cancelled", **more: object) -> ev.TurnEnded:
    return ev.TurnEnded(status=status, phase="coordinating", at=160.0, **more)  # type: ignore[arg-type]


ASKED = ev.ModelStarted(agent="ada", call=1)
FINISHED = ev.ModelFinished(agent="ada", call=1, response={}, usage=USAGE)
OVERDUE = ev.RoundTimedOut(agent="ada", limit_s=60, grace_s=10)
NOTES = ev.FileInfo(agent="ada", path="notes.md", size=5)
TOOL = ev.ToolStarted(agent="ada", call_id="1.0", tool="read_file", summary="notes.md")


def cut(kept: str) -> ev.ReplyCut:
    return ev.ReplyCut(agent="ada", call=1, by="at its token limit", told="Go on.", kept=kept)


def done(outcome: str = "ok") -> ev.ToolFinished:
    return ev.ToolFinished(agent="ada", call_id="1.0", tool="read_file", outcome=outcome)  # type: ignore[arg-type]


CHANGES_OF_ADA = [
    ([ev.RoundStarted(agent="ada", number=2)], {"round": 2, "phase": "thinking"}),
    ([ASKED], {"calls": 1, "in_flight": True, "phase": "thinking"}),
    ([ASKED, said("one "), said("two")], {"partial": "one two", "phase": "writing"}),
    (
        [ASKED, ev.TextStreamed(agent="ada", call=1, channel="thinking", text="hm")],
        {"partial": "", "phase": "thinking"},
    ),
    (
        [ASKED, ev.TextStreamed(agent="ada", call=1, channel="call", text='{"pa', tool="edit")],
        {"partial_call": '{"pa', "tool": "edit", "phase": "writing"},
    ),
    (
        [ASKED, FINISHED],
        {"in_flight": False, "input_tokens": 10, "output_tokens": 5, "cost": 0.25, "tokens": 15},
    ),
    (
        [
            ASKED,
            ev.TextStreamed(agent="ada", call=1, channel="call", text="{}", tool="edit"),
            FINISHED,
        ],
        {"partial_call": "", "tool": ""},
    ),
    ([ASKED, FINISHED, replace(FINISHED, usage=ev.Usage(input_tokens=1))], {"cost": None}),
    (
        [ASKED, ev.ModelFailed(agent="ada", call=1, error="503", retry_in_s=1)],
        {"in_flight": False, "phase": "waiting"},
    ),
    (
        [ASKED, said("half"), ev.ModelCut(agent="ada", call=1)],
        {"in_flight": False, "partial": "half"},
    ),
    ([TOOL], {"phase": "tool", "tool": "read_file", "tool_summary": "notes.md"}),
    ([TOOL, done()], {"phase": "thinking", "tool": "", "tool_summary": ""}),
    ([ev.TurnRejected(agent="ada", why="neither", attempt=1)], {"phase": "thinking"}),
    (
        [ASKED, said("so far"), FINISHED, cut("so far"), ASKED, said(" and on")],
        {"partial": "so far and on", "unsubmitted": "so far and on"},
    ),
    (
        [ASKED, said("so far"), FINISHED, cut("so far"), ASKED, said(" and on")]
        + [answer("ada", "so far and on")],
        {"answer": "so far and on", "unsubmitted": ""},
    ),
    (
        [ASKED, said("hm: so far"), FINISHED, cut("so far"), ASKED],
        {"partial": "so far", "unsubmitted": "hm:\n\nso far"},
    ),
    ([answer("ada", "x"), ASKED, ev.Abstained(agent="ada")], {"answer": "x", "phase": "answered"}),
    (
        [ASKED, said("x"), answer("ada", "x")],
        {"answers": ("x",), "answer": "x", "partial": "", "phase": "answered"},
    ),
    ([answer("ada", "x"), answer("ada", "y")], {"answers": ("x", "y"), "answer": "y"}),
    (
        [ASKED, said("half"), OVERDUE],
        {"phase": "failed", "outcome": "failed", "partial": "half", "in_flight": False},
    ),
    (
        [answer("ada", "x"), ASKED, said("half"), OVERDUE],
        {"phase": "answered", "outcome": None, "error": "", "partial": "half", "in_flight": False},
    ),
    ([ASKED, ev.NoteSent(agent="ada", text="9 s left")], {"phase": "thinking", "in_flight": True}),
    ([ev.RoundStarted(agent="ada", number=2, heard=1)], {"heard": 1}),
    (
        [ev.NoteSent(agent="ada", text="t", heard=2), ev.NoteSent(agent="ada", text="t")],
        {"heard": 2},
    ),
    ([vote("ada", "ben")], {"vote": VoteView("ben", "best"), "phase": "voted"}),
    ([ev.VoteIgnored(agent="ada", target="ben")], {"vote": None, "phase": "waiting"}),
    (
        [ASKED, ev.AgentFailed(agent="ada", error="no key")],
        {"phase": "failed", "error": "no key", "outcome": "failed", "in_flight": False},
    ),
    (
        [ASKED, said("half"), ev.AgentEnded(agent="ada", outcome="killed")],
        {"phase": "stopped", "outcome": "killed", "in_flight": False, "partial": "half"},
    ),
]


@pytest.mark.parametrize("events, expected", CHANGES_OF_ADA)
def test_event_changes_its_agent(events: list[ev.Event], expected: dict[str, object]) -> None:
    before = fold([STARTED])
    after = fold(events, before)
    assert {name: getattr(after.agents["ada"], name) for name in expected} == expected
    assert after.agents["ben"] == before.agents["ben"]
    # A change that names no field would go unseen: a view is not made by its `__init__`.
    assert vars(after.agents["ada"]).keys() == {each.name for each in fields(AgentView)}


CHANGES_OF_RUN = [
    (
        [],
        {
            "session": "session_1",
            "turn": 1,
            "task": "Why?",
            "status": "in-progress",
            "timeout_s": 60,
        },
    ),
    ([ev.RoundStarted(agent="ben", number=3)], {"round": 3}),
    ([], {"round": 1, "phase": "coordinating", "is_over": False}),
    ([ev.PresentationStarted(agent="ben")], {"phase": "presenting", "winner": "ben"}),
    (
        [
            ev.UserMessage(text="1"),
            ev.NoteSent(agent="ben", text="t", heard=1),
            ev.UserMessage(text="2"),
        ],
        {"said": ("1", "2"), "unheard": ("2",)},
    ),
    ([ev.Noticed(text="one"), ev.Noticed(text="two")], {"notices": ("one", "two")}),
    ([ended()], {"status": "cancelled", "ended_at": 160.0, "is_over": True, "answer": ""}),
    (
        [ended("completed", winner="ada", answer="42")],
        {"status": "completed", "winner": "ada", "answer": "42"},
    ),
    ([ended()], {"files": (), "file_count": None}),
    (
        [ended(), ev.FilesListed(files=(NOTES,), count=3, size=70)],
        {"files": (NOTES,), "file_count": 3, "file_bytes": 70, "status": "cancelled"},
    ),
    ([ended(files=(NOTES,))], {"files": (NOTES,), "file_count": 1, "file_bytes": 5}),
    ([vote("ada", "ben"), vote("ben", "ben")], {"votes": {"ben": 2}}),
    ([TOOL], {"tools": (ToolView("ada", "1.0", "read_file", "running", "notes.md"),)}),
    ([TOOL, done("cut")], {"tools": (ToolView("ada", "1.0", "read_file", "cut", "notes.md"),)}),
    ([done("cancelled")], {"tools": (ToolView("ada", "1.0", "read_file", "cancelled"),)}),
]


@pytest.mark.parametrize("events, expected", CHANGES_OF_RUN)
def test_event_changes_the_run(events: list[ev.Event], expected: dict[str, object]) -> None:
    view = fold([STARTED, *events])
    assert {name: getattr(view, name) for name in expected} == expected


@given(st.lists(EVENTS, max_size=12), st.booleans())
def test_any_sequence_of_events_can_be_folded(events: list[ev.Event], started: bool) -> None:
    view = fold([STARTED] if started else [])
    for event in events:
        view = apply(view, event)
        assert view.round >= 1
        assert view.best_agent in {"", *view.agents}
        receipt(view, "/path")


WORDS = st.builds(
    ev.TextStreamed,
    agent=st.sampled_from(["ada", "ben", "stranger"]),
    call=st.just(1),
    channel=...,
    text=st.text(max_size=3),
    tool=st.sampled_from(["edit", "write"]),
    seq=st.integers(0, 3),
    at=st.sampled_from([0.0, 1.0, 2.0]),
)


@settings(max_examples=200)
@given(st.lists(EVENTS, max_size=3), st.lists(WORDS, max_size=12), st.lists(EVENTS | WORDS))
def test_fold_equals_applying_each_event(
    before: list[ev.Event], words: list[ev.Event], after: list[ev.Event]
) -> None:
    events = [*before, *words, *after]
    one_by_one = fold([STARTED])
    for event in events:
        one_by_one = apply(one_by_one, event)
    assert fold([STARTED, *events]) == one_by_one
    assert fold(iter(events), fold([STARTED])) == one_by_one


def test_consecutive_streamed_text_is_joined_before_it_is_applied() -> None:
    added: list[str] = []

    class Text(str):
        def __add__(self, more: str) -> "Text":
            added.append(more)
            return Text(str(self) + more)

    view = fold([STARTED])
    view = replace(view, agents={**view.agents, "ada": AgentView("ada", partial=Text("some "))})
    words = [said("more ", agent) for _ in range(3) for agent in ("ada", "ben")]
    assert fold(words, view).agents["ada"].partial == "some more more more "
    assert added == ["more more more "]


def test_end_of_a_tool_call_does_not_change_other_calls() -> None:
    others = [replace(TOOL, call_id="1.1"), replace(TOOL, agent="ben")]
    tools = fold([STARTED, TOOL, *others, done()]).tools
    assert [(t.agent, t.call_id, t.outcome) for t in tools] == [
        ("ada", "1.0", "ok"),
        ("ada", "1.1", "running"),
        ("ben", "1.0", "running"),
    ]


@given(EVENTS)
def test_apply_does_not_modify_the_view(event: ev.Event) -> None:
    before = fold([STARTED])
    apply(before, event)
    assert before == fold([STARTED])


@given(EVENTS)
def test_view_has_the_position_of_the_last_event(event: ev.Event) -> None:
    assert apply(fold([STARTED]), replace(event, seq=77)).seq == 77


@pytest.mark.parametrize(
    "event",
    [
        ev.AgentFailed(agent="stranger", error="x"),
        answer("stranger", "x"),
        ev.PresentationStarted(agent="stranger"),
        said("x", "stranger"),
    ],
)
def test_event_of_an_unknown_agent_changes_only_the_position(event: ev.Event) -> None:
    before = fold([STARTED])
    assert apply(before, replace(event, seq=9)) == replace(before, seq=9)


def test_answer_clears_all_votes() -> None:
    voted = fold([STARTED, answer("ada", "x"), vote("ada", "ada"), vote("ben", "ada")])
    view = apply(voted, answer("ben", "y"))
    assert view.votes == {}
    # Nobody is shown as having voted whose vote no longer counts.
    assert [a.phase for a in view.agents.values()] == ["waiting", "answered"]


def test_partial_text_stays_after_an_interruption_until_the_next_call() -> None:
    cut = [ASKED, said("half a "), said("thought"), ev.ModelCut(agent="ada", call=1)]
    stopped = [
        ev.StopRequested(level="immediate", source="widget"),
        ev.AgentEnded(agent="ada", outcome="killed"),
        ended(),
    ]
    view = fold([STARTED, *cut, *stopped])
    assert view.agents["ada"].partial == "half a thought"
    assert receipt(view, "").agents["ada"].words_kept == 3
    again = fold([STARTED, *cut, replace(ASKED, call=2)])
    assert again.agents["ada"].partial == ""


CALLS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["text", "answer", "thinking", "call"]), max_size=4),
        st.sampled_from(
            [
                "dropped",
                "rejected",
                "cut",
                "answered",
                "voted",
                "stale",
                "abstained",
                "round",
                "ran",
            ]
        ),
    ),
    max_size=6,
)
"""Sequences of model calls: the channels of their streamed text, and their ends."""


def _story(calls: list[tuple[list[Any], str]]) -> tuple[list[ev.Event], dict[str, str]]:
    """The events of some calls, and each piece of words with its channel; no piece is like another.

    Of calls of tools only those that were dropped count: others are told by the tool's own events.
    """
    events: list[ev.Event] = [STARTED]
    words: dict[str, str] = {}
    for number, (channels, end) in enumerate(calls, 1):
        events.append(replace(ASKED, call=number))
        # An answer's words come together, whatever comes before them.
        channels = sorted(channels, key="answer".__eq__)
        pieces = {f"w{number}-{place} ": channel for place, channel in enumerate(channels)}
        arguments = iter(['{"content": "'])
        for piece, channel in pieces.items():
            said = next(arguments, "") + piece if channel == "call" else piece
            events.append(
                ev.TextStreamed(agent="ada", call=number, channel=channel, text=said, tool="x")
            )
        kept = {p: c for p, c in pieces.items() if c != "call" or end == "dropped"}
        words |= {piece.strip(): channel for piece, channel in kept.items()}
        if end == "dropped":
            events.append(ev.ModelFailed(agent="ada", call=number, error="e", retry_in_s=1))
            continue
        events.append(
            ev.ModelFinished(agent="ada", call=number, response={}, usage=ev.Usage(cost=0.0))
        )
        answered = "".join(p for p, c in pieces.items() if c == "answer").strip() or "nothing"
        events += {
            "rejected": [ev.TurnRejected(agent="ada", why="no", attempt=1)],
            "cut": [cut("".join(p for p, c in pieces.items() if c == "answer"))],
            "abstained": [ev.Abstained(agent="ada")],
            "answered": [answer("ada", answered)],
            "voted": [vote("ada", "ben")],
            "stale": [ev.VoteIgnored(agent="ada", target="ben")],
            "round": [ev.RoundStarted(agent="ada", number=number)],
            "ran": [],
        }[end]
    return events, words


@given(CALLS)
def test_all_streamed_text_is_in_an_answer_or_a_draft(
    calls: list[tuple[list[Any], str]],
) -> None:
    events, words = _story(calls)
    ada = fold(events).agents["ada"]
    answers = " ".join(ada.answers)
    for word, channel in words.items():
        kept = ada.thoughts if channel == "thinking" else ada.unsubmitted
        assert (word in kept.split()) != (word in answers.split())
    # Nor is anything told twice.
    told = [*ada.unsubmitted.split(), *ada.thoughts.split()]
    assert len(told) == len(set(told) - {"[x]"}) + told.count("[x]")


def test_text_repeated_by_a_later_answer_is_not_a_draft() -> None:
    dropped = [ASKED, said("half a thought"), ev.ModelFailed(agent="ada", call=1, error="e")]
    whole = [replace(ASKED, attempt=2), said("half a thought, and the rest")]
    view = fold([STARTED, *dropped, *whole, answer("ada", "half a thought, and the rest")])
    assert view.agents["ada"].unsubmitted == ""


def test_text_around_an_answer_is_a_draft() -> None:
    view = fold([STARTED, ASKED, said("I thought of 41. "), said("42"), answer("ada", "42")])
    assert view.agents["ada"].unsubmitted == "I thought of 41."
    assert receipt(view, "").agents["ada"].words_kept == 4


def test_reason_of_an_ignored_vote_is_a_draft() -> None:
    arguments = '{"agent_id": "ben", "reason": "clearer"}'
    call = ev.TextStreamed(agent="ada", call=1, channel="call", text=arguments, tool="vote")
    done = ev.ModelFinished(agent="ada", call=1, response={}, usage=ev.Usage())
    view = fold([STARTED, ASKED, call, done, ev.VoteIgnored(agent="ada", target="ben")])
    assert view.agents["ada"].unsubmitted == "[vote] ben · clearer"
    counted = fold([STARTED, ASKED, call, done, vote("ada", "ben")])
    assert counted.agents["ada"].unsubmitted == ""


def test_presenters_text_is_the_answer_and_not_a_draft() -> None:
    view = fold([STARTED, ASKED, said("42"), ended("completed", winner="ada", answer="42")])
    assert (view.agents["ada"].partial, view.agents["ada"].phase) == ("", "answered")


def test_stop_has_its_first_source_and_highest_level() -> None:
    graceful = ev.StopRequested(level="requested", source="widget", reason="a", grace_s=30, at=5.0)
    hard = ev.StopRequested(level="immediate", source="interrupt", reason="b", at=9.0)
    for order in ([graceful, hard], [graceful, hard, graceful]):
        stop = fold([STARTED, *order]).stop
        assert stop is not None
        assert (stop.level, stop.source, stop.reason) == ("immediate", "widget", "a")
        assert (stop.requested_at, stop.grace_s) == (5.0, 30)


def test_stop_of_one_agent_is_not_a_stop_of_the_run() -> None:
    event = ev.StopRequested(level="immediate", source="widget", agent="ada")
    assert fold([STARTED, event]).stop is None


BEST = [
    ([], ""),
    ([answer("ada", "long text"), answer("ben", "short")], "ada"),
    ([answer("ada", "same"), answer("ben", "size")], "ada"),
    ([answer("ada", "long text"), answer("ben", "short"), vote("ada", "ben")], "ben"),
    (
        [
            answer("ada", "x"),
            answer("ben", "y"),
            vote("ada", "ben"),
            ev.PresentationStarted(agent="ada"),
        ],
        "ada",
    ),
    ([answer("ada", "x"), ended(winner="stranger")], "ada"),
]


@pytest.mark.parametrize("events, best", BEST)
def test_best_answer_is_the_winners_else_the_most_voted_else_the_longest(
    events: list[ev.Event], best: str
) -> None:
    assert fold([STARTED, *events]).best_agent == best


OUTCOMES = [
    ([ended()], "never started"),
    ([ASKED, ended()], "stopped"),
    ([ASKED, vote("ada", "ben"), ended()], "finished"),
    ([ASKED, ended("completed", winner="ben", answer="x")], "finished"),
    ([ASKED, ev.AgentFailed(agent="ada", error="x"), ended("failed")], "failed"),
    ([ASKED, ev.AgentEnded(agent="ada", outcome="killed"), ended()], "killed"),
    ([ev.AgentEnded(agent="ada", outcome="never started"), ended()], "never started"),
]


@pytest.mark.parametrize("events, outcome", OUTCOMES)
def test_receipt_has_the_outcome_of_an_agent(events: list[ev.Event], outcome: str) -> None:
    assert receipt(fold([STARTED, *events]), "").agents["ada"].outcome == outcome


@pytest.mark.parametrize(
    "events, outcome",
    [
        ([TOOL, done("ok")], "finished"),
        ([TOOL, done("error")], "finished"),
        ([TOOL], "killed"),
        ([TOOL, done("cut")], "killed"),
        ([done("cancelled")], "never started"),
    ],
)
def test_receipt_has_the_outcome_of_a_tool_call(events: list[ev.Event], outcome: str) -> None:
    assert receipt(fold([STARTED, *events]), "").tools == (("ada: read_file", outcome),)


def test_receipt_has_stop_cost_and_path() -> None:
    stop = ev.StopRequested(level="requested", source="timeout", reason="60 s are over")
    summed = receipt(fold([STARTED, ASKED, FINISHED, stop, ended()]), "/turn_1")
    assert (summed.source, summed.reason, summed.path) == ("timeout", "60 s are over", "/turn_1")
    assert (summed.tokens, summed.cost, summed.status) == (15, 0.25, "timed out")


def test_unknown_price_makes_the_total_unknown() -> None:
    agents = {"a": AgentView("a", cost=1.0), "b": AgentView("b", cost=None)}
    assert total_cost(RunView(agents=agents)) is None
    assert total_cost(RunView(agents={"a": agents["a"]})) == 1.0
