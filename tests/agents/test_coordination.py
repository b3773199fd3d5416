"""The coordination machine: tables of (events so far) -> next step, and random histories."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_agents import events as ev
from nb_agents.agents import coordination as co
from nb_agents.agents.coordination import Coordination, Finish, NoAnswer, Present, Work


def answer(agent: str, text: str = "x") -> ev.Event:
    return ev.AnswerGiven(agent=agent, answer=text)


def vote(agent: str, target: str, **seen: int) -> ev.Event:
    return ev.VoteCast(agent=agent, target=target, reason="r", seen=seen)


def fail(agent: str) -> ev.Event:
    return ev.AgentFailed(agent=agent, error="e")


def end(agent: str) -> ev.Event:
    return ev.AgentEnded(agent=agent, outcome="stopped")


def state(order: str, *events: ev.Event) -> Coordination:
    result = co.begin(order.split())
    for event in events:
        result = co.apply(result, event)
    return result


NOBODY = "Nobody of that name has an answer. Vote for one of:"

# Agents are registered as z, a, m, so that registration order is not the alphabet's.
STEPS: dict[str, tuple[list[ev.Event], co.Step]] = {
    "everybody starts": ([], Work(("z", "a", "m"))),
    "an answer leaves all at work, its author too": ([answer("z")], Work(("z", "a", "m"))),
    "a voter waits": ([answer("z"), vote("a", "z", z=1)], Work(("z", "m"))),
    "an answer clears all votes": (
        [answer("z"), vote("a", "z", z=1), answer("m")],
        Work(("z", "a", "m")),
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
        Work(("z", "a", "m")),
    ),
    "a vote over an older revision is stale": (
        [answer("z"), answer("z"), vote("m", "z", z=1)],
        Work(("z", "a", "m")),
    ),
    "a vote for nobody does not count": ([answer("z"), vote("m", "", z=1)], Work(("z", "a", "m"))),
    "a vote for one without answer does not count": (
        [answer("z"), vote("m", "a", z=1)],
        Work(("z", "a", "m")),
    ),
    "a stranger's vote and answer do not count": (
        [answer("x"), vote("y", "z")],
        Work(("z", "a", "m")),
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
    "events of other matters change nothing": (
        [ev.Noticed(text="n"), ev.TurnRejected(agent="z", why="w", attempt=1)],
        Work(("z", "a", "m")),
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_next_step(case: str) -> None:
    events, step = STEPS[case]
    assert co.next_step(state("z a m", *events)) == step


@pytest.mark.parametrize(
    ("events", "step"),
    [
        ([], Work(("solo",))),
        ([answer("solo")], Finish("solo")),
        ([fail("solo")], NoAnswer()),
        ([answer("solo"), end("solo")], Finish("solo")),
    ],
)
def test_a_team_of_one_neither_votes_nor_presents(events: list[ev.Event], step: co.Step) -> None:
    assert co.next_step(state("solo", *events)) == step


@pytest.mark.parametrize(
    ("events", "target", "known", "judgement"),
    [
        ([], "z", {}, co.NO_ANSWERS),
        ([answer("z")], "z", {"z": 1}, ""),
        ([answer("z")], "z", {}, co.STALE),
        ([answer("z"), answer("z")], "z", {"z": 1}, co.STALE),
        (
            [answer("z")],
            "a",
            {"z": 1},
            "Nobody of that name has an answer. Vote for one of: agent3.",
        ),
        (
            [answer("z"), answer("a")],
            "",
            {},
            f"{NOBODY} agent1, agent3.",
        ),
    ],
)
def test_a_vote_is_judged(
    events: list[ev.Event], target: str, known: dict[str, int], judgement: str
) -> None:
    assert co.judge_vote(state("z a m", *events), target, known) == judgement


def test_labels_go_by_sorted_id_and_tell_nothing_of_the_order() -> None:
    assert co.labels(state("z a m")) == {"agent1": "a", "agent2": "m", "agent3": "z"}


def test_applying_an_event_leaves_the_old_state_as_it_was() -> None:
    before = state("z a", answer("z"))
    co.apply(before, answer("a"))
    co.apply(before, vote("a", "z", z=1))
    assert before == state("z a", answer("z"))


@dataclass
class SimulatedTeam:
    """A driver without models: in any order, rounds begin, and end in what `choose` says."""

    order: list[str]
    choose: Callable[[int], int]
    answers_left: int
    log: list[ev.Event] = field(default_factory=list)
    rounds: dict[str, dict[str, int]] = field(default_factory=dict)

    def run(self) -> tuple[Coordination, co.Step]:
        team = co.begin(self.order)
        for _ in range(500):
            step = co.next_step(team)
            if not isinstance(step, Work):
                return team, step
            assert step.agents and not set(step.agents) & team.out
            for agent in step.agents:
                self.rounds.setdefault(agent, co.seen(team))
            running = sorted(self.rounds)
            event = self._end_round(team, running[self.choose(len(running))])
            self.log.append(event)
            team = co.apply(team, event)
        raise AssertionError("it never ends")

    def _end_round(self, team: Coordination, agent: str) -> ev.Event:
        known = self.rounds.pop(agent)
        what = self.choose(8)
        if what == 0:
            return fail(agent)
        if what == 1:
            return end(agent)
        if what <= 4 and self.answers_left or not known:
            # An agent that saw no answer can only answer.
            self.answers_left -= 1
            return answer(agent, f"{agent}{len(self.log)}")
        targets = sorted(known)
        return vote(agent, targets[self.choose(len(targets))], **known)


@given(st.integers(1, 6), st.randoms(use_true_random=False), st.integers(0, 12))
def test_any_order_of_events_ends_with_every_answer_and_fresh_votes_only(
    size: int, random: object, answers: int
) -> None:
    order = [f"a{n}" for n in range(size)]
    random.shuffle(order)  # type: ignore[attr-defined]
    team = SimulatedTeam(order, random.randrange, answers)  # type: ignore[attr-defined]
    final, step = team.run()

    given_answers = [e for e in team.log if isinstance(e, ev.AnswerGiven)]
    for agent in order:
        kept = final.answers.get(agent, ())
        assert kept == tuple(e.answer for e in given_answers if e.agent == agent)
    last_answer = max(
        (i for i, e in enumerate(team.log) if isinstance(e, ev.AnswerGiven)), default=-1
    )
    for voter, target in final.votes.items():
        cast = [
            i for i, e in enumerate(team.log) if isinstance(e, ev.VoteCast) and e.agent == voter
        ]
        vote_cast = team.log[cast[-1]]
        assert cast[-1] > last_answer
        assert isinstance(vote_cast, ev.VoteCast)
        assert (vote_cast.target, vote_cast.seen) == (target, co.seen(final))
    if isinstance(step, NoAnswer):
        assert not given_answers
        return
    assert isinstance(step, Present | Finish)
    tally = list(final.votes.values())
    best = max(map(tally.count, final.answers))
    assert step.winner == next(a for a in order if a in final.answers and tally.count(a) == best)
    assert isinstance(step, Present) is (step.winner in final.live and size > 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3))))
def test_any_events_at_all_leave_a_state_that_knows_its_next_step(
    raw: list[tuple[int, int, int]],
) -> None:
    order = ["a", "b", "c"]
    ids = [*order, "stranger"]
    team = co.begin(order)
    for kind, who, whom in raw:
        agent, target = ids[who], ids[whom]
        events: list[ev.Event] = [
            answer(agent),
            vote(agent, target, **co.seen(team)),
            vote(agent, target),
            fail(agent),
            end(agent),
            ev.VoteIgnored(agent=agent, target=target),
        ]
        team = co.apply(team, events[kind])
        step = co.next_step(team)
        assert set(team.votes) <= set(order) and set(team.votes.values()) <= set(team.answers)
        if isinstance(step, Work):
            assert set(step.agents) <= set(team.live)
            assert not set(step.agents) & set(team.votes)
