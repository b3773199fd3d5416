"""What the agents and steps of a recorded turn sent and received, and in which order. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, cast, get_args

from nb_agents import events as ev
from nb_agents.agents.decisions import Abstention, Answered, Decision, Stale, Voted
from nb_agents.agents.message_json import load_messages, opening_of
from nb_agents.agents.model_runner import opening_messages, past_request
from nb_agents.agents.replay import PastRound, replay
from nb_agents.cancel import CancellationStatus, StopRequest, StopSource
from nb_agents.events.turn_events import (
    Command,
    Continue,
    Decide,
    FoldContext,
    Pause,
    Say,
    SetTimeLimit,
)
from nb_agents.models.message_order import normalize_messages

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse

AUTOMATIC = "auto_approve_if"
"""The user that `nb_agents.events.ApprovalGiven` names if a condition opened the gate."""

_SOURCES = frozenset(get_args(StopSource))


class ReplayStep(NamedTuple):
    """A moment of a turn at which the order of the agents' work matters.

    Attributes:
        kind: What happens, such as the start of a round or the end of a reply.
        agent: The agent's id, the address of a step, or "" for the turn.
        name: The number of the round, call or event, or the id of the tool call.
    """

    kind: str
    agent: str
    name: int | str

    def __str__(self) -> str:
        """Describe the moment."""
        return f"{self.kind} {self.name}" + (f" of {self.agent}" if self.agent else "")


class RoundScript(NamedTuple):
    """A round whose runner is not simulated: that of an external agent or of a function.

    Attributes:
        started: The round's first event. None if an earlier turn has it.
        events: The events that its runner emitted, with their steps.
    """

    started: ev.RoundStarted | None
    events: list[tuple[ReplayStep, ev.Event]]


@dataclass
class ReplayScript:
    """The recorded requests, replies and results of a turn.

    Attributes:
        requests: The messages of each request, by agent and call.
        replies: The reply to each request that was answered, by agent and call.
        partial: The text received for each request, by agent and call, unless it was answered.
        failures: The failed attempts at requests, by agent, call and attempt.
        cuts: The requests that a stop has cut, by agent and call.
        calls: The start of each tool call, by agent and id.
        results: The end of each tool call, by agent and id.
        decisions: The decision or failure of each round, by agent and round.
        rounds: The rounds that are not simulated, by agent and round.
        promises: What each agent's runner guaranteed about a resume.
        commands: The commands that users sent, by step.
        verbatim: The events that are recorded again unchanged, by step.
        outputs: The end of each attempt at a step's command, by address and attempt.
        recipes: The events with the recipes that steps called, by address.
        models: The names of the models of agent steps.
        folds: The folds of each agent's conversations, in order.
        summaries: The requests for summaries, by agent and call.
        stops_between_rounds: The stops that ended agents between two rounds, by agent.
        order: The steps, in the order of the journal.
        unsupported: Why the turn can't be replayed and what to do, in sentences, or "".
    """

    requests: dict[tuple[str, int], list[ModelMessage]] = field(default_factory=dict)
    replies: dict[tuple[str, int], ModelResponse] = field(default_factory=dict)
    partial: dict[tuple[str, int], str] = field(default_factory=dict)
    failures: dict[tuple[str, int, int], ev.ModelFailed] = field(default_factory=dict)
    cuts: dict[tuple[str, int], ev.ModelCut] = field(default_factory=dict)
    calls: dict[tuple[str, str], ev.ToolStarted] = field(default_factory=dict)
    results: dict[tuple[str, str], ev.ToolFinished] = field(default_factory=dict)
    decisions: dict[tuple[str, int], Decision | str] = field(default_factory=dict)
    rounds: dict[tuple[str, int], RoundScript] = field(default_factory=dict)
    promises: dict[str, str] = field(default_factory=dict)
    commands: dict[ReplayStep, Command] = field(default_factory=dict)
    verbatim: dict[ReplayStep, ev.Event] = field(default_factory=dict)
    outputs: dict[tuple[str, int], ev.StepFinished | ev.StepFailed] = field(default_factory=dict)
    recipes: dict[str, ev.RecipeLoaded] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    folds: dict[str, list[ev.ContextFolded]] = field(default_factory=dict)
    summaries: set[tuple[str, int]] = field(default_factory=set)
    stops_between_rounds: dict[str, ReplayStep] = field(default_factory=dict)
    order: list[ReplayStep] = field(default_factory=list)
    unsupported: str = ""
    _attempts: dict[str, tuple[int, int]] = field(default_factory=dict)
    _rounds: dict[str, int] = field(default_factory=dict)
    _started: dict[str, ev.RoundStarted] = field(default_factory=dict)
    _answers: dict[ReplayStep, tuple[str, int]] = field(default_factory=dict)
    _answer_counts: Counter[str] = field(default_factory=Counter)
    _steps: dict[str, int] = field(default_factory=dict)
    _commands: set[tuple[str, int]] = field(default_factory=set)
    _asked_by_tools: set[str] = field(default_factory=set)
    _numbers: StepNumbers = field(default_factory=lambda: StepNumbers())

    def as_recorded(self, event: ev.Event, attempt: int) -> ev.Event:
        """Return an event of a replay with what only the recording knows.

        This is the end of a request that failed or was cut, and the size of a tool's result.

        Args:
            event: An event of a replay.
            attempt: The number of the agent's current attempt at a request.
        """
        if isinstance(event, ev.ModelFailed):
            return self.failures.get((event.agent, event.call, attempt), event)
        if isinstance(event, ev.ModelCut):
            return self.cuts.get((event.agent, event.call), event)
        if isinstance(event, ev.ToolFinished):
            recorded = self.results.get((event.agent, event.call_id), event)
            return replace(event, size=recorded.size)
        return event

    def _add_step(self, kind: str, agent: str, name: int | str) -> ReplayStep:
        step = ReplayStep(kind, agent, name)
        self.order.append(step)
        return step

    def _add_seen(self, event: ev.Event) -> ReplayScript:
        """Add the step of an event that a replay notices when the event is recorded."""
        if (step := self._numbers.step_of(event)) is not None:
            self.order.append(step)
        return self

    def _add_command(self, event: ev.Event, command: Command) -> ReplayScript:
        if (step := self._numbers.step_of(event)) is not None:
            self.order.append(step)
            self.commands[step] = command
        return self

    def _add_verbatim(self, event: ev.Event) -> ReplayScript:
        if (step := self._numbers.step_of(event)) is not None:
            self.order.append(step)
            self.verbatim[step] = event
        return self

    def _last_stop(self, agent: str) -> ReplayStep | None:
        """Return the last stop of the turn or of an agent."""
        stops = (step for step in reversed(self.order) if step.kind == "stop requested")
        return next((step for step in stops if step.agent in ("", agent)), None)

    def _end_round(self, kind: str, agent: str, decision: Decision | str) -> ReplayStep:
        number = self._rounds.get(agent, 0)
        self.decisions.setdefault((agent, number), decision)
        return self._add_step(f"{kind} in round", agent, number)

    def _refuse(self, reason: str) -> ReplayScript:
        self.unsupported = self.unsupported or reason
        return self


def step_of_call(event: ev.Event) -> ReplayStep | None:
    """Return the step of a cut request, or of the start or end of a tool call."""
    match event:
        case ev.ModelCut(agent=agent, call=call):
            return ReplayStep("end of request", agent, call)
        case ev.ToolStarted(agent=agent, call_id=call_id):
            return ReplayStep("start of tool call", agent, call_id)
        case ev.ToolFinished(agent=agent, call_id=call_id):
            return ReplayStep("tool call", agent, call_id)
    return None


class StepNumbers:
    """Numbers the steps that a replay notices when their events are recorded."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def step_of(self, event: ev.Event) -> ReplayStep | None:
        """Return the step of an event. None if the event is not such a step."""
        agent = _subject(event)
        if not isinstance(event, _SEEN):
            return None
        self._counts[event.kind, agent] += 1
        return ReplayStep(event.kind.replace("_", " "), agent, self._counts[event.kind, agent])


_SEEN = (
    ev.StopRequested,
    ev.UserMessage,
    ev.Paused,
    ev.Continued,
    ev.FoldRequested,
    ev.TimeLimitChanged,
    ev.ApprovalAsked,
    ev.ApprovalGiven,
    ev.AgentEnded,
)


def _subject(event: ev.Event) -> str:
    return getattr(event, "agent", "") or getattr(event, "step", "")


def script_of(events: Sequence[ev.Event], past: Sequence[ev.Event] = ()) -> ReplayScript:
    """Return the script of a turn.

    Requests are rebuilt from the journal with the functions that a resume uses.

    Args:
        events: The turn's events, in order.
        past: The events of the turns that it resumes, up to the checkpoint of a rewind.
    """
    script, rounds = ReplayScript(), _Rounds()
    for event in past:
        rounds.add(event)
        if isinstance(event, ev.RoundStarted):
            script._rounds[event.agent] = event.number
            script.promises[event.agent] = event.resumes
        elif isinstance(event, ev.AnswerGiven):
            script._answer_counts[event.agent] += 1
    for event in events:
        rounds.add(event)
        script = RECORDING.apply(script, event)
        if isinstance(event, ev.ModelStarted) and not script.unsupported:
            place = event.agent, event.call
            if place not in script.requests and not (event.place or event.purpose):
                script.requests[place] = rounds.request(event.agent)
    script.order = list(dict.fromkeys(script.order))
    return script


_OF = (
    ev.AgentEvent,
    ev.UnitEvent,
    ev.TurnStarted,
    ev.TurnEnded,
    ev.StopRequested,
    ev.UserMessage,
    ev.Paused,
    ev.Continued,
    ev.TimeLimitChanged,
    ev.BudgetReached,
    ev.BudgetRaised,
)

RECORDING: ev.Fold[ReplayScript] = ev.Fold("recording", of=_OF)
"""The functions that add an event to a script. The script is changed in place."""


@RECORDING.on(ev.TurnStarted)
def _turn_started(script: ReplayScript, e: ev.TurnStarted) -> ReplayScript:
    if e.revised:
        return script._refuse("It revises steps of an earlier turn. Record a turn that doesn't.")
    if e.context_paths or ((e.team or {}).get("orchestrator") or {}).get("context_paths"):
        return script._refuse(
            "Its agents read files outside of their workspaces. Run it without context paths."
        )
    return script


@RECORDING.on(ev.RoundStarted)
def _round_started(script: ReplayScript, e: ev.RoundStarted) -> ReplayScript:
    script._rounds[e.agent] = e.number
    script._started[e.agent] = e
    script.promises[e.agent] = e.resumes
    step = ReplayStep("round", e.agent, e.number)
    script.order.insert(_place_of_round(script.order, script._answers, e.seen), step)
    if e.resumes != "exactly":
        script.rounds[e.agent, e.number] = RoundScript(e, [])
    return script


def _played(script: ReplayScript, e: ev.AgentEvent) -> RoundScript | None:
    """Return the script of the agent's current round if it is not simulated."""
    number = script._rounds.get(e.agent, 0)
    is_simulated = script.promises.get(e.agent, "exactly") == "exactly"
    if is_simulated and (e.agent, number) not in script.rounds:
        return None
    return script.rounds.setdefault((e.agent, number), RoundScript(None, []))


def _play(script: ReplayScript, e: ev.AgentEvent) -> bool:
    """Add an event to a round that is not simulated. Return whether it belongs to one."""
    if (played := _played(script, e)) is None:
        return False
    played.events.append((script._add_step("event", e.agent, e.seq), e))
    return True


@RECORDING.on(ev.ModelStarted)
def _model_started(script: ReplayScript, e: ev.ModelStarted) -> ReplayScript:
    if e.place:  # a function's or framework's call of a model
        place, started = (e.agent, script._rounds.get(e.agent, 0)), script._started.get(e.agent)
        script.rounds.setdefault(place, RoundScript(started, []))
    if not _play(script, e):
        script._attempts[e.agent] = e.call, e.attempt
        if e.purpose:
            script.summaries.add((e.agent, e.call))
        script._add_step("request", e.agent, f"{e.call}.{e.attempt}")
    return script


@RECORDING.on(ev.TextStreamed)
def _text_streamed(script: ReplayScript, e: ev.TextStreamed) -> ReplayScript:
    if e.channel == "text" and _played(script, e) is None:
        text = script.partial.get((e.agent, e.call), "")
        script.partial[e.agent, e.call] = text + e.text
    return script


@RECORDING.on(ev.ModelFinished)
def _model_finished(script: ReplayScript, e: ev.ModelFinished) -> ReplayScript:
    if _play(script, e):
        return script
    try:
        (reply,) = load_messages([e.response])
    except ValueError:
        return script._refuse("A reply in its journal is unreadable. Run the turn again.")
    if reply.kind != "response":
        return script._refuse("A reply in its journal is damaged. Run the turn again.")
    script.replies[e.agent, e.call] = reply
    script._add_step("reply", e.agent, e.call)
    return script


@RECORDING.on(ev.ModelFailed)
def _model_failed(script: ReplayScript, e: ev.ModelFailed) -> ReplayScript:
    if _play(script, e):
        return script
    call, attempt = script._attempts.get(e.agent, (e.call, 1))
    script.failures[e.agent, call, attempt] = e
    script._add_step("failure of request", e.agent, f"{call}.{attempt}")
    return script


@RECORDING.on(ev.ModelCut)
def _model_cut(script: ReplayScript, e: ev.ModelCut) -> ReplayScript:
    if not _play(script, e):
        script.cuts[e.agent, e.call] = e
        script._add_step("end of request", e.agent, e.call)
    return script


@RECORDING.on(ev.ToolStarted)
def _tool_started(script: ReplayScript, e: ev.ToolStarted) -> ReplayScript:
    if not _play(script, e):
        script.calls[e.agent, e.call_id] = e
        script._add_step("start of tool call", e.agent, e.call_id)
    return script


@RECORDING.on(ev.ToolFinished)
def _tool_finished(script: ReplayScript, e: ev.ToolFinished) -> ReplayScript:
    if not _play(script, e):
        script.results[e.agent, e.call_id] = e
        if (e.agent, e.call_id) in script.calls:
            script._add_step("tool call", e.agent, e.call_id)
    return script


@RECORDING.on(ev.SessionBound, ev.AgentStateSaved, ev.TurnRejected, ev.ReplyCut, ev.NoteSent)
def _of_runner(script: ReplayScript, e: ev.AgentEvent) -> ReplayScript:
    _play(script, e)
    return script


@RECORDING.on(ev.AnswerGiven)
def _answer_given(script: ReplayScript, e: ev.AnswerGiven) -> ReplayScript:
    step = script._end_round("decision", e.agent, Answered(e.answer))
    script._answer_counts[e.agent] += 1
    script._answers[step] = e.agent, script._answer_counts[e.agent]
    return script


@RECORDING.on(ev.VoteCast)
def _voted(script: ReplayScript, e: ev.VoteCast) -> ReplayScript:
    script._end_round("decision", e.agent, Voted(e.target, e.reason))
    return script


@RECORDING.on(ev.VoteIgnored)
def _vote_ignored(script: ReplayScript, e: ev.VoteIgnored) -> ReplayScript:
    script._end_round("decision", e.agent, Stale(e.target))
    return script


@RECORDING.on(ev.Abstained)
def _abstained(script: ReplayScript, e: ev.Abstained) -> ReplayScript:
    script._end_round("decision", e.agent, Abstention())
    return script


@RECORDING.on(ev.FinalAnswerGiven)
def _final_answer_given(script: ReplayScript, e: ev.FinalAnswerGiven) -> ReplayScript:
    place = e.agent, script._rounds.get(e.agent, 0)
    script.decisions.setdefault(place, Answered(e.answer))
    return script


@RECORDING.on(ev.AgentFailed)
def _agent_failed(script: ReplayScript, e: ev.AgentFailed) -> ReplayScript:
    script._end_round("failure", e.agent, e.error)
    return script


@RECORDING.on(ev.AgentEnded)
def _agent_ended(script: ReplayScript, e: ev.AgentEnded) -> ReplayScript:
    place = e.agent, script._rounds.get(e.agent, 0)
    if e.text:
        script.decisions.setdefault(place, Answered(e.text))
    if e.outcome == "stopped" and place in script.decisions:
        # Whether the agent had begun to prepare its next round, and so ends, depends on the time.
        script._numbers.step_of(e)
        if (stop := script._last_stop(e.agent)) is not None:
            script.stops_between_rounds[e.agent] = stop
        return script
    return script._add_seen(e)


@RECORDING.on(ev.TurnEnded)
def _turn_ended(script: ReplayScript, e: ev.TurnEnded) -> ReplayScript:
    place = e.winner, script._rounds.get(e.winner, 0)
    script.decisions.setdefault(place, Answered(e.answer))
    return script


# The steps of recipes --------------------------------------------------------------------------


@RECORDING.on(ev.RecipeLoaded)
def _recipe_loaded(script: ReplayScript, e: ev.RecipeLoaded) -> ReplayScript:
    script.recipes[e.step] = e
    return script


@RECORDING.on(ev.StepStarted)
def _step_started(script: ReplayScript, e: ev.StepStarted) -> ReplayScript:
    script._steps[e.step] = e.attempt
    if e.unit == "agent":
        script.models.add(e.model)
    elif e.unit == "bash":
        script._commands.add((e.step, e.attempt))
        script._add_step("start of command", e.step, e.attempt)
    return script


@RECORDING.on(ev.StepFinished)
def _step_finished(script: ReplayScript, e: ev.StepFinished) -> ReplayScript:
    if e.step in script._rounds and e.outcome == "ok":
        script._end_round("decision", e.step, Answered(str(e.output)))
    elif (e.step, script._steps.get(e.step, 0)) in script._commands:
        _add_output(script, e, script._steps[e.step])
    return script


@RECORDING.on(ev.StepFailed)
def _step_failed(script: ReplayScript, e: ev.StepFailed) -> ReplayScript:
    if (e.step, e.attempt) in script._commands:
        _add_output(script, e, e.attempt)
    return script


def _add_output(
    script: ReplayScript, e: ev.StepFinished | ev.StepFailed, attempt: int
) -> ReplayStep:
    script.outputs[e.step, attempt] = e
    return script._add_step("end of command", e.step, attempt)


# Commands --------------------------------------------------------------------------------------


@RECORDING.on(ev.StopRequested)
def _stop_requested(script: ReplayScript, e: ev.StopRequested) -> ReplayScript:
    is_hard = e.level == "immediate"
    level = CancellationStatus.IMMEDIATE if is_hard else CancellationStatus.REQUESTED
    source = cast(StopSource, e.source if e.source in _SOURCES else "api")
    return script._add_command(e, StopRequest(level, source, e.reason, e.agent, e.gate))


@RECORDING.on(ev.UserMessage)
def _user_message(script: ReplayScript, e: ev.UserMessage) -> ReplayScript:
    if e.to:  # sent with a rewind
        return script._add_seen(e)
    return script._add_command(e, Say(e.text))


@RECORDING.on(ev.Paused)
def _paused(script: ReplayScript, e: ev.Paused) -> ReplayScript:
    return script._add_command(e, Pause())


@RECORDING.on(ev.Continued)
def _continued(script: ReplayScript, e: ev.Continued) -> ReplayScript:
    return script._add_command(e, Continue())


@RECORDING.on(ev.FoldRequested)
def _fold_requested(script: ReplayScript, e: ev.FoldRequested) -> ReplayScript:
    return script._add_command(e, FoldContext(e.agent, e.keep))


@RECORDING.on(ev.TimeLimitChanged)
def _time_limit_changed(script: ReplayScript, e: ev.TimeLimitChanged) -> ReplayScript:
    return script._add_command(e, SetTimeLimit(e.timeout_s))


@RECORDING.on(ev.ApprovalAsked)
def _approval_asked(script: ReplayScript, e: ev.ApprovalAsked) -> ReplayScript:
    if e.about:
        return script._refuse(
            "It asked whether to raise its budget. Run it again with a higher one."
        )
    if e.caller or e.wants == "input":  # a tool asked, which does not run in a replay
        script._asked_by_tools.add(e.step)
        return script._add_verbatim(e)
    return script._add_seen(e)


@RECORDING.on(ev.ApprovalGiven)
def _approval_given(script: ReplayScript, e: ev.ApprovalGiven) -> ReplayScript:
    if e.step in script._asked_by_tools:
        return script._add_verbatim(e)
    if e.by == AUTOMATIC:
        return script._add_seen(e)
    return script._add_command(e, Decide(e.approved, e.message, e.by, e.step))


_UNSUPPORTED: dict[type[ev.Event], str] = {
    ev.RoundTimedOut: "A round ran into its time limit. Run it again with a higher one.",
    ev.ModelBatched: "It waited for a batch. Run it again without `batch`.",
    ev.WorktreeBased: "Its agents worked in copies of a repository. Run it without `write_mode`.",
    ev.BudgetReached: "It reached its budget. Run it again with a higher one.",
    ev.BudgetRaised: "Its budget was raised while it ran. Run it again with a higher one.",
}


@RECORDING.on(*_UNSUPPORTED)
def _unsupported(script: ReplayScript, e: ev.Event) -> ReplayScript:
    return script._refuse(_UNSUPPORTED[type(e)])


@RECORDING.on(ev.ContextFolded)
def _context_folded(script: ReplayScript, e: ev.ContextFolded) -> ReplayScript:
    if e.why in ("refused", "cut"):
        return script._refuse(
            "A conversation was folded because a server rejected it. Set `window` in `context` "
            "and run the turn again."
        )
    script.folds.setdefault(e.agent, []).append(e)
    script._add_step("fold", e.agent, len(script.folds[e.agent]))
    return script


class _Rounds:
    """The events of each agent's current round."""

    def __init__(self) -> None:
        self._count = 0
        self._of_turn: list[tuple[int, ev.Event]] = []
        self._of_agents: dict[str, list[tuple[int, ev.Event]]] = {}

    def add(self, event: ev.Event) -> None:
        self._count += 1
        agent, entry = getattr(event, "agent", ""), (self._count, event)
        if isinstance(event, ev.TurnStarted | ev.AgentCalled):
            self._of_turn.append(entry)
        elif isinstance(event, ev.RoundStarted):
            self._of_agents[agent] = [entry]
        elif agent in self._of_agents:
            self._of_agents[agent].append(entry)

    def request(self, agent: str) -> list[ModelMessage]:
        """Return the messages of the request that an agent has just sent."""
        started = next(e for _, e in reversed(self._of_turn) if isinstance(e, ev.TurnStarted))
        entries = merge(self._of_turn, self._of_agents.get(agent, ()), key=itemgetter(0))
        events = [event for _, event in entries]
        past = replay([each.id for each in started.agents], events, started.again)
        found = past.rounds.get(agent) or _round_of_child(past.children.get(agent))
        return normalize_messages(past_request(found)) if found else []


def _round_of_child(child: object) -> PastRound | None:
    found = getattr(child, "round", None)
    return found if isinstance(found, PastRound) else None


def opening_of_round(started: ev.RoundStarted) -> list[ModelMessage]:
    """Return the first messages of a round, whose runner is not simulated."""
    return opening_messages(opening_of(started))


def _place_of_round(
    order: Sequence[ReplayStep],
    answers: Mapping[ReplayStep, tuple[str, int]],
    seen: Mapping[str, int],
) -> int:
    """Return the position of a round's start: before the first answer that it has not seen.

    Another agent can answer between the moment at which a round's prompt is made and the moment at
    which its start is journalled.
    """
    for position, step in enumerate(order):
        if step in answers:
            agent, number = answers[step]
            if number > seen.get(agent, 0):
                return position
    return len(order)


RECORDING.ignore(
    ev.UsageUpdated,
    ev.ToolNotice,
    ev.AgentCalled,
    ev.PresentationStarted,
    ev.OrchestrationRestarted,
    ev.ContextChanged,
    ev.OutputStreamed,
)
RECORDING.check()
