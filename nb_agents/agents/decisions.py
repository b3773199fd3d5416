"""Decides what an agent may do in a round, which notes it gets, and how its calls are read.

`TeamContext` calls the pure functions of `voting` with the current state and elapsed time. Each
note to an agent is an event, so that a resume repeats it word for word. Apart from the methods of
`RoundContext`, everything here is pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from nb_agents import events as ev
from nb_agents.agents import prompts, voting
from nb_agents.agents.capabilities import Results
from nb_agents.agents.stream_buffer import Cut, join, read_arguments
from nb_agents.agents.voting import STALE, Rules
from nb_agents.config.decision_tools import (
    ANSWER,
    OF_JUDGES,
    OF_MEMBERS,
    RESTART,
    SUBMIT,
    VOTE,
    DecisionTool,
)
from nb_agents.tools.base import ToolDefinition

_UNREADABLE = "the arguments of its call were not valid JSON"

MAX_NEWS = 2
"""How many times per round a working agent is shown new answers. Source: MassGen."""


@dataclass(frozen=True)
class Answered:
    """The agent answered."""

    answer: str


@dataclass(frozen=True)
class Voted:
    """The agent voted. The vote counts unless a newer answer arrives before it is recorded."""

    target: str
    reason: str


@dataclass(frozen=True)
class Abstention:
    """The agent does not vote, because its model can't call tools. Its answer still counts."""


@dataclass(frozen=True)
class Stale:
    """The agent voted without having seen the newest answers."""

    target: str


@dataclass(frozen=True)
class Submitted:
    """The judge accepted the final answer."""


@dataclass(frozen=True)
class Rejected:
    """The judge rejected the final answer, so the team must start again."""

    reason: str
    instructions: str


Decision = Answered | Voted | Stale | Abstention | Submitted | Rejected
"""How an agent's round ends."""


@dataclass(frozen=True)
class Offer:
    """The decisions that an agent's next request offers.

    Attributes:
        answers: Whether it may answer.
        voters: The labels that it may vote for, including those of agents without an answer. Empty
            if it may not vote.
        text_counts: Whether plain text is an answer (for a presenter, or a team of one).
        text_stands_for: For models that never call tools, what plain text means once it has been
            rejected twice: an answer, or an abstention if the agent has answered.
        judges: Whether it can only judge the final answer.
        must_decide: Whether its time is up and it can call only decision tools.
    """

    answers: bool = True
    voters: tuple[str, ...] = ()
    text_counts: bool = False
    text_stands_for: Literal["", "answer", "no vote"] = ""
    judges: bool = False
    must_decide: bool = False

    @property
    def decisions(self) -> tuple[str, ...]:
        """The names reserved for decision tools in this round."""
        return OF_JUDGES if self.judges else OF_MEMBERS

    @property
    def names(self) -> str:
        """The decision tools that the agent can call, joined by "or"."""
        if self.judges:
            return " or ".join(OF_JUDGES)
        return " or ".join([ANSWER.name] * self.answers + [VOTE.name] * bool(self.voters))


class Verdict(NamedTuple):
    """The result of checking a vote.

    Attributes:
        target: The id of the agent with the label, or "" if there is none.
        refusal: Why the vote is rejected, or "".
    """

    target: str
    refusal: str


class Note(NamedTuple):
    """Notes for an agent's next request.

    Attributes:
        text: The text after the tool results, or "".
        in_result: The text at the end of the last tool result, or "".
    """

    text: str = ""
    in_result: str = ""


class RoundContext(Protocol):
    """The rules and notes for one agent in one round."""

    def offer(self) -> Offer:
        """Return the decisions that the agent's next request offers."""
        ...

    def judge_answer(self, answer: str) -> str:
        """Return why an answer is rejected, or ""."""
        ...

    def judge_vote(self, label: str) -> Verdict:
        """Check a vote for the agent with a label."""
        ...

    def note(self, *, was_refused: bool) -> Note:
        """Return the note for the agent's next request."""
        ...

    def take_messages(self) -> str:
        """Return the user's new messages, which go into the agent's next request, or ""."""
        ...


class Reading(NamedTuple):
    """The result of reading a response.

    Attributes:
        decision: The decision in it, or None.
        complaint: The message to the agent if the response is rejected, or "".
        fault: The reason for a rejection, for the user, as part of a sentence.
        cut: How the reply was cut off, or None.
        kept: The part of the answer received so far, if the reply was cut off.
    """

    decision: Decision | None
    complaint: str = ""
    fault: str = ""
    cut: Cut | None = None
    kept: str = ""


def read_call(
    name: str, args: str | dict[str, Any] | None, context: RoundContext, answer_so_far: str = ""
) -> Reading:
    """Read the decision in a call to a decision tool.

    Args:
        name: The tool's name, one of `DECISIONS`.
        args: The call's arguments, as JSON text or a mapping.
        context: Validates the decision.
        answer_so_far: The beginning of the answer, from earlier replies that were cut off.
    """
    if name == SUBMIT.name:
        return Reading(Submitted())
    arguments = read_arguments(args)
    if arguments is None:
        return Reading(None, prompts.UNREADABLE, _UNREADABLE)
    match name:
        case ANSWER.name:
            return read_answer(
                join(answer_so_far, str(arguments.get("content") or "")).strip(), context
            )
        case VOTE.name:
            return _read_vote(arguments, context)
        case _:
            return _read_restart(arguments)


def _read_restart(args: dict[str, Any]) -> Reading:
    reason, instructions = (str(args.get(key) or "") for key in ("reason", "instructions"))
    if not (reason.strip() and instructions.strip()):
        return Reading(None, prompts.NO_REASON, "it gave no reason or no instructions")
    return Reading(Rejected(reason, instructions))


def read_plain(text: str, offer: Offer) -> Reading:
    """Reject plain text that does not count as an answer."""
    if not text.strip():
        complaint = prompts.REMINDER.format(tools=offer.names) if offer.names else prompts.NO_TEXT
        return Reading(None, complaint, "it wrote nothing")
    complaint = prompts.REMINDER.format(tools=offer.names)
    return Reading(None, complaint, "it wrote plain text and called no tool")


def read_answer(answer: str, context: RoundContext) -> Reading:
    """Check a complete answer, and return the result as a `Reading`."""
    if not answer:
        return Reading(None, prompts.EMPTY, "its answer was empty")
    if refusal := context.judge_answer(answer):
        return Reading(
            None,
            refusal,
            "its answer exceeded the limit of answers or resembled an existing answer",
        )
    return Reading(Answered(answer))


def _read_vote(args: dict[str, Any], context: RoundContext) -> Reading:
    target, refusal = context.judge_vote(str(args.get("agent_id") or ""))
    if refusal == STALE:
        return Reading(Stale(target))
    if refusal:
        return Reading(None, refusal, "its vote came too early or named an agent without an answer")
    return Reading(Voted(target, str(args.get("reason") or "")))


def decision_tools(offer: Offer) -> list[ToolDefinition]:
    """Return the decision tools that an offer includes."""
    text = {"type": "string"}
    if offer.judges:
        confirmed = {"type": "boolean", "enum": [True]}
        return [_defined(SUBMIT, confirmed), _defined(RESTART, text, text)]
    voted = {"type": "string", "enum": list(offer.voters)}
    answers = [_defined(ANSWER, text)] * offer.answers
    return [*answers, *[_defined(VOTE, voted, text)] * bool(offer.voters)]


def _defined(tool: DecisionTool, *types: dict[str, Any]) -> ToolDefinition:
    schema = {
        "type": "object",
        "properties": dict(zip(tool.arguments, types, strict=True)),
        "required": list(tool.arguments),
        "additionalProperties": False,
    }
    return ToolDefinition(tool.name, tool.description, schema, ends_round=True)


@dataclass
class TeamContext:
    """The rules and notes for one agent of a team in one round.

    Attributes:
        agent: The agent's id.
        rules: The team's rules.
        state: Returns the team's state.
        elapsed: Returns the time that the agent has used.
        emit: Called with each event.
        known: The number of answers of each agent that this agent has seen.
        news: How many times it was shown new answers in this round.
        is_presenting: Whether it presents or judges the final answer.
        is_judging: Whether it judges the final answer.
        results: Returns new results of its background sub-agents.
    """

    agent: str
    rules: Rules
    state: Callable[[], voting.Coordination]
    elapsed: Callable[[], prompts.Elapsed]
    emit: Callable[[ev.Event], None]
    known: dict[str, int]
    news: int = 0
    is_presenting: bool = False
    is_judging: bool = False
    results: Callable[[], Results] = Results
    _wraps_up: bool = False

    def offer(self) -> Offer:
        """Return the decisions that the agent's next request offers."""
        late = prompts.round_is_over(self.elapsed())
        state = self.state()
        if self.is_judging:
            # Plain text from a model that can't call tools accepts the answer.
            return Offer(answers=False, text_stands_for="no vote", judges=True, must_decide=late)
        if not self._can_vote():
            counts = self.is_presenting or self._is_alone()
            return Offer(
                text_counts=counts, text_stands_for="" if counts else "answer", must_decide=late
            )
        is_open = bool(self.known) and voting.voting_is_open(state, self.rules)
        # Agents without an answer are included. The start of a round's requests then stays the same
        # when another agent answers, and the provider's cache stays valid. MassGen does the same.
        voters = voting.labels(state) if is_open else ()
        answers = voting.may_answer(state, self.rules, self.agent)
        # An agent that may neither answer nor vote is offered an answer, which is then rejected, so
        # that it sees the new answers.
        return Offer(
            answers or not voters,
            tuple(voters),
            text_stands_for=self._text_stands_for(answers),
            must_decide=late,
        )

    def _text_stands_for(self, may_answer: bool) -> Literal["", "answer", "no vote"]:
        """Return what plain text means from a model that can't call tools."""
        state = self.state()
        if state.replies.get(self.agent) and not state.unread_messages(self.agent):
            return "no vote"
        return "answer" if may_answer else ""

    def judge_answer(self, answer: str) -> str:
        """Return why an answer is rejected, or "". A presenter's answer is always accepted."""
        if self.is_presenting:
            return ""
        return voting.judge_answer(self.state(), self.rules, self.agent, answer)

    def judge_vote(self, label: str) -> Verdict:
        """Check a vote, given the answers that the agent has seen."""
        if not self._can_vote():
            return Verdict("", voting.NO_VOTING)
        state = self.state()
        target = voting.labels(state).get(label, "")
        if state.answers and not voting.voting_is_open(state, self.rules):
            return Verdict(target, voting.TOO_EARLY)
        return Verdict(target, voting.judge_vote(state, self.agent, target, self.known))

    def opening_note(self) -> str:
        """Return the note for the round's prompt: `prompts.WRAP_UP` if time is short, or ""."""
        self._wraps_up = prompts.is_late(self.elapsed())
        return prompts.WRAP_UP if self._wraps_up else ""

    def note(self, *, was_refused: bool) -> Note:
        """Return the note for the next request: sub-agents' results, new answers, the time left.

        Args:
            was_refused: Whether the agent's answer was just rejected.
        """
        news = self._take_news(was_refused)
        elapsed = self.elapsed()
        late = prompts.is_late(elapsed) and not self._wraps_up
        self._wraps_up |= late
        time = prompts.time_note(elapsed, self.offer().names, wraps_up=late)
        results = self.results()
        after, within = ("", results.text) if results.in_result else (results.text, "")
        note = Note("\n\n".join(part for part in (after, news, time) if part), within)
        self.emit(
            ev.NoteSent(
                agent=self.agent,
                text=note.text,
                seen=dict(self.known) if news else None,
                subagents=results.subagents,
                in_result=note.in_result,
            )
        )
        return note

    def take_messages(self) -> str:
        """Return the user's messages that the agent has not read yet, or ""."""
        state = self.state()
        texts = state.unread_messages(self.agent)
        if not texts:
            return ""
        text = prompts.follow_up(texts)
        self.emit(ev.NoteSent(agent=self.agent, text=text, heard=len(state.said)))
        return text

    def _take_news(self, was_refused: bool) -> str:
        state = self.state()
        now = voting.seen(state)
        fresh = [a for a in now if now[a] != self.known.get(a) and a != self.agent]
        if not fresh or not self._may_be_shown(state, was_refused):
            return ""
        self.news += 1
        self.known = now
        names = {agent: label for label, agent in voting.labels(state).items()}
        return prompts.new_answers_message({names[a]: state.answers[a][-1] for a in sorted(fresh)})

    def _may_be_shown(self, state: voting.Coordination, was_refused: bool) -> bool:
        """Return whether the agent may see new answers now.

        An agent without an answer works independently. It sees the other answers only after its own
        answer was rejected, or when it may no longer answer.
        """
        if self.is_presenting or (self.news >= MAX_NEWS and self.known):
            return False
        has_answered = self.agent in state.answers
        return has_answered or was_refused or not voting.may_answer(state, self.rules, self.agent)

    def _can_vote(self) -> bool:
        return not (self.is_presenting or self._is_alone() or self.rules.skips_voting)

    def _is_alone(self) -> bool:
        return voting.is_alone(self.state())
