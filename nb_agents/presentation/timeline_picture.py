"""The timeline of a turn, laid out to be drawn: bars and marks on a scale, and votes.

Pure functions of view and timeline; the template only places them. A picture of hours with
thousands of calls has a bounded number of bars: short ones beside each other are merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

from nb_agents.nouns import count
from nb_agents.presentation import text
from nb_agents.view.run_view import RunView
from nb_agents.view.timeline import EntryKind, Stretch, Timeline, TimelineEntry

MAX_BARS = 500
MAX_MARKS = 200
"""Of all rows together; more are merged with their neighbours."""
MAX_LINES = 30
"""Lines across all rows: stops and what the person said."""
MAX_VOTES = 40

_GAP = 0.07
"""Part of the width that stands for the time between a stop and its resume."""
_STEPS = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60 * m for m in (1, 2, 5, 10, 15, 30)),
    *(3600 * h for h in (1, 2, 4, 8, 24, 72, 168)),
)
_MARKS = (
    "answer", "vote", "restart", "presents", "again", "rejected", "timeout", "failed", "stop",
)  # fmt: skip


_NOUNS = {
    "model": "model call",
    "tool": "tool call",
    "answer": "answer",
    "vote": "vote",
    "restart": "restart",
    "stop": "stop",
}
_WORDS = {
    "model": "model call {}",
    "answer": "answer {}",
    "vote": "vote for {}",
    "restart": "began again, round {}",
    "said": "you said",
    "presents": "presents",
    "again": "lets the team begin attempt {}",
    "rejected": "neither an answer nor a vote",
    "timeout": "timed out",
    "failed": "failed",
}
"""What each kind of entry is called, with its name; any other kind is called by its name alone."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A line of the scale; `left` in percent."""

    left: float
    label: str


class Scale:
    """Puts times on a line from 0 to 100 percent; what lies between two turns is a short gap.

    Args:
        turns: When the turns were worked on.
    """

    def __init__(self, turns: Sequence[Stretch]) -> None:
        self._turns = turns
        self.total_s = max(sum(t.end - t.start for t in turns), 1e-3)
        self._gap = min(_GAP, 0.35 / max(1, len(turns) - 1))
        self._room = 1 - self._gap * (len(turns) - 1)

    def seconds(self, at: float) -> float:
        """Seconds of work until a moment."""
        return sum(min(max(at - t.start, 0.0), t.end - t.start) for t in self._turns)

    def left(self, at: float) -> float:
        """Return the position of a moment, in percent."""
        gaps = sum(at >= t.start for t in self._turns[1:]) * self._gap
        return round(100 * (gaps + self._room * self.seconds(at) / self.total_s), 2)

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """The gaps: left and width, in percent."""
        return [(self.left(a.end), round(100 * self._gap, 2)) for a, _ in pairwise(self._turns)]

    @property
    def ticks(self) -> list[Tick]:
        """Five or so round numbers."""
        step = next((s for s in _STEPS if self.total_s / s <= 6), self.total_s / 4)
        count = int(self.total_s / step + 1e-6)
        found = (n * step for n in range(count + 1))
        return [Tick(self._left_of(s), self.clock(s)) for s in found]

    def _left_of(self, seconds: float) -> float:
        passed = 0.0
        for turn in self._turns:
            took = turn.end - turn.start
            if seconds <= passed + took:
                return self.left(turn.start + seconds - passed)
            passed += took
        return 100.0

    def clock(self, seconds: float) -> str:
        """Return a time as exactly as the scale needs it: ``0.2 s``, ``4 s``, ``2:01:05``."""
        if self.total_s < 60:
            return f"{seconds:.{1 if self.total_s < 10 else 0}f}\N{NO-BREAK SPACE}s"
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

    def when(self, entry: TimelineEntry) -> str:
        """Return when an entry was."""
        start, end = self.clock(self.seconds(entry.start)), self.clock(self.seconds(entry.end))
        return start if start == end else f"{start} to {end}"


Tone = Literal["ok", "open", "cut", "failed"]
"""How a bar is drawn; an open one still goes on."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span, or short ones beside each other; `left` and `width` in percent.

    `point` is where one can go back to, as "turn:event", or "".
    """

    kind: EntryKind
    left: float
    width: float
    tone: Tone
    title: str
    point: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something at one moment; `target` is the row of the agent voted for, or -1.

    `point` is as in `Bar`.

    Of a line across all rows, `level` is how far above the others its name stands.
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
    """The row of an agent: its bars and marks, and the same in words.

    Attributes:
        agent: Its id.
        depth: The number of its callers.
        bars, marks: What is drawn.
        calls: How many it made.
        words: Its marks.
    """

    agent: str
    depth: int
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    calls: str
    words: str

    @property
    def name(self) -> str:
        """Its id; of one that was called, which stands below its caller, the last part alone."""
        return self.agent.rpartition("/")[2] if self.depth else self.agent


@dataclass(frozen=True, slots=True)
class Picture:
    """The layout of a timeline.

    Attributes:
        rows: The rows, one an agent.
        ticks: The scale.
        gaps: Between turns: left and width, in percent.
        lines: Marks of the whole run, across all rows.
        votes: The votes, latest first.
        left_out: The number of entries left out.
        label: The picture in a sentence.
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
        """Whether something still goes on."""
        return any(bar.tone == "open" for row in self.rows for bar in row.bars)

    @property
    def row_height(self) -> int:
        """Pixels of a row: less when there are many."""
        return 34 if len(self.rows) <= 6 else 27

    @property
    def head(self) -> int:
        """Pixels above the rows, for the names of lines."""
        return 20 + 13 * max((line.level for line in self.lines), default=0)


def picture(timeline: Timeline) -> Picture | None:
    """Lay a timeline out.

    Args:
        timeline: Of a turn.

    Returns:
        What to draw, or None when nothing is known of when things were.
    """
    if not timeline.entries or not timeline.turns:
        return None
    scale = Scale(timeline.turns)
    of: dict[str, list[_Placed]] = {agent: [] for agent in timeline.agents}
    for entry in timeline.entries:
        if entry.agent in of:
            placed = _Placed(entry, scale.left(entry.start), scale.left(entry.end))
            of[entry.agent].append(placed)
    places = {agent: place for place, agent in enumerate(of)}
    bars = _within(MAX_BARS, lambda slot: {a: _bars(of[a], slot) for a in of})
    marks = _within(MAX_MARKS, lambda slot: {a: _marks(of[a], slot) for a in of})
    whole = [e for e in timeline.entries if not e.agent and e.kind in ("stop", "said")]
    rows = tuple(
        TimelineRow(
            agent,
            _depth(agent, places),
            tuple(_bar(group, scale) for group in bars[agent]),
            tuple(each := [_mark(group, scale, places) for group in marks[agent]]),
            _calls(placed.entry for placed in of[agent]),
            "; ".join(text.clip(mark.title, 90) for mark in each[-12:]),
        )
        for agent in of
    )
    return Picture(
        rows,
        tuple(scale.ticks),
        tuple(scale.gaps),
        tuple(_named([_mark([e], scale, places) for e in whole[:MAX_LINES]])),
        tuple(e for e in reversed(timeline.entries) if e.kind == "vote")[:MAX_VOTES],
        timeline.left_out,
        _label(timeline, scale),
    )


def _depth(agent: str, known: Container[str]) -> int:
    """Return the number of an agent's callers, whose ids are prefixes of its own."""
    beginnings = accumulate(agent.split("/")[:-1], "{}/{}".format)
    return sum(each in known for each in beginnings)


def _label(timeline: Timeline, scale: Scale) -> str:
    """Return the picture as a sentence, for those who can't see it."""
    counts: Counter[str] = Counter(e.kind for e in timeline.entries)
    said = [count(counts[kind], noun) for kind, noun in _NOUNS.items() if counts[kind]]
    agents = count(len(timeline.agents), "agent")
    return f"Timeline of {agents} over {scale.clock(scale.total_s)}: {', '.join(said)}"


@dataclass(frozen=True, slots=True)
class _Placed:
    """An entry and where it is, in percent."""

    entry: TimelineEntry
    left: float
    right: float


_Groups = dict[str, list[list[TimelineEntry]]]


def _within(limit: int, lay: Callable[[float], _Groups]) -> _Groups:
    """Merge with wider and wider slots until there are few enough."""
    slot = 0.5
    while True:
        laid = lay(slot)
        if slot > 50 or sum(len(each) for each in laid.values()) <= limit:
            return laid
        slot *= 2


def _bars(placed: Iterable[_Placed], slot: float) -> list[list[TimelineEntry]]:
    """Group spans of one kind that together are shorter than a slot, in percent."""
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
    title = _said(first, scale) if len(group) == 1 else _said_together(group, scale)
    # Narrower than this can't be seen or pointed at.
    width = max(scale.left(end) - left, 0.45)
    return Bar(first.kind, min(left, 99.55), round(width, 2), tone, title, _point(group[-1]))


def _said_together(group: list[TimelineEntry], scale: Scale) -> str:
    names = Counter("model calls" if e.kind == "model" else e.name for e in group)
    first, last = group[0], max(group, key=lambda e: e.end)
    start, end = scale.clock(scale.seconds(first.start)), scale.clock(scale.seconds(last.end))
    listed = ", ".join(f"{n} {name}" for name, n in names.most_common(4))
    return f"{start} to {end} · {text.clip(listed, 120)}"


def _said(entry: TimelineEntry, scale: Scale) -> str:
    """Return an entry as a line of text."""
    what = _WORDS.get(entry.kind, "{}").format(entry.name)
    if entry.kind == "stop":
        what = "stop now" if entry.name == "now" else "stop"
    outcome = "" if entry.outcome in ("finished", "ok", "counts") else entry.outcome
    used = text.tokens(entry.tokens) if entry.tokens else ""
    price = text.cost(entry.cost) if entry.tokens else ""
    # What answers and votes say stands below the picture.
    words = "" if entry.kind in ("answer", "vote") else text.clip(entry.text, 120)
    return " · ".join(p for p in (scale.when(entry), what, outcome, used, price, words) if p)


def _marks(placed: Iterable[_Placed], slot: float) -> list[list[TimelineEntry]]:
    """Group marks of one kind that follow each other within a slot, in percent."""
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


def _mark(group: list[TimelineEntry], scale: Scale, places: dict[str, int]) -> Mark:
    last = group[-1]
    title = _said(last, scale)
    if len(group) > 1:
        title += f" (the last of {len(group)})"
    target = places.get(last.name, -1) if last.kind == "vote" else -1
    left, point = scale.left(last.start), _point(last)
    return Mark(last.kind, left, last.name, title, last.outcome, target, point=point)


def _point(entry: TimelineEntry) -> str:
    return f"{entry.turn}:{entry.seq}" if entry.seq else ""


def _named(lines: list[Mark]) -> list[Mark]:
    """Label the lines across all rows on two levels, but not where both are taken."""
    named: list[Mark] = []
    free = [-1.0, -1.0]
    for line in lines:
        name = "you said" if line.kind == "said" else "stop now" if line.name == "now" else "stop"
        level = next((n for n, left in enumerate(free) if line.left >= left), None)
        if level is not None:
            free[level] = line.left + 10
        shown = name if level is not None else ""
        named.append(replace(line, name=shown, level=level or 0))
    return named


def _calls(entries: Iterable[TimelineEntry]) -> str:
    counts: Counter[str] = Counter(e.kind for e in entries)
    calls = (count(counts[kind], _NOUNS[kind]) for kind in ("model", "tool") if counts[kind])
    return ", ".join(calls)


def heading(view: RunView) -> str:
    """Return the heading, which is read before it is opened."""
    answers = text.count_any(sum(len(a.answers) for a in view.agents.values()), "answer")
    votes = text.votes(view) if view.votes else ""
    winner = f"presented by {view.winner}" if view.winner else ""
    return " · ".join(filter(None, ["What happened", answers, votes, winner]))
