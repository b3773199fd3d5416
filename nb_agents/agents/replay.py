"""What a past turn leaves for a resume: a pure fold of its events.

The coordination machine gets its own past. Each agent's open round comes back as the messages that
it had exchanged, down to the tool call: what finished is never asked for again, what never ran or
was cut runs now. The driver goes on from there as if nothing had been.

`telling_changes` notes besides what an agent changed outside its workspace while it could.
"""

from __future__ import annotations

import re
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from nb_agents import events as ev
from nb_agents.agents import voting
from nb_agents.process.writable import WritablePath
from nb_agents.tools.workspace import compare, look
from nb_agents.view.growing import grown

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

__all__ = [
    "Exchange",
    "OpenRound",
    "Past",
    "PastChild",
    "dump_messages",
    "load_messages",
    "load_round",
    "readable",
    "replay",
    "telling_changes",
]

MAX_NAMED = 100
LOOK_S = 2.0
"""A stop waits no longer for the look at what was changed."""

_POSITION = re.compile("[0-9]{1,9}")


@asynccontextmanager
async def telling_changes(
    agent: str, places: Sequence[WritablePath], emit: Callable[[ev.Event], None]
) -> AsyncIterator[None]:
    """Emit what changed within the block when it ends, also when a stop ends it.

    Args:
        agent: Who may change it.
        places: Where.
        emit: Takes what happened.
    """
    if not places:
        yield
        return
    look_at = partial(to_thread.run_sync, look, places, abandon_on_cancel=True)
    before = await look_at()
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(LOOK_S):
            found = compare(before, await look_at())
            if any(found):
                emit(
                    ev.ContextChanged(
                        agent=agent,
                        made=found.made[:MAX_NAMED],
                        changed=found.changed[:MAX_NAMED],
                        deleted=found.deleted[:MAX_NAMED],
                        count=sum(map(len, found)),
                    )
                )


@dataclass(frozen=True)
class Exchange:
    """A finished model request and what came of it.

    Attributes:
        call: The agent's number of the request.
        response: The model's message: pydantic-ai's JSON in a `Past`, a ModelResponse at work.
        results: By position of the tool call: (what the model is told, whether it is an error).
        begun: Positions of calls that were cut or whose end is unknown: they may have happened.
        complaint: Why the turn was rejected, or what was told of its cut; else "".
        kept: Of a reply that was cut off, the answer so far; else None.
        notes: What the agent was told besides, before its next request.
        in_result: What it was told besides at the end of its last tool's result.
    """

    call: int
    response: Any
    results: dict[int, tuple[str, bool]] = field(default_factory=dict)
    begun: frozenset[int] = frozenset()
    complaint: str = ""
    kept: str | None = None
    notes: tuple[str, ...] = ()
    in_result: str = ""

    @property
    def is_known(self) -> bool:
        """Whether it is known that the response decided nothing."""
        return bool(self.complaint) or self.kept is not None


@dataclass(frozen=True)
class OpenRound:
    """A round that a stop or a crash left undecided.

    Attributes:
        number: From 1.
        seen: What the agent had seen, as `voting.seen` gave it.
        request: How the round opened, as pydantic-ai's JSON.
        exchanges: Finished requests, in order; only the last may have tool calls left to run.
        was_asking: Whether a request was open: it is sent again.
        news: How often the agent was shown new answers.
        notes: What it was told besides how the round opened, before its first request.
    """

    number: int
    seen: dict[str, int]
    request: list[Any]
    exchanges: tuple[Exchange, ...] = ()
    was_asking: bool = False
    news: int = 0
    notes: tuple[str, ...] = ()

    @property
    def has_answered(self) -> bool:
        """Whether its last response is an answer, and calls no tool."""
        if self.was_asking or not self.exchanges:
            return False
        last = self.exchanges[-1]
        parts = last.response.get("parts", ())
        is_whole = not last.complaint and last.kept is None
        return is_whole and all(part.get("part_kind") != "tool-call" for part in parts)


@dataclass(frozen=True)
class PastChild:
    """An agent that another one had spawned.

    Attributes:
        caller: Who did.
        name: The name that it was called by.
        input: What it was asked.
        text: What it wrote last; None as long as it has not finished.
        error: Why it failed, or "".
        is_told: Whether its caller knows how it ended.
    """

    caller: str
    name: str
    input: str
    text: str | None = None
    error: str = ""
    is_told: bool = False


@dataclass(frozen=True)
class Past:
    """Where a turn was when it ended.

    Attributes:
        state: The coordination machine's state.
        rounds: For each agent with an open round, that round.
        failed: For each agent that failed and has not been asked since, the event of its failure.
        round_numbers, calls: For each agent, how many rounds and requests it had begun.
        unread: Agents whose open round holds what is no message, in a damaged journal: they begin
            a new one.
        spawned: By the ids that their callers know, the agents that were spawned.
    """

    state: voting.Coordination
    rounds: Mapping[str, OpenRound] = field(default_factory=dict)
    failed: dict[str, ev.Event] = field(default_factory=dict)
    round_numbers: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    spawned: Mapping[str, PastChild] = field(default_factory=dict)


def replay(order: Sequence[str], events: Iterable[ev.Event], again: Collection[str] = ()) -> Past:
    """Fold the events of a turn, or of a chain of turns that resumed one another.

    Agents that failed are asked again; those that a person stopped alone are when they are named,
    or when nobody is left and none has answered. What agents that others called did is theirs
    alone: a call that was cut is made again, by a new one.

    Args:
        order: Agent ids in registration order; a recipe, whose steps try again, has none.
        events: In journal order; the endings that a run's stop made are passed over.
        again: Agents that a person names: they take part again, and may change what was chosen.

    Returns:
        Where a resume goes on.
    """
    called: set[str] = set()
    told: list[ev.Event] = []
    failed: dict[str, ev.Event] = {}
    spawned = _Spawned()
    for event in events:
        agent = getattr(event, "agent", "")
        spawned.take(event)
        if isinstance(event, ev.AgentCalled):
            called.add(agent)
        if isinstance(event, ev.TurnStarted):
            failed |= _fold(order, told).failed
            told = _reopened(order, told, event.again)
        if isinstance(event, ev.RoundStarted | ev.ModelStarted):
            failed.pop(agent, None)
        if agent not in called:
            told.append(event)
    whole = _fold(order, told)
    past = _fold(order, _reopened(order, told, again))
    # Rounds and requests are counted on, also where what they came to is dropped.
    numbers, calls = whole.round_numbers, whole.calls
    return replace(
        past,
        failed=failed | whole.failed,
        round_numbers=numbers,
        calls=calls,
        spawned=spawned.known,
    )


class _Spawned:
    """Collects the agents that others had spawned."""

    def __init__(self) -> None:
        self.known: dict[str, PastChild] = {}
        self._ids: dict[str, str] = {}
        self._said: dict[str, Any] = {}

    def take(self, event: ev.Event) -> None:
        if isinstance(event, ev.AgentCalled) and event.spawned:
            self._ids[event.agent] = event.spawned
            self.known[event.spawned] = PastChild(event.caller, event.name, event.input)
        if isinstance(event, ev.Told | ev.ToolFinished):
            for told in self.known.keys() & {*event.subagents}:
                self.known[told] = replace(self.known[told], is_told=True)
        spawned = self._ids.get(getattr(event, "agent", ""), "")
        if not spawned:
            return
        child = self.known[spawned]
        match event:
            case ev.ModelFinished(response=response):
                self._said[spawned] = response
            case ev.AgentEnded(outcome="finished"):
                self.known[spawned] = replace(child, text=_text_of(self._said.get(spawned)))
            case ev.AgentFailed(error=error):
                self.known[spawned] = replace(child, error=error)


def _text_of(response: Any) -> str | None:
    """Return what a stored response says; None for one that is no message."""
    try:
        (message,) = load_messages([response])
    except ValueError:
        return None
    return getattr(message, "text", None)


def readable(past: Past) -> Past:
    """Drop the rounds that can't be gone on with, because what they hold is no message."""
    unread = tuple(agent for agent, each in past.rounds.items() if not _is_readable(each))
    rounds = {agent: each for agent, each in past.rounds.items() if agent not in unread}
    return replace(past, rounds=rounds, unread=unread)


def _is_readable(past: OpenRound) -> bool:
    try:
        load_messages(past.request)
        load_round(past)
    except ValueError:
        return False
    return True


def _reopened(
    order: Sequence[str], events: list[ev.Event], again: Collection[str]
) -> list[ev.Event]:
    """Drop what put agents out that are asked again; for named ones the presentation, too."""
    if not order:
        return events
    past = _fold(order, events)
    is_nobody_left = not (past.state.live or past.state.answers or again)
    stopped = set(order) if is_nobody_left else set(again)
    kept: list[ev.Event] = []
    presenter, begun = "", _last_attempt(events)
    for number, event in enumerate(events):
        agent = getattr(event, "agent", "")
        is_end = isinstance(event, ev.PresentationStarted | ev.FinalAnswerGiven)
        if again and is_end and number >= begun:
            presenter = agent
        is_ending = event is past.failed.get(agent) or (agent in stopped and _puts_out(event))
        if not is_ending and not (presenter and agent == presenter):
            kept.append(event)
    return [*kept, *_closings(past.failed, _fold(order, kept).rounds)]


def _last_attempt(events: Sequence[ev.Event]) -> int:
    """Find where the last attempt of the team begins: what was judged before stays judged."""
    restarts = (n for n, e in enumerate(events) if isinstance(e, ev.OrchestrationRestarted))
    return max(restarts, default=0)


def _puts_out(event: ev.Event) -> bool:
    # Without the stop of its own, an agent's ending is one of the run's.
    return isinstance(event, ev.StopRequested | ev.AgentFailed | ev.RoundTimedOut)


def _closings(
    failed: Mapping[str, ev.Event], rounds: Mapping[str, OpenRound]
) -> Iterator[ev.Event]:
    """Close the rounds that came to nothing, to begin anew; a request that failed is sent again."""
    for agent, event in failed.items():
        if isinstance(event, ev.AgentFailed) and agent in rounds and not rounds[agent].was_asking:
            yield ev.VoteIgnored(agent=agent, target="")


def _turns(events: Iterable[ev.Event]) -> Iterator[list[ev.Event]]:
    turn: list[ev.Event] = []
    for event in events:
        if isinstance(event, ev.TurnStarted) and turn:
            yield turn
            turn = []
        turn.append(event)
    yield turn


def _fold(order: Iterable[str], events: Iterable[ev.Event]) -> Past:
    past = Past(voting.begin(tuple(order)))
    for turn in _turns(events):
        # An agent may feel its stop before the stop is noted, which comes from another thread.
        alone = {e.agent for e in turn if isinstance(e, ev.StopRequested)}
        asked: set[str] = set()
        for event in turn:
            agent, was_out = getattr(event, "agent", ""), past.state.out
            if isinstance(event, ev.StopRequested):
                asked.add(agent)
            if not isinstance(event, ev.AgentEnded) or agent in alone:
                past = _apply(past, event)
            if agent in past.state.out - was_out and agent in past.state.order:
                has_failed = _puts_out(event) and agent not in asked
                past = replace(past, failed=past.failed | ({agent: event} if has_failed else {}))
    return past


def _apply(past: Past, event: ev.Event) -> Past:
    past = replace(past, state=voting.apply(past.state, event))
    match event:
        case ev.RoundStarted(agent=agent, number=number, seen=seen, request=request):
            past = _with_round(past, agent, OpenRound(number, dict(seen), list(request)))
            return replace(past, round_numbers=grown(past.round_numbers, agent, number))
        case ev.ModelStarted(agent=agent, call=call):
            past = replace(past, calls=grown(past.calls, agent, call))
            return _change(past, agent, was_asking=True)
        case ev.ModelFinished(agent=agent, call=call, response=response):
            open_round = past.rounds.get(agent)
            exchanges = open_round.exchanges if open_round else ()
            added = (*exchanges, Exchange(call, response))
            return _change(past, agent, exchanges=added, was_asking=False)
        case ev.ToolStarted(agent=agent, call_id=call_id):
            return _change_last(past, agent, call_id, None)
        case ev.ToolFinished(agent=agent, call_id=call_id, outcome="cancelled"):
            return _change_last(past, agent, call_id, None, has_begun=False)
        case ev.ToolFinished(agent=agent, call_id=call_id, outcome="ok" | "error", result=result):
            return _change_last(past, agent, call_id, (result, event.outcome == "error"))
        case ev.TurnRejected(agent=agent, why=why):
            return _change_exchange(past, agent, complaint=why)
        case ev.ReplyCut(agent=agent, told=told, kept=kept):
            return _change_exchange(past, agent, complaint=told, kept=kept)
        case ev.Told():
            return _note_told(past, event)
        case (
            ev.AnswerGiven(agent=agent)
            | ev.VoteCast(agent=agent)
            | ev.VoteIgnored(agent=agent)
            | ev.Abstained(agent=agent)
            | ev.RoundTimedOut(agent=agent)
            | ev.AgentFailed(agent=agent)
            | ev.AgentEnded(agent=agent)
        ):
            rounds = {a: r for a, r in past.rounds.items() if a != agent}
            return replace(past, rounds=rounds)
        case ev.FinalAnswerGiven() | ev.OrchestrationRestarted():
            return replace(past, rounds={})
        case _:
            return past


def _with_round(past: Past, agent: str, open_round: OpenRound) -> Past:
    return replace(past, rounds=grown(past.rounds, agent, open_round))


def _change(past: Past, agent: str, **changes: Any) -> Past:
    open_round = past.rounds.get(agent)
    return _with_round(past, agent, replace(open_round, **changes)) if open_round else past


def _change_last(
    past: Past,
    agent: str,
    call_id: str,
    result: tuple[str, bool] | None,
    *,
    has_begun: bool = True,
) -> Past:
    """Record the beginning (no result) or the end of a tool call; its id is "request.position"."""
    open_round = past.rounds.get(agent)
    call, _, position = call_id.partition(".")
    last = open_round.exchanges[-1] if open_round and open_round.exchanges else None
    if last is None or str(last.call) != call or not _POSITION.fullmatch(position):
        return past
    number = int(position)
    if result is None:
        begun = last.begun | {number} if has_begun else last.begun - {number}
        last = replace(last, begun=begun)
    else:
        last = replace(last, results={**last.results, number: result}, begun=last.begun - {number})
    return _change(past, agent, exchanges=(*open_round.exchanges[:-1], last))  # type: ignore[union-attr]


def _note_told(past: Past, told: ev.Told) -> Past:
    agent, text = told.agent, told.text
    open_round = past.rounds.get(agent)
    if open_round and told.seen is not None:
        past = _change(past, agent, seen=dict(told.seen), news=open_round.news + 1)
    if open_round and not open_round.exchanges:
        return _change(past, agent, notes=(*open_round.notes, text))
    if not open_round:
        return past
    last = open_round.exchanges[-1]
    in_result = told.in_result or last.in_result
    return _change_exchange(past, agent, notes=(*last.notes, text), in_result=in_result)


def _change_exchange(past: Past, agent: str, **changes: Any) -> Past:
    """Change an agent's last exchange."""
    open_round = past.rounds.get(agent)
    if not open_round or not open_round.exchanges:
        return past
    last = replace(open_round.exchanges[-1], **changes)
    return _change(past, agent, exchanges=(*open_round.exchanges[:-1], last))


def dump_messages(messages: Iterable[ModelMessage]) -> list[Any]:
    """Return messages as pydantic-ai's JSON."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    dumped: list[Any] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return dumped


def load_messages(data: Iterable[Any]) -> list[ModelMessage]:
    """Return the messages in pydantic-ai's JSON.

    Raises:
        ValueError: They are no messages.
    """
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    return ModelMessagesTypeAdapter.validate_python(list(data))


def load_round(past: OpenRound) -> OpenRound:
    """Return a past round with its responses as messages.

    Raises:
        ValueError: A response is no message.
    """
    responses = load_messages(e.response for e in past.exchanges)
    pairs = zip(past.exchanges, responses, strict=True)
    return replace(past, exchanges=tuple(replace(e, response=r) for e, r in pairs))
