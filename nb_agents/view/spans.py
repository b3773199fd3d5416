"""Folds events into spans: what started when, how it ended, and what it was part of.

This is the only fold that knows which events start and end the work of a turn. The timeline,
checkpoints and traces are derived from it. Streamed text is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from nb_agents import events as ev
from nb_agents.nouns import token_count

SpanKind = Literal[
    "agent", "model", "tool", "step", "start", "resumed", "round", "restart", "rejected", "timeout",
    "answer", "vote", "failed", "presents", "final", "again", "approval", "stop", "said", "folded",
]  # fmt: skip
"""The kind of a span. The first four have a duration, and the others are marks."""

Key = tuple[str, ...]
"""Identifies an open span: (agent,) for an agent, or (agent or step, kind, id)."""


@dataclass(frozen=True, slots=True)
class Span:
    """Work in a turn, or a mark, which has no duration.

    Attributes:
        kind: The kind of work.
        agent: The agent, the address of a step, or "" for the whole run.
        id: The number of a model call, the id of a tool call, or "".
        name: The name of a tool or a kind of unit; the number of a call, round, answer, attempt or
            turn; the agent voted for; the level of a stop; or the address of an approval.
        start, end: Unix seconds. `end` is the time of the last event while the span is open.
        began: The event that started it. For a mark, and for work whose start is missing in the
            journal, it is the same as `ended`.
        ended: The event that ended it. None while it is open, or if its process died.
        outcome: "running", "finished", "failed", "cut", or a tool call's or step's outcome. For a
            vote that does not count, "ignored". For a round, what is guaranteed about a resume.
        parent: The key of the span that contains it, which may have ended.
        usage: The tokens of a model call so far, or None.
        text: A reason, an error, a summary, or other text.
        turn, seq: The turn, and the number of the last event of the span. 0 while it is open.
    """

    kind: SpanKind
    agent: str
    id: str
    name: str
    start: float
    end: float
    began: ev.Event
    ended: ev.Event | None = None
    outcome: str = ""
    parent: Key | None = None
    usage: ev.Usage | None = None
    text: str = ""
    turn: int = 0
    seq: int = 0

    @property
    def key(self) -> Key:
        """The key of the span while it is open."""
        return (self.agent,) if self.kind == "agent" else (self.agent, self.kind, self.id)

    @property
    def is_open(self) -> bool:
        """Whether the span has not ended."""
        return self.outcome == "running"

    @property
    def is_instant(self) -> bool:
        """Whether a single event both starts and ends the span."""
        return self.began is self.ended


class Spans:
    """The state of the fold: the open spans, and what the last event changed.

    Attributes:
        open: The open spans by key, in the order of their start.
        presenter: The agent that presents the team's answer, or "".
        last_at: The time of the last event, in Unix seconds.
    """

    def __init__(self) -> None:
        self.open: dict[Key, Span] = {}
        self.presenter = ""
        self.last_at = 0.0
        self._turn, self._seq = 0, 0
        self._changed: list[Span] = []
        self._answers: dict[str, int] = {}
        self._seen: dict[str, dict[str, int]] = {}
        self._callers: dict[str, Key] = {}

    def take(self, event: ev.Event) -> list[Span]:
        """Apply the next event.

        Returns:
            The spans that it opened or closed, and the marks, in order.
        """
        # A previous turn ended with its last event, even if it left spans open.
        self._changed = self.cut_open() if isinstance(event, ev.TurnStarted) else []
        self.last_at = event.at or self.last_at
        self._seq = event.seq
        SPANS.apply(self, event)
        return self._changed

    def cut_open(self) -> list[Span]:
        """End all open spans at the time of the last event, because their process died."""
        self._changed = []
        for key in list(self.open):
            self.close(key, None, outcome="cut")
        return self._changed

    def begin(
        self,
        kind: SpanKind,
        event: ev.Event,
        agent: str,
        id: str = "",
        *,
        name: str = "",
        text: str = "",
        parent: Key | None = None,
    ) -> None:
        """Open a span. An open span with the same key, left by a damaged journal, is cut."""
        now = self.last_at
        span = Span(
            kind, agent, id, name, now, now, event, outcome="running", parent=parent, text=text
        )
        self.close(span.key, event, outcome="cut")
        self.open[span.key] = span
        self._changed.append(span)

    def close(self, key: Key, event: ev.Event | None, **changes: Any) -> bool:
        """Close a span. Returns whether it was open."""
        span = self.open.pop(key, None)
        if span is None:
            return False
        ends: dict[str, Any] = {"ended": event, "turn": self._turn, "seq": self._seq}
        self._changed.append(replace(span, end=max(span.start, self.last_at), **ends, **changes))
        return True

    def mark(
        self,
        kind: SpanKind,
        event: ev.Event,
        agent: str = "",
        name: str = "",
        *,
        id: str = "",
        outcome: str = "",
        text: str = "",
    ) -> None:
        """Add a mark, or work that was started and ended by a single event."""
        now, turn, seq = self.last_at, self._turn, self._seq
        self._changed.append(
            Span(
                kind, agent, id, name, now, now, event, event, outcome, None, None, text, turn, seq
            )
        )

    def within(self, agent: str, address: str) -> Key:
        """Return the key of the open tool call that contains an address, or the agent's key."""
        while address and (agent, "tool", address) not in self.open:
            address = address.rpartition("/")[0]
        return (agent, "tool", address) if address else (agent,)

    def begin_agent(self, agent: str, event: ev.Event) -> None:
        """Open the span of an agent's round, if it is not open."""
        if (agent,) not in self.open:
            self.begin("agent", event, agent, parent=self._callers.get(agent, ()))

    def begin_turn(self, event: ev.TurnStarted) -> None:
        """Start another turn, to which the following event numbers belong."""
        self._turn = event.turn

    def begin_call(self, event: ev.AgentCalled) -> None:
        """Open the span of a called agent."""
        self._callers[event.agent] = self.within(event.caller, event.call_id)
        self.begin_agent(event.agent, event)

    def begin_round(self, event: ev.RoundStarted) -> None:
        """Open the span of a round. The first round of a called agent is part of its call."""
        span = self.open.get((event.agent,))
        if span is None or not isinstance(span.began, ev.AgentCalled):
            self.close((event.agent,), event, outcome="finished")
            self.begin_agent(event.agent, event)
        self.mark("round", event, event.agent, str(event.number), outcome=event.resumes)
        before = self._seen.get(event.agent)
        self._seen[event.agent] = event.seen
        if before is not None and event.agent != self.presenter:
            news = [a for a, n in event.seen.items() if n > before.get(a, 0) and a != event.agent]
            text = f"after new answers of {', '.join(news)}" if news else ""
            self.mark("restart", event, event.agent, str(event.number), text=text)

    def note_seen(self, event: ev.NoteSent) -> None:
        """Record the answers that a note showed to an agent."""
        if event.seen is not None:
            self._seen[event.agent] = event.seen

    def number_answer(self, agent: str) -> str:
        """Count an answer of an agent, and return its number."""
        self._answers[agent] = self._answers.get(agent, 0) + 1
        return str(self._answers[agent])

    def present(self, agent: str) -> None:
        """Set the presenter. If there is none, the team works again and has seen no answers."""
        self.presenter = agent
        if not agent:
            self._seen.clear()


SPANS: ev.Fold[Spans] = ev.Fold("spans")
"""The handlers of each kind of event. They modify the state in place."""


@SPANS.on(ev.TurnStarted)
def _turn_started(spans: Spans, e: ev.TurnStarted) -> Spans:
    spans.begin_turn(e)
    if not e.recipe:
        spans.mark("start", e)
    if e.resumes:
        spans.mark("resumed", e, name=str(e.turn))
    return spans


@SPANS.on(ev.RecipeLoaded)
def _recipe_loaded(spans: Spans, e: ev.RecipeLoaded) -> Spans:
    if not e.step:
        spans.mark("start", e)
    return spans


@SPANS.on(ev.TurnEnded)
def _turn_ended(spans: Spans, e: ev.TurnEnded) -> Spans:
    for key in list(spans.open):
        spans.close(key, e, outcome="cut")
    return spans


@SPANS.on(ev.AgentCalled)
def _agent_called(spans: Spans, e: ev.AgentCalled) -> Spans:
    spans.begin_call(e)
    return spans


@SPANS.on(ev.RoundStarted)
def _round_started(spans: Spans, e: ev.RoundStarted) -> Spans:
    spans.begin_round(e)
    return spans


@SPANS.on(ev.NoteSent)
def _note_sent(spans: Spans, e: ev.NoteSent) -> Spans:
    spans.note_seen(e)
    return spans


@SPANS.on(ev.ModelStarted)
def _model_started(spans: Spans, e: ev.ModelStarted) -> Spans:
    spans.begin_agent(e.agent, e)
    call = str(e.call)
    spans.begin("model", e, e.agent, call, name=call, parent=spans.within(e.agent, e.place))
    return spans


@SPANS.on(ev.UsageUpdated)
def _usage_updated(spans: Spans, e: ev.UsageUpdated) -> Spans:
    key = (e.agent, "model", str(e.call))
    if key in spans.open:
        spans.open[key] = replace(spans.open[key], usage=e.usage)
    return spans


@SPANS.on(ev.ModelFinished, ev.ModelFailed, ev.ModelCut)
def _model_ended(spans: Spans, e: ev.ModelFinished | ev.ModelFailed | ev.ModelCut) -> Spans:
    outcome, text = "finished" if isinstance(e, ev.ModelFinished) else "cut", ""
    if isinstance(e, ev.ModelFailed):
        outcome, text = "failed", e.error
    usage = {} if e.usage is None else {"usage": e.usage}
    call = str(e.call)
    if not spans.close((e.agent, "model", call), e, outcome=outcome, text=text, **usage):
        spans.mark("model", e, e.agent, call, id=call, outcome=outcome, text=text)
    return spans


@SPANS.on(ev.ToolStarted)
def _tool_started(spans: Spans, e: ev.ToolStarted) -> Spans:
    spans.begin_agent(e.agent, e)
    parent = spans.within(e.agent, e.call_id.rpartition("/")[0])
    spans.begin("tool", e, e.agent, e.call_id, name=e.tool, text=e.summary, parent=parent)
    return spans


@SPANS.on(ev.ToolFinished)
def _tool_finished(spans: Spans, e: ev.ToolFinished) -> Spans:
    # A call that ends without a start was cancelled.
    if not spans.close((e.agent, "tool", e.call_id), e, outcome=e.outcome):
        spans.mark("tool", e, e.agent, e.tool, id=e.call_id, outcome=e.outcome)
    return spans


@SPANS.on(ev.StepStarted)
def _step_started(spans: Spans, e: ev.StepStarted) -> Spans:
    spans.begin("step", e, e.step, name=e.unit, text=e.asks)
    return spans


@SPANS.on(ev.StepFailed)
def _step_failed(spans: Spans, e: ev.StepFailed) -> Spans:
    spans.close((e.step, "step", ""), e, outcome="failed", text=e.error)
    spans.close((e.step,), e, outcome="failed")
    return spans


@SPANS.on(ev.StepFinished)
def _step_finished(spans: Spans, e: ev.StepFinished) -> Spans:
    if not spans.close((e.step, "step", ""), e, outcome=e.outcome):
        spans.mark("step", e, e.step, outcome=e.outcome)
    spans.close((e.step,), e, outcome="finished")
    return spans


@SPANS.on(ev.TurnRejected)
def _turn_rejected(spans: Spans, e: ev.TurnRejected) -> Spans:
    spans.mark("rejected", e, e.agent, str(e.attempt), text=e.fault or e.why)
    return spans


@SPANS.on(ev.ReplyCut)
def _reply_cut(spans: Spans, e: ev.ReplyCut) -> Spans:
    spans.mark("rejected", e, e.agent, text=f"its reply was cut off {e.by}")
    return spans


@SPANS.on(ev.RoundTimedOut)
def _round_timed_out(spans: Spans, e: ev.RoundTimedOut) -> Spans:
    for key in [key for key in spans.open if key[:2] == (e.agent, "model")]:
        spans.close(key, e, outcome="cut")
    spans.close((e.agent,), e, outcome="failed")
    spans.mark("timeout", e, e.agent, text=f"the round timed out after {e.limit_s:g} s")
    return spans


@SPANS.on(ev.AnswerGiven)
def _answer_given(spans: Spans, e: ev.AnswerGiven) -> Spans:
    spans.close((e.agent,), e, outcome="finished")
    spans.mark("answer", e, e.agent, spans.number_answer(e.agent), text=e.answer)
    return spans


@SPANS.on(ev.VoteCast)
def _vote_cast(spans: Spans, e: ev.VoteCast) -> Spans:
    spans.close((e.agent,), e, outcome="finished")
    spans.mark("vote", e, e.agent, e.target, text=e.reason)
    return spans


@SPANS.on(ev.VoteIgnored)
def _vote_ignored(spans: Spans, e: ev.VoteIgnored) -> Spans:
    spans.close((e.agent,), e, outcome="finished")
    spans.mark("vote", e, e.agent, e.target, outcome="ignored")
    return spans


@SPANS.on(ev.Abstained, ev.AgentEnded)
def _agent_ended(spans: Spans, e: ev.Abstained | ev.AgentEnded) -> Spans:
    spans.close((e.agent,), e, outcome="finished")
    return spans


@SPANS.on(ev.AgentFailed)
def _agent_failed(spans: Spans, e: ev.AgentFailed) -> Spans:
    spans.close((e.agent,), e, outcome="failed")
    spans.mark("failed", e, e.agent, text=e.error)
    return spans


@SPANS.on(ev.ContextFolded)
def _context_folded(spans: Spans, e: ev.ContextFolded) -> Spans:
    spans.mark("folded", e, e.agent, text=f"{e.before:,} to {token_count(e.after)}")
    return spans


@SPANS.on(ev.PresentationStarted)
def _presentation_started(spans: Spans, e: ev.PresentationStarted) -> Spans:
    spans.present(e.agent)
    spans.mark("presents", e, e.agent)
    return spans


@SPANS.on(ev.FinalAnswerGiven)
def _final_answer_given(spans: Spans, e: ev.FinalAnswerGiven) -> Spans:
    spans.present(e.agent)
    spans.close((e.agent,), e, outcome="finished")
    spans.mark("final", e, e.agent)
    return spans


@SPANS.on(ev.OrchestrationRestarted)
def _orchestration_restarted(spans: Spans, e: ev.OrchestrationRestarted) -> Spans:
    spans.present("")
    spans.close((e.agent,), e, outcome="finished")
    spans.mark("again", e, e.agent, str(e.attempt), text=e.reason)
    return spans


@SPANS.on(ev.ApprovalGiven)
def _approval_given(spans: Spans, e: ev.ApprovalGiven) -> Spans:
    spans.mark("approval", e, name=e.step)
    return spans


@SPANS.on(ev.StopRequested)
def _stop_requested(spans: Spans, e: ev.StopRequested) -> Spans:
    name = "now" if e.level == "immediate" else "requested"
    text = ": ".join(part for part in (e.source, e.reason) if part)
    spans.mark("stop", e, e.agent, name, text=text)
    return spans


@SPANS.on(ev.UserMessage)
def _user_message(spans: Spans, e: ev.UserMessage) -> Spans:
    spans.mark("said", e, text=e.text)
    return spans


SPANS.ignore(
    ev.AgentStateSaved,
    ev.ApprovalAsked,
    ev.CommandAnswered,
    ev.ContextChanged,
    ev.Continued,
    ev.FilesListed,
    ev.ModelBatched,
    ev.FilesSaved,
    ev.FoldRequested,
    ev.Noticed,
    ev.OutputStreamed,
    ev.Paused,
    ev.ProcessExitChecked,
    ev.SessionBound,
    ev.TextStreamed,
    ev.ToolNotice,
    ev.UserFilesSaved,
    ev.WorktreeBased,
)
SPANS.check()
