"""How a model ends its turn: the tools that it is offered, and what its response says.

Pure but for the judges that it asks: `RoundContext` says what is allowed now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from nb_agents.agents import prompts
from nb_agents.agents.cuts import Cut, join
from nb_agents.agents.stream_buffer import read_arguments
from nb_agents.agents.voting import STALE

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.tools import ToolDefinition

__all__ = [
    "Abstained",
    "Answered",
    "Decision",
    "Offer",
    "Reading",
    "RoundContext",
    "Stale",
    "Verdict",
    "Voted",
    "decision_tools",
    "has_refused_answer",
    "read_response",
]


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
class Abstained:
    """The turn ended without a vote, by a model that calls no tools; its answer stands."""


@dataclass(frozen=True)
class Stale:
    """The turn ended in a vote over answers that have since been outdone."""

    target: str


Decision = Answered | Voted | Stale | Abstained


@dataclass(frozen=True)
class Offer:
    """What an agent may do with its next request.

    Attributes:
        answers: Whether it may answer.
        voters: Names that it may vote for; none leaves only answering.
        text_counts: Whether plain text is an answer (presenting, or a team of one).
        text_stands_for: What plain text stands for once it was refused twice, as there are models
            that never call a tool: an answer, or, of an agent whose answer stands, no vote.
        must_decide: Whether its time is over, so that no other tool is left.
    """

    answers: bool = True
    voters: tuple[str, ...] = ()
    text_counts: bool = False
    text_stands_for: Literal["", "answer", "no vote"] = ""
    must_decide: bool = False

    @property
    def names(self) -> str:
        """The tools that end a turn, in words."""
        return " or ".join(["new_answer"] * self.answers + ["vote"] * bool(self.voters))


class Verdict(NamedTuple):
    """What a vote's label stands for: an agent's id or "", and "" or why it does not count."""

    target: str
    refusal: str


class RoundContext(Protocol):
    """An agent's place in its team, for one round: what it may do, and what it is told."""

    def offer(self) -> Offer:
        """Say what it may do with its next request."""
        ...

    def judge_answer(self, answer: str) -> str:
        """Judge an answer: "" when it is taken, else why not."""
        ...

    def judge_vote(self, label: str) -> Verdict:
        """Judge a vote."""
        ...

    def note(self, *, was_refused: bool) -> str:
        """Say what it is told with its next request, after the tools' results; may be ""."""
        ...

    def hear(self) -> str:
        """Say what else it is told right before a request: follow-up texts; mostly ""."""
        ...


class Reading(NamedTuple):
    """What a response says.

    Attributes:
        decision: How it ends the turn, or None.
        complaint: What the agent is told when it does not; "" while it works on.
        fault: The same for a person, as a part of a sentence.
        cut: How the reply was cut off, or None.
        kept: With a cut, the answer so far.
    """

    decision: Decision | None
    complaint: str = ""
    fault: str = ""
    cut: Cut | None = None
    kept: str = ""


def read_response(
    response: ModelResponse, seat: RoundContext, offer: Offer, kept: str = ""
) -> Reading:
    """Read the answer or vote out of a response.

    Args:
        response: The model's message; of several answers or votes the last one counts.
        seat: Judges it.
        offer: What the model was offered.
        kept: The answer so far, of replies that were cut off.

    Returns:
        The decision, or why there is none.
    """
    answers = [c for c in response.tool_calls if c.tool_name == "new_answer"]
    votes = [c for c in response.tool_calls if c.tool_name == "vote"]
    if answers and votes:
        return Reading(None, prompts.BOTH, "it answered and voted at once")
    if answers:
        return _read_answer(answers[-1], seat, kept)
    if votes:
        return _read_vote(votes[-1], seat)
    if response.tool_calls:
        return Reading(None)
    text = response.text or ""
    if offer.text_counts and text.strip():
        return _judged(join(kept, text).strip(), seat)
    return _read_plain(text, offer)


def _read_plain(text: str, offer: Offer) -> Reading:
    if not text.strip():
        complaint = prompts.REMINDER.format(tools=offer.names) if offer.names else prompts.NO_TEXT
        return Reading(None, complaint, "it said nothing")
    complaint = prompts.REMINDER.format(tools=offer.names)
    return Reading(None, complaint, "it wrote plain text and called no tool")


def _read_answer(call: ToolCallPart, seat: RoundContext, kept: str) -> Reading:
    args = read_arguments(call.args)
    if args is None:
        return Reading(None, prompts.UNREADABLE, _UNREADABLE)
    return _judged(join(kept, str(args.get("content") or "")).strip(), seat)


def _judged(answer: str, seat: RoundContext) -> Reading:
    if not answer:
        return Reading(None, prompts.EMPTY, "its answer was empty")
    if refusal := seat.judge_answer(answer):
        return Reading(None, refusal, "its answer was one too many, or too like one that is there")
    return Reading(Answered(answer))


def _read_vote(call: ToolCallPart, seat: RoundContext) -> Reading:
    args = read_arguments(call.args)
    if args is None:
        return Reading(None, prompts.UNREADABLE, _UNREADABLE)
    target, refusal = seat.judge_vote(str(args.get("agent_id") or ""))
    if refusal == STALE:
        return Reading(Stale(target))
    if refusal:
        return Reading(
            None, refusal, "its vote was for nobody who has an answer, or came too early"
        )
    return Reading(Voted(target, str(args.get("reason") or "")))


_UNREADABLE = "the arguments of its call could not be read"


def has_refused_answer(response: ModelResponse, complaint: str) -> bool:
    """Whether a response holds a whole answer, and ``complaint`` is why that was not taken."""
    answered = any(call.tool_name == "new_answer" for call in response.tool_calls)
    malformed = ("", prompts.BOTH, prompts.UNREADABLE, prompts.EMPTY)
    return answered and complaint not in malformed


def decision_tools(offer: Offer) -> list[ToolDefinition]:
    """Make the tools that end a turn."""
    from pydantic_ai.tools import ToolDefinition

    text = {"type": "string"}
    answer = ToolDefinition(
        name="new_answer",
        description="Submit your complete answer to the task.",
        parameters_json_schema=_schema({"content": text}),
    )
    vote = ToolDefinition(
        name="vote",
        description="Vote for the best of the current answers.",
        parameters_json_schema=_schema(
            {"agent_id": {"type": "string", "enum": list(offer.voters)}, "reason": text}
        ),
    )
    return [answer] * offer.answers + [vote] * bool(offer.voters)


def _schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
