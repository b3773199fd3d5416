"""Tests of the fold of a turn's events into the state for a resume."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents import events as ev
from nb_agents.agents.replay import Exchange, PastRound, UnfinishedCallAction, replay
from tests.kit.agents import Opening
from tests.strategies import EVENTS

RESPONSE = {"parts": [{"part_kind": "tool-call", "tool_name": "write_file"}]}
OTHER = {"parts": [{"part_kind": "text", "content": "so"}]}
OPENING = Opening("You are a.", ("Why?",))
USAGE = ev.Usage()


def opens(agent: str = "a", number: int = 1, **seen: int) -> ev.RoundStarted:
    return ev.RoundStarted(
        agent=agent, number=number, seen=seen, system=OPENING.system, asks=OPENING.asks
    )


def asks(agent: str = "a", call: int = 1) -> ev.ModelStarted:
    return ev.ModelStarted(agent=agent, call=call)


def says(response: Any = RESPONSE, agent: str = "a", call: int = 1) -> ev.ModelFinished:
    return ev.ModelFinished(agent=agent, call=call, response=response, usage=USAGE)


def begins(position: int, call: int = 1) -> ev.ToolStarted:
    return ev.ToolStarted(agent="a", call_id=f"{call}.{position}", tool="t")


def ends(
    position: int, outcome: Any = "ok", result: str = "done", call: int = 1
) -> ev.ToolFinished:
    call_id = f"{call}.{position}"
    return ev.ToolFinished(agent="a", call_id=call_id, tool="t", outcome=outcome, result=result)


def stop(agent: str = "") -> ev.StopRequested:
    return ev.StopRequested(level="requested", source="api", agent=agent)


def over(agent: str = "a") -> ev.AgentEnded:
    return ev.AgentEnded(agent=agent, outcome="stopped")


ANSWER = ev.AnswerGiven(agent="a", answer="A")
FAILED = ev.AgentFailed(agent="a", error="x")
REJECTED = ev.TurnRejected(agent="a", why="no", attempt=1)
SAID = Exchange(1, RESPONSE)


@dataclass
class Row:
    """Events of agent "a", and the open round after them."""

    events: list[ev.Event]
    left: PastRound | None


def left(*exchanges: Exchange, asking: bool = False) -> PastRound:
    return PastRound(1, {}, OPENING, exchanges, asking)


ROWS = {
    "nothing happened": Row([], None),
    "a round opened": Row([opens()], left()),
    "a request is open": Row([opens(), asks()], left(asking=True)),
    "a request was cut": Row([opens(), asks(), ev.ModelCut(agent="a", call=1)], left(asking=True)),
    "a request failed and waits": Row(
        [opens(), asks(), ev.ModelFailed(agent="a", call=1, error="x", retry_in_s=1)],
        left(asking=True),
    ),
    "a request finished": Row([opens(), asks(), says()], left(SAID)),
    "a tool never ran": Row([opens(), asks(), says(), stop(), ends(0, "cancelled")], left(SAID)),
    "a tool has begun": Row(
        [opens(), asks(), says(), begins(0)],
        left(Exchange(1, RESPONSE, begun={0: False})),
    ),
    "a tool was cut": Row(
        [opens(), asks(), says(), begins(0), ends(0, "cut", "")],
        left(Exchange(1, RESPONSE, begun={0: False})),
    ),
    "a tool has finished": Row(
        [opens(), asks(), says(), begins(0), ends(0)],
        left(Exchange(1, RESPONSE, {0: ("done", False)})),
    ),
    "one finished with an error, the next was cut, the last never ran": Row(
        [
            *(opens(), asks(), says(), begins(0), ends(0, "error", "bad")),
            *(begins(1), ends(1, "cut", ""), ends(2, "cancelled")),
        ],
        left(Exchange(1, RESPONSE, {0: ("bad", True)}, {1: False})),
    ),
    "a tool that was cut ran again": Row(
        [opens(), asks(), says(), begins(0), ends(0, "cut", ""), begins(0), ends(0)],
        left(Exchange(1, RESPONSE, {0: ("done", False)})),
    ),
    "a turn was rejected": Row(
        [opens(), asks(), says(OTHER), REJECTED], left(Exchange(1, OTHER, complaint="no"))
    ),
    "a reply was cut off": Row(
        [opens(), asks(), says(OTHER), ev.ReplyCut(agent="a", call=1, by="x", told="on", kept="k")],
        left(Exchange(1, OTHER, complaint="on", kept="k")),
    ),
    "after a tool the next request is open": Row(
        [opens(), asks(), says(), begins(0), ends(0), asks(call=2)],
        left(Exchange(1, RESPONSE, {0: ("done", False)}), asking=True),
    ),
    "a tool of an earlier request is told late": Row(
        [opens(), asks(), says(), asks(call=2), says(OTHER, call=2), ends(0)],
        left(SAID, Exchange(2, OTHER)),
    ),
    "an answer closes the round": Row([opens(), asks(), says(), ANSWER], None),
    "a request that failed for good is sent again": Row(
        [opens(), asks(), FAILED], left(asking=True)
    ),
    "what came to nothing begins anew": Row([opens(), asks(), says(OTHER), REJECTED, FAILED], None),
    "a round whose time was over goes on": Row(
        [opens(), asks(), says(), begins(0), ev.RoundTimedOut(agent="a", limit_s=1, grace_s=0)],
        left(Exchange(1, RESPONSE, begun={0: False})),
    ),
    "a failure after a stop of it alone stays": Row([opens(), asks(), stop("a"), FAILED], None),
    "a run's stop is passed over": Row([opens(), asks(), stop(), over()], left(asking=True)),
    "a stop of it alone is not": Row([opens(), asks(), stop("a"), over()], None),
    "a stop of another is passed over": Row([opens(), stop("b"), over()], left()),
}


@pytest.mark.parametrize("name", ROWS)
def test_open_round_is_restored(name: str) -> None:
    past = replay(["a", "b"], ROWS[name].events)
    assert past.rounds.get("a") == ROWS[name].left


@pytest.mark.parametrize(
    "event",
    [
        ANSWER,
        ev.VoteCast(agent="a", target="b", reason="r", seen={"b": 1}),
        ev.VoteIgnored(agent="a", target="b"),
        ev.Abstained(agent="a"),
    ],
)
def test_decision_closes_a_round(event: ev.Event) -> None:
    given = [ev.AnswerGiven(agent="b", answer="B"), opens(b=1), asks(), says(), event]
    assert replay(["a", "b"], given).rounds == {}


def test_agent_stopped_alone_stays_out_after_a_resume() -> None:
    past = replay(["a", "b"], [opens("a"), opens("b"), stop("a"), over("a"), stop(), over("b")])
    assert past.state.live == ("b",)
    assert set(past.rounds) == {"b"}


def test_failed_agent_works_again_but_not_one_stopped_alone() -> None:
    past = replay(["a", "b"], [opens(), FAILED, stop("b"), over("b"), ANSWER])
    assert (past.state.live, past.failed) == (("a",), {"a": FAILED})


def test_presentation_is_dropped_only_for_named_agents() -> None:
    b_answers = ev.AnswerGiven(agent="b", answer="B")
    chosen = [opens(), FAILED, b_answers, ev.PresentationStarted(agent="b"), opens("b"), asks("b")]
    assert replay(["a", "b"], chosen).state.presenter == "b"
    again = replay(["a", "b"], chosen, ["a"])
    assert (again.state.presenter, again.state.live) == ("", ("a", "b"))
    assert set(again.rounds) == set()


def test_agent_that_fails_twice_works_again() -> None:
    begun = ev.TurnStarted(session="s", turn=2, task="t", agents=(), timeout_s=0.0, resumes=1)
    first = ev.AgentFailed(agent="a", error="first")
    past = replay(["a", "b"], [opens(), asks(), first, begun, asks(call=2), FAILED])
    assert (past.state.live, past.failed, past.calls) == (("a", "b"), {"a": FAILED}, {"a": 2})
    assert past.rounds["a"].was_asking
    answered = replay(["a", "b"], [opens(), first, begun, opens(number=2), ANSWER])
    assert (answered.failed, answered.state.out) == ({}, frozenset())


def test_answers_votes_and_counters_are_restored() -> None:
    past = replay(
        ["a", "b"],
        [
            *(opens(), opens("b"), asks(), says(), ANSWER, opens(number=2, a=1), asks(call=2)),
            ev.VoteCast(agent="b", target="a", reason="r", seen={"a": 1}),
        ],
    )
    assert (past.state.answers, past.state.votes) == ({"a": ("A",)}, {"b": "a"})
    assert (past.round_numbers, past.calls) == ({"a": 2, "b": 1}, {"a": 2})
    assert past.rounds["a"].seen == {"a": 1}


def test_presentation_is_restored_with_its_open_round() -> None:
    begins_to = ev.PresentationStarted(agent="a")
    past = replay(["a", "b"], [ANSWER, begins_to, opens(), asks(), says(OTHER)])
    assert past.state.presenter == "a"
    assert past.rounds["a"].exchanges == (Exchange(1, OTHER),)


def test_notes_and_seen_answers_are_restored() -> None:
    told = ev.NoteSent(agent="a", text="news", seen={"b": 1})
    past = replay(["a", "b"], [opens(), asks(), says(), ends(0), told])
    assert past.rounds["a"].exchanges[-1].notes == ("news",)
    assert (past.rounds["a"].seen, past.rounds["a"].news) == ({"b": 1}, 1)


def test_user_messages_are_restored_with_their_readers() -> None:
    told = [ev.NoteSent(agent="a", text=text, heard=heard) for heard, text in enumerate("xyz", 1)]
    texts = [ev.UserMessage(text=text) for text in ("1", "2", "3", "4")]
    past = replay(
        ["a", "b"],
        [opens(), *texts, told[0], asks(), says(), told[1], asks(call=2), told[2], asks(call=2)],
    )
    assert (past.state.unread_messages("a"), past.state.unread_messages("b")) == (
        ("4",),
        ("1", "2", "3", "4"),
    )
    assert past.rounds["a"] == PastRound(
        1, {}, OPENING, (Exchange(1, RESPONSE, notes=("y", "z")),), True, notes=("x",)
    )


@given(st.lists(EVENTS, max_size=40))
def test_replay_accepts_any_events(events: list[ev.Event]) -> None:
    past = replay(["ada", "ben"], events)
    assert past.state.order == ("ada", "ben")


CLOSED = (ev.AnswerGiven, ev.VoteCast, ev.VoteIgnored, ev.AgentFailed)


@st.composite
def _round(draw: st.DrawFn, agent: str) -> list[ev.Event]:
    """A round of an agent from its opening to its decision."""
    made: list[ev.Event] = [opens(agent)]
    for call in range(1, draw(st.integers(1, 3)) + 1):
        made += [asks(agent, call), says(RESPONSE, agent, call)]
        if draw(st.booleans()):
            made.append(ev.TurnRejected(agent=agent, why="no", attempt=call))
    decision: dict[str, Any] = {
        "given": ev.AnswerGiven(agent=agent, answer="x"),
        "ignored": ev.VoteIgnored(agent=agent, target="a"),
        "failed": ev.AgentFailed(agent=agent, error="x"),
    }
    return [*made, decision[draw(st.sampled_from(sorted(decision)))]]


@given(st.data())
def test_replay_leaves_only_open_rounds_open(
    data: st.DataObject,
) -> None:
    """For any interleaving of the agents' events."""
    waiting = {a: data.draw(st.lists(_round(a), max_size=3).map(_played)) for a in ("a", "b", "c")}
    events: list[ev.Event] = []
    while any(waiting.values()):
        agent = data.draw(st.sampled_from([a for a in waiting if waiting[a]]))
        events.append(waiting[agent].pop(0))
    assert replay(["a", "b", "c"], events).rounds == {}
    for end in range(len(events)):
        open_now: set[str] = set()
        for event in events[:end]:
            if isinstance(event, ev.RoundStarted):
                open_now.add(event.agent)
            elif isinstance(event, CLOSED):
                open_now.discard(event.agent)
        assert set(replay(["a", "b", "c"], events[:end]).rounds) == open_now


def _played(rounds: list[list[ev.Event]]) -> list[ev.Event]:
    """Concatenate an agent's rounds until it fails."""
    events: list[ev.Event] = []
    for each in rounds:
        events += each
        if isinstance(each[-1], ev.AgentFailed):
            break
    return events


def test_end_recorded_before_its_stop_event_counts() -> None:
    stop = ev.StopRequested(level="immediate", source="api", agent="b")
    told = [ev.AgentEnded(agent="b", outcome="killed"), stop]
    assert replay(["a", "b"], told).state.out == {"b"}
    assert replay(["a", "b"], told, ["b"]).state.out == frozenset()


def test_end_of_the_previous_turn_is_not_a_stop_of_the_next() -> None:
    begun = ev.TurnStarted(session="s", turn=2, task="t", agents=(), timeout_s=0.0, resumes=1)
    stop = ev.StopRequested(level="immediate", source="api", agent="b")
    told = [ev.AgentEnded(agent="b", outcome="killed"), begun, stop]
    assert replay(["a", "b"], told).state.out == frozenset()


def test_recipe_without_a_team_does_not_retry_failed_agents() -> None:
    began = ev.TurnStarted(session="s", turn=2, task="t", agents=(), timeout_s=0, resumes=1)
    asked = [
        ev.RoundStarted(agent="step", number=1, asks=("Why?",)),
        ev.ModelStarted(agent="step", call=1),
    ]
    assert replay((), [*asked, ev.AgentFailed(agent="step", error="no"), began]).rounds == {}


def started(*, again: bool) -> ev.ToolStarted:
    return ev.ToolStarted(agent="a", call_id="1.0", tool="t", is_repeatable=again)


ASKED = ev.ApprovalAsked(step="a: t #1", prompt="May it?", caller="a", call_id="1.0")


def decided(*, approved: bool) -> ev.ApprovalGiven:
    return ev.ApprovalGiven(step="a: t #1", approved=approved, caller="a", call_id="1.0")


CUT, CANCELLED = ends(0, "cut", ""), ends(0, "cancelled")
FATES: dict[str, tuple[list[ev.Event], UnfinishedCallAction]] = {
    "it never began": ([], "made"),
    "it began and may be repeated": ([started(again=True)], "made again"),
    "it began and may not": ([started(again=False)], "told"),
    "it was cut and may be repeated": ([started(again=True), CUT], "made again"),
    "it was cut and may not": ([started(again=False), CUT], "told"),
    "a person is asked": ([started(again=False), ASKED], "made"),
    "a person was asked until a stop": ([started(again=False), ASKED, CANCELLED], "made"),
    "a person has denied it": ([started(again=False), ASKED, decided(approved=False)], "made"),
    "a person has approved it": ([started(again=False), ASKED, decided(approved=True)], "told"),
    "it was cut, and a person is asked for the repetition": (
        [started(again=True), CUT, started(again=True), ASKED],
        "made again",
    ),
    "it was cut, and its turn over before it came to it": (
        [started(again=False), CUT, CUT],
        "told",
    ),
}


@pytest.mark.parametrize("name", FATES)
def test_treatment_of_an_unfinished_call(name: str) -> None:
    told, fate = FATES[name]
    past = replay(["a", "b"], [opens(), asks(), says(), *told])
    assert past.rounds["a"].exchanges[-1].action_for_unfinished_call(0) == fate
