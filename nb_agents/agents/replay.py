"""Folds the events of a past turn into the state from which a resume continues. Pure.

The state contains the team's coordination and each agent's open round, with its exchanges and tool
calls. A resume never repeats a finished call, makes the calls that were not started, and handles an
interrupted call as `Exchange.action_for_unfinished_call` determines. Sub-agents are restored in the
same way. The driver then continues as if there had been no interruption.

`emitting_changes` records which files an agent changed outside its workspace.
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
from nb_agents.agents.message_json import Opening, calls_of, load_messages, opening_of, text_of
from nb_agents.agents.past_wait import PastWait, past_wait
from nb_agents.agents.placed_calls import PLACED_CALLS, CallsByPlace, is_place
from nb_agents.process.writable import WritablePath
from nb_agents.tools.workspace import compare_states, file_states
from nb_agents.view.growing import with_entry

MAX_NAMED = 100
"""Maximum number of file names in an event."""
LOOK_S = 2.0
"""Time limit of the search for changed files after a block, in seconds."""

STOPPED_BY_USER = "the user stopped {name}."
"""Message to the caller of a sub-agent if the user stopped only the sub-agent."""

CANCELLED = "you cancelled it"
"""Message to an agent about a sub-agent that it has cancelled itself."""

UnfinishedCallAction = Literal["made", "made again", "told"]
"""How a resume handles a tool call without a result.

It makes the call, repeats it, or only tells the agent that the call may have taken effect.
"""

_POSITION = re.compile("[0-9]{1,9}")


@asynccontextmanager
async def emitting_changes(
    agent: str, locations: Sequence[WritablePath], emit: Callable[[ev.Event], None]
) -> AsyncIterator[None]:
    """Emit the files that changed during the block, even if a stop ends it.

    Args:
        agent: The agent that may change them.
        locations: The directories and files to compare.
        emit: Called with the event.
    """
    if not locations:
        yield
        return
    look_at = partial(to_thread.run_sync, file_states, locations, abandon_on_cancel=True)
    before = await look_at()
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(LOOK_S):
            changes = compare_states(before, await look_at())
            if any(changes):
                emit(
                    ev.ContextChanged(
                        agent=agent,
                        made=changes.made[:MAX_NAMED],
                        changed=changes.changed[:MAX_NAMED],
                        deleted=changes.deleted[:MAX_NAMED],
                        count=sum(map(len, changes)),
                    )
                )


@dataclass(frozen=True)
class Exchange:
    """A finished model request, with the results of its tool calls.

    Attributes:
        call: The number of the request.
        response: The response, in the format of the agent's runner.
        results: The result of each finished tool call, and whether it is an error, by position.
        begun: Whether each interrupted tool call may be repeated, by position.
        repeated: Positions of interrupted calls that a resume has already repeated.
        asked: Positions of calls that wait for approval before they begin.
        complaint: The message to the agent if the response was rejected or truncated, or "".
        kept: The part of the answer received so far if the reply was truncated, or None.
        notes: Notes that the agent got before its next request.
        in_result: Note at the end of the last tool result.
        form: The format of the response, as in `ModelFinished`.
        images: The images in the results of tool calls, by position.
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
    images: Mapping[int, tuple[ev.ToolImage, ...]] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether the response was already found to contain no decision."""
        return bool(self.complaint) or self.kept is not None

    def action_for_unfinished_call(self, position: int) -> UnfinishedCallAction:
        """Return how a resume handles a tool call without a result."""
        if position not in self.begun or position in self.asked:
            return "made"
        return "made again" if self.begun[position] else "told"


@dataclass(frozen=True)
class PastRound:
    """A round that a stop or a crash interrupted.

    Attributes:
        number: The round's number, starting at 1.
        seen: The answers that the agent had seen, as returned by `voting.seen`.
        opening: The first messages of the round.
        exchanges: Finished requests, in order. Only the last may have unfinished tool calls.
        was_asking: Whether a request was open. It is sent again.
        news: How many times the agent was shown new answers.
        notes: Notes that it got before its first request.
        words: The text received for the open request, without thoughts.
        resumes: What the agent's runner guarantees about a resume, as in `RoundStarted`.
        placed: The calls of an agent in Python, by address. They are not in `exchanges`.
        session: The id of an external agent's session, in which it continues, or "".
        doing: Descriptions of an external agent's unfinished tool calls, by call id.
        folds: The folds of its conversation, in order.
        summary: A summary whose fold was interrupted, or "".
        summary_usage: The usage of that summary, or None.
        fold_request: A fold that the user has asked for and that is still to be made, or None.
        folded_at: The number of exchanges at the time of the last fold.
        wait: How long the open request has waited for its provider, or None.
        batched: How the open request was sent in a batch, or None.
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
    placed: CallsByPlace = field(default_factory=dict)
    session: str = ""
    doing: Mapping[str, str] = field(default_factory=dict)
    folds: tuple[ev.ContextFolded, ...] = ()
    summary: str = ""
    summary_usage: ev.Usage | None = None
    fold_request: str | None = None
    folded_at: int = 0
    wait: PastWait | None = None
    batched: ev.ModelBatched | None = None

    @property
    def is_asking(self) -> bool:
        """Whether a model request was open when the round was interrupted. It is sent again."""
        calls = self.placed.values()
        return self.was_asking or any(not (c.tool or c.is_finished) for c in calls)

    @property
    def has_answered(self) -> bool:
        """Whether its last response calls no tool, so that only the decision is missing."""
        if self.was_asking or not self.exchanges:
            return False
        last = self.exchanges[-1]
        return not last.is_known and not calls_of(last.response)


@dataclass(frozen=True)
class PastChild:
    """A sub-agent of the past turn.

    Attributes:
        called: The event of the call to it.
        text: Its result, or None if it has not finished.
        refusal: Why it has no result, for its caller. "" while it may still have one.
        is_told: Whether its caller has received the result or the refusal.
        round: Its open round, or None if it did not begin or can't be read.
        calls: The number of requests that it had started.
    """

    called: ev.AgentCalled
    text: str | None = None
    refusal: str = ""
    is_told: bool = False
    round: PastRound | None = None
    calls: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the sub-agent has not ended yet."""
        return self.text is None and not self.refusal


@dataclass(frozen=True)
class Past:
    """The state of a turn when it ended.

    Attributes:
        state: The coordination machine's state.
        rounds: The open rounds by agent.
        failed: The event of the failure of each agent that failed and has not worked since.
        round_numbers, calls: The number of rounds and of requests that each agent had started.
        unread: Agents that begin a new round, because the journal of their open round is damaged.
        children: Sub-agents by id.
        windows: The context windows in tokens learned from errors of servers, by model.
    """

    state: voting.Coordination
    rounds: Mapping[str, PastRound] = field(default_factory=dict)
    failed: dict[str, ev.Event] = field(default_factory=dict)
    round_numbers: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    children: Mapping[str, PastChild] = field(default_factory=dict)
    windows: Mapping[str, int] = field(default_factory=dict)


def replay(order: Sequence[str], events: Iterable[ev.Event], again: Collection[str] = ()) -> Past:
    """Fold the events of a turn, or of a chain of turns that resumed one another.

    Failed agents work again. Agents that the user stopped individually work again if ``again``
    contains them, or if no agent is left and none has answered.

    Args:
        order: Agent ids in registration order. Empty for a recipe, which retries its own steps.
        events: The events in journal order. Ends caused by a stop of the run are ignored.
        again: Agents that the user wants to restart. They may change the outcome.

    Returns:
        The state from which a resume continues.
    """
    of_team: list[ev.Event] = []
    failed: dict[str, ev.Event] = {}
    children = _Children()
    windows: dict[str, int] = {}
    for event in events:
        agent = getattr(event, "agent", "")
        if isinstance(event, ev.TurnStarted):
            failed |= _fold(order, of_team).failed
            of_team = _reopened(order, of_team, event.again)
        if isinstance(event, ev.RoundStarted | ev.ModelStarted):
            failed.pop(agent, None)
        if isinstance(event, ev.ModelFailed) and event.window:
            windows[event.model] = event.window
        if not children.take(event):
            of_team.append(event)
    whole = _fold(order, of_team)
    remaining = _reopened(order, of_team, again)
    past = whole if remaining is of_team else _fold(order, remaining)
    # Numbers of rounds and requests continue even if their results were dropped.
    numbers, calls = whole.round_numbers, whole.calls
    return replace(
        past,
        failed=failed | whole.failed,
        round_numbers=numbers,
        calls=calls,
        children=children.found(),
        windows=windows,
    )


class _Children:
    """Collects the sub-agents of a turn from its events."""

    def __init__(self) -> None:
        self._children: dict[str, PastChild] = {}
        self._events: list[ev.Event] = []
        self._stopped_agents: set[str] = set()
        self._ended_agents: set[str] = set()

    def take(self, event: ev.Event) -> bool:
        """Record an event, and return whether it concerns only a sub-agent."""
        agent = getattr(event, "agent", "")
        match event:
            case ev.AgentCalled():
                if event.spawned != agent:  # in some journals it replaces the earlier one
                    self._children.pop(event.spawned, None)
                self._children[agent] = PastChild(event)
                self._stopped_agents.discard(agent)
                self._ended_agents.discard(agent)
            case ev.ToolFinished() | ev.NoteSent():
                self._mark_reported(event)
            case ev.StopRequested():
                self._stopped_agents.add(agent)
            case ev.AgentEnded(outcome="finished", text=text) if text:
                self._change(agent, text=text)
            case ev.AgentEnded():
                self._ended_agents.add(agent)
            case ev.AgentFailed(error=error) if agent in self._children:
                self._change(agent, refusal=f"{self._children[agent].called.name} failed: {error}")
        if agent in self._children and agent in self._ended_agents & self._stopped_agents:
            self._change(
                agent, refusal=STOPPED_BY_USER.format(name=self._children[agent].called.name)
            )
        if agent in self._children or isinstance(event, ev.TurnStarted):
            self._events.append(event)
        return agent in self._children

    def _change(self, agent: str, **changes: Any) -> None:
        if agent in self._children:
            self._children[agent] = replace(self._children[agent], **changes)

    def _mark_reported(self, event: ev.ToolFinished | ev.NoteSent) -> None:
        for agent, child in self._children.items():
            if _reports_result_of(event, child.called):
                self._change(agent, is_told=True)
                if child.is_open and getattr(event, "tool", "") == "cancel_subagent":
                    self._change(agent, refusal=CANCELLED)

    def found(self) -> dict[str, PastChild]:
        past = _fold((), self._events)
        return {
            agent: replace(child, round=past.rounds.get(agent), calls=past.calls.get(agent, 0))
            for agent, child in self._children.items()
        }


def _reports_result_of(event: ev.ToolFinished | ev.NoteSent, call: ev.AgentCalled) -> bool:
    """Return whether an event gives a caller the result of a sub-agent."""
    if call.spawned:
        return call.spawned in event.subagents
    if not isinstance(event, ev.ToolFinished) or event.outcome not in ("ok", "error"):
        return False
    # Some journals have no call ids. An agent makes its calls one at a time.
    return call.caller == event.agent and call.call_id in ("", event.call_id)


def readable(past: Past) -> Past:
    """Return the state without rounds that contain unreadable messages."""
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
    """Return the events, leaving out those that ended agents which will work again.

    If ``again`` contains agents, the last presentation is dropped too, because it may change.
    """
    if not order:
        return events
    past = _fold(order, events)
    is_nobody_left = not (past.state.live or past.state.answers or again)
    stopped = set(order) if is_nobody_left else set(again)
    remaining: list[ev.Event] = []
    presenter, attempt_start = "", _last_attempt(events)
    for number, event in enumerate(events):
        agent = getattr(event, "agent", "")
        is_end = isinstance(event, ev.PresentationStarted | ev.FinalAnswerGiven)
        if again and is_end and number >= attempt_start:
            presenter = agent
        is_ending = event is past.failed.get(agent) or (agent in stopped and _ends_agent(event))
        if not is_ending and not (presenter and agent == presenter):
            remaining.append(event)
    return [*remaining, *_closings(past.failed, _fold(order, remaining).rounds)]


def _last_attempt(events: Sequence[ev.Event]) -> int:
    """Return the index of the event that begins the team's last attempt."""
    restarts = (n for n, e in enumerate(events) if isinstance(e, ev.OrchestrationRestarted))
    return max(restarts, default=0)


def _ends_agent(event: ev.Event) -> bool:
    # AgentEnded alone is not enough: a stop of the run may have caused it.
    return isinstance(event, ev.StopRequested | ev.AgentFailed | ev.RoundTimedOut)


def _closings(
    failed: Mapping[str, ev.Event], rounds: Mapping[str, PastRound]
) -> Iterator[ev.Event]:
    """Yield events that close failed rounds, unless a failed request can be sent again."""
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
        # An agent may end before another thread has recorded its stop.
        alone = {e.agent for e in turn if isinstance(e, ev.StopRequested)}
        stopped: set[str] = set()
        for event in turn:
            agent, was_out = getattr(event, "agent", ""), past.state.out
            if isinstance(event, ev.StopRequested):
                stopped.add(agent)
            if not isinstance(event, ev.AgentEnded) or agent in alone:
                past = _apply(past, event)
            if agent in past.state.out - was_out and agent in past.state.order:
                has_failed = _ends_agent(event) and agent not in stopped
                past = replace(past, failed=past.failed | ({agent: event} if has_failed else {}))
    return _with_words(past, events)


def _with_words(past: Past, events: Sequence[ev.Event]) -> Past:
    """Add the text received for the open requests, in one backward pass."""
    asking = {agent: list[str]() for agent, each in past.rounds.items() if each.was_asking}
    texts: dict[str, str] = {}
    for event in reversed(events):
        if len(texts) == len(asking):
            break
        match event:
            case ev.TextStreamed(agent=agent, channel="text" | "answer", text=text):
                if agent in asking and agent not in texts:
                    asking[agent].append(text)
            case ev.ModelStarted(agent=agent) if agent in asking and agent not in texts:
                texts[agent] = "".join(reversed(asking[agent]))
    for agent, words in texts.items():
        past = _change(past, agent, words=words)
    return past


def _apply(past: Past, event: ev.Event) -> Past:
    state = voting.apply(past.state, event)
    if state is not past.state:
        past = replace(past, state=state)
    return REPLAY.apply(past, event)


REPLAY: ev.Fold[Past] = ev.Fold("replay")
"""The handlers that update the agents' open rounds for each kind of event."""


@REPLAY.on(ev.RoundStarted)
def _round_started(past: Past, e: ev.RoundStarted) -> Past:
    opened = PastRound(e.number, dict(e.seen), opening_of(e), resumes=e.resumes)
    past = _with_round(past, e.agent, opened)
    return replace(past, round_numbers=with_entry(past.round_numbers, e.agent, e.number))


@REPLAY.on(ev.ModelStarted)
def _model_started(past: Past, e: ev.ModelStarted) -> Past:
    past = replace(past, calls=with_entry(past.calls, e.agent, e.call))
    if e.place:
        return _with_function_call(past, e)
    return past if e.purpose else _change(past, e.agent, was_asking=True, doing={})


@REPLAY.on(ev.ModelBatched)
def _model_batched(past: Past, e: ev.ModelBatched) -> Past:
    return _change(past, e.agent, batched=e if e.custom_id else None)


@REPLAY.on(ev.ModelFinished)
def _model_finished(past: Past, e: ev.ModelFinished) -> Past:
    if e.place:
        return _with_function_call(past, e)
    if e.purpose:
        return _change(past, e.agent, summary=text_of(e.response), summary_usage=e.usage)
    open_round = past.rounds.get(e.agent)
    exchanges = open_round.exchanges if open_round else ()
    added = (*exchanges, Exchange(e.call, e.response, form=e.form))
    # A fold follows its summary immediately. Otherwise the summary was of no use.
    return _change(
        past,
        e.agent,
        exchanges=added,
        was_asking=False,
        doing={},
        summary="",
        wait=None,
        batched=None,
    )


@REPLAY.on(ev.ModelFailed)
def _model_failed(past: Past, e: ev.ModelFailed) -> Past:
    if e.place:
        return _with_function_call(past, e)
    return _change(past, e.agent, wait=past_wait(e))


@REPLAY.on(ev.Paused)
def _paused(past: Past, e: ev.Paused) -> Past:
    return _with_waits(past, lambda wait: wait.stopped(e.at))


@REPLAY.on(ev.Continued)
def _continued(past: Past, e: ev.Continued) -> Past:
    return _with_waits(past, lambda wait: wait.started(e.at))


@REPLAY.on(ev.StopRequested)
def _stop_requested(past: Past, e: ev.StopRequested) -> Past:
    if e.source == "parent":  # such as the end of the process, after which the wait continues
        return past
    return _with_waits(past, lambda wait: wait.stopped(e.at), e.agent)


@REPLAY.on(ev.SessionBound)
def _session_bound(past: Past, e: ev.SessionBound) -> Past:
    return _change(past, e.agent, session=e.session)


@REPLAY.on(ev.FoldRequested)
def _fold_requested(past: Past, e: ev.FoldRequested) -> Past:
    return _change(past, e.agent, fold_request=e.keep)


@REPLAY.on(ev.ContextFolded)
def _context_folded(past: Past, e: ev.ContextFolded) -> Past:
    open_round = past.rounds.get(e.agent)
    if open_round is None:
        return past
    folds, count = (*open_round.folds, e), len(open_round.exchanges)
    done = {"summary": "", "fold_request": None}
    return _change(past, e.agent, folds=folds, folded_at=count, **done)


@REPLAY.on(ev.AgentStateSaved)
def _agent_state_saved(past: Past, e: ev.AgentStateSaved) -> Past:
    return _with_function_call(past, e)


@REPLAY.on(ev.ToolStarted, ev.ToolFinished)
def _tool_call(past: Past, e: ev.ToolStarted | ev.ToolFinished) -> Past:
    return _note_call(past, e.agent, e)


@REPLAY.on(ev.ApprovalAsked, ev.ApprovalGiven)
def _approval(past: Past, e: ev.ApprovalAsked | ev.ApprovalGiven) -> Past:
    return _note_call(past, e.caller, e)


@REPLAY.on(ev.TurnRejected)
def _turn_rejected(past: Past, e: ev.TurnRejected) -> Past:
    return _change_exchange(past, e.agent, complaint=e.why)


@REPLAY.on(ev.ReplyCut)
def _reply_cut(past: Past, e: ev.ReplyCut) -> Past:
    return _change_exchange(past, e.agent, complaint=e.told, kept=e.kept)


@REPLAY.on(ev.NoteSent)
def _note_sent(past: Past, e: ev.NoteSent) -> Past:
    open_round = past.rounds.get(e.agent)
    if not open_round:
        return past
    if e.seen is not None:
        past = _change(past, e.agent, seen=dict(e.seen), news=open_round.news + 1)
    if not open_round.exchanges:
        return _change(past, e.agent, notes=(*open_round.notes, e.text))
    last = open_round.exchanges[-1]
    in_result = e.in_result or last.in_result
    return _change_exchange(past, e.agent, notes=(*last.notes, e.text), in_result=in_result)


@REPLAY.on(
    ev.AnswerGiven,
    ev.VoteCast,
    ev.VoteIgnored,
    ev.Abstained,
    ev.RoundTimedOut,
    ev.AgentFailed,
    ev.AgentEnded,
)
def _round_ended(past: Past, e: ev.AgentEvent) -> Past:
    return replace(past, rounds={a: r for a, r in past.rounds.items() if a != e.agent})


@REPLAY.on(ev.FinalAnswerGiven, ev.OrchestrationRestarted)
def _all_rounds_ended(past: Past, _: ev.FinalAnswerGiven | ev.OrchestrationRestarted) -> Past:
    return replace(past, rounds={})


# Other functions of this module handle the first four events, or only `voting` does.
REPLAY.ignore(
    ev.AgentCalled,
    ev.PresentationStarted,
    ev.TextStreamed,
    ev.UserMessage,
    ev.CommandAnswered,
    ev.ContextChanged,
    ev.FilesListed,
    ev.FilesSaved,
    ev.ModelCut,
    ev.Noticed,
    ev.OutputStreamed,
    ev.ProcessExitChecked,
    ev.RecipeLoaded,
    ev.StepFailed,
    ev.StepFinished,
    ev.StepStarted,
    ev.ToolNotice,
    ev.TurnEnded,
    ev.TurnStarted,
    ev.UsageUpdated,
    ev.UserFilesSaved,
    ev.WorktreeBased,
)
REPLAY.check()


def _with_round(past: Past, agent: str, open_round: PastRound) -> Past:
    return replace(past, rounds=with_entry(past.rounds, agent, open_round))


def _change(past: Past, agent: str, **changes: Any) -> Past:
    open_round = past.rounds.get(agent)
    return _with_round(past, agent, replace(open_round, **changes)) if open_round else past


def _with_waits(past: Past, change: Callable[[PastWait], PastWait], agent: str = "") -> Past:
    """Change the waits for providers of an agent's open round, or of all open rounds."""
    for name, each in past.rounds.items():
        if agent in ("", name):
            past = _with_round(past, name, _with_changed_waits(each, change))
    return past


def _with_changed_waits(past: PastRound, change: Callable[[PastWait], PastWait]) -> PastRound:
    placed = {
        place: replace(call, wait=call.wait and change(call.wait))
        for place, call in past.placed.items()
        if call.wait
    }
    if not placed and past.wait is None:
        return past
    return replace(past, wait=past.wait and change(past.wait), placed={**past.placed, **placed})


def _with_function_call(past: Past, event: ev.Event, agent: str = "") -> Past:
    """Record an event of a call in a user's agent function."""
    agent = agent or getattr(event, "agent", "")
    open_round = past.rounds.get(agent)
    if open_round is None:
        return past
    return _change(past, agent, placed=PLACED_CALLS.apply(open_round.placed, event))


def _note_call(
    past: Past,
    agent: str,
    event: ev.ToolStarted | ev.ToolFinished | ev.ApprovalAsked | ev.ApprovalGiven,
) -> Past:
    """Record a tool call's event in the last exchange. Call ids are "request.position"."""
    if is_place(event.call_id):
        return _with_function_call(past, event, agent)
    open_round = past.rounds.get(agent)
    if open_round and open_round.resumes == "goes on":
        return _note_doing(past, agent, open_round, event)
    call, _, number = event.call_id.partition(".")
    last = open_round.exchanges[-1] if open_round and open_round.exchanges else None
    if last is None or str(last.call) != call or not _POSITION.fullmatch(number):
        return past
    position = int(number)
    begun = {each: repeatable for each, repeatable in last.begun.items() if each != position}
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
            images = {**last.images, position: event.images} if event.images else last.images
            return _change_exchange(
                past, agent, results=results, begun=begun, repeated=repeated, images=images
            )
    return past


def _note_doing(past: Past, agent: str, open_round: PastRound, event: ev.Event) -> Past:
    """Record a tool call of an external agent."""
    match event:
        case ev.ToolStarted(call_id=call, tool=tool, summary=summary):
            return _change(past, agent, doing={**open_round.doing, call: f"{tool} {summary}"})
        case ev.ToolFinished(call_id=call, outcome="ok" | "error"):
            doing = {each: about for each, about in open_round.doing.items() if each != call}
            return _change(past, agent, doing=doing)
    return past


def _change_exchange(past: Past, agent: str, **changes: Any) -> Past:
    """Return the state with changes to an agent's last exchange."""
    open_round = past.rounds.get(agent)
    if not open_round or not open_round.exchanges:
        return past
    last = replace(open_round.exchanges[-1], **changes)
    return _change(past, agent, exchanges=(*open_round.exchanges[:-1], last))
