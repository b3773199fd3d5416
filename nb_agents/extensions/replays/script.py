"""The script of a replay: what each agent sent and received, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from nb_agents import events as ev
from nb_agents.agents.message_json import load_messages
from nb_agents.agents.model_runner import past_request
from nb_agents.agents.replay import PastRound, replay
from nb_agents.models.message_order import normalize_messages

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse

_DECISIONS = (ev.AnswerGiven, ev.VoteCast, ev.VoteIgnored, ev.Abstained)


class Mark(NamedTuple):
    """A moment of a turn at which the order of the agents' work matters.

    Attributes:
        kind: The start of a round, the end of a reply, the end of a tool call, or a decision.
        agent: The agent's id.
        name: The number of the round or the call, or the id of the tool call.
    """

    kind: str
    agent: str
    name: int | str

    def __str__(self) -> str:
        """Describe the moment."""
        return f"{self.kind} {self.name} of {self.agent}"


@dataclass(frozen=True)
class Script:
    """The recorded requests, replies and tool results of a turn.

    Attributes:
        requests: The messages of each request, by agent and call.
        replies: The reply to each request that was answered, by agent and call.
        errors: The final error of each request that failed, by agent and call.
        calls: The start of each tool call, by agent and id.
        results: The end of each tool call, by agent and id.
        order: The marks, in the order of the journal.
    """

    requests: Mapping[tuple[str, int], list[ModelMessage]] = field(default_factory=dict)
    replies: Mapping[tuple[str, int], ModelResponse] = field(default_factory=dict)
    errors: Mapping[tuple[str, int], str] = field(default_factory=dict)
    calls: Mapping[tuple[str, str], ev.ToolStarted] = field(default_factory=dict)
    results: Mapping[tuple[str, str], ev.ToolFinished] = field(default_factory=dict)
    order: Sequence[Mark] = ()


def script_of(events: Sequence[ev.Event]) -> Script:
    """Return the script of a turn.

    Requests are rebuilt from the journal with the functions that a resume uses.

    Args:
        events: The turn's events, in order.

    Raises:
        ValueError: A reply is not a valid message.
    """
    requests: dict[tuple[str, int], list[ModelMessage]] = {}
    replies: dict[tuple[str, int], ModelResponse] = {}
    errors: dict[tuple[str, int], str] = {}
    calls: dict[tuple[str, str], ev.ToolStarted] = {}
    results: dict[tuple[str, str], ev.ToolFinished] = {}
    for number, event in enumerate(events, 1):
        match event:
            case ev.ModelStarted(agent=agent, call=call) if (agent, call) not in requests:
                requests[agent, call] = _request(events[:number], agent)
            case ev.ModelFinished(agent=agent, call=call, response=response):
                (reply,) = load_messages([response])
                assert reply.kind == "response"
                replies[agent, call] = reply
            case ev.ModelFailed(agent=agent, call=call, error=error, retry_in_s=None):
                errors[agent, call] = error
            case ev.ToolStarted(agent=agent, call_id=call_id):
                calls[agent, call_id] = event
            case ev.ToolFinished(agent=agent, call_id=call_id):
                results[agent, call_id] = event
    return Script(requests, replies, errors, calls, results, _order(events))


def _request(events: Sequence[ev.Event], agent: str) -> list[ModelMessage]:
    """Return the messages of the request that an agent has just sent."""
    started = events[0]
    assert isinstance(started, ev.TurnStarted)
    past = replay([each.id for each in started.agents], events)
    found = past.rounds.get(agent) or _round_of_child(past.children.get(agent))
    return normalize_messages(past_request(found)) if found else []


def _round_of_child(child: object) -> PastRound | None:
    found = getattr(child, "round", None)
    return found if isinstance(found, PastRound) else None


def _order(events: Sequence[ev.Event]) -> list[Mark]:
    rounds: dict[str, int] = {}
    order = list[Mark]()
    for event in events:
        if isinstance(event, ev.RoundStarted):
            rounds[event.agent] = event.number
        if (mark := mark_of(event, rounds)) is not None:
            order.append(mark)
    return order


def mark_of(event: ev.Event, rounds: Mapping[str, int]) -> Mark | None:
    """Return the mark of an event, or None.

    Args:
        event: The event.
        rounds: The number of each agent's current round.
    """
    match event:
        case ev.RoundStarted(agent=agent, number=number):
            return Mark("round", agent, number)
        case ev.ModelFinished(agent=agent, call=call, purpose=""):
            return Mark("reply", agent, call)
        case ev.ToolFinished(agent=agent, call_id=call_id):
            return Mark("tool call", agent, call_id)
    if isinstance(event, _DECISIONS):
        return Mark("decision in round", event.agent, rounds.get(event.agent, 0))
    return None
