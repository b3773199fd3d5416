"""Computes the layout of a turn's timeline: bars and marks on a time scale, and votes.

Pure functions of view and timeline, drawn by a template. The number of bars and marks is limited,
even for hours with thousands of calls: short neighbours are merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

from nb_agents.nouns import count, price, token_count
from nb_agents.presentation import text
from nb_agents.view.run_view import RunView
from nb_agents.view.timeline import EntryKind, Timeline, TimelineEntry, TurnTime

MAX_BARS = 500
MAX_MARKS = 200
"""Maximum number of marks in all rows. Further marks are merged with their neighbours."""
MAX_LINES = 30
"""Maximum number of lines across all rows, for stops and user messages."""
MAX_VOTES = 40

MIN_CROWDED = 6
"""Number of overlapping marks from which a picture can be spread to four times its width."""

_MARK_WIDTH = 1.6
"""The width of a mark in percent of a picture's usual width."""
_GAP = 0.07
"""Fraction of the width for the time between a stop and its resume."""
_STEPS = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60 * m for m in (1, 2, 5, 10, 15, 30)),
    *(3600 * h for h in (1, 2, 4, 8, 24, 72, 168)),
)
_MARKS = (
    "answer", "vote", "restart", "presents", "again", "rejected", "timeout", "failed", "stop",
    "folded",
)  # fmt: skip


_NOUNS = {
    "model": "model call",
    "tool": "tool call",
    "answer": "answer",
    "vote": "vote",
    "restart": "restart",
    "stop": "stop",
    "folded": "fold",
}
_WORDS = {
    "model": "model call {}",
    "answer": "answer {}",
    "vote": "vote for {}",
    "restart": "restarted, round {}",
    "said": "your message",
    "presents": "presents",
    "again": "restarts the team, attempt {}",
    "rejected": "neither an answer nor a vote",
    "timeout": "timed out",
    "failed": "failed",
    "folded": "conversation folded",
}
"""Templates for the text of an entry by kind, formatted with the entry's name.

By default, the name itself.
"""


@dataclass(frozen=True, slots=True)
class Tick:
    """A line of the scale. `left` is in percent."""

    left: float
    label: str


class Scale:
    """Maps times to positions from 0 to 100 percent. Time between two turns is a short gap.

    Args:
        turns: The times during which the turns ran.
    """

    def __init__(self, turns: Sequence[TurnTime]) -> None:
        self._turns = turns
        self.total_s = max(sum(t.end - t.start for t in turns), 1e-3)
        self._gap = min(_GAP, 0.35 / max(1, len(turns) - 1))
        self._room = 1 - self._gap * (len(turns) - 1)

    def seconds(self, at: float) -> float:
        """Return how many seconds the turns had worked until a time."""
        return sum(min(max(at - t.start, 0.0), t.end - t.start) for t in self._turns)

    def left(self, at: float) -> float:
        """Return the position of a time, in percent."""
        gaps = sum(at >= t.start for t in self._turns[1:]) * self._gap
        return round(100 * (gaps + self._room * self.seconds(at) / self.total_s), 2)

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """The gaps between turns, as left and width in percent."""
        return [(self.left(a.end), round(100 * self._gap, 2)) for a, _ in pairwise(self._turns)]

    @property
    def ticks(self) -> list[Tick]:
        """The lines of the scale, at about five round times."""
        count = int(self.total_s / self._step + 1e-6)
        marks = (n * self._step for n in range(count + 1))
        return [Tick(self._left_of(s), self.clock(s)) for s in marks]

    @property
    def _step(self) -> float:
        return next((s for s in _STEPS if self.total_s / s <= 6), self.total_s / 4)

    def _left_of(self, seconds: float) -> float:
        passed = 0.0
        for turn in self._turns:
            took = turn.end - turn.start
            if seconds <= passed + took:
                return self.left(turn.start + seconds - passed)
            passed += took
        return 100.0

    def clock(self, seconds: float) -> str:
        """Return a time with the precision of the scale: ``0.2 s``, ``4 s``, ``2:01:05``."""
        if self.total_s < 60:
            digits = 2 if self._step < 0.1 else 1 if self.total_s < 10 else 0
            return f"{seconds:.{digits}f}\N{NO-BREAK SPACE}s"
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

    def when(self, entry: TimelineEntry) -> str:
        """Return the start time of an entry as text, and its end time if it differs."""
        start, end = self.clock(self.seconds(entry.start)), self.clock(self.seconds(entry.end))
        return start if start == end else f"{start} to {end}"


Tone = Literal["ok", "open", "cut", "failed"]
"""The style of a bar. "open" means unfinished."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span, or several merged short spans. `left` and `width` are in percent.

    `point` is the checkpoint to rewind to, as "turn:event", or "".
    """

    kind: EntryKind
    left: float
    width: float
    tone: Tone
    title: str
    point: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event without a duration.

    Attributes:
        kind: The kind of event.
        left: The position in percent.
        name: The label, such as the number of an answer.
        title: The tooltip.
        outcome: The outcome of a vote or another event, or "".
        target: Index of the row of the agent voted for, or -1.
        level: For a line across all rows, the level of its label above the picture.
        point: The checkpoint to rewind to, as "turn:event", or "".
    """

    kind: str
    left: float
    name: str
    title: str
    outcome: str = ""
    target: int = -1
    level: int = 0
    point: str = ""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """The row of an agent, with its bars and marks, and the same information as text.

    Attributes:
        agent: The agent's id.
        depth: Number of its direct and indirect callers.
        bars, marks: The drawn spans and events.
        calls: The number of its calls, as text.
        words: Its last marks, as text.
    """

    agent: str
    depth: int
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    calls: str
    words: str

    @property
    def name(self) -> str:
        """The agent's id, or only its last part for an agent nested below its caller."""
        return self.agent.rpartition("/")[2] if self.depth else self.agent


@dataclass(frozen=True, slots=True)
class Picture:
    """The layout of a timeline.

    Attributes:
        rows: The rows, one per agent.
        ticks: The lines of the scale.
        gaps: The gaps between turns, as left and width in percent.
        lines: Marks across all rows.
        votes: The votes, latest first.
        left_out: Number of entries left out of the timeline.
        label: A sentence that describes the picture.
    """

    rows: tuple[TimelineRow, ...]
    ticks: tuple[Tick, ...]
    gaps: tuple[tuple[float, float], ...]
    lines: tuple[Mark, ...]
    votes: tuple[TimelineEntry, ...]
    left_out: int
    label: str

    @property
    def has_open(self) -> bool:
        """Whether there is an unfinished span."""
        return any(bar.tone == "open" for row in self.rows for bar in row.bars)

    @property
    def has_folds(self) -> bool:
        """Whether a conversation was folded."""
        return any(mark.kind == "folded" for row in self.rows for mark in row.marks)

    @property
    def is_crowded(self) -> bool:
        """Whether marks overlap, so that the picture offers to be spread."""
        lefts = (sorted(mark.left for mark in row.marks) for row in self.rows)
        gaps = [right - left for each in lefts for left, right in pairwise(each)]
        return sum(gap < _MARK_WIDTH for gap in gaps) >= MIN_CROWDED

    @property
    def row_height(self) -> int:
        """The height of a row in pixels. It depends on the number of rows."""
        return 34 if len(self.rows) <= 6 else 27

    @property
    def head(self) -> int:
        """The height above the rows in pixels, for the labels of lines."""
        return 20 + 13 * max((line.level for line in self.lines), default=0)


def picture(timeline: Timeline) -> Picture | None:
    """Return the layout of a turn's timeline, or None if it has no entries or times."""
    if not timeline.entries or not timeline.turns:
        return None
    scale = Scale(timeline.turns)
    of: dict[str, list[_PositionedEntry]] = {agent: [] for agent in timeline.agents}
    for entry in timeline.entries:
        if entry.agent in of:
            placed = _PositionedEntry(entry, scale.left(entry.start), scale.left(entry.end))
            of[entry.agent].append(placed)
    row_numbers = {agent: index for index, agent in enumerate(of)}
    bars = _group_to_limit(MAX_BARS, lambda slot: {a: _bars(of[a], slot) for a in of})
    marks = _group_to_limit(MAX_MARKS, lambda slot: {a: _marks(of[a], slot) for a in of})
    whole = [e for e in timeline.entries if not e.agent and e.kind in ("stop", "said")]
    rows = tuple(
        TimelineRow(
            agent,
            _depth(agent, row_numbers),
            tuple(_bar(group, scale) for group in bars[agent]),
            tuple(each := [_mark(group, scale, row_numbers) for group in marks[agent]]),
            _calls(placed.entry for placed in of[agent]),
            "; ".join(text.clip(mark.title, 90) for mark in each[-12:]),
        )
        for agent in of
    )
    return Picture(
        rows,
        tuple(scale.ticks),
        tuple(scale.gaps),
        tuple(_label_lines([_mark([e], scale, row_numbers) for e in whole[:MAX_LINES]])),
        tuple(e for e in reversed(timeline.entries) if e.kind == "vote")[:MAX_VOTES],
        timeline.left_out,
        _label(timeline, scale),
    )


def _depth(agent: str, agent_ids: Container[str]) -> int:
    """Return the number of an agent's callers. Their ids are prefixes of its id."""
    prefixes = accumulate(agent.split("/")[:-1], "{}/{}".format)
    return sum(each in agent_ids for each in prefixes)


def _label(timeline: Timeline, scale: Scale) -> str:
    """Return a description of the picture for screen readers."""
    counts: Counter[str] = Counter(e.kind for e in timeline.entries)
    parts = [count(counts[kind], noun) for kind, noun in _NOUNS.items() if counts[kind]]
    agents = count(len(timeline.agents), "agent")
    return f"Timeline of {agents} over {scale.clock(scale.total_s)}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class _PositionedEntry:
    """An entry with its position, in percent."""

    entry: TimelineEntry
    left: float
    right: float


_Groups = dict[str, list[list[TimelineEntry]]]


def _group_to_limit(limit: int, group: Callable[[float], _Groups]) -> _Groups:
    """Group entries with wider and wider slots until there are at most `limit` groups."""
    slot = 0.5
    while True:
        groups = group(slot)
        if slot > 50 or sum(len(each) for each in groups.values()) <= limit:
            return groups
        slot *= 2


def _bars(placed: Iterable[_PositionedEntry], slot: float) -> list[list[TimelineEntry]]:
    """Group short spans of the same kind into bars of at most ``slot`` percent of the width."""
    groups: list[list[TimelineEntry]] = []
    last: dict[str, tuple[float, list[TimelineEntry]]] = {}
    for each in placed:
        kind = each.entry.kind
        if kind not in ("model", "tool", "step"):
            continue
        left, group = last.get(kind, (0.0, []))
        if group and each.right - left < slot:
            group.append(each.entry)
        else:
            group = [each.entry]
            last[kind] = each.left, group
            groups.append(group)
    return groups


def _bar(group: list[TimelineEntry], scale: Scale) -> Bar:
    first = group[0]
    end = max(e.end for e in group)
    left = scale.left(first.start)
    tone: Tone = "ok"
    if 2 * sum(e.outcome in ("failed", "error") for e in group) > len(group):
        tone = "failed"
    elif group[-1].outcome == "running":
        tone = "open"
    elif group[-1].outcome in ("cut", "cancelled"):
        tone = "cut"
    title = _title(first, scale) if len(group) == 1 else _title_of_group(group, scale)
    # A narrower bar is hard to see and to click.
    width = max(scale.left(end) - left, 0.45)
    return Bar(first.kind, min(left, 99.55), round(width, 2), tone, title, _point(group[-1]))


def _title_of_group(group: list[TimelineEntry], scale: Scale) -> str:
    names = Counter("model calls" if e.kind == "model" else e.name for e in group)
    first, last = group[0], max(group, key=lambda e: e.end)
    start, end = scale.clock(scale.seconds(first.start)), scale.clock(scale.seconds(last.end))
    name_counts = ", ".join(f"{n} {name}" for name, n in names.most_common(4))
    return f"{start} to {end} · {text.clip(name_counts, 120)}"


def _title(entry: TimelineEntry, scale: Scale) -> str:
    """Return an entry as a line of text."""
    label = _WORDS.get(entry.kind, "{}").format(entry.name)
    if entry.kind == "stop":
        label = "stop now" if entry.name == "now" else "stop"
    outcome = "" if entry.outcome in ("finished", "ok", "counts") else entry.outcome
    used = token_count(entry.tokens) if entry.tokens else ""
    paid = price(entry.tokens, entry.cost)
    # The text of answers and votes is shown below the picture.
    words = "" if entry.kind in ("answer", "vote") else text.clip(entry.text, 120)
    return " · ".join(p for p in (scale.when(entry), label, outcome, used, paid, words) if p)


def _marks(placed: Iterable[_PositionedEntry], slot: float) -> list[list[TimelineEntry]]:
    """Group consecutive marks of one kind that are within ``slot`` percent of the first."""
    groups: list[list[TimelineEntry]] = []
    left = 0.0
    for each in placed:
        if each.entry.kind not in _MARKS:
            continue
        if groups and groups[-1][0].kind == each.entry.kind and each.left - left < slot:
            groups[-1].append(each.entry)
        else:
            left = each.left
            groups.append([each.entry])
    return groups


def _mark(group: list[TimelineEntry], scale: Scale, row_numbers: dict[str, int]) -> Mark:
    last = group[-1]
    title = _title(last, scale)
    if len(group) > 1:
        title += f" (the last of {len(group)})"
    target = row_numbers.get(last.name, -1) if last.kind == "vote" else -1
    left, point = scale.left(last.start), _point(last)
    return Mark(last.kind, left, last.name, title, last.outcome, target, point=point)


def _point(entry: TimelineEntry) -> str:
    return f"{entry.turn}:{entry.seq}" if entry.seq else ""


def _label_lines(lines: list[Mark]) -> list[Mark]:
    """Label the lines across all rows on two levels. Labels without space are left out."""
    named: list[Mark] = []
    free = [-1.0, -1.0]
    for line in lines:
        name = "message" if line.kind == "said" else "stop now" if line.name == "now" else "stop"
        level = next((n for n, left in enumerate(free) if line.left >= left), None)
        if level is not None:
            free[level] = line.left + 10
        label = name if level is not None else ""
        named.append(replace(line, name=label, level=level or 0))
    return named


def _calls(entries: Iterable[TimelineEntry]) -> str:
    counts: Counter[str] = Counter(e.kind for e in entries)
    calls = (count(counts[kind], _NOUNS[kind]) for kind in ("model", "tool") if counts[kind])
    return ", ".join(calls)


def heading(view: RunView) -> str:
    """Return the heading of a turn's timeline, such as "What happened · 3 answers"."""
    answers = text.count_any(sum(len(a.answers) for a in view.agents.values()), "answer")
    votes = text.votes(view) if view.votes else ""
    winner = f"presented by {view.winner}" if view.winner else ""
    return " · ".join(filter(None, ["What happened", answers, votes, winner]))
