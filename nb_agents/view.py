"""The one state of a turn that journal, panel and card show: a fold over its events.

`apply` is a pure function; `fold` runs it over a journal. Nothing here reads a clock or a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from nb_agents import events as ev

__all__ = [
    "AgentPhase",
    "AgentView",
    "RunStatus",
    "RunView",
    "StopView",
    "ToolView",
    "VoteView",
    "apply",
    "fold",
]

AgentPhase = Literal[
    "waiting", "thinking", "writing", "tool", "answered", "voted", "failed", "stopped"
]
RunStatus = Literal["pending", "in-progress", "awaiting", "completed", "failed", "cancelled"]
"""Words of OS Protocol's handle; a cancelled run is shown as "stopped"."""


@dataclass(frozen=True, slots=True)
class ToolView:
    """One tool call: its name and how it stands ("running" until it is over)."""

    agent: str
    call_id: str
    tool: str
    outcome: Literal["running", "ok", "error", "cut", "cancelled"] = "running"
    summary: str = ""


@dataclass(frozen=True, slots=True)
class VoteView:
    """A vote that counts now."""

    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class AgentView:
    """One agent as it stands.

    Attributes:
        id: The agent's id.
        model: Its model's name.
        phase: What it is doing.
        tool: The tool that runs now, or "".
        round: Rounds begun.
        answers: Its answers, oldest first.
        vote: Its vote, or None.
        partial: Words of the model call that is open, or that was cut: not yet an answer.
        partial_call: JSON of another tool's arguments as far as it had come.
        calls: Model requests begun.
        in_flight: Whether a model request is open.
        was_cut: Whether its last model request was cut, so that a resume sends it again.
        input_tokens, output_tokens: Used so far.
        cost: US dollars so far, or None when a model's price is unknown.
        error: Why it failed, or "".
        outcome: How its work ended, or None while it goes on.
    """

    id: str
    model: str = ""
    phase: AgentPhase = "waiting"
    tool: str = ""
    tool_summary: str = ""
    round: int = 0
    answers: tuple[str, ...] = ()
    vote: VoteView | None = None
    partial: str = ""
    partial_call: str = ""
    calls: int = 0
    in_flight: bool = False
    was_cut: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = 0.0
    error: str = ""
    outcome: ev.Outcome | None = None

    @property
    def answer(self) -> str:
        """The latest answer, or ""."""
        return self.answers[-1] if self.answers else ""

    @property
    def tokens(self) -> int:
        """Tokens in and out so far."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class StopView:
    """The stop of the run: who asked first, and how hard it is by now."""

    level: Literal["requested", "immediate"]
    source: str
    reason: str
    requested_at: float
    grace_s: float | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A turn as it stands.

    Attributes:
        session, turn: Its address on disk.
        task: What was asked.
        status: OS Protocol's word.
        phase: "coordinating" or "presenting".
        agents: By id, in registration order.
        tools: All tool calls, in order.
        stop: The stop, or None.
        winner: The presenter, or "".
        answer: The final answer of a completed turn.
        started_at, ended_at: Unix seconds; ended_at is None while it goes on.
        timeout_s: The orchestrator timeout, seconds.
        notices: One-line notes for a person.
        files: What the workspaces held at the end.
        resumes: Number of the turn that this one went on with, or 0.
        seq: Journal position that this shows.
    """

    session: str = ""
    turn: int = 0
    task: str = ""
    status: RunStatus = "pending"
    phase: ev.Phase = "coordinating"
    agents: Mapping[str, AgentView] = field(default_factory=lambda: MappingProxyType({}))
    tools: tuple[ToolView, ...] = ()
    stop: StopView | None = None
    winner: str = ""
    answer: str = ""
    started_at: float = 0.0
    ended_at: float | None = None
    last_at: float = 0.0
    timeout_s: float = 0.0
    notices: tuple[str, ...] = ()
    files: tuple[ev.FileInfo, ...] = ()
    resumes: int = 0
    seq: int = 0

    @property
    def round(self) -> int:
        """The furthest round that any agent has begun, at least 1."""
        return max([1, *(a.round for a in self.agents.values())])

    @property
    def votes(self) -> dict[str, int]:
        """Votes that count now, by agent voted for."""
        tally: dict[str, int] = {}
        for agent in self.agents.values():
            if agent.vote:
                tally[agent.vote.target] = tally.get(agent.vote.target, 0) + 1
        return tally

    @property
    def best_agent(self) -> str:
        """The agent whose answer is the best available: the winner, else most votes, else longest.

        Source: MassGen's save_partial_turn (selected agent, else the longest answer, first wins
        ties); votes in between are its rule for timeouts.
        """
        answered = [a for a in self.agents.values() if a.answers]
        if any(a.id == self.winner for a in answered):
            return self.winner
        votes = self.votes
        best = max(answered, key=lambda a: (votes.get(a.id, 0), len(a.answer)), default=None)
        return best.id if best else ""

    @property
    def is_over(self) -> bool:
        """Whether the turn has ended."""
        return self.ended_at is not None


def fold(events: Iterable[ev.Event], view: RunView | None = None) -> RunView:
    """Fold events into a view.

    Args:
        events: In journal order.
        view: Where to start from; an empty one by default.

    Returns:
        The view after the last event.
    """
    view = view or RunView()
    for event in events:
        view = apply(view, event)
    return view


def apply(view: RunView, event: ev.Event) -> RunView:
    """Give the view after one event.

    Args:
        view: The view before.
        event: What happened.

    Returns:
        A new view; ``view`` is unchanged. An event about an unknown agent changes nothing but
        the position, so that a damaged journal still folds.
    """
    agent = getattr(event, "agent", None)
    # A stop's agent may be "": it is the run's then.
    if agent is None or agent in view.agents or isinstance(event, ev.StopRequested):
        view = _APPLY[event.kind](view, event)
    return replace(view, seq=event.seq or view.seq, last_at=event.at or view.last_at)


def _with_agent(view: RunView, agent: str, **changes: Any) -> RunView:
    agents = dict(view.agents)
    agents[agent] = replace(agents[agent], **changes)
    return replace(view, agents=MappingProxyType(agents))


def _turn_started(view: RunView, e: ev.TurnStarted) -> RunView:
    agents = {a.id: AgentView(a.id, a.model) for a in e.agents}
    fresh = RunView(
        session=e.session,
        turn=e.turn,
        task=e.task,
        status="in-progress",
        agents=MappingProxyType(agents),
        started_at=e.at,
        timeout_s=e.timeout_s,
        notices=e.notices,
        resumes=e.resumes,
    )
    return _go_on_from(view, fresh) if e.resumes else fresh


def _go_on_from(past: RunView, fresh: RunView) -> RunView:
    """Keep what a resumed turn brings along; what is spent and shown from now on starts at 0."""
    agents = {
        k: replace(
            a,
            round=past.agents[k].round,
            calls=past.agents[k].calls,
            answers=past.agents[k].answers,
            vote=past.agents[k].vote,
            phase=_resting_phase(past.agents[k]),
            error=past.agents[k].error,
            outcome="failed" if past.agents[k].error else None,
        )
        if k in past.agents
        else a
        for k, a in fresh.agents.items()
    }
    return replace(fresh, agents=MappingProxyType(agents), phase=past.phase, winner=past.winner)


def _resting_phase(agent: AgentView) -> AgentPhase:
    if agent.error:
        return "failed"
    if agent.vote:
        return "voted"
    return "answered" if agent.answers else "waiting"


def _round_started(view: RunView, e: ev.RoundStarted) -> RunView:
    return _with_agent(view, e.agent, round=e.number, phase="thinking", partial="")


def _model_started(view: RunView, e: ev.ModelStarted) -> RunView:
    return _with_agent(
        view,
        e.agent,
        calls=e.call,
        in_flight=True,
        was_cut=False,
        phase="thinking",
        tool="",
        tool_summary="",
        partial="",
        partial_call="",
        # An agent that had failed got another try when the turn was resumed.
        error="",
        outcome=None,
    )


def _text_streamed(view: RunView, e: ev.TextStreamed) -> RunView:
    agent = view.agents[e.agent]
    if e.channel == "call":
        return _with_agent(
            view, e.agent, partial_call=agent.partial_call + e.text, phase="writing", tool=e.tool
        )
    if e.channel == "thinking":
        return _with_agent(view, e.agent, phase="thinking")
    return _with_agent(view, e.agent, partial=agent.partial + e.text, phase="writing")


def _model_finished(view: RunView, e: ev.ModelFinished) -> RunView:
    agent, usage = view.agents[e.agent], e.usage
    cost = None if agent.cost is None or usage.cost is None else agent.cost + usage.cost
    return _with_agent(
        view,
        e.agent,
        in_flight=False,
        partial_call="",
        tool="",
        input_tokens=agent.input_tokens + usage.input_tokens,
        output_tokens=agent.output_tokens + usage.output_tokens,
        cost=cost,
    )


def _model_failed(view: RunView, e: ev.ModelFailed) -> RunView:
    return _with_agent(view, e.agent, in_flight=False, phase="waiting")


def _model_cut(view: RunView, e: ev.ModelCut) -> RunView:
    return _with_agent(view, e.agent, in_flight=False, was_cut=True)


def _tool_started(view: RunView, e: ev.ToolStarted) -> RunView:
    call = ToolView(e.agent, e.call_id, e.tool, summary=e.summary)
    view = replace(view, tools=(*view.tools, call))
    return _with_agent(view, e.agent, phase="tool", tool=e.tool, tool_summary=e.summary)


def _tool_finished(view: RunView, e: ev.ToolFinished) -> RunView:
    known = any(t.call_id == e.call_id and t.agent == e.agent for t in view.tools)
    tools = view.tools if known else (*view.tools, ToolView(e.agent, e.call_id, e.tool))
    tools = tuple(
        replace(t, outcome=e.outcome) if (t.agent, t.call_id) == (e.agent, e.call_id) else t
        for t in tools
    )
    return _with_agent(
        replace(view, tools=tools), e.agent, phase="thinking", tool="", tool_summary=""
    )


def _turn_rejected(view: RunView, e: ev.TurnRejected) -> RunView:
    return _with_agent(view, e.agent, phase="thinking")


def _told(view: RunView, e: ev.Told) -> RunView:
    return view


def _round_timed_out(view: RunView, e: ev.RoundTimedOut) -> RunView:
    if view.agents[e.agent].answers:
        return _with_agent(view, e.agent, phase="answered", in_flight=False, tool="")
    error = f"No answer within {e.limit_s:g} s and {e.grace_s:g} s to wrap up."
    return _agent_failed(view, ev.AgentFailed(agent=e.agent, error=error))


def _answer_given(view: RunView, e: ev.AnswerGiven) -> RunView:
    agents = {k: _without_vote(a) for k, a in view.agents.items()}
    mine = agents[e.agent]
    agents[e.agent] = replace(
        mine, answers=(*mine.answers, e.answer), phase="answered", partial="", partial_call=""
    )
    return replace(view, agents=MappingProxyType(agents))


def _without_vote(agent: AgentView) -> AgentView:
    return replace(agent, vote=None, phase="waiting" if agent.phase == "voted" else agent.phase)


def _vote_cast(view: RunView, e: ev.VoteCast) -> RunView:
    vote = VoteView(e.target, e.reason)
    return _with_agent(view, e.agent, vote=vote, phase="voted", partial="")


def _vote_ignored(view: RunView, e: ev.VoteIgnored) -> RunView:
    return _with_agent(view, e.agent, phase="waiting", partial="")


def _agent_failed(view: RunView, e: ev.AgentFailed) -> RunView:
    return _with_agent(
        view, e.agent, phase="failed", error=e.error, outcome="failed", in_flight=False
    )


def _agent_ended(view: RunView, e: ev.AgentEnded) -> RunView:
    return _with_agent(view, e.agent, phase="stopped", outcome=e.outcome, in_flight=False, tool="")


def _presentation_started(view: RunView, e: ev.PresentationStarted) -> RunView:
    view = _with_agent(view, e.agent, phase="thinking")
    return replace(view, phase="presenting", winner=e.agent)


def _stop_requested(view: RunView, e: ev.StopRequested) -> RunView:
    if e.agent:
        return view
    first = view.stop or StopView(e.level, e.source, e.reason, e.at, e.grace_s)
    # Notes of two threads may arrive the wrong way round; the level only rises.
    return replace(
        view, stop=first if first.level == "immediate" else replace(first, level=e.level)
    )


def _noticed(view: RunView, e: ev.Noticed) -> RunView:
    return replace(view, notices=(*view.notices, e.text))


def _turn_ended(view: RunView, e: ev.TurnEnded) -> RunView:
    if e.status == "completed" and e.winner in view.agents:
        # The presenter's words are the answer now, not something that was cut off.
        view = _with_agent(view, e.winner, partial="", partial_call="")
    return replace(
        view,
        status=e.status,
        phase=e.phase,
        winner=e.winner,
        answer=e.answer,
        files=e.files,
        ended_at=e.at,
    )


_APPLY: dict[str, Callable[[RunView, Any], RunView]] = {
    "turn_started": _turn_started,
    "round_started": _round_started,
    "model_started": _model_started,
    "text_streamed": _text_streamed,
    "model_finished": _model_finished,
    "model_failed": _model_failed,
    "model_cut": _model_cut,
    "tool_started": _tool_started,
    "tool_finished": _tool_finished,
    "turn_rejected": _turn_rejected,
    "told": _told,
    "round_timed_out": _round_timed_out,
    "answer_given": _answer_given,
    "vote_cast": _vote_cast,
    "vote_ignored": _vote_ignored,
    "agent_failed": _agent_failed,
    "agent_ended": _agent_ended,
    "presentation_started": _presentation_started,
    "stop_requested": _stop_requested,
    "noticed": _noticed,
    "turn_ended": _turn_ended,
}
