"""The timeline of a turn: spans and marks.

A fold over events like `nb_agents.view.fold`, kept beside it so that the view stays small. An event
costs an append at most, a streamed word not even that; the number of entries is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

from nb_agents import events as ev

EntryKind = Literal[
    "model", "tool", "step", "answer", "vote", "restart", "rejected", "timeout", "failed",
    "presents", "again", "stop", "said", "resumed",
]  # fmt: skip
"""The first three are spans, the others marks."""

COLUMNS = (
    "agent", "kind", "name", "start", "end", "seconds", "outcome", "tokens", "cost", "text",
)  # fmt: skip
"""Of the timeline as a table."""

MAX_ENTRIES = 10_000
"""Beyond these, entries are only counted."""
MAX_TEXT = 400
"""Characters of an entry's text; the journal has all of it."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """A span of time, or a mark: something that happened at one moment.

    Attributes:
        kind: Its kind.
        agent: Its agent, or "" for the whole run.
        name: Number of a model call, an answer, a round or a resumed turn; a tool's name; who was
            voted for; how hard a stop is.
        start, end: Unix seconds; the same for a mark.
        outcome: Of a span "running", "finished", "failed", "cut" or a tool's own ("ok", "error",
            "cancelled"). Of a vote "counts", "cleared" by a later answer, or "ignored".
        tokens: That a model call used, in and out.
        cost: US dollars of a model call; None when no price is known, and for all else.
        text: A reason, an error, or the first words.
        turn, seq: The turn and the number of the event with which it was over; 0 for one that
            still goes on.
    """

    kind: EntryKind
    agent: str
    name: str
    start: float
    end: float
    outcome: str = ""
    tokens: int = 0
    cost: float | None = None
    text: str = ""
    turn: int = field(default=0, compare=False)
    seq: int = field(default=0, compare=False)

    @property
    def seconds(self) -> float:
        """How long it took; 0 for a mark."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Stretch:
    """A turn's time: from its first event to its last."""

    turn: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened in a turn, with the turns that it resumed: a sequence of its entries.

    Attributes:
        agents: Who took part, in registration order; those that one called come right behind it.
        turns: When the turns were worked on, oldest first; between them nothing was.
        entries: Spans and marks by their start.
        left_out: How many more there were.
    """

    agents: tuple[str, ...] = ()
    turns: tuple[Stretch, ...] = ()
    entries: tuple[TimelineEntry, ...] = ()
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[TimelineEntry]:
        return iter(self.entries)

    @overload
    def __getitem__(self, place: int) -> TimelineEntry: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[TimelineEntry, ...]: ...

    def __getitem__(self, place: int | slice) -> TimelineEntry | tuple[TimelineEntry, ...]:
        return self.entries[place]

    def rows(self) -> list[dict[str, Any]]:
        """Return a table of `COLUMNS` with a row for each entry; times are Unix seconds."""
        return [{name: getattr(e, name) for name in COLUMNS} for e in self.entries]


def fold_timeline(events: Iterable[ev.Event], *, is_live: bool = False) -> Timeline:
    """Fold events into a timeline.

    Args:
        events: In journal order; those of resumed turns come first.
        is_live: Whether what is open still goes on; else it was cut when its process died.

    Returns:
        The timeline.
    """
    folded = TimelineFold(events)
    if not is_live:
        folded.cut_open()
    return folded.timeline()


class TimelineFold:
    """Folds events one by one. One thread adds; `timeline` may be asked on any.

    Args:
        events: The first ones.
    """

    def __init__(self, events: Iterable[ev.Event] = ()) -> None:
        self._agents: dict[str, None] = {}
        self._turns: list[Stretch] = []
        self._entries: list[TimelineEntry] = []
        self._left_out = 0
        self._last_at = 0.0
        self._place = 0, 0
        self._open: dict[tuple[str, str, str], TimelineEntry] = {}
        self._votes: dict[str, int] = {}
        self._answers: dict[str, int] = {}
        self._seen: dict[str, dict[str, int]] = {}
        self._presenter = ""
        for event in events:
            self.add(event)

    def add(self, event: ev.Event) -> None:
        """Add one event; of an event about an unknown agent only the time counts."""
        if isinstance(event, ev.TurnStarted):
            # The turn before was over with its last event, whatever it left open.
            self.cut_open()
            self._turns = list(self.timeline().turns)
            self._place = event.turn, 0
        self._last_at = event.at or self._last_at
        self._place = self._place[0], event.seq
        take = getattr(self, f"_{event.kind}", None)
        agent = getattr(event, "agent", "")
        is_new = event.kind == "agent_called"
        if take is not None and (not agent or agent in self._agents or is_new):
            take(event)

    def timeline(self) -> Timeline:
        """Return the timeline so far."""
        now = self._last_at
        running = [replace(e, end=max(e.start, now)) for e in list(self._open.values())]
        entries = sorted([*self._entries, *running], key=lambda e: e.start)
        turns = [*self._turns[:-1], *(replace(t, end=max(t.start, now)) for t in self._turns[-1:])]
        return Timeline(tuple(self._agents), tuple(turns), tuple(entries), self._left_out)

    def cut_open(self) -> None:
        """End all open spans as cut: their process died."""
        for key in list(self._open):
            self._close(key, outcome="cut")

    def _put(self, entry: TimelineEntry) -> int:
        """Append an entry; returns its place, or -1 when there is no room."""
        if len(self._entries) >= MAX_ENTRIES:
            self._left_out += 1
            return -1
        turn, seq = self._place
        text = " ".join(entry.text[:MAX_TEXT].split())
        self._entries.append(replace(entry, text=text, turn=turn, seq=seq))
        return len(self._entries) - 1

    def _mark(self, kind: EntryKind, agent: str, name: str = "", **more: Any) -> int:
        return self._put(TimelineEntry(kind, agent, name, self._last_at, self._last_at, **more))

    def _begin(self, kind: EntryKind, agent: str, call: str, name: str, text: str = "") -> None:
        key = (agent, kind, call)
        self._close(key, outcome="cut")
        now = self._last_at
        self._open[key] = TimelineEntry(kind, agent, name, now, now, "running", text=text)

    def _close(self, key: tuple[str, str, str], **changes: Any) -> None:
        entry = self._open.pop(key, None)
        if entry is not None:
            self._put(replace(entry, end=max(entry.start, self._last_at), **changes))

    # What each kind of event adds, in the method of its name ----------------------------------

    def _turn_started(self, e: ev.TurnStarted) -> None:
        self._agents.update((a.id, None) for a in e.agents)
        self._turns.append(Stretch(e.turn, self._last_at, self._last_at))
        if e.resumes and len(self._turns) > 1:
            self._mark("resumed", "", str(e.turn))

    def _turn_ended(self, e: ev.TurnEnded) -> None:
        self.cut_open()

    def _round_started(self, e: ev.RoundStarted) -> None:
        before = self._seen.get(e.agent)
        self._seen[e.agent] = e.seen
        if before is None or e.agent == self._presenter:
            return
        news = [a for a, n in e.seen.items() if n > before.get(a, 0) and a != e.agent]
        text = f"after new answers of {', '.join(news)}" if news else ""
        self._mark("restart", e.agent, str(e.number), text=text)

    def _told(self, e: ev.Told) -> None:
        if e.seen is not None:
            self._seen[e.agent] = e.seen

    def _model_started(self, e: ev.ModelStarted) -> None:
        self._begin("model", e.agent, "", str(e.call))

    def _model_finished(self, e: ev.ModelFinished) -> None:
        used = e.usage
        self._close(
            (e.agent, "model", ""),
            outcome="finished",
            tokens=used.input_tokens + used.output_tokens,
            cost=used.cost,
        )

    def _model_failed(self, e: ev.ModelFailed) -> None:
        self._close((e.agent, "model", ""), outcome="failed", text=e.error)

    def _model_cut(self, e: ev.ModelCut) -> None:
        self._close((e.agent, "model", ""), outcome="cut")

    def _tool_started(self, e: ev.ToolStarted) -> None:
        self._begin("tool", e.agent, e.call_id, e.tool, e.summary)

    def _tool_finished(self, e: ev.ToolFinished) -> None:
        key = (e.agent, "tool", e.call_id)
        if key not in self._open:
            # Never begun, and answered all the same: cancelled.
            self._begin("tool", e.agent, e.call_id, e.tool)
        self._close(key, outcome=e.outcome)

    def _turn_rejected(self, e: ev.TurnRejected) -> None:
        self._mark("rejected", e.agent, str(e.attempt), text=e.fault or e.why)

    def _reply_cut(self, e: ev.ReplyCut) -> None:
        self._mark("rejected", e.agent, text=f"its reply was cut off {e.by}")

    def _round_timed_out(self, e: ev.RoundTimedOut) -> None:
        self._close((e.agent, "model", ""), outcome="cut")
        self._mark("timeout", e.agent, text=f"its round's {e.limit_s:g} s were over")

    def _answer_given(self, e: ev.AnswerGiven) -> None:
        self._clear_votes()
        self._answers[e.agent] = self._answers.get(e.agent, 0) + 1
        self._mark("answer", e.agent, str(self._answers[e.agent]), text=e.answer)

    def _vote_cast(self, e: ev.VoteCast) -> None:
        self._clear_votes(e.agent)
        place = self._mark("vote", e.agent, e.target, outcome="counts", text=e.reason)
        if place >= 0:
            self._votes[e.agent] = place

    def _vote_ignored(self, e: ev.VoteIgnored) -> None:
        self._mark("vote", e.agent, e.target, outcome="ignored")

    def _clear_votes(self, *voters: str) -> None:
        for voter in voters or tuple(self._votes):
            place = self._votes.pop(voter, None)
            if place is not None:
                self._entries[place] = replace(self._entries[place], outcome="cleared")

    def _agent_called(self, e: ev.AgentCalled) -> None:
        known = list(self._agents)
        family = [n for n, each in enumerate(known) if f"{each}/".startswith(f"{e.caller}/")]
        place = family[-1] + 1 if family else len(known)
        self._agents = dict.fromkeys([*known[:place], e.agent, *known[place:]])

    def _agent_failed(self, e: ev.AgentFailed) -> None:
        self._mark("failed", e.agent, text=e.error)

    def _presentation_started(self, e: ev.PresentationStarted) -> None:
        self._presenter = e.agent
        self._mark("presents", e.agent)

    def _final_answer_given(self, e: ev.FinalAnswerGiven) -> None:
        self._presenter = e.agent

    def _orchestration_restarted(self, e: ev.OrchestrationRestarted) -> None:
        self._presenter = ""
        self._seen.clear()
        self._mark("again", e.agent, str(e.attempt), text=e.reason)

    def _step_started(self, e: ev.StepStarted) -> None:
        if e.unit == "agent":
            # Its model and tool calls have its address as their agent.
            self._agents[e.step] = None
        elif e.unit == "bash":
            self._agents[e.step] = None
            self._begin("step", e.step, "", e.unit, e.asks)

    def _step_failed(self, e: ev.StepFailed) -> None:
        self._close((e.step, "step", ""), outcome="failed", text=e.error)

    def _step_finished(self, e: ev.StepFinished) -> None:
        self._close((e.step, "step", ""), outcome=e.outcome)

    def _stop_requested(self, e: ev.StopRequested) -> None:
        name = "now" if e.level == "immediate" else "requested"
        self._mark("stop", e.agent, name, text=": ".join(t for t in (e.source, e.reason) if t))

    def _said(self, e: ev.Said) -> None:
        if self._presenter == "":
            self._clear_votes()
        self._mark("said", "", text=e.text)
