"""The script of a replay: what each agent sent and received, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from nb_agents import events as ev
from nb_agents.agents.message_json import load_messages
from nb_agents.agents.model_runner import past_request
from nb_agents.agents.replay import PastRound, replay
from nb_agents.events.work_kinds import TEAM
from nb_agents.models.message_order import normalize_messages

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse


class ReplayStep(NamedTuple):
    """A moment of a turn at which the order of the agents' work matters.

    Attributes:
        kind: What happens, such as the start of a round or the end of a reply.
        agent: The agent's id.
        name: The number of the round or the call, or the id of the tool call.
    """

    kind: str
    agent: str
    name: int | str

    def __str__(self) -> str:
        """Describe the moment."""
        return f"{self.kind} {self.name} of {self.agent}"


@dataclass
class ReplayScript:
    """The recorded requests, replies and tool results of a turn.

    Attributes:
        requests: The messages of each request, by agent and call.
        replies: The reply to each request that was answered, by agent and call.
        errors: The final error of each request that failed, by agent and call.
        calls: The start of each tool call, by agent and id.
        results: The end of each tool call, by agent and id.
        order: The steps, in the order of the journal.
        unsupported: Why the turn can't be replayed, to follow "because", or "".
    """

    requests: dict[tuple[str, int], list[ModelMessage]] = field(default_factory=dict)
    replies: dict[tuple[str, int], ModelResponse] = field(default_factory=dict)
    errors: dict[tuple[str, int], str] = field(default_factory=dict)
    calls: dict[tuple[str, str], ev.ToolStarted] = field(default_factory=dict)
    results: dict[tuple[str, str], ev.ToolFinished] = field(default_factory=dict)
    order: list[ReplayStep] = field(default_factory=list)
    unsupported: str = ""
    _rounds: dict[str, int] = field(default_factory=dict)
    _answers: dict[ReplayStep, tuple[str, int]] = field(default_factory=dict)

    def _add_step(self, kind: str, agent: str, name: int | str) -> ReplayStep:
        step = ReplayStep(kind, agent, name)
        if step not in self.order[-1:]:
            self.order.append(step)
        return step

    def _add_round_end(self, kind: str, agent: str) -> ReplayStep:
        return self._add_step(f"{kind} in round", agent, self._rounds.get(agent, 0))

    def _refuse(self, reason: str) -> ReplayScript:
        self.unsupported = self.unsupported or reason
        return self


def script_of(events: Sequence[ev.Event]) -> ReplayScript:
    """Return the script of a turn.

    Requests are rebuilt from the journal with the functions that a resume uses.

    Args:
        events: The turn's events, in order.
    """
    script, rounds = ReplayScript(), _Rounds()
    for event in events:
        rounds.add(event)
        script = RECORDING.apply(script, event)
        if isinstance(event, ev.ModelStarted) and not script.unsupported:
            place = event.agent, event.call
            if place not in script.requests:
                script.requests[place] = rounds.request(event.agent)
    script.order = list(dict.fromkeys(script.order))
    return script


RECORDING: ev.Fold[ReplayScript] = ev.Fold(
    "recording",
    of=(ev.AgentEvent, ev.TurnStarted, ev.UserMessage, ev.StopRequested, ev.Paused),
)
"""The functions that add an event to a script. The script is changed in place."""


@RECORDING.on(ev.TurnStarted)
def _turn_started(script: ReplayScript, e: ev.TurnStarted) -> ReplayScript:
    if e.recipe or e.work not in ("", TEAM):
        return script._refuse(f"it is a {e.work or 'recipe'}; only teams can be recorded")
    if e.resumes:
        return script._refuse("it resumes an earlier turn")
    if e.turn != 1:
        return script._refuse("only the first turn of a session can be recorded")
    if e.context_paths or ((e.team or {}).get("orchestrator") or {}).get("context_paths"):
        return script._refuse("its agents read files outside of their workspaces")
    return script


@RECORDING.on(ev.RoundStarted)
def _round_started(script: ReplayScript, e: ev.RoundStarted) -> ReplayScript:
    if e.resumes != "exactly":
        return script._refuse(f"agent {e.agent!r} is an external agent or a function")
    script._rounds[e.agent] = e.number
    step = ReplayStep("round", e.agent, e.number)
    script.order.insert(_place_of_round(script.order, script._answers, e.seen), step)
    return script


@RECORDING.on(ev.ModelStarted)
def _model_started(script: ReplayScript, e: ev.ModelStarted) -> ReplayScript:
    script._add_step("request", e.agent, e.call)
    return script


@RECORDING.on(ev.ModelFinished)
def _model_finished(script: ReplayScript, e: ev.ModelFinished) -> ReplayScript:
    try:
        (reply,) = load_messages([e.response])
    except ValueError:  # ACP's and functions' replies have other forms
        return script._refuse("a reply was not made by a model")
    if reply.kind != "response":
        return script._refuse("a reply is damaged")
    script.replies[e.agent, e.call] = reply
    if not e.purpose:
        script._add_step("reply", e.agent, e.call)
    return script


@RECORDING.on(ev.ModelFailed)
def _model_failed(script: ReplayScript, e: ev.ModelFailed) -> ReplayScript:
    if e.retry_in_s is None:
        script.errors[e.agent, e.call] = e.error
    return script


@RECORDING.on(ev.ToolStarted)
def _tool_started(script: ReplayScript, e: ev.ToolStarted) -> ReplayScript:
    script.calls[e.agent, e.call_id] = e
    return script


@RECORDING.on(ev.ToolFinished)
def _tool_finished(script: ReplayScript, e: ev.ToolFinished) -> ReplayScript:
    script.results[e.agent, e.call_id] = e
    if e.outcome in ("ok", "error"):
        script._add_step("tool call", e.agent, e.call_id)
    return script


@RECORDING.on(ev.AnswerGiven)
def _answer_given(script: ReplayScript, e: ev.AnswerGiven) -> ReplayScript:
    step = script._add_round_end("decision", e.agent)
    number = 1 + sum(agent == e.agent for agent, _ in script._answers.values())
    script._answers[step] = e.agent, number
    return script


@RECORDING.on(ev.VoteCast, ev.VoteIgnored, ev.Abstained)
def _voted(script: ReplayScript, e: ev.AgentEvent) -> ReplayScript:
    script._add_round_end("decision", e.agent)
    return script


@RECORDING.on(ev.AgentFailed)
def _agent_failed(script: ReplayScript, e: ev.AgentFailed) -> ReplayScript:
    script._add_round_end("failure", e.agent)
    return script


_UNSUPPORTED: dict[type[ev.Event], str] = {
    ev.UserMessage: "you sent a message while it ran",
    ev.StopRequested: "it was stopped",
    ev.Paused: "it was paused",
    ev.ContextFolded: "a conversation was folded to fit the context window",
    ev.RoundTimedOut: "a round ran into its time limit",
    ev.AgentStateSaved: "an agent of another framework took part",
    ev.SessionBound: "an external agent took part",
    ev.ModelBatched: "it waited for a batch",
    ev.WorktreeBased: "its agents worked in copies of a repository",
}


@RECORDING.on(*_UNSUPPORTED)
def _unsupported(script: ReplayScript, e: ev.Event) -> ReplayScript:
    return script._refuse(_UNSUPPORTED[type(e)])


class _Rounds:
    """The events of each agent's current round."""

    def __init__(self) -> None:
        self._of_turn: list[ev.TurnStarted | ev.AgentCalled] = []
        self._of_agents: dict[str, list[ev.Event]] = {}

    def add(self, event: ev.Event) -> None:
        agent = getattr(event, "agent", "")
        if isinstance(event, ev.TurnStarted | ev.AgentCalled):
            self._of_turn.append(event)
        elif isinstance(event, ev.RoundStarted):
            self._of_agents[agent] = [event]
        elif agent in self._of_agents:
            self._of_agents[agent].append(event)

    def request(self, agent: str) -> list[ModelMessage]:
        """Return the messages of the request that an agent has just sent."""
        started = self._of_turn[0]
        assert isinstance(started, ev.TurnStarted)
        ids = [each.id for each in started.agents]
        past = replay(ids, [*self._of_turn, *self._of_agents.get(agent, ())])
        found = past.rounds.get(agent) or _round_of_child(past.children.get(agent))
        return normalize_messages(past_request(found)) if found else []


def _round_of_child(child: object) -> PastRound | None:
    found = getattr(child, "round", None)
    return found if isinstance(found, PastRound) else None


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
    ev.TextStreamed,
    ev.UsageUpdated,
    ev.ModelCut,
    ev.FoldRequested,
    ev.ToolNotice,
    ev.TurnRejected,
    ev.ReplyCut,
    ev.NoteSent,
    ev.AgentEnded,
    ev.AgentCalled,
    ev.PresentationStarted,
    ev.FinalAnswerGiven,
    ev.OrchestrationRestarted,
    ev.ContextChanged,
)
RECORDING.check()
