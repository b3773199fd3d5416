"""Tests of the coordination machine: tables of events and next steps, and random histories."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nb_agents import events as ev
from nb_agents.agents import voting
from nb_agents.agents.voting import (
    Coordinate,
    Coordination,
    Finish,
    Judge,
    NoAnswer,
    Present,
    Rules,
)


def answer(agent: str, text: str = "x") -> ev.Event:
    return ev.AnswerGiven(agent=agent, answer=text)


def vote(agent: str, target: str, **seen: int) -> ev.Event:
    return ev.VoteCast(agent=agent, target=target, reason="r", seen=seen)


def fail(agent: str) -> ev.Event:
    return ev.AgentFailed(agent=agent, error="e")


def end(agent: str) -> ev.Event:
    return ev.AgentEnded(agent=agent, outcome="stopped")


def timed_out(agent: str) -> ev.Event:
    return ev.RoundTimedOut(agent=agent, limit_s=60, grace_s=10)


def said(text: str = "t") -> ev.Event:
    return ev.UserMessage(text=text)


def hears(agent: str, heard: int = 1) -> ev.Event:
    return ev.NoteSent(agent=agent, text="t", heard=heard)


def state(order: str, *events: ev.Event) -> Coordination:
    result = voting.begin(order.split())
    for event in events:
        result = voting.apply(result, event)
    return result


def final(agent: str) -> ev.Event:
    return ev.FinalAnswerGiven(agent=agent, answer="f")


def again(agent: str) -> ev.Event:
    return ev.OrchestrationRestarted(agent=agent, reason="r", instructions="i", attempt=2)


NOBODY = "There is no answer with this name. Vote for one of:"

# Agents are registered as z, a, m, so that registration order is not the alphabet's.
STEPS: dict[str, tuple[list[ev.Event], voting.Step]] = {
    "everybody starts": ([], Coordinate(("z", "a", "m"))),
    "an answer leaves all at work, its author too": ([answer("z")], Coordinate(("z", "a", "m"))),
    "a voter waits": ([answer("z"), vote("a", "z", z=1)], Coordinate(("z", "m"))),
    "the final answer is judged by who gave it": (
        [answer("z"), answer("a"), final("a")],
        Judge("a"),
    ),
    "a restart begins with nobody's answer": (
        [answer("z"), vote("a", "z", z=1), final("z"), again("z")],
        Coordinate(("z", "a", "m")),
    ),
    "who is out stays out after a restart": (
        [answer("z"), fail("m"), final("z"), again("z")],
        Coordinate(("z", "a")),
    ),
    "an answer clears all votes": (
        [answer("z"), vote("a", "z", z=1), answer("m")],
        Coordinate(("z", "a", "m")),
    ),
    "all voted: most votes present": (
        [
            answer("z"),
            answer("a"),
            *(vote(agent, "a", z=1, a=1) for agent in "am"),
            vote("z", "z", z=1, a=1),
        ],
        Present("a"),
    ),
    "a tie goes to the first registered": (
        [answer("a"), answer("z"), answer("m")]
        + [vote(v, t, z=1, a=1, m=1) for v, t in ("zm", "az", "ma")],
        Present("z"),
    ),
    "a stale vote does not count": (
        [answer("z"), answer("a"), vote("m", "z", z=1)],
        Coordinate(("z", "a", "m")),
    ),
    "a vote over an older revision is stale": (
        [answer("z"), answer("z"), vote("m", "z", z=1)],
        Coordinate(("z", "a", "m")),
    ),
    "a vote for nobody does not count": (
        [answer("z"), vote("m", "", z=1)],
        Coordinate(("z", "a", "m")),
    ),
    "a vote for one without answer does not count": (
        [answer("z"), vote("m", "a", z=1)],
        Coordinate(("z", "a", "m")),
    ),
    "a stranger's vote and answer do not count": (
        [answer("x"), vote("y", "z")],
        Coordinate(("z", "a", "m")),
    ),
    "an agent that is out is not waited for": (
        [answer("z"), vote("z", "z", z=1), fail("a"), vote("m", "z", z=1)],
        Present("z"),
    ),
    "a winner that is out can't present": (
        [answer("z"), end("z"), vote("a", "z", z=1), vote("m", "z", z=1)],
        Finish("z"),
    ),
    "all out with an answer": ([answer("m"), fail("z"), fail("a"), end("m")], Finish("m")),
    "all out without one": ([fail("z"), end("a"), fail("m")], NoAnswer()),
    "a follow-up text clears all votes": (
        [answer("z"), vote("a", "z", z=1), vote("m", "z", z=1), said()],
        Coordinate(("z", "a", "m")),
    ),
    "a vote of one that has not heard it does not count": (
        [answer("z"), said(), vote("a", "z", z=1)],
        Coordinate(("z", "a", "m")),
    ),
    "a vote of one that has heard one text of two does not count": (
        [answer("z"), said(), said(), hears("a"), vote("a", "z", z=1)],
        Coordinate(("z", "a", "m")),
    ),
    "a vote of one that has heard it counts": (
        [answer("z"), said(), hears("a"), vote("a", "z", z=1)],
        Coordinate(("z", "m")),
    ),
    "a round that opens with it has heard it": (
        [answer("z"), said(), ev.RoundStarted(agent="a", number=2, heard=1)]
        + [vote("a", "z", z=1)],
        Coordinate(("z", "m")),
    ),
    "a text that comes while the winner presents changes nothing of the choice": (
        [answer("z"), *(vote(agent, "z", z=1) for agent in "zam")]
        + [ev.PresentationStarted(agent="z"), said()],
        Present("z"),
    ),
    "one that does not vote is asked no more, and its answer stands": (
        [answer("z"), ev.Abstained(agent="z"), vote("a", "z", z=1), vote("m", "z", z=1)],
        Present("z"),
    ),
    "a text of the person asks one that does not vote again": (
        [answer("z"), ev.Abstained(agent="z"), said()],
        Coordinate(("z", "a", "m")),
    ),
    "one without an answer can't leave it at that": (
        [ev.Abstained(agent="z")],
        Coordinate(("z", "a", "m")),
    ),
    "events of other matters change nothing": (
        [ev.Noticed(text="n"), ev.TurnRejected(agent="z", why="w", attempt=1)],
        Coordinate(("z", "a", "m")),
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_each_state_has_its_next_step(case: str) -> None:
    events, step = STEPS[case]
    assert voting.next_step(state("z a m", *events), Rules()) == step


ALL_ANSWERED = [answer("a", "1"), answer("z", "2"), answer("m", "3")]
ALL_FOR_A = [vote(agent, "a", z=1, a=1, m=1) for agent in "zam"]
EVERYBODY = Coordinate(("z", "a", "m"))

RULES: dict[str, tuple[Rules, list[ev.Event], voting.Step]] = {
    "one that has used up its answers still votes": (
        Rules(max_answers_each=1),
        [answer("z")],
        EVERYBODY,
    ),
    "all that can only vote and fail to end without a vote": (
        Rules(max_answers_all=1),
        [answer("a"), fail("z"), fail("a"), fail("m")],
        Finish("a"),
    ),
    "voting is deferred: who has answered waits for the others": (
        Rules(votes_after_all_answered=True),
        [answer("z")],
        Coordinate(("a", "m")),
    ),
    "voting begins when all have answered": (
        Rules(votes_after_all_answered=True),
        ALL_ANSWERED,
        EVERYBODY,
    ),
    "voting does not wait for one that is out": (
        Rules(votes_after_all_answered=True),
        [answer("z"), fail("a"), answer("m")],
        Coordinate(("z", "m")),
    ),
    "voting does not wait for one that may not answer any more": (
        Rules(votes_after_all_answered=True, max_answers_all=2),
        [answer("z"), answer("a")],
        EVERYBODY,
    ),
    "an agent at the lead cap goes on": (Rules(lead_cap=2), [answer("z")] * 2, EVERYBODY),
    "an agent over the lead cap is paused": (
        Rules(lead_cap=2),
        [answer("z")] * 3,
        Coordinate(("a", "m")),
    ),
    "a lead cap of 0 pauses who has answered first": (
        Rules(lead_cap=0),
        [answer("z")],
        Coordinate(("a", "m")),
    ),
    "a paused agent goes on when the slowest catches up": (
        Rules(lead_cap=2),
        [*[answer("z")] * 3, answer("a"), answer("m")],
        EVERYBODY,
    ),
    "a paused agent goes on when the slowest has voted": (
        Rules(lead_cap=2),
        [*[answer("z")] * 3, vote("a", "z", z=3), vote("m", "z", z=3)],
        Coordinate(("z",)),
    ),
    "a paused agent goes on when the slowest is out": (
        Rules(lead_cap=2),
        [*[answer("z")] * 3, answer("a"), fail("m")],
        Coordinate(("z", "a")),
    ),
    "without fairness nobody is paused": (Rules(lead_cap=None), [answer("z")] * 9, EVERYBODY),
    "a round that times out without an answer puts its agent out": (
        Rules(),
        [timed_out("z")],
        Coordinate(("a", "m")),
    ),
    "a round that times out leaves an answer that others vote on": (
        Rules(),
        [answer("z"), timed_out("z"), vote("a", "z", z=1), vote("m", "z", z=1)],
        Present("z"),
    ),
    "one whose time was up is not woken by a new answer": (
        Rules(),
        [answer("z"), timed_out("z"), answer("a")],
        Coordinate(("a", "m")),
    ),
    "one whose time was up is woken by a follow-up text": (
        Rules(),
        [answer("z"), timed_out("z"), said()],
        EVERYBODY,
    ),
    "one whose time was up before it heard a text begins another round": (
        Rules(),
        [answer("z"), said(), timed_out("z")],
        EVERYBODY,
    ),
    "one whose time was up after it heard the text rests": (
        Rules(),
        [answer("z"), said(), hears("z"), timed_out("z")],
        Coordinate(("a", "m")),
    ),
    "voting skipped: after a follow-up text each answers again": (
        Rules(skips_voting=True, max_answers_each=1),
        [*ALL_ANSWERED, said(), hears("z"), answer("z", "4")],
        Coordinate(("a", "m")),
    ),
    "voting skipped: an answer that had not heard the text is not the last": (
        Rules(skips_voting=True, max_answers_each=1, max_answers_all=3),
        [said(), *ALL_ANSWERED],
        EVERYBODY,
    ),
    "voting skipped: a text while the answers are put together is the presenter's alone": (
        Rules(skips_voting=True, final="synthesize"),
        [*ALL_ANSWERED, ev.PresentationStarted(agent="z"), said()],
        Present("z"),
    ),
    "all timed out with answers: the first registered presents": (
        Rules(),
        [*ALL_ANSWERED, timed_out("m"), timed_out("a"), timed_out("z")],
        Present("z"),
    ),
    "all timed out without one": (
        Rules(),
        [timed_out("m"), timed_out("a"), timed_out("z")],
        NoAnswer(),
    ),
    "voting skipped: each answers once": (
        Rules(skips_voting=True),
        [answer("a")],
        Coordinate(("z", "m")),
    ),
    "voting skipped: done when all have answered, the first registered presents": (
        Rules(skips_voting=True),
        ALL_ANSWERED,
        Present("z"),
    ),
    "voting skipped: done when nobody else may answer": (
        Rules(skips_voting=True, max_answers_all=1),
        [answer("a")],
        Present("a"),
    ),
    "voting and presentation skipped": (
        Rules(skips_voting=True, final="winner_reuse"),
        ALL_ANSWERED,
        Finish("z"),
    ),
    "the winner's answer is taken as it stands": (
        Rules(final="winner_reuse"),
        [*ALL_ANSWERED, *ALL_FOR_A],
        Finish("a"),
    ),
    "the winner presents": (Rules(), [*ALL_ANSWERED, *ALL_FOR_A], Present("a")),
    "answers are put together by the first registered": (
        Rules(skips_voting=True, final="synthesize"),
        ALL_ANSWERED,
        Present("z"),
    ),
    "answers are put together by another when that one is out": (
        Rules(skips_voting=True, final="synthesize"),
        [*ALL_ANSWERED, fail("z")],
        Present("a"),
    ),
    "with nobody left to put them together, the first answer stands": (
        Rules(skips_voting=True, final="synthesize"),
        [*ALL_ANSWERED, fail("z"), fail("a"), end("m")],
        Finish("z"),
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_next_step_follows_the_rules(case: str) -> None:
    rules, events, step = RULES[case]
    assert voting.next_step(state("z a m", *events), rules) == step


BALANCED, STRICT = Rules(max_similarity=0.70), Rules(max_similarity=0.50)
OLD = "one two three four five six"
ANSWERS: dict[str, tuple[Rules, list[ev.Event], str, str]] = {
    "a first answer": (Rules(), [], "x", ""),
    "within both limits": (
        Rules(max_answers_each=2, max_answers_all=3),
        [answer("a"), answer("z")],
        "new",
        "",
    ),
    "over its own limit": (
        Rules(max_answers_each=1),
        [answer("z")],
        "new",
        "You have reached your limit of answers (1). Please vote for the best answer.",
    ),
    "another's limit is not its own": (Rules(max_answers_each=1), [answer("a")], "new", ""),
    "over the limit of all": (
        Rules(max_answers_all=2),
        [answer("a"), answer("m")],
        "new",
        "The team has reached its limit of answers (2). Please vote for the best answer.",
    ),
    "word for word another's": (
        Rules(),
        [answer("a", "same")],
        "same",
        voting.DUPLICATE.format(owner="agent1", or_vote=", or vote for the best answer"),
    ),
    "word for word its own": (
        Rules(),
        [answer("z", "same")],
        "same",
        voting.DUPLICATE.format(owner="yourself", or_vote=", or vote for the best answer"),
    ),
    "word for word its own, after a follow-up text": (
        BALANCED,
        [answer("z", "same"), said(), hears("z")],
        "same",
        "",
    ),
    "word for word its own for the second time after a follow-up text": (
        Rules(skips_voting=True),
        [answer("z", "same"), said(), hears("z"), answer("z", "same")],
        "same",
        voting.DUPLICATE.format(owner="yourself", or_vote=""),
    ),
    "word for word another's, after a follow-up text": (
        Rules(),
        [answer("a", "same"), said(), hears("z")],
        "same",
        voting.DUPLICATE.format(owner="agent1", or_vote=", or vote for the best answer"),
    ),
    "over its own limit, before a follow-up text": (
        Rules(max_answers_each=1, max_answers_all=1),
        [answer("z"), said(), answer("z")],
        "new",
        "",
    ),
    "over its own limit, also after a follow-up text": (
        Rules(max_answers_each=1),
        [answer("z"), said(), hears("z"), answer("z")],
        "new",
        "You have reached your limit of answers (1). Please vote for the best answer.",
    ),
    "word for word another's where nobody votes": (
        Rules(skips_voting=True),
        [answer("a", "same")],
        "same",
        voting.DUPLICATE.format(owner="agent1", or_vote=""),
    ),
    "word for word an answer that was outdone": (
        Rules(),
        [answer("a", "same"), answer("a", "newer")],
        "same",
        "",
    ),
    "lenient takes all but copies": (Rules(), [answer("a", OLD)], OLD + " seven", ""),
    "balanced refuses over 0.70": (
        BALANCED,
        [answer("a", OLD)],
        "Six, five; four! THREE two",
        voting.NOT_NEW.format(share=5 / 6, owner="agent1", or_vote=", or vote for the best answer"),
    ),
    "balanced takes 0.70": (
        BALANCED,
        [answer("a", "1 2 3 4 5 6 7")],
        "1 2 3 4 5 6 7 8 9 10",
        "",
    ),
    "strict refuses over 0.50": (
        STRICT,
        [answer("m", OLD), answer("a", "others words")],
        "one two three four",
        voting.NOT_NEW.format(share=4 / 6, owner="agent2", or_vote=", or vote for the best answer"),
    ),
    "strict takes 0.50": (STRICT, [answer("a", OLD)], "one two three", ""),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_judge_answer(case: str) -> None:
    rules, events, text, refusal = ANSWERS[case]
    assert voting.judge_answer(state("z a m", *events), rules, "z", text) == refusal


@pytest.mark.parametrize(
    ("events", "step"),
    [
        ([], Coordinate(("solo",))),
        ([answer("solo")], Finish("solo")),
        ([fail("solo")], NoAnswer()),
        ([answer("solo"), end("solo")], Finish("solo")),
        ([timed_out("solo")], NoAnswer()),
        ([answer("solo"), said()], Coordinate(("solo",))),
        ([said(), answer("solo")], Coordinate(("solo",))),
        ([said(), hears("solo"), answer("solo")], Finish("solo")),
        ([answer("solo"), said(), hears("solo")], Coordinate(("solo",))),
        ([answer("solo"), said(), hears("solo"), timed_out("solo")], Finish("solo")),
    ],
)
def test_a_team_of_one_neither_votes_nor_presents(
    events: list[ev.Event], step: voting.Step
) -> None:
    assert voting.next_step(state("solo", *events), Rules()) == step


@pytest.mark.parametrize(
    ("events", "target", "known", "judgement"),
    [
        ([], "z", {}, voting.NO_ANSWERS),
        ([answer("z")], "z", {"z": 1}, ""),
        ([answer("z")], "z", {}, voting.STALE),
        ([answer("z"), answer("z")], "z", {"z": 1}, voting.STALE),
        (
            [answer("z")],
            "a",
            {"z": 1},
            "There is no answer with this name. Vote for one of: agent3.",
        ),
        (
            [answer("z"), answer("a")],
            "",
            {},
            f"{NOBODY} agent1, agent3.",
        ),
    ],
)
def test_judge_vote(
    events: list[ev.Event], target: str, known: dict[str, int], judgement: str
) -> None:
    assert voting.judge_vote(state("z a m", *events), "a", target, known) == judgement


def test_labels_follow_sorted_ids() -> None:
    assert voting.labels(state("z a m")) == {"agent1": "a", "agent2": "m", "agent3": "z"}


def test_apply_does_not_change_the_old_state() -> None:
    before = state("z a", answer("z"))
    voting.apply(before, answer("a"))
    voting.apply(before, vote("a", "z", z=1))
    assert before == state("z a", answer("z"))


@dataclass
class SimulatedTeam:
    """A driver without models: rounds begin in any order and end with the result of `choose`."""

    order: list[str]
    rules: Rules
    choose: Callable[[int], int]
    answers_left: int
    texts_left: int = 0
    log: list[ev.Event] = field(default_factory=list)
    rounds: dict[str, dict[str, int]] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)

    def run(self) -> tuple[Coordination, voting.Step]:
        team = voting.begin(self.order)
        for _ in range(1500):
            if self.texts_left and self.choose(8) == 0:
                self.texts_left -= 1
                team = self._note(team, said())
            step = voting.next_step(team, self.rules)
            if not isinstance(step, Coordinate):
                return team, step
            assert step.agents and not set(step.agents) & (team.out | team.resting)
            for agent in step.agents:
                if agent not in self.rounds:
                    known = self.rounds[agent] = voting.seen(team)
                    opens = ev.RoundStarted(agent=agent, number=1, seen=known, heard=len(team.said))
                    team = self._note(team, opens)
            running = sorted(self.rounds)
            event = self._go_on(team, running[self.choose(len(running))])
            if event is not None:
                team = self._note(team, event)
        raise AssertionError("it never ends")

    def _note(self, team: Coordination, event: ev.Event) -> Coordination:
        self.log.append(event)
        return voting.apply(team, event)

    def _go_on(self, team: Coordination, agent: str) -> ev.Event | None:
        if team.unread_messages(agent) and self.choose(2):
            return hears(agent, len(team.said))
        known = self.rounds[agent]
        what = self.choose(24)
        if what < 3:
            del self.rounds[agent]
            return (fail, end, timed_out)[what](agent)
        may_vote = known and not self.rules.skips_voting and voting.voting_is_open(team, self.rules)
        if not may_vote or (what < 12 and self.answers_left > 0):
            return self._answer(team, agent)
        targets = sorted(known)
        target = targets[self.choose(len(targets))]
        del self.rounds[agent]
        return vote(agent, target, **known)

    def _answer(self, team: Coordination, agent: str) -> ev.Event | None:
        """Answer, sometimes with a copy. A rejection shows new answers; a third one is final."""
        self.answers_left -= 1
        texts = [revisions[-1] for revisions in team.answers.values()]
        copies = bool(texts) and self.choose(3) == 0
        text = texts[self.choose(len(texts))] if copies else f"{agent} {len(self.log)}"
        refusal = voting.judge_answer(team, self.rules, agent, text)
        confirms = team.said and text == team.answers.get(agent, ("",))[-1]
        assert refusal or not copies or confirms
        if not refusal:
            del self.rounds[agent]
            return answer(agent, text)
        self.rejected[agent] += 1
        self.rounds[agent] = voting.seen(team)
        if self.rejected[agent] < voting.MAX_REJECTED_TURNS:
            return None
        del self.rounds[agent]
        return fail(agent)


LIMIT = st.none() | st.integers(1, 4)
ANY_RULES = st.builds(
    Rules,
    max_answers_each=LIMIT,
    max_answers_all=LIMIT,
    max_similarity=st.sampled_from([None, 0.7, 0.5]),
    votes_after_all_answered=st.booleans(),
    lead_cap=st.none() | st.integers(0, 3),
    skips_voting=st.booleans(),
    final=st.sampled_from(["winner_present", "winner_reuse", "synthesize"]),
)


@settings(max_examples=500)
@given(
    ANY_RULES,
    st.integers(1, 6),
    st.randoms(use_true_random=False),
    st.integers(0, 12),
    st.integers(0, 3),
)
def test_any_rules_and_event_order_end_with_all_messages_read_and_current_votes(
    rules: Rules, size: int, random: object, answers: int, texts: int
) -> None:
    order = [f"a{n}" for n in range(size)]
    random.shuffle(order)  # type: ignore[attr-defined]
    choose = random.randrange  # type: ignore[attr-defined]
    team = SimulatedTeam(order, rules, choose, answers, texts)
    final, step = team.run()

    given_answers = [e for e in team.log if isinstance(e, ev.AnswerGiven)]
    for agent in order:
        kept = final.answers.get(agent, ())
        assert kept == tuple(e.answer for e in given_answers if e.agent == agent)
    counted = _answers_that_heard_all(team.log)
    for agent in order:
        assert counted[agent] <= (rules.max_answers_each or counted[agent])
    assert counted.total() <= (rules.max_answers_all or counted.total())
    last_answer = max(
        (i for i, e in enumerate(team.log) if isinstance(e, ev.AnswerGiven | ev.UserMessage)),
        default=-1,
    )
    # The limit of all may leave an agent nothing to say; then it has nothing to hear either.
    if not (rules.skips_voting and rules.max_answers_all):
        assert not [agent for agent in final.live if _unheard(team.log, agent)]
    for voter, target in final.votes.items():
        cast = [
            i for i, e in enumerate(team.log) if isinstance(e, ev.VoteCast) and e.agent == voter
        ]
        vote_cast = team.log[cast[-1]]
        assert cast[-1] > last_answer
        assert isinstance(vote_cast, ev.VoteCast)
        assert (vote_cast.target, vote_cast.seen) == (target, voting.seen(final))
    if isinstance(step, NoAnswer):
        assert not given_answers
        return
    assert isinstance(step, Present | Finish)
    if size == 1:
        assert step == Finish(order[0])
        return
    if rules.final == "synthesize":
        assert step.winner in final.answers
        return
    tally = list(final.votes.values())
    best = max(map(tally.count, final.answers))
    assert step.winner == next(a for a in order if a in final.answers and tally.count(a) == best)
    can_present = step.winner in final.live and rules.final == "winner_present"
    assert isinstance(step, Present) is can_present


def _unheard(log: list[ev.Event], agent: str) -> int:
    """Return how many messages an agent has not received, from the events alone."""
    told = [e for e in log if isinstance(e, ev.RoundStarted | ev.NoteSent) and e.agent == agent]
    texts = sum(isinstance(e, ev.UserMessage) for e in log)
    return texts - (told[-1].heard or 0 if told else 0)


def _answers_that_heard_all(log: list[ev.Event]) -> Counter[str]:
    """Return the answers of each agent that had received the last message."""
    last = max((i for i, e in enumerate(log) if isinstance(e, ev.UserMessage)), default=-1)
    return Counter(
        e.agent
        for i, e in enumerate(log)
        if i > last and isinstance(e, ev.AnswerGiven) and not _unheard(log[:i], e.agent)
    )


@given(ANY_RULES, st.lists(st.tuples(st.integers(0, 10), st.integers(0, 3), st.integers(0, 3))))
def test_any_events_leave_a_state_with_a_next_step(
    rules: Rules,
    raw: list[tuple[int, int, int]],
) -> None:
    order = ["a", "b", "c"]
    ids = [*order, "stranger"]
    team = voting.begin(order)
    for kind, who, whom in raw:
        agent, target = ids[who], ids[whom]
        events: list[ev.Event] = [
            answer(agent),
            vote(agent, target, **voting.seen(team)),
            vote(agent, target),
            fail(agent),
            end(agent),
            ev.VoteIgnored(agent=agent, target=target),
            ev.Abstained(agent=agent),
            timed_out(agent),
            said(),
            hears(agent, who),
            ev.PresentationStarted(agent=agent),
        ]
        team = voting.apply(team, events[kind])
        step = voting.next_step(team, rules)
        assert set(team.votes) <= set(order) and set(team.votes.values()) <= set(team.answers)
        if isinstance(step, Coordinate):
            assert set(step.agents) <= set(team.live)
            assert not set(step.agents) & set(team.votes)
