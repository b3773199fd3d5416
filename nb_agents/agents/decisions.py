"""Decide what an agent may do in a round, which notes it gets, and what its calls mean.

`TeamContext` calls the pure functions of `voting` with the current state and elapsed time. Each
note to an agent is an event, so that a resume repeats its exact words. Apart from the context's
judges, everything here is pure.
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

_UNREADABLE = "the arguments of its call could not be read"

MAX_NEWS = 2
"""Times a round in which a working agent is shown new answers. Source: MassGen."""


@dataclass(frozen=True)
class Answered:
    """The turn ended in an answer."""

    answer: str


@dataclass(frozen=True)
class Voted:
    """The turn ended in a vote that counts when it is still fresh."""

    target: str
    reason: str


@dataclass(frozen=True)
class Abstention:
    """The turn ended without a vote, by a model that calls no tools; its answer stands."""


@dataclass(frozen=True)
class Stale:
    """The turn ended in a vote over answers that have since been outdone."""

    target: str


@dataclass(frozen=True)
class Submitted:
    """The final answer will do."""


@dataclass(frozen=True)
class Refused:
    """The final answer will not do, and the team is to begin again."""

    reason: str
    instructions: str


Decision = Answered | Voted | Stale | Abstention | Submitted | Refused


@dataclass(frozen=True)
class Offer:
    """What an agent may do with its next request.

    Attributes:
        answers: Whether it may answer.
        voters: Names that a vote is for, those included that have no answer yet; none leaves only
            answering.
        text_counts: Whether plain text is an answer (presenting, or a team of one).
        text_stands_for: What plain text stands for once it was refused twice, as there are models
            that never call a tool: an answer, or, of an agent whose answer stands, no vote.
        judges: Whether it judges the final answer, and can do nothing else.
        must_decide: Whether its time is over, so that no other tool is left.
    """

    answers: bool = True
    voters: tuple[str, ...] = ()
    text_counts: bool = False
    text_stands_for: Literal["", "answer", "no vote"] = ""
    judges: bool = False
    must_decide: bool = False

    @property
    def decisions(self) -> tuple[str, ...]:
        """The names of tools that are no tools now, but end the turn."""
        return OF_JUDGES if self.judges else OF_MEMBERS

    @property
    def names(self) -> str:
        """The tools that end a turn, in words."""
        if self.judges:
            return " or ".join(OF_JUDGES)
        return " or ".join([ANSWER.name] * self.answers + [VOTE.name] * bool(self.voters))


class Verdict(NamedTuple):
    """What a vote's label stands for: an agent's id or "", and "" or why it does not count."""

    target: str
    refusal: str


class Note(NamedTuple):
    """Texts that go with an agent's next request.

    Attributes:
        text: After the tools' results; may be "".
        in_result: At the end of the last of these; may be "".
    """

    text: str = ""
    in_result: str = ""


class RoundContext(Protocol):
    """What one agent may decide in one round, and the notes that it gets."""

    def offer(self) -> Offer:
        """Return what the agent may do with its next request."""
        ...

    def judge_answer(self, answer: str) -> str:
        """Return why an answer is refused, or ""."""
        ...

    def judge_vote(self, label: str) -> Verdict:
        """Return the verdict on a vote."""
        ...

    def note(self, *, was_refused: bool) -> Note:
        """Return the note that goes with its next request."""
        ...

    def hear(self) -> str:
        """Return the follow-up texts that the agent reads right before a request; usually ""."""
        ...


class Reading(NamedTuple):
    """What a response says.

    Attributes:
        decision: How it ends the turn, or None.
        complaint: Message to the agent when the response is rejected, else "".
        fault: The same for people, as part of a sentence.
        cut: How the reply was cut off, or None.
        kept: With a cut, the answer so far.
    """

    decision: Decision | None
    complaint: str = ""
    fault: str = ""
    cut: Cut | None = None
    kept: str = ""


def read_call(
    name: str, args: str | dict[str, Any] | None, context: RoundContext, kept: str = ""
) -> Reading:
    """Read the decision in a call of a tool that ends a round.

    Args:
        name: One of `DECISIONS`.
        args: The call's arguments: JSON text or a mapping.
        context: Judges it.
        kept: The answer so far, of replies that were cut off.
    """
    if name == SUBMIT.name:
        return Reading(Submitted())
    known = read_arguments(args)
    if known is None:
        return Reading(None, prompts.UNREADABLE, _UNREADABLE)
    match name:
        case ANSWER.name:
            return judged(join(kept, str(known.get("content") or "")).strip(), context)
        case VOTE.name:
            return _read_vote(known, context)
        case _:
            return _read_restart(known)


def _read_restart(args: dict[str, Any]) -> Reading:
    reason, instructions = (str(args.get(key) or "") for key in ("reason", "instructions"))
    if not (reason.strip() and instructions.strip()):
        return Reading(None, prompts.NO_REASON, "it gave no reason or no instructions")
    return Reading(Refused(reason, instructions))


def read_plain(text: str, offer: Offer) -> Reading:
    """Return the reading of plain text where it is no answer."""
    if not text.strip():
        complaint = prompts.REMINDER.format(tools=offer.names) if offer.names else prompts.NO_TEXT
        return Reading(None, complaint, "it said nothing")
    complaint = prompts.REMINDER.format(tools=offer.names)
    return Reading(None, complaint, "it wrote plain text and called no tool")


def judged(answer: str, context: RoundContext) -> Reading:
    """Return the reading of an answer that is whole."""
    if not answer:
        return Reading(None, prompts.EMPTY, "its answer was empty")
    if refusal := context.judge_answer(answer):
        return Reading(None, refusal, "its answer was one too many, or too like one that is there")
    return Reading(Answered(answer))


def _read_vote(args: dict[str, Any], context: RoundContext) -> Reading:
    target, refusal = context.judge_vote(str(args.get("agent_id") or ""))
    if refusal == STALE:
        return Reading(Stale(target))
    if refusal:
        return Reading(
            None, refusal, "its vote was for nobody who has an answer, or came too early"
        )
    return Reading(Voted(target, str(args.get("reason") or "")))


def decision_tools(offer: Offer) -> list[ToolDefinition]:
    """Return the tools that end a round."""
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
    """The context of a working agent in a team.

    Attributes:
        agent: The agent's id.
        rules: What is allowed.
        state: Returns the team's state.
        elapsed: Returns how much of the agent's time has passed.
        emit: Called with each event.
        known: For each agent with answers, how many of them this one has seen.
        news: How often it was shown new answers in this round.
        is_presenting: Whether it presents, or judges what it presented.
        is_judging: Whether it does the latter.
        results: Returns new results of its sub-agents in the background.
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
        """Return what the agent may do with its next request."""
        late = prompts.round_is_over(self.elapsed())
        state = self.state()
        if self.is_judging:
            # The text of a model that calls no tool lets the answer stand.
            return Offer(answers=False, text_stands_for="no vote", judges=True, must_decide=late)
        if not self._can_vote():
            counts = self.is_presenting or self._is_alone()
            return Offer(
                text_counts=counts, text_stands_for="" if counts else "answer", must_decide=late
            )
        is_open = bool(self.known) and voting.voting_is_open(state, self.rules)
        # All of them, also those without an answer: what a round's requests begin with stays the
        # same when another answers, and is cached. MassGen names all, too.
        voters = voting.labels(state) if is_open else ()
        answers = voting.may_answer(state, self.rules, self.agent)
        # Who could do neither answers, is refused, and is shown what there is to vote on.
        return Offer(
            answers or not voters,
            tuple(voters),
            text_stands_for=self._text_stands_for(answers),
            must_decide=late,
        )

    def _text_stands_for(self, may_answer: bool) -> Literal["", "answer", "no vote"]:
        """Return what plain text of a model that calls no tools counts as."""
        state = self.state()
        if state.replies.get(self.agent) and not state.unheard(self.agent):
            return "no vote"
        return "answer" if may_answer else ""

    def judge_answer(self, answer: str) -> str:
        """Return why an answer is refused, or ""; the presenter's is always accepted."""
        if self.is_presenting:
            return ""
        return voting.judge_answer(self.state(), self.rules, self.agent, answer)

    def judge_vote(self, label: str) -> Verdict:
        """Return the verdict on a vote, given the answers that the agent has seen."""
        if not self._can_vote():
            return Verdict("", voting.NO_VOTING)
        state = self.state()
        target = voting.labels(state).get(label, "")
        if state.answers and not voting.voting_is_open(state, self.rules):
            return Verdict(target, voting.TOO_EARLY)
        return Verdict(target, voting.judge_vote(state, self.agent, target, self.known))

    def opening_note(self) -> str:
        """Return the note that opens the round: only how much time is left, once that is short."""
        self._wraps_up = prompts.is_late(self.elapsed())
        return prompts.WRAP_UP if self._wraps_up else ""

    def note(self, *, was_refused: bool) -> Note:
        """Return the note of the next request: results, new answers, the time left.

        Args:
            was_refused: Whether an answer of its was just refused.
        """
        news = self._take_news(was_refused)
        elapsed = self.elapsed()
        late = prompts.is_late(elapsed) and not self._wraps_up
        self._wraps_up |= late
        time = prompts.time_note(elapsed, self.offer().names, wraps_up=late)
        results = self.results()
        behind, within = ("", results.text) if results.in_result else (results.text, "")
        note = Note("\n\n".join(part for part in (behind, news, time) if part), within)
        self.emit(
            ev.Told(
                agent=self.agent,
                text=note.text,
                seen=dict(self.known) if news else None,
                subagents=results.subagents,
                in_result=note.in_result,
            )
        )
        return note

    def hear(self) -> str:
        """Return the follow-up texts that the agent has not read yet, or ""."""
        state = self.state()
        texts = state.unheard(self.agent)
        if not texts:
            return ""
        text = prompts.follow_up(texts)
        self.emit(ev.Told(agent=self.agent, text=text, heard=len(state.said)))
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
        return prompts.news({names[a]: state.answers[a][-1] for a in sorted(fresh)})

    def _may_be_shown(self, state: voting.Coordination, was_refused: bool) -> bool:
        """Return whether the agent may be shown new answers now.

        An agent that has not answered yet works independently while it may still answer. After a
        refused answer, or once a limit is reached, it can only vote.
        """
        if self.is_presenting or (self.news >= MAX_NEWS and self.known):
            return False
        has_answered = self.agent in state.answers
        return has_answered or was_refused or not voting.may_answer(state, self.rules, self.agent)

    def _can_vote(self) -> bool:
        return not (self.is_presenting or self._is_alone() or self.rules.skips_voting)

    def _is_alone(self) -> bool:
        return voting.is_alone(self.state())
