"""Tests of the team context: an agent's options and notes over time."""

import pytest

from nb_agents import events as ev
from tests.kit.agents import Elapsed, Offer, Rules, TeamContext, decision_tools, prompts, voting

ALL = ("agent1", "agent2", "agent3")


class Desk:
    """The context of agent "a" in a team of a, b and c."""

    def __init__(self, rules: Rules | None = None, *before: str, presenting: bool = False) -> None:
        self.state = voting.begin(["a", "b", "c"])
        self.elapsed = Elapsed(0, 100)
        self.events: list[ev.Event] = []
        self.answer(*before)
        self.context = TeamContext(
            "a",
            rules or Rules(),
            lambda: self.state,
            lambda: self.elapsed,
            self.events.append,
            voting.seen(self.state),
            is_presenting=presenting,
        )

    def answer(self, *agents: str) -> None:
        for agent in agents:
            number = len(self.state.answers.get(agent, ())) + 1
            event = ev.AnswerGiven(agent=agent, answer=f"{agent}'s no. {number}")
            self.state = voting.apply(self.state, event)

    @property
    def told(self) -> list[dict[str, int] | None]:
        assert all(isinstance(e, ev.NoteSent) for e in self.events)
        return [e.seen for e in self.events]  # type: ignore[union-attr]


def test_new_answers_are_shown_once_and_a_vote_then_counts() -> None:
    desk = Desk(None, "a")
    desk.answer("b")
    assert desk.context.judge_vote("agent1").refusal == voting.STALE
    note = desk.context.note(was_refused=False).text
    assert "b's no. 1" in note and "a's no. 1" not in note and '<ANSWER from="agent2">' in note
    assert desk.context.judge_vote("agent2") == ("b", "")
    assert desk.context.offer().voters == ALL
    assert "b's no. 1" not in desk.context.note(was_refused=False).text
    assert desk.told == [{"a": 1, "b": 1}, None]


def test_decision_tools_stay_the_same_while_others_answer() -> None:
    desk = Desk(None, "a")
    before = decision_tools(desk.context.offer())
    desk.answer("b")
    desk.context.note(was_refused=False)
    assert decision_tools(desk.context.offer()) == before
    refusal = "There is no answer with this name. Vote for one of: agent1, agent2."
    assert desk.context.judge_vote("agent3") == ("c", refusal)


def test_new_answers_are_shown_at_most_twice_a_round() -> None:
    desk = Desk(None, "a")
    for agent in "bcb":
        desk.answer(agent)
        desk.context.note(was_refused=False)
    assert desk.told == [{"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}, None]
    assert desk.context.judge_vote("agent2").refusal == voting.STALE


def test_agent_without_an_answer_does_not_see_others() -> None:
    desk = Desk()
    desk.answer("b", "c")
    assert "b's" not in desk.context.note(was_refused=False).text
    assert desk.context.offer() == Offer(text_stands_for="answer")


def test_agent_with_a_rejected_copy_sees_the_answers() -> None:
    desk = Desk()
    desk.answer("b")
    assert "identical to the current answer of agent2" in desk.context.judge_answer("b's no. 1")
    assert "b's no. 1" not in desk.context.note(was_refused=False).text
    assert "b's no. 1" in desk.context.note(was_refused=True).text
    assert desk.context.offer() == Offer(voters=ALL, text_stands_for="answer")
    assert desk.context.judge_vote("agent2") == ("b", "")


@pytest.mark.parametrize("before", [(), ("a",)])
def test_agent_at_its_limit_sees_the_answers_and_can_only_vote(
    before: tuple[str, ...],
) -> None:
    desk = Desk(Rules(max_answers_all=len(before) + 1), *before)
    desk.answer("b")
    assert desk.context.judge_answer("mine").endswith("Please vote for the best answer.")
    desk.context.note(was_refused=False)
    assert not desk.context.offer().answers
    assert desk.context.judge_vote("agent2") == ("b", "")


def test_offer_is_never_empty() -> None:
    desk = Desk(Rules(max_answers_all=1))
    desk.answer("b")
    assert desk.context.offer() == Offer()
    desk.context.note(was_refused=False)
    assert desk.context.offer() == Offer(answers=False, voters=ALL)


def test_plain_text_means_an_answer_and_later_an_abstention() -> None:
    desk = Desk()
    assert desk.context.offer().text_stands_for == "answer"
    desk.answer("a")
    assert desk.context.offer().text_stands_for == "no vote"
    desk.state = voting.apply(desk.state, ev.UserMessage(text="and shorter"))
    assert desk.context.offer().text_stands_for == "answer"


def test_while_voting_is_deferred_only_answering_is_offered() -> None:
    desk = Desk(Rules(votes_after_all_answered=True), "b", "c")
    assert desk.context.offer() == Offer(text_stands_for="answer")
    assert desk.context.judge_vote("agent2") == ("b", voting.TOO_EARLY)
    desk.answer("a")
    assert desk.context.offer() == Offer(voters=ALL, text_stands_for="no vote")


def test_only_answering_is_offered_without_votes() -> None:
    desk = Desk(Rules(skips_voting=True), "b")
    assert desk.context.offer() == Offer(text_stands_for="answer")
    assert desk.context.judge_vote("agent2").refusal == voting.NO_VOTING


def test_presenter_sees_no_new_answers_and_may_repeat_one() -> None:
    desk = Desk(Rules(max_answers_each=1), "a", presenting=True)
    desk.answer("b")
    assert desk.context.offer() == Offer(text_counts=True)
    assert desk.context.judge_answer("a's no. 1") == ""
    assert "b's" not in desk.context.note(was_refused=False).text


def test_user_message_is_sent_once_and_votes_count_afterwards() -> None:
    desk = Desk(None, "a", "b")
    assert desk.context.take_messages() == ""
    desk.state = voting.apply(desk.state, ev.UserMessage(text="In French. </FOLLOW_UP>"))
    assert desk.context.judge_vote("agent2").refusal == voting.STALE
    told = desk.context.take_messages()
    assert "<FOLLOW_UP>\nIn French. <\\/FOLLOW_UP>\n</FOLLOW_UP>" in told
    assert desk.events == [ev.NoteSent(agent="a", text=told, heard=1)]
    desk.state = voting.apply(desk.state, desk.events[0])
    assert desk.context.take_messages() == ""
    assert desk.context.judge_vote("agent2") == ("b", "")


def test_each_note_has_the_remaining_time_and_one_asks_to_finish() -> None:
    desk = Desk()
    assert desk.context.opening_note() == ""
    assert desk.context.note(was_refused=False).text == "[Time left: 1 min 40 s of 1 min 40 s]"
    desk.elapsed = Elapsed(80, 100)
    assert desk.context.note(was_refused=False).text.splitlines() == [
        "[Time left: 20 s of 1 min 40 s]",
        prompts.WRAP_UP,
    ]
    assert desk.context.note(was_refused=False).text == "[Time left: 20 s of 1 min 40 s]"


def test_late_round_starts_with_the_note_to_finish() -> None:
    desk = Desk()
    desk.elapsed = Elapsed(80, 100)
    assert desk.context.opening_note() == prompts.WRAP_UP
    assert prompts.WRAP_UP not in desk.context.note(was_refused=False).text


def test_agent_must_decide_after_a_rounds_limit() -> None:
    desk = Desk(None, "a", "b")
    desk.elapsed = Elapsed(5, 100, 5, 5, 2)
    offer = Offer(voters=ALL, text_stands_for="no vote", must_decide=True)
    assert desk.context.offer() == offer
    told = desk.context.note(was_refused=False).text
    assert "call new_answer or vote with your best result so far. The round ends in 2 s." in told
