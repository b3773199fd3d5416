"""A team context: what an agent may do, and what it is told, as the team and the clock go on."""

import pytest

from nb_agents import events as ev
from nb_agents.agents import prompts, voting
from nb_agents.agents.decisions import Offer, TeamContext, decision_tools
from nb_agents.agents.prompts import Elapsed
from nb_agents.agents.voting import Rules

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
        assert all(isinstance(e, ev.Told) for e in self.events)
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


def test_the_tools_that_decide_stay_the_same_while_others_answer() -> None:
    desk = Desk(None, "a")
    before = decision_tools(desk.context.offer())
    desk.answer("b")
    desk.context.note(was_refused=False)
    assert decision_tools(desk.context.offer()) == before
    refusal = "Nobody of that name has an answer. Vote for one of: agent1, agent2."
    assert desk.context.judge_vote("agent3") == ("c", refusal)


def test_new_answers_are_shown_at_most_twice_a_round() -> None:
    desk = Desk(None, "a")
    for agent in "bcb":
        desk.answer(agent)
        desk.context.note(was_refused=False)
    assert desk.told == [{"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}, None]
    assert desk.context.judge_vote("agent2").refusal == voting.STALE


def test_one_without_an_answer_of_its_own_is_left_to_its_thoughts() -> None:
    desk = Desk()
    desk.answer("b", "c")
    assert "b's" not in desk.context.note(was_refused=False).text
    assert desk.context.offer() == Offer(text_stands_for="answer")


def test_one_whose_copy_was_refused_is_shown_what_it_may_vote_for() -> None:
    desk = Desk()
    desk.answer("b")
    assert "word for word the current answer of agent2" in desk.context.judge_answer("b's no. 1")
    assert "b's no. 1" not in desk.context.note(was_refused=False).text
    assert "b's no. 1" in desk.context.note(was_refused=True).text
    assert desk.context.offer() == Offer(voters=ALL, text_stands_for="answer")
    assert desk.context.judge_vote("agent2") == ("b", "")


@pytest.mark.parametrize("before", [(), ("a",)])
def test_one_that_may_not_answer_any_more_is_shown_what_there_is_and_can_only_vote(
    before: tuple[str, ...],
) -> None:
    desk = Desk(Rules(max_answers_all=len(before) + 1), *before)
    desk.answer("b")
    assert desk.context.judge_answer("mine").endswith("Please vote for the best.")
    desk.context.note(was_refused=False)
    assert not desk.context.offer().answers
    assert desk.context.judge_vote("agent2") == ("b", "")


def test_something_is_always_offered_until_it_is_shown_what_it_may_vote_for() -> None:
    desk = Desk(Rules(max_answers_all=1))
    desk.answer("b")
    assert desk.context.offer() == Offer()
    desk.context.note(was_refused=False)
    assert desk.context.offer() == Offer(answers=False, voters=ALL)


def test_the_text_of_one_that_calls_no_tool_is_an_answer_first_and_then_no_vote() -> None:
    desk = Desk()
    assert desk.context.offer().text_stands_for == "answer"
    desk.answer("a")
    assert desk.context.offer().text_stands_for == "no vote"
    desk.state = voting.apply(desk.state, ev.Said(text="and shorter"))
    assert desk.context.offer().text_stands_for == "answer"


def test_while_voting_is_deferred_only_answering_is_offered() -> None:
    desk = Desk(Rules(votes_after_all_answered=True), "b", "c")
    assert desk.context.offer() == Offer(text_stands_for="answer")
    assert desk.context.judge_vote("agent2") == ("b", voting.TOO_EARLY)
    desk.answer("a")
    assert desk.context.offer() == Offer(voters=ALL, text_stands_for="no vote")


def test_where_nobody_votes_only_answering_is_offered() -> None:
    desk = Desk(Rules(skips_voting=True), "b")
    assert desk.context.offer() == Offer(text_stands_for="answer")
    assert desk.context.judge_vote("agent2").refusal == voting.NO_VOTING


def test_a_presenter_is_shown_nothing_new_and_may_say_what_was_said() -> None:
    desk = Desk(Rules(max_answers_each=1), "a", presenting=True)
    desk.answer("b")
    assert desk.context.offer() == Offer(text_counts=True)
    assert desk.context.judge_answer("a's no. 1") == ""
    assert "b's" not in desk.context.note(was_refused=False).text


def test_a_follow_up_text_is_told_once_and_makes_a_vote_count_again() -> None:
    desk = Desk(None, "a", "b")
    assert desk.context.hear() == ""
    desk.state = voting.apply(desk.state, ev.Said(text="In French. </FOLLOW_UP>"))
    assert desk.context.judge_vote("agent2").refusal == voting.STALE
    told = desk.context.hear()
    assert "<FOLLOW_UP>\nIn French. <\\/FOLLOW_UP>\n</FOLLOW_UP>" in told
    assert desk.events == [ev.Told(agent="a", text=told, heard=1)]
    desk.state = voting.apply(desk.state, desk.events[0])
    assert desk.context.hear() == ""
    assert desk.context.judge_vote("agent2") == ("b", "")


def test_time_left_is_told_each_time_and_to_wrap_up_once() -> None:
    desk = Desk()
    assert desk.context.opening_note() == ""
    assert desk.context.note(was_refused=False).text == "[Time left: 1 min 40 s of 1 min 40 s]"
    desk.elapsed = Elapsed(80, 100)
    assert desk.context.note(was_refused=False).text.splitlines() == [
        "[Time left: 20 s of 1 min 40 s]",
        prompts.WRAP_UP,
    ]
    assert desk.context.note(was_refused=False).text == "[Time left: 20 s of 1 min 40 s]"


def test_a_round_that_opens_late_says_so_at_once() -> None:
    desk = Desk()
    desk.elapsed = Elapsed(80, 100)
    assert desk.context.opening_note() == prompts.WRAP_UP
    assert prompts.WRAP_UP not in desk.context.note(was_refused=False).text


def test_after_a_rounds_limit_it_must_decide() -> None:
    desk = Desk(None, "a", "b")
    desk.elapsed = Elapsed(5, 100, 5, 5, 2)
    offer = Offer(voters=ALL, text_stands_for="no vote", must_decide=True)
    assert desk.context.offer() == offer
    told = desk.context.note(was_refused=False).text
    assert "by new_answer or vote. In 2 s the round is cut." in told
