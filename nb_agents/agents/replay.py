"""Fold the events of a past turn into the state from which a resume continues. Pure.

The coordination machine gets its own past. Each agent's open round is restored with its exchanges,
down to the tool call: finished calls are never repeated, calls that never ran run now, and
`Exchange.fate` decides about an interrupted call. Called agents are restored in the same way,
recursively. The driver continues as if there had been no interruption.

`telling_changes` also records what an agent changed outside its workspace.
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
from typing import Any, Literal

import anyio
from anyio import to_thread

from nb_agents import events as ev
from nb_agents.agents import voting
from nb_agents.agents.message_json import Opening, calls_of, load_messages, opening_of
from nb_agents.agents.placed_calls import Placed, is_place, with_event
from nb_agents.process.writable import WritablePath
from nb_agents.tools.workspace import compare, look
from nb_agents.view.growing import grown

MAX_NAMED = 100
LOOK_S = 2.0
"""Limit of the search for changes after a stop, seconds."""

STOPPED_ALONE = "a person stopped {name} at its work."
"""Message to the caller of an agent that was stopped alone."""

CANCELLED = "you cancelled it"
"""Message to the caller of a spawned agent that it has cancelled."""

Fate = Literal["made", "made again", "told"]
"""What a resume does with a tool call without a result. The last kind may have happened in part: it
is not repeated; its agent gets a message to check, and to do what is missing."""

_POSITION = re.compile("[0-9]{1,9}")


@asynccontextmanager
async def telling_changes(
    agent: str, places: Sequence[WritablePath], emit: Callable[[ev.Event], None]
) -> AsyncIterator[None]:
    """Emit which files changed during the block when it ends, also after a stop.

    Args:
        agent: The agent that may change them.
        places: Directories and files to look at.
        emit: Called with the event.
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
    """A finished model request, with the results of its tool calls.

    Attributes:
        call: The agent's number of the request.
        response: The response, in the form of the agent's runner.
        results: By position of the tool call: (its result, whether it is an error).
        begun: Positions of calls that were cut or whose end is unknown, with whether they may be
            made again.
        repeated: Positions of those that have begun once more.
        asked: Positions of calls that wait for approval before they begin.
        complaint: Why the response was rejected, or the message about its truncation; else "".
        kept: The answer so far of a truncated reply; else None.
        notes: Notes that the agent got before its next request.
        in_result: Note at the end of its last tool's result.
        form: The form of the response, as `ModelFinished` has it.
    """

    call: int
    response: Any
    results: dict[int, tuple[str, bool]] = field(default_factory=dict)
    begun: Mapping[int, bool] = field(default_factory=dict)
    repeated: frozenset[int] = frozenset()
    asked: frozenset[int] = frozenset()
    complaint: str = ""
    kept: str | None = None
    notes: tuple[str, ...] = ()
    in_result: str = ""
    form: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the response is known to have decided nothing."""
        return bool(self.complaint) or self.kept is not None

    def fate(self, position: int) -> Fate:
        """Return what a resume does with a tool call that has no result."""
        if position not in self.begun or position in self.asked:
            return "made"
        return "made again" if self.begun[position] else "told"


@dataclass(frozen=True)
class PastRound:
    """A round that a stop or a crash interrupted.

    Attributes:
        number: From 1.
        seen: The answers that the agent had seen, as returned by `voting.seen`.
        opening: The first messages of the round.
        exchanges: Finished requests, in order; only the last may have tool calls left to run.
        was_asking: Whether a request was open, which is sent again.
        news: How often the agent was shown new answers.
        notes: Notes that it got before its first request.
        words: The text that had arrived of the open request, without thoughts.
        resumes: What the agent's runner promises of a resume, as `RoundStarted` has it.
        placed: The calls of a user's program, by their places; `exchanges` has none of those.
        session: The session of a program that is the agent, with which it goes on; or "".
        doing: What such a program was doing in the open request, by the calls' ids.
    """

    number: int
    seen: dict[str, int]
    opening: Opening
    exchanges: tuple[Exchange, ...] = ()
    was_asking: bool = False
    news: int = 0
    notes: tuple[str, ...] = ()
    words: str = ""
    resumes: str = "exactly"
    placed: Placed = field(default_factory=dict)
    session: str = ""
    doing: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_asking(self) -> bool:
        """Whether a model's answer is awaited, which is asked for again."""
        calls = self.placed.values()
        return self.was_asking or any(not (c.tool or c.is_finished) for c in calls)

    @property
    def has_answered(self) -> bool:
        """Whether its last response is an answer, and calls no tool."""
        if self.was_asking or not self.exchanges:
            return False
        last = self.exchanges[-1]
        return not last.is_known and not calls_of(last.response)


@dataclass(frozen=True)
class PastChild:
    """An agent that another agent had called.

    Attributes:
        called: The event of the call.
        text: Its result; None until it has finished.
        refusal: Why it has no result, for its caller; "" while it may still give one.
        is_told: Whether its caller has received the result or the refusal.
        round: Its open round; None when it has not begun, or can't be read.
        calls: How many requests it had begun.
    """

    called: ev.AgentCalled
    text: str | None = None
    refusal: str = ""
    is_told: bool = False
    round: PastRound | None = None
    calls: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it has work left."""
        return self.text is None and not self.refusal


@dataclass(frozen=True)
class Past:
    """The state of a turn when it ended.

    Attributes:
        state: The coordination machine's state.
        rounds: For each agent with an open round, that round.
        failed: For each agent that failed and has not been asked since, the event of its failure.
        round_numbers, calls: For each agent, how many rounds and requests it had begun.
        unread: Agents whose open round can't be read, in a damaged journal: they begin a new one.
        children: Called agents, by their ids.
    """

    state: voting.Coordination
    rounds: Mapping[str, PastRound] = field(default_factory=dict)
    failed: dict[str, ev.Event] = field(default_factory=dict)
    round_numbers: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    children: Mapping[str, PastChild] = field(default_factory=dict)


def replay(order: Sequence[str], events: Iterable[ev.Event], again: Collection[str] = ()) -> Past:
    """Fold the events of a turn, or of a chain of turns that resumed one another.

    Failed agents work again. Agents that a person stopped alone work again when they are named, or
    when all agents are out and none has answered.

    Args:
        order: Agent ids in registration order; empty for a recipe, whose steps retry by themselves.
        events: In journal order; endings caused by a stop of the run are ignored.
        again: Agents that a person names: they take part again, and may change the outcome.

    Returns:
        The state from which a resume continues.
    """
    told: list[ev.Event] = []
    failed: dict[str, ev.Event] = {}
    children = _Children()
    for event in events:
        agent = getattr(event, "agent", "")
        if isinstance(event, ev.TurnStarted):
            failed |= _fold(order, told).failed
            told = _reopened(order, told, event.again)
        if isinstance(event, ev.RoundStarted | ev.ModelStarted):
            failed.pop(agent, None)
        if not children.take(event):
            told.append(event)
    whole = _fold(order, told)
    kept = _reopened(order, told, again)
    past = whole if kept is told else _fold(order, kept)
    # Numbers of rounds and requests continue, also where their results are dropped.
    numbers, calls = whole.round_numbers, whole.calls
    return replace(
        past,
        failed=failed | whole.failed,
        round_numbers=numbers,
        calls=calls,
        children=children.found(),
    )


class _Children:
    """Collects the agents that others had called."""

    def __init__(self) -> None:
        self._known: dict[str, PastChild] = {}
        self._events: list[ev.Event] = []
        self._stopped: set[str] = set()
        self._ended: set[str] = set()

    def take(self, event: ev.Event) -> bool:
        """Take an event, and return whether it concerns only a called agent."""
        agent = getattr(event, "agent", "")
        match event:
            case ev.AgentCalled():
                if event.spawned != agent:  # in some journals it takes the place of that one
                    self._known.pop(event.spawned, None)
                self._known[agent] = PastChild(event)
                self._stopped.discard(agent)
                self._ended.discard(agent)
            case ev.ToolFinished() | ev.Told():
                self._note_told(event)
            case ev.StopRequested():
                self._stopped.add(agent)
            case ev.AgentEnded(outcome="finished", text=text) if text:
                self._change(agent, text=text)
            case ev.AgentEnded():
                self._ended.add(agent)
            case ev.AgentFailed(error=error) if agent in self._known:
                self._change(agent, refusal=f"{self._known[agent].called.name} failed: {error}")
        if agent in self._known and agent in self._ended & self._stopped:
            self._change(agent, refusal=STOPPED_ALONE.format(name=self._known[agent].called.name))
        if agent in self._known or isinstance(event, ev.TurnStarted):
            self._events.append(event)
        return agent in self._known

    def _change(self, agent: str, **changes: Any) -> None:
        if agent in self._known:
            self._known[agent] = replace(self._known[agent], **changes)

    def _note_told(self, event: ev.ToolFinished | ev.Told) -> None:
        for agent, child in self._known.items():
            if _tells_of(event, child.called):
                self._change(agent, is_told=True)
                if child.is_open and getattr(event, "tool", "") == "cancel_subagent":
                    self._change(agent, refusal=CANCELLED)

    def found(self) -> dict[str, PastChild]:
        past = _fold((), self._events)
        return {
            agent: replace(child, round=past.rounds.get(agent), calls=past.calls.get(agent, 0))
            for agent, child in self._known.items()
        }


def _tells_of(event: ev.ToolFinished | ev.Told, called: ev.AgentCalled) -> bool:
    """Return whether an event gives a caller the result of a called agent."""
    if called.spawned:
        return called.spawned in event.subagents
    if not isinstance(event, ev.ToolFinished) or event.outcome not in ("ok", "error"):
        return False
    # Some journals have no id; an agent's calls are made one after the other.
    return called.caller == event.agent and called.call_id in ("", event.call_id)


def readable(past: Past) -> Past:
    """Drop the rounds whose messages can't be read."""
    unread = tuple(agent for agent, each in past.rounds.items() if not _is_readable(each))
    rounds = {agent: each for agent, each in past.rounds.items() if agent not in unread}
    children = {
        agent: each if each.round and _is_readable(each.round) else replace(each, round=None)
        for agent, each in past.children.items()
    }
    return replace(past, rounds=rounds, unread=unread, children=children)


def _is_readable(past: PastRound) -> bool:
    if not past.opening.asks:
        return False
    try:
        load_messages(each.response for each in past.exchanges if not each.form)
    except ValueError:
        return False
    return True


def _reopened(
    order: Sequence[str], events: list[ev.Event], again: Collection[str]
) -> list[ev.Event]:
    """Drop the events that put out agents that work again; for named ones the presentation, too."""
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
    """Return the index at which the team's last attempt begins: earlier judgements stand."""
    restarts = (n for n, e in enumerate(events) if isinstance(e, ev.OrchestrationRestarted))
    return max(restarts, default=0)


def _puts_out(event: ev.Event) -> bool:
    # Without a stop of its own, an agent was ended by the run's stop.
    return isinstance(event, ev.StopRequested | ev.AgentFailed | ev.RoundTimedOut)


def _closings(
    failed: Mapping[str, ev.Event], rounds: Mapping[str, PastRound]
) -> Iterator[ev.Event]:
    """Close failed rounds, so that a new one begins; a request that failed is sent again."""
    for agent, event in failed.items():
        past = rounds.get(agent) if isinstance(event, ev.AgentFailed) else None
        if past and not (past.was_asking or past.placed):
            yield ev.VoteIgnored(agent=agent, target="")


def _turns(events: Iterable[ev.Event]) -> Iterator[list[ev.Event]]:
    turn: list[ev.Event] = []
    for event in events:
        if isinstance(event, ev.TurnStarted) and turn:
            yield turn
            turn = []
        turn.append(event)
    yield turn


def _fold(order: Iterable[str], events: Sequence[ev.Event]) -> Past:
    past = Past(voting.begin(tuple(order)))
    for turn in _turns(events):
        # An agent may end before its stop is recorded, which another thread does.
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
    return _with_words(past, events)


def _with_words(past: Past, events: Sequence[ev.Event]) -> Past:
    """Add the words of the open requests, in one backward pass."""
    asking = {agent: list[str]() for agent, each in past.rounds.items() if each.was_asking}
    found: dict[str, str] = {}
    for event in reversed(events):
        if len(found) == len(asking):
            break
        match event:
            case ev.TextStreamed(agent=agent, channel="text" | "answer", text=text):
                if agent in asking and agent not in found:
                    asking[agent].append(text)
            case ev.ModelStarted(agent=agent) if agent in asking and agent not in found:
                found[agent] = "".join(reversed(asking[agent]))
    for agent, words in found.items():
        past = _change(past, agent, words=words)
    return past


def _apply(past: Past, event: ev.Event) -> Past:
    state = voting.apply(past.state, event)
    if state is not past.state:
        past = replace(past, state=state)
    match event:
        case ev.RoundStarted(agent=agent, number=number, seen=seen):
            opened = PastRound(number, dict(seen), opening_of(event), resumes=event.resumes)
            past = _with_round(past, agent, opened)
            return replace(past, round_numbers=grown(past.round_numbers, agent, number))
        case ev.ModelStarted(agent=agent, call=call):
            past = replace(past, calls=grown(past.calls, agent, call))
            if event.place:
                return _placed(past, event)
            return _change(past, agent, was_asking=True, doing={})
        case ev.ModelFinished(place=place) if place:
            return _placed(past, event)
        case ev.SessionBound(agent=agent, session=session):
            return _change(past, agent, session=session)
        case ev.ModelFinished(agent=agent, call=call, response=response, form=form):
            open_round = past.rounds.get(agent)
            exchanges = open_round.exchanges if open_round else ()
            added = (*exchanges, Exchange(call, response, form=form))
            return _change(past, agent, exchanges=added, was_asking=False, doing={})
        case ev.ProgramSaved():
            return _placed(past, event)
        case ev.ToolStarted(agent=agent) | ev.ToolFinished(agent=agent):
            return _note_call(past, agent, event)
        case ev.ApprovalAsked(caller=agent) | ev.ApprovalGiven(caller=agent):
            return _note_call(past, agent, event)
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


def _with_round(past: Past, agent: str, open_round: PastRound) -> Past:
    return replace(past, rounds=grown(past.rounds, agent, open_round))


def _change(past: Past, agent: str, **changes: Any) -> Past:
    open_round = past.rounds.get(agent)
    return _with_round(past, agent, replace(open_round, **changes)) if open_round else past


def _placed(past: Past, event: ev.Event, agent: str = "") -> Past:
    """Record an event of a call of a user's program."""
    agent = agent or getattr(event, "agent", "")
    open_round = past.rounds.get(agent)
    if open_round is None:
        return past
    return _change(past, agent, placed=with_event(open_round.placed, event))


def _note_call(
    past: Past,
    agent: str,
    event: ev.ToolStarted | ev.ToolFinished | ev.ApprovalAsked | ev.ApprovalGiven,
) -> Past:
    """Record an event of a tool call in an agent's last exchange; its id is "request.position"."""
    if is_place(event.call_id):
        return _placed(past, event, agent)
    open_round = past.rounds.get(agent)
    if open_round and open_round.resumes == "goes on":
        return _note_doing(past, agent, open_round, event)
    call, _, number = event.call_id.partition(".")
    last = open_round.exchanges[-1] if open_round and open_round.exchanges else None
    if last is None or str(last.call) != call or not _POSITION.fullmatch(number):
        return past
    position = int(number)
    begun = {each: known for each, known in last.begun.items() if each != position}
    match event:
        case ev.ToolStarted(is_repeatable=is_repeatable):
            repeated = last.repeated | ({position} & last.begun.keys())
            begun[position] = is_repeatable
            return _change_exchange(past, agent, begun=begun, repeated=repeated)
        case ev.ApprovalAsked() if position not in last.repeated:
            return _change_exchange(past, agent, asked=last.asked | {position})
        case ev.ApprovalGiven(approved=True):
            return _change_exchange(past, agent, asked=last.asked - {position})
        case ev.ToolFinished(outcome="cancelled"):
            return _change_exchange(past, agent, begun=begun)
        case ev.ToolFinished(outcome=outcome, result=result) if outcome != "cut" or result:
            results = {**last.results, position: (result, outcome != "ok")}
            repeated = last.repeated - {position}
            return _change_exchange(past, agent, results=results, begun=begun, repeated=repeated)
    return past


def _note_doing(past: Past, agent: str, open_round: PastRound, event: ev.Event) -> Past:
    """Record what a program does that calls its own tools."""
    match event:
        case ev.ToolStarted(call_id=call, tool=tool, summary=summary):
            return _change(past, agent, doing={**open_round.doing, call: f"{tool} {summary}"})
        case ev.ToolFinished(call_id=call, outcome="ok" | "error"):
            doing = {each: said for each, said in open_round.doing.items() if each != call}
            return _change(past, agent, doing=doing)
    return past


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
