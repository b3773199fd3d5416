"""Who answers, who votes, who wins: a pure machine over events.

`apply` gives the state after an event and `next_step` says what is to be done; no await, no
clock, no disk. The driver (`nb_agents.agents.team`) does it and emits what happened; a resume
folds stored events and goes on from the same state.

Every model turn ends in an answer or a vote. An answer clears all votes and sends the others to
look again; the run ends when all live agents have voted; ties go to registration order; the
winner presents. Limits, sensitivities and round timeouts belong into `next_step` and `judge_vote`.

Source: MassGen's orchestrator (voting mode).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nb_agents import events as ev

__all__ = [
    "Coordination",
    "Finish",
    "NoAnswer",
    "Present",
    "Step",
    "Work",
    "apply",
    "begin",
    "judge_vote",
    "labels",
    "next_step",
    "seen",
]

MAX_REJECTED_TURNS = 3
"""Malformed turns of one round after which the agent is out. Source: MassGen (3 attempts)."""

NO_ANSWERS = "Cannot vote when no answers exist. Use the new_answer tool."
NO_VOTING = "There is nothing to vote on. Use the new_answer tool."
STALE = "stale"


@dataclass(frozen=True)
class Coordination:
    """Where the team stands.

    Attributes:
        order: Agent ids in registration order.
        answers: For each agent that answered, its answers, oldest first.
        votes: For each voter, whom it voted for; only votes that count.
        out: Agents that failed or were stopped.
    """

    order: tuple[str, ...]
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    votes: Mapping[str, str] = field(default_factory=dict)
    out: frozenset[str] = frozenset()

    @property
    def live(self) -> tuple[str, ...]:
        """Agents that still take part."""
        return tuple(a for a in self.order if a not in self.out)


@dataclass(frozen=True)
class Work:
    """These agents are to work on; those that do already go on."""

    agents: tuple[str, ...]


@dataclass(frozen=True)
class Present:
    """All live agents have voted: the winner is to present."""

    winner: str


@dataclass(frozen=True)
class Finish:
    """The winner's latest answer is the final one as it stands."""

    winner: str


@dataclass(frozen=True)
class NoAnswer:
    """No agent is left and none has answered."""


Step = Work | Present | Finish | NoAnswer


def begin(order: Sequence[str]) -> Coordination:
    """Give the state before anything happened."""
    return Coordination(tuple(order))


def apply(state: Coordination, event: ev.Event) -> Coordination:
    """Give the state after an event.

    Args:
        state: The state before.
        event: Any event; those that don't concern coordination change nothing.

    Returns:
        The new state.
    """
    match event:
        case ev.AnswerGiven(agent=agent, answer=answer) if agent in state.order:
            revisions = (*state.answers.get(agent, ()), answer)
            return replace(state, answers={**state.answers, agent: revisions}, votes={})
        case ev.VoteCast(agent=agent, target=target, seen=known) if agent in state.order:
            if judge_vote(state, target, known):
                return state
            return replace(state, votes={**state.votes, agent: target})
        case ev.AgentFailed(agent=agent) | ev.AgentEnded(agent=agent):
            return replace(state, out=state.out | {agent})
        case _:
            return state


def next_step(state: Coordination) -> Step:
    """Say what is to be done now."""
    live = state.live
    if not live:
        return Finish(_winner(state)) if state.answers else NoAnswer()
    if len(state.order) == 1 and state.answers:
        # A team of one has nobody to vote with and nothing to choose from.
        return Finish(state.order[0])
    waiting = tuple(a for a in live if a not in state.votes)
    if waiting:
        return Work(waiting)
    winner = _winner(state)
    return Present(winner) if winner in live else Finish(winner)


def seen(state: Coordination) -> dict[str, int]:
    """Say how many answers of each agent there are, as an agent sees them now."""
    return {agent: len(answers) for agent, answers in state.answers.items()}


def judge_vote(state: Coordination, target: str, known: Mapping[str, int]) -> str:
    """Judge a vote.

    Args:
        state: Where the team stands.
        target: Id of the agent voted for; "" for a label that nobody has.
        known: What the voter had seen, as `seen` gave it.

    Returns:
        "" when it counts, `STALE` when a newer answer has come, else why it is not a vote.
    """
    if not state.answers:
        return NO_ANSWERS
    if target not in state.answers:
        valid = ", ".join(label for label, a in labels(state).items() if a in state.answers)
        return f"Nobody of that name has an answer. Vote for one of: {valid}."
    return "" if dict(known) == seen(state) else STALE


def labels(state: Coordination) -> dict[str, str]:
    """Give the names under which agents see each other: agent1 … by sorted id."""
    return {f"agent{n}": agent for n, agent in enumerate(sorted(state.order), 1)}


def _winner(state: Coordination) -> str:
    """Most votes, else the first registered agent with an answer."""
    tally = list(state.votes.values())
    answered = [a for a in state.order if a in state.answers]
    return max(answered, key=tally.count)
