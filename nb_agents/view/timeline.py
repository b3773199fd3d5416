"""The timeline of a turn: spans and marks.

A projection of the spans (`nb_agents.view.spans`). An event appends at most one entry, and streamed
text is ignored. The number of entries is limited.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, overload

from nb_agents import events as ev
from nb_agents.view.spans import Span, Spans

EntryKind = Literal[
    "model", "tool", "step", "answer", "vote", "restart", "rejected", "timeout", "failed",
    "presents", "again", "stop", "said", "resumed", "folded",
]  # fmt: skip
"""The kind of an entry. The first three are spans, the others marks."""

COLUMNS = (
    "agent", "kind", "name", "start", "end", "seconds", "outcome", "tokens", "cost", "text",
)  # fmt: skip
"""The columns of the timeline as a table."""

MAX_ENTRIES = 10_000
"""Maximum number of entries. Further entries are only counted."""
MAX_TEXT = 400
"""Maximum length of an entry's text, in characters. The journal has all of it."""


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """A span of time, or a mark without a duration.

    Attributes:
        kind: The kind of entry.
        agent: The agent, or "" for the whole run.
        name: The number of a model call, answer, round or resumed turn; the name of a tool; the
            agent voted for; or the level of a stop.
        start, end: Unix seconds, equal for a mark.
        outcome: For a span, "running", "finished", "failed", "cut", or a tool call's "ok", "error"
            or "cancelled". For a vote, "counts", "cleared" (by a later answer) or "ignored".
        tokens: Number of input and output tokens of a model call.
        cost: Cost of a model call in US dollars. None if the price is unknown, and for other
            entries.
        text: A reason, an error, or the beginning of a text.
        turn, seq: The turn, and the number of the event that ended the entry. 0 while it is open.
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
        """Duration in seconds. 0 for a mark."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class TurnTime:
    """The time span of a turn, from its first event to its last."""

    turn: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timeline of a turn and the turns that it resumed, as a sequence of entries.

    Attributes:
        agents: The agents in registration order. Called agents come after their caller.
        turns: The start and end time of each turn, oldest first.
        entries: The spans and marks, ordered by their start.
        left_out: Number of entries beyond `MAX_ENTRIES`.
    """

    agents: tuple[str, ...] = ()
    turns: tuple[TurnTime, ...] = ()
    entries: tuple[TimelineEntry, ...] = ()
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[TimelineEntry]:
        return iter(self.entries)

    @overload
    def __getitem__(self, index: int) -> TimelineEntry: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[TimelineEntry, ...]: ...

    def __getitem__(self, index: int | slice) -> TimelineEntry | tuple[TimelineEntry, ...]:
        return self.entries[index]

    def rows(self) -> list[dict[str, Any]]:
        """Return the entries as rows with the columns `COLUMNS`. Times are Unix seconds."""
        return [{name: getattr(e, name) for name in COLUMNS} for e in self.entries]


def fold_timeline(events: Iterable[ev.Event], *, is_live: bool = False) -> Timeline:
    """Fold events into a timeline.

    Args:
        events: The events in journal order, with those of resumed turns first.
        is_live: Whether the turn is still running. If not, open spans are marked as cut.
    """
    folded = TimelineFold(events)
    if not is_live:
        folded.cut_open()
    return folded.timeline()


class TimelineFold:
    """Folds events one by one. Only one thread may add events. Any thread can call `timeline`.

    Args:
        events: Events to add first.
    """

    def __init__(self, events: Iterable[ev.Event] = ()) -> None:
        self._agents: dict[str, None] = {}
        self._turns: list[TurnTime] = []
        self._entries: list[TimelineEntry] = []
        self._left_out = 0
        self._spans = Spans()
        self._votes: dict[str, int] = {}
        for event in events:
            self.add(event)

    def add(self, event: ev.Event) -> None:
        """Add an event. Only the time of an event about an unknown agent is used."""
        turns = list(self.timeline().turns) if isinstance(event, ev.TurnStarted) else self._turns
        changed = self._spans.take(event)
        if isinstance(event, ev.TurnStarted):
            now = self._spans.last_at
            self._agents.update((a.id, None) for a in event.agents)
            self._turns = [*turns, TurnTime(event.turn, now, now)]
        for span in changed:
            self._add_agent(span)
            if not span.is_open and self._is_shown(span):
                self._add_entry(span)

    def timeline(self) -> Timeline:
        """Return the timeline so far."""
        now = self._spans.last_at
        spans = [span for span in list(self._spans.open.values()) if self._is_shown(span)]
        running = [replace(_entry(span), end=max(span.start, now)) for span in spans]
        entries = sorted([*self._entries, *running], key=lambda e: e.start)
        turns = [*self._turns[:-1], *(replace(t, end=max(t.start, now)) for t in self._turns[-1:])]
        return Timeline(tuple(self._agents), tuple(turns), tuple(entries), self._left_out)

    def cut_open(self) -> None:
        """End all open spans with the outcome "cut", because their process died."""
        for span in self._spans.cut_open():
            if self._is_shown(span):
                self._add_entry(span)

    def _is_shown(self, span: Span) -> bool:
        if span.kind not in _KINDS or (span.agent and span.agent not in self._agents):
            return False
        if span.kind == "resumed":
            return len(self._turns) > 1
        # A tool call without a beginning was cancelled.
        is_whole = span.kind != "model" or not span.is_instant
        return is_whole if span.kind != "step" else span.name == "bash"

    def _add_agent(self, span: Span) -> None:
        if span.kind == "step" and span.name in ("agent", "bash"):
            # Events of an agent step's calls have the step's address as their agent.
            self._agents.setdefault(span.agent)
        elif span.kind == "agent" and isinstance(span.began, ev.AgentCalled):
            if span.agent not in self._agents:
                self._add_called(span.agent, span.began.caller)

    def _add_called(self, agent: str, caller: str) -> None:
        agents = list(self._agents)
        family = [n for n, each in enumerate(agents) if f"{each}/".startswith(f"{caller}/")]
        index = family[-1] + 1 if family else len(agents)
        self._agents = dict.fromkeys([*agents[:index], agent, *agents[index:]])

    def _add_entry(self, span: Span) -> None:
        """Append an entry. At the limit of entries, it is only counted."""
        is_vote = span.kind == "vote" and not span.outcome
        if is_vote:
            self._clear_votes(span.agent)
        elif span.kind == "answer" or (span.kind == "said" and not self._spans.presenter):
            self._clear_votes()
        if len(self._entries) >= MAX_ENTRIES:
            self._left_out += 1
            return
        text = " ".join(span.text[:MAX_TEXT].split())
        self._entries.append(replace(_entry(span), text=text, turn=span.turn, seq=span.seq))
        if is_vote:
            self._votes[span.agent] = len(self._entries) - 1

    def _clear_votes(self, *voters: str) -> None:
        for voter in voters or tuple(self._votes):
            index = self._votes.pop(voter, None)
            if index is not None:
                self._entries[index] = replace(self._entries[index], outcome="cleared")


_KINDS = frozenset(get_args(EntryKind))


def _entry(span: Span) -> TimelineEntry:
    kind: Any = span.kind
    outcome = "counts" if kind == "vote" and not span.outcome else span.outcome
    entry = TimelineEntry(kind, span.agent, span.name, span.start, span.end, outcome)
    if span.usage is None:
        return replace(entry, text=span.text)
    tokens = span.usage.input_tokens + span.usage.output_tokens
    return replace(entry, text=span.text, tokens=tokens, cost=span.usage.cost)
