"""Coordination of a team by answers and votes: a pure state machine over events, and its rules.

`apply` returns the state after an event, and `next_step` returns the next step. There is no await,
clock or disk. `nb_agents.agents.team_driver` carries out the steps and emits events. A resume folds
the stored events and continues from the same state. `Rules` is a frozen value made from a team's
configuration. The state depends only on events, not on the rules.

Every round ends in an answer or a vote. An answer clears all votes, and the other agents decide
again. The run ends when all live agents have voted or are resting. Ties go to the agent registered
first.

If restarts are allowed, the agent that gave the final answer judges it. A restart begins without
answers and votes, and the limits of answers count from zero. Failed and stopped agents do not
return.

A message from the user also clears the votes. Agents that have not read it work again, and the
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
"""Fraction of common words above which an answer is not new. Source: MassGen (Jaccard)."""

_WORD = re.compile(r"\w+")

MAX_REJECTED_TURNS = 3
"""Number of rejected turns in a round after which an agent fails. Source: MassGen (3 attempts)."""

NO_ANSWERS = f"Cannot vote when no answers exist. Use the {ANSWER.name} tool."
NO_VOTING = f"There is nothing to vote on. Use the {ANSWER.name} tool."
TOO_EARLY = f"You can vote only after all agents have answered. Use the {ANSWER.name} tool."
STALE = "stale"

LIMIT_EACH = "You have reached your limit of answers ({limit}). Please vote for the best answer."
LIMIT_ALL = "The team has reached its limit of answers ({limit}). Please vote for the best answer."
DUPLICATE = (
    "This answer is identical to the current answer of {owner}. Submit a different answer{or_vote}."
)
NOT_NEW = (
    "This answer shares {share:.0%} of its words with the current answer of {owner}. Submit a "
    "substantially different answer{or_vote}."
)


@dataclass(frozen=True)
class Rules:
    """The rules of a team's coordination. The defaults are MassGen's.

    Attributes:
        max_answers_each: Maximum number of answers per agent. After that, it can only vote. None
            means no limit.
        max_answers_all: Maximum number of answers of all agents together. None means no limit.
        max_similarity: Fraction of words in common with a current answer, from 0 to 1, above which
            a new answer is rejected. None means no check.
        votes_after_all_answered: Whether agents vote only after all have answered.
        lead_cap: How many answers an agent may be ahead of the slowest working agent. None means
            no limit.
        sensitivity: How demanding voters are.
        skips_voting: Whether the team is done when all agents have answered.
        final: How the final answer is made.
        plans_first: Whether there is a planning phase, in which only the presenter changes
            anything.
        plan_instruction: An additional instruction for the planning phase, or "".
        max_restarts: How many times the team may restart after its final answer was rejected.
        turn_limit_s: Time limit of the turn in seconds.
        first_round_s, later_round_s: Time limits of an agent's first and later rounds in seconds.
            None means no limit.
        round_grace_s: Seconds from a round's time limit to its forced end.
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
        """Return the time limit of an agent's round in seconds, or None.

        Args:
            number: The round's number, starting at 1.
        """
        return self.first_round_s if number == 1 else self.later_round_s


def rules_of(spec: TeamSpec, turn_limit_s: float) -> Rules:
    """Return the rules of a team.

    Args:
        turn_limit_s: The effective time limit of the turn, in seconds.

    Returns:
        The rules. A team of one agent skips the planning phase.
    """
    team, times = spec.orchestrator, spec.timeout_settings
    reuse_or_present = "winner_reuse" if team.skip_final_presentation else "winner_present"
    final: FinalAnswerStrategy = team.final_answer_strategy or reuse_or_present  # type: ignore[assignment]
    if final == "winner_reuse" and team.writes_context_paths:
        # Source: MassGen, where only the presenter may write there.
        final = "winner_present"
    plans_first = team.coordination.enable_planning_mode and len(spec.agents) > 1
    return Rules(
        max_answers_each=team.max_new_answers_per_agent,
        max_answers_all=team.max_new_answers_global,
        max_similarity=MAX_SIMILARITY[team.answer_novelty_requirement],
        votes_after_all_answered=team.defer_voting_until_all_answered,
        lead_cap=team.fairness_lead_cap_answers if team.fairness_enabled else None,
        sensitivity=team.voting_criteria,
        # Source: MassGen, which also skips the vote if the answers are combined.
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
    """Return the Jaccard index of the words in two strings, from 0 to 1.

    Example:
        >>> similarity("Red and blue", "blue and red!")
        1.0
    """
    words, other_words = set(_WORD.findall(one.lower())), set(_WORD.findall(other.lower()))
    return len(words & other_words) / len(words | other_words) if words | other_words else 1.0


@dataclass(frozen=True)
class Restart:
    """A restart of the team's work.

    Attributes:
        reason: What is wrong with the final answer.
        instructions: Instructions for the next attempt.
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
        answers: The answers of each agent that answered, oldest first.
        votes: The valid votes, from voter to target.
        out: Agents that failed or were stopped.
        resting: Agents that ran out of time after an answer, or that do not vote. Their answers
            still count, and they get no more rounds.
        said: The user's messages, oldest first.
        said_to: The id of the agent that each message is for, or "" for all agents.
        heard: The number of messages that each agent has received.
        replies: The number of answers of each agent since it received the last message.
        presenter: The agent that presents, or "".
        final: The final answer while its presenter judges it, or "".
        restarts: All restarts, oldest first.
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

    def unread_messages(self, agent: str) -> tuple[str, ...]:
        """Return the user's messages that an agent has not received."""
        return self.texts_for(agent, self.heard.get(agent, 0))

    def texts_for(self, agent: str, first: int = 0) -> tuple[str, ...]:
        """Return the user's messages for an agent, starting at index ``first``."""
        texts = list(zip(self.said, self.said_to, strict=True))[first:]
        return tuple(text for text, to in texts if to in ("", agent))


@dataclass(frozen=True)
class Coordinate:
    """These agents should work. Agents that already work continue."""

    agents: tuple[str, ...]


@dataclass(frozen=True)
class Present:
    """Coordination is over, and this agent presents the final answer."""

    winner: str


@dataclass(frozen=True)
class Finish:
    """The winner's latest answer is the final answer, without a presentation."""

    winner: str


@dataclass(frozen=True)
class Judge:
    """There is a final answer, and this agent judges it."""

    winner: str


@dataclass(frozen=True)
class NoAnswer:
    """All agents have failed or were stopped, and none has answered."""


Step = Coordinate | Present | Finish | Judge | NoAnswer


def begin(order: Sequence[str]) -> Coordination:
    """Return the state of a team before its first event."""
    return Coordination(tuple(order))


def apply(state: Coordination, event: ev.Event) -> Coordination:
    """Return the state after an event.

    Args:
        state: The state before the event.
        event: Any event. Events that don't concern coordination change nothing.
    """
    return VOTING.apply(state, event)


VOTING: ev.Fold[Coordination] = ev.Fold("voting", of=(ev.AgentEvent, ev.UserMessage))
"""The handlers that update the state for each kind of event."""


@VOTING.on(ev.AnswerGiven)
def _answer_given(state: Coordination, e: ev.AnswerGiven) -> Coordination:
    if e.agent not in state.order:
        return state
    answers = {**state.answers, e.agent: (*state.answers.get(e.agent, ()), e.answer)}
    replies = state.replies
    if not state.unread_messages(e.agent):
        replies = {**replies, e.agent: replies.get(e.agent, 0) + 1}
    return replace(state, answers=answers, replies=replies, votes={})


@VOTING.on(ev.VoteCast)
def _vote_cast(state: Coordination, e: ev.VoteCast) -> Coordination:
    if e.agent not in state.order or judge_vote(state, e.agent, e.target, e.seen):
        return state
    return replace(state, votes={**state.votes, e.agent: e.target})


@VOTING.on(ev.RoundStarted, ev.NoteSent)
def _messages_received(state: Coordination, e: ev.RoundStarted | ev.NoteSent) -> Coordination:
    return state if e.heard is None else replace(state, heard={**state.heard, e.agent: e.heard})


@VOTING.on(ev.PresentationStarted)
def _presentation_started(state: Coordination, e: ev.PresentationStarted) -> Coordination:
    return replace(state, presenter=e.agent) if e.agent in state.answers else state


@VOTING.on(ev.FinalAnswerGiven)
def _final_answer_given(state: Coordination, e: ev.FinalAnswerGiven) -> Coordination:
    if e.agent not in state.answers:
        return state
    return replace(state, presenter=e.agent, final=e.answer)


@VOTING.on(ev.OrchestrationRestarted)
def _restarted(state: Coordination, e: ev.OrchestrationRestarted) -> Coordination:
    restart = Restart(e.reason, e.instructions, state.final)
    return replace(
        begin(state.order),
        out=state.out,
        said=state.said,
        said_to=state.said_to,
        heard=state.heard,
        restarts=(*state.restarts, restart),
    )


@VOTING.on(ev.RoundTimedOut, ev.Abstained)
def _gave_no_vote(state: Coordination, e: ev.RoundTimedOut | ev.Abstained) -> Coordination:
    if e.agent not in state.answers:
        return _agent_ended(state, e) if isinstance(e, ev.RoundTimedOut) else state
    return (
        state
        if state.unread_messages(e.agent)
        else replace(state, resting=state.resting | {e.agent})
    )


@VOTING.on(ev.AgentFailed, ev.AgentEnded)
def _agent_ended(state: Coordination, e: ev.AgentEvent) -> Coordination:
    return replace(state, out=state.out | {e.agent})


@VOTING.on(ev.UserMessage)
def _user_message(state: Coordination, e: ev.UserMessage) -> Coordination:
    to = e.to
    state = replace(state, said=(*state.said, e.text), said_to=(*state.said_to, to))
    if state.presenter:
        # The vote is over, so only the presenter still receives messages.
        return state
    if to:  # the other agents' votes stay valid, because nothing is new for them
        votes = {agent: target for agent, target in state.votes.items() if agent != to}
        replies = {agent: count for agent, count in state.replies.items() if agent != to}
        return replace(state, votes=votes, replies=replies, resting=state.resting - {to})
    return replace(state, votes={}, replies={}, resting=frozenset())


# A round's work concerns the team only when the round ends.
VOTING.ignore(
    ev.AgentCalled,
    ev.AgentStateSaved,
    ev.ContextChanged,
    ev.ContextFolded,
    ev.FoldRequested,
    ev.SessionBound,
    ev.ToolFinished,
    ev.ToolNotice,
    ev.ToolStarted,
    ev.TurnRejected,
    ev.VoteIgnored,
    ev.WorktreeBased,
)
VOTING.check()


def next_step(state: Coordination, rules: Rules) -> Step:
    """Return the team's next step."""
    if state.final:
        return Judge(state.presenter)
    if not state.live:
        return Finish(_winner(state)) if state.answers else NoAnswer()
    agents = _at_work(state, rules)
    return Coordinate(agents) if agents else _conclusion(state, rules)


def agents_to_wait_for(state: Coordination, rules: Rules) -> tuple[str, ...]:
    """Return the agents that still have to work before the team can conclude."""
    if state.presenter:
        return ()
    waiting = tuple(a for a in state.live if a not in state.votes and a not in state.resting)
    if is_alone(state) or rules.skips_voting:
        return _yet_to_answer(state, rules, waiting)
    return waiting


def _at_work(state: Coordination, rules: Rules) -> tuple[str, ...]:
    waiting = agents_to_wait_for(state, rules)
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
        # A team of one agent has no vote and no choice.
        return Finish(winner)
    if rules.final == "synthesize":
        # Any remaining agent can combine the answers.
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
    """Return whether neither the agent nor the team has reached its limit of answers."""
    return not _limit_reached(state, rules, agent)


def voting_is_open(state: Coordination, rules: Rules) -> bool:
    """Return whether agents may vote now, because no agent must answer first."""
    if not rules.votes_after_all_answered:
        return True
    return all(a in state.answers or not may_answer(state, rules, a) for a in state.live)


def judge_answer(state: Coordination, rules: Rules, agent: str, answer: str) -> str:
    """Return why an answer is rejected, or "" if it is accepted.

    Args:
        state: The team's state.
        rules: The team's rules.
        agent: The id of the agent that answers.
        answer: The answer's text.
    """
    if refusal := _limit_reached(state, rules, agent):
        return refusal
    or_vote = "" if rules.skips_voting else ", or vote for the best answer"
    for label, peer in labels(state).items():
        if peer not in state.answers:
            continue
        if peer == agent and not state.replies.get(agent):
            # After a message from the user, an agent may repeat its own answer.
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


def judge_vote(
    state: Coordination, voter: str, target: str, seen_answers: Mapping[str, int]
) -> str:
    """Return why a vote is rejected, or "" if it counts.

    Args:
        state: The team's state.
        voter: Id of the agent that votes.
        target: Id of the agent voted for, or "" for an unknown label.
        seen_answers: The answers that the voter had seen, as returned by `seen`.

    Returns:
        "", a message for the agent, or `STALE` if the voter has not seen a newer answer or a
        message from the user.
    """
    if not state.answers:
        return NO_ANSWERS
    if target not in state.answers:
        valid = ", ".join(label for label, a in labels(state).items() if a in state.answers)
        return f"There is no answer with this name. Vote for one of: {valid}."
    return "" if dict(seen_answers) == seen(state) and not state.unread_messages(voter) else STALE


def labels(state: Coordination) -> dict[str, str]:
    """Return the agent ids by anonymous label: agent1, agent2 and so on, in order of the ids."""
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
    """Return the agent with the most votes. Ties go to the agent that was registered first."""
    tally = list(state.votes.values())
    answered = [a for a in state.order if a in state.answers]
    return max(answered, key=tally.count)
