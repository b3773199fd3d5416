"""Coordination of a team by answers and votes: a pure state machine over events, and its rules.

`apply` returns the state after an event and `next_step` the next step; no await, no clock, no disk.
`nb_agents.agents.team_driver` carries out the steps and emits events; a resume folds stored events
and continues from the same state. `Rules`, one frozen value made from a team's spec, say what is
allowed; the state depends on events alone, so that it folds without rules.

Every round ends in an answer or a vote. An answer clears all votes, and the others decide again;
the run ends when all live agents have voted or rest; ties go to registration order.

If restarts are allowed, the agent that gave the final answer judges it. A restart begins without
answers and votes, and the limits of answers count from zero. Agents that are out stay out.

A follow-up text of the user clears the votes too. Agents that have not read it work again, and the
limits of answers count from zero, because they applied to the earlier task.

Source: MassGen's orchestrator (voting mode, its section of a team file, timeout settings).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nb_agents import events as ev
from nb_agents.config.decision_tools import ANSWER
from nb_agents.config.orchestrator import FinalAnswerStrategy, Sensitivity
from nb_agents.config.team import TeamSpec

MAX_SIMILARITY = {"lenient": None, "balanced": 0.70, "strict": 0.50}
"""Share of words in common above which an answer is not new. Source: MassGen (Jaccard)."""

_WORD = re.compile(r"\w+")

MAX_REJECTED_TURNS = 3
"""Malformed turns of one round after which the agent is out. Source: MassGen (3 attempts)."""

NO_ANSWERS = f"Cannot vote when no answers exist. Use the {ANSWER.name} tool."
NO_VOTING = f"There is nothing to vote on. Use the {ANSWER.name} tool."
TOO_EARLY = f"Votes count once every agent has answered. Use the {ANSWER.name} tool."
STALE = "stale"

LIMIT_EACH = "You have given all the answers that you may give ({limit}). Please vote for the best."
LIMIT_ALL = (
    "The team has given all the answers that it may give ({limit}). Please vote for the best."
)
DUPLICATE = "This is word for word the current answer of {owner}. Submit one that differs{or_vote}."
NOT_NEW = (
    "This answer has {share:.0%} of its words in common with the current answer of {owner}. "
    "Take a substantially different way{or_vote}."
)


@dataclass(frozen=True)
class Rules:
    """How a team works together; by default as MassGen does.

    Attributes:
        max_answers_each: Answers after which an agent can only vote, or None.
        max_answers_all: Answers of all agents after which all can only vote, or None.
        max_similarity: Share of words in common with a current answer, from 0 to 1, above which a
            new answer is refused, or None.
        votes_after_all_answered: Whether nobody votes before everybody has answered.
        lead_cap: How many answers an agent may be ahead of the slowest at work, or None.
        sensitivity: How demanding voters are.
        skips_voting: Whether the team is done when all have answered.
        final: Where the final answer comes from.
        plans_first: Whether only the presenter may change anything.
        plan_instruction: An additional instruction for the other agents, or "".
        max_restarts: How often the team may begin again when its final answer is judged
            insufficient.
        turn_limit_s: Seconds for the whole turn.
        first_round_s, later_round_s: Seconds for an agent's first and each later round, or None.
        round_grace_s: Seconds from a round's limit to its end.
    """

    max_answers_each: int | None = None
    max_answers_all: int | None = None
    max_similarity: float | None = None
    votes_after_all_answered: bool = False
    lead_cap: int | None = 2
    sensitivity: Sensitivity = "lenient"
    skips_voting: bool = False
    final: FinalAnswerStrategy = "winner_present"
    plans_first: bool = False
    plan_instruction: str = ""
    max_restarts: int = 0
    turn_limit_s: float = 1800.0
    first_round_s: float | None = None
    later_round_s: float | None = None
    round_grace_s: float = 120.0

    def round_limit_s(self, number: int) -> float | None:
        """Seconds that an agent's round may take before it must wrap up, or None.

        Args:
            number: The round, from 1.
        """
        return self.first_round_s if number == 1 else self.later_round_s


def rules_of(spec: TeamSpec, turn_limit_s: float) -> Rules:
    """Return the rules of a team.

    Args:
        spec: The team.
        turn_limit_s: The orchestrator timeout that applies, seconds.

    Returns:
        The rules. A team of one agent skips the planning phase.
    """
    team, times = spec.orchestrator, spec.timeout_settings
    reuse_or_present = "winner_reuse" if team.skip_final_presentation else "winner_present"
    final: FinalAnswerStrategy = team.final_answer_strategy or reuse_or_present  # type: ignore[assignment]
    if final == "winner_reuse" and team.writes_context_paths:
        # Source: MassGen; only who presents may write there.
        final = "winner_present"
    plans_first = team.coordination.enable_planning_mode and len(spec.agents) > 1
    return Rules(
        max_answers_each=team.max_new_answers_per_agent,
        max_answers_all=team.max_new_answers_global,
        max_similarity=MAX_SIMILARITY[team.answer_novelty_requirement],
        votes_after_all_answered=team.defer_voting_until_all_answered,
        lead_cap=team.fairness_lead_cap_answers if team.fairness_enabled else None,
        sensitivity=team.voting_criteria,
        # Source: MassGen, which asks for no votes either when all answers are put together.
        skips_voting=team.skip_voting or final == "synthesize",
        final=final,
        plans_first=plans_first,
        plan_instruction=team.coordination.planning_mode_instruction.strip() if plans_first else "",
        max_restarts=team.max_restarts,
        turn_limit_s=turn_limit_s,
        first_round_s=times.initial_round_timeout_seconds,
        later_round_s=times.subsequent_round_timeout_seconds,
        round_grace_s=times.round_timeout_grace_seconds,
    )


def similarity(one: str, other: str) -> float:
    """Return the Jaccard index of two texts' words, from 0 to 1.

    Example:
        >>> similarity("Red and blue", "blue and red!")
        1.0
    """
    words, others = set(_WORD.findall(one.lower())), set(_WORD.findall(other.lower()))
    return len(words & others) / len(words | others) if words | others else 1.0


@dataclass(frozen=True)
class Restart:
    """Why the team starts over.

    Attributes:
        reason: What is wrong with the final answer.
        instructions: What the team should do now.
        answer: The rejected answer.
    """

    reason: str
    instructions: str
    answer: str


@dataclass(frozen=True)
class Coordination:
    """The state of a team's coordination.

    Attributes:
        order: Agent ids in registration order.
        answers: For each agent that answered, its answers, oldest first.
        votes: For each voter, whom it voted for; only votes that count.
        out: Agents that failed or were stopped.
        resting: Agents that ran out of time after an answer, or that do not vote: their answers
            stand, and they get no more rounds.
        said: Follow-up texts of the person, oldest first.
        said_to: For each of them the one agent that it is for, or "" for all.
        heard: For each agent, how many of them it has received.
        replies: For each agent, how many answers it gave since it received the last of them.
        presenter: The agent that presents, or "".
        final: The final answer while its presenter judges it, or "".
        restarts: Why the team started over, each time; the last counts.
    """

    order: tuple[str, ...]
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    votes: Mapping[str, str] = field(default_factory=dict)
    out: frozenset[str] = frozenset()
    resting: frozenset[str] = frozenset()
    said: tuple[str, ...] = ()
    said_to: tuple[str, ...] = ()
    heard: Mapping[str, int] = field(default_factory=dict)
    replies: Mapping[str, int] = field(default_factory=dict)
    presenter: str = ""
    final: str = ""
    restarts: tuple[Restart, ...] = ()

    @property
    def live(self) -> tuple[str, ...]:
        """Agents that still take part."""
        return tuple(a for a in self.order if a not in self.out)

    def unheard(self, agent: str) -> tuple[str, ...]:
        """Return the follow-up texts that an agent has not received."""
        return self.texts_for(agent, self.heard.get(agent, 0))

    def texts_for(self, agent: str, first: int = 0) -> tuple[str, ...]:
        """Return the follow-up texts from number ``first`` on that are for an agent."""
        texts = list(zip(self.said, self.said_to, strict=True))[first:]
        return tuple(text for text, to in texts if to in ("", agent))


@dataclass(frozen=True)
class Coordinate:
    """These agents should work; agents already at work continue."""

    agents: tuple[str, ...]


@dataclass(frozen=True)
class Present:
    """Coordination is over: this agent presents the final answer."""

    winner: str


@dataclass(frozen=True)
class Finish:
    """The winner's latest answer is the final one as it stands."""

    winner: str


@dataclass(frozen=True)
class Judge:
    """The final answer exists: this agent judges it."""

    winner: str


@dataclass(frozen=True)
class NoAnswer:
    """All agents are out, and none has answered."""


Step = Coordinate | Present | Finish | Judge | NoAnswer


def begin(order: Sequence[str]) -> Coordination:
    """Return the initial state."""
    return Coordination(tuple(order))


def apply(state: Coordination, event: ev.Event) -> Coordination:
    """Return the state after an event.

    Args:
        state: The state before.
        event: Any event; those that don't concern coordination change nothing.

    Returns:
        The new state.
    """
    match event:
        case ev.AnswerGiven(agent=agent, answer=answer) if agent in state.order:
            return _with_answer(state, agent, answer)
        case ev.VoteCast(agent=agent, target=target, seen=known) if agent in state.order:
            if judge_vote(state, agent, target, known):
                return state
            return replace(state, votes={**state.votes, agent: target})
        case ev.Said(text=text, to=to):
            return _with_text(state, text, to)
        case (
            ev.RoundStarted(agent=agent, heard=int(heard)) | ev.Told(agent=agent, heard=int(heard))
        ):
            return replace(state, heard={**state.heard, agent: heard})
        case ev.PresentationStarted(agent=agent) if agent in state.answers:
            return replace(state, presenter=agent)
        case ev.FinalAnswerGiven(agent=agent, answer=answer) if agent in state.answers:
            return replace(state, presenter=agent, final=answer)
        case ev.OrchestrationRestarted(reason=reason, instructions=instructions):
            return _restarted(state, Restart(reason, instructions, state.final))
        case ev.RoundTimedOut(agent=agent) | ev.Abstained(agent=agent) if agent in state.answers:
            if state.unheard(agent):
                return state
            return replace(state, resting=state.resting | {agent})
        case (
            ev.AgentFailed(agent=agent) | ev.AgentEnded(agent=agent) | ev.RoundTimedOut(agent=agent)
        ):
            return replace(state, out=state.out | {agent})
        case _:
            return state


def _with_answer(state: Coordination, agent: str, answer: str) -> Coordination:
    answers = {**state.answers, agent: (*state.answers.get(agent, ()), answer)}
    replies = state.replies
    if not state.unheard(agent):
        replies = {**replies, agent: replies.get(agent, 0) + 1}
    return replace(state, answers=answers, replies=replies, votes={})


def _restarted(state: Coordination, why: Restart) -> Coordination:
    return replace(
        begin(state.order),
        out=state.out,
        said=state.said,
        said_to=state.said_to,
        heard=state.heard,
        restarts=(*state.restarts, why),
    )


def _with_text(state: Coordination, text: str, to: str) -> Coordination:
    state = replace(state, said=(*state.said, text), said_to=(*state.said_to, to))
    if state.presenter:
        # The choice is made: only the presenter still receives texts.
        return state
    if to:  # what the others chose stands until there is something new for them
        votes = {agent: target for agent, target in state.votes.items() if agent != to}
        replies = {agent: count for agent, count in state.replies.items() if agent != to}
        return replace(state, votes=votes, replies=replies, resting=state.resting - {to})
    return replace(state, votes={}, replies={}, resting=frozenset())


def next_step(state: Coordination, rules: Rules) -> Step:
    """Return the next step."""
    if state.final:
        return Judge(state.presenter)
    if not state.live:
        return Finish(_winner(state)) if state.answers else NoAnswer()
    agents = _at_work(state, rules)
    return Coordinate(agents) if agents else _conclusion(state, rules)


def awaited(state: Coordination, rules: Rules) -> tuple[str, ...]:
    """Return the agents that must still work before the team can conclude."""
    if state.presenter:
        return ()
    waiting = tuple(a for a in state.live if a not in state.votes and a not in state.resting)
    if is_alone(state) or rules.skips_voting:
        return _yet_to_answer(state, rules, waiting)
    return waiting


def _at_work(state: Coordination, rules: Rules) -> tuple[str, ...]:
    waiting = awaited(state, rules)
    if is_alone(state) or rules.skips_voting or not voting_is_open(state, rules):
        return _yet_to_answer(state, rules, waiting)
    slowest = min((_count(state, a) for a in waiting), default=0)
    cap = rules.lead_cap
    return tuple(a for a in waiting if cap is None or _count(state, a) - slowest <= cap)


def _yet_to_answer(state: Coordination, rules: Rules, agents: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(a for a in agents if not state.replies.get(a) and may_answer(state, rules, a))


def _conclusion(state: Coordination, rules: Rules) -> Present | Finish:
    winner = _winner(state)
    if is_alone(state):
        # A team of one has nobody to vote with and nothing to choose from.
        return Finish(winner)
    if rules.final == "synthesize":
        # Any agent that is left can combine the answers.
        able = [a for a in state.live if a in state.answers]
        return Present(able[0]) if able else Finish(winner)
    can_present = rules.final == "winner_present" and winner in state.live
    return Present(winner) if can_present else Finish(winner)


def seen(state: Coordination) -> dict[str, int]:
    """Return how many answers of each agent are visible now."""
    return {agent: len(answers) for agent, answers in state.answers.items()}


def is_alone(state: Coordination) -> bool:
    """Return whether the team has one agent."""
    return len(state.order) == 1


def may_answer(state: Coordination, rules: Rules, agent: str) -> bool:
    """Return whether the agent and the team have answers left."""
    return not _limit_reached(state, rules, agent)


def voting_is_open(state: Coordination, rules: Rules) -> bool:
    """Return whether votes count: no agent has to answer first."""
    if not rules.votes_after_all_answered:
        return True
    return all(a in state.answers or not may_answer(state, rules, a) for a in state.live)


def judge_answer(state: Coordination, rules: Rules, agent: str, answer: str) -> str:
    """Return why an answer is refused, or "".

    Args:
        state: Where the team stands.
        rules: What is allowed.
        agent: The id of the agent that answers.
        answer: The answer's text.

    Returns:
        "" when it is accepted, else why not.
    """
    if refusal := _limit_reached(state, rules, agent):
        return refusal
    or_vote = "" if rules.skips_voting else ", or vote for the best"
    for label, peer in labels(state).items():
        if peer not in state.answers:
            continue
        if peer == agent and not state.replies.get(agent):
            # After a follow-up text its own answer may stand as it is, or with a few words more.
            continue
        current = state.answers[peer][-1]
        owner = "yourself" if peer == agent else label
        if answer == current:
            return DUPLICATE.format(owner=owner, or_vote=or_vote)
        if rules.max_similarity is None:
            continue
        share = similarity(answer, current)
        if share > rules.max_similarity:
            return NOT_NEW.format(share=share, owner=owner, or_vote=or_vote)
    return ""


def judge_vote(state: Coordination, voter: str, target: str, known: Mapping[str, int]) -> str:
    """Return why a vote is refused, or "".

    Args:
        state: Where the team stands.
        voter: Id of the agent that votes.
        target: Id of the agent voted for; "" for an unknown label.
        known: The answers that the voter had seen, as returned by `seen`.

    Returns:
        "" when it counts, `STALE` when the voter lacks a newer answer or a follow-up text, else why
        it does not count.
    """
    if not state.answers:
        return NO_ANSWERS
    if target not in state.answers:
        valid = ", ".join(label for label, a in labels(state).items() if a in state.answers)
        return f"Nobody of that name has an answer. Vote for one of: {valid}."
    return "" if dict(known) == seen(state) and not state.unheard(voter) else STALE


def labels(state: Coordination) -> dict[str, str]:
    """Return the names under which agents see each other: agent1 … by sorted id."""
    return {f"agent{n}": agent for n, agent in enumerate(sorted(state.order), 1)}


def _limit_reached(state: Coordination, rules: Rules, agent: str) -> str:
    each, total = rules.max_answers_each, rules.max_answers_all
    if each is not None and state.replies.get(agent, 0) >= each:
        return LIMIT_EACH.format(limit=each)
    if total is not None and sum(state.replies.values()) >= total:
        return LIMIT_ALL.format(limit=total)
    return ""


def _count(state: Coordination, agent: str) -> int:
    return len(state.answers.get(agent, ()))


def _winner(state: Coordination) -> str:
    """Most votes, else the first registered agent with an answer."""
    tally = list(state.votes.values())
    answered = [a for a in state.order if a in state.answers]
    return max(answered, key=tally.count)
