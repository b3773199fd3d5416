"""The checkpoints of a turn, computed from its events. Pure.

A turn has one writer, so its events are totally ordered and each of them is a consistent cut. The
checkpoints are the ends of model calls, tool calls, answers, votes, steps and decisions.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from nb_agents import events as ev
from nb_agents.errors import UserError
from nb_agents.view.spans import Key, Span, Spans

_NTH_ANSWER = re.compile(
    r"(?P<agent>.+?)['’]s? (?:(?P<number>\d+)(?:st|nd|rd|th)? |(?P<word>first|second|third|last) )?"
    r"(?P<kind>answer|vote|model call|call|\w+)(?: (?P<later>\d+))?$"
)
_WORDS = {"first": 1, "second": 2, "third": 3, "last": -1}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?$")
_SINCE = re.compile(r"\+(?:(\d+):)?(\d+)s?$")


class Checkpoint(NamedTuple):
    """A checkpoint of a turn.

    Attributes:
        seq: Number of the last event before the checkpoint.
        at: The time, in Unix seconds.
        agent: The agent that had finished something, or "".
        kind: The kind of finished work: "start", "answer", "vote", "call", "tool", "step",
            "approval", "said" (a user's message), "final" or "restart".
        name: A tool's name, a step's address, or "".
        number: Number of this checkpoint among those of the same agent, kind and name, starting
            with 1.
        begins: Number of the event with which the finished work started.
    """

    seq: int
    at: float
    agent: str
    kind: str
    name: str
    number: int
    begins: int

    def __str__(self) -> str:
        """Return a description that `find_checkpoint` accepts."""
        match self.kind:
            case "start":
                return "the start"
            case "step" | "approval":
                return f"{self.kind} {self.name}"
            case "said" | "restart":
                return f"{self.kind} {self.number}"
            case "final":
                return "the final answer"
        noun = {"tool": self.name, "call": "model call"}.get(self.kind, self.kind)
        return f"{self.agent}'s {_ordinal(self.number)} {noun}"


def checkpoints_of(events: Sequence[ev.Event]) -> list[Checkpoint]:
    """Return the checkpoints of a turn in order, from the events of that turn only."""
    return list(_Points().of(events))


class _Points:
    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._starts: dict[Key, int] = {}
        self._continued: set[str] = set()

    def of(self, events: Sequence[ev.Event]) -> Iterator[Checkpoint]:
        spans = Spans()
        for event in events:
            for span in spans.take(event):
                if span.is_open:
                    self._starts[_work_of(span)] = span.began.seq
                elif span.kind == "round" and span.outcome == "goes on":
                    self._continued.add(span.agent)
                elif span.ended is event and self._is_checkpoint(span):
                    yield self._checkpoint(span, event)

    def _is_checkpoint(self, span: Span) -> bool:
        if span.kind == "tool":
            # An external agent that resumes its own session resumes after its prompt.
            return span.outcome in ("ok", "error") and span.agent not in self._continued
        is_model_cut = span.kind == "model" and span.outcome != "finished"
        is_end = span.kind != "step" or isinstance(span.ended, ev.StepFinished)
        return span.kind in _NAMES and is_end and not is_model_cut and span.outcome != "ignored"

    def _checkpoint(self, span: Span, event: ev.Event) -> Checkpoint:
        agent = "" if span.kind in ("step", "approval", "again") else span.agent
        name = {"tool": span.name, "step": span.agent, "approval": span.name}.get(span.kind, "")
        key = (agent, _NAMES[span.kind], name)
        self._counts[key] += 1
        begins = self._starts.get(_work_of(span)) or event.seq
        return Checkpoint(event.seq, event.at, *key, self._counts[key], begins)


_NAMES = {
    "start": "start", "model": "call", "tool": "tool", "answer": "answer", "vote": "vote",
    "final": "final", "step": "step", "approval": "approval", "said": "said", "again": "restart",
}  # fmt: skip
"""The kinds of checkpoints, by the kind of span that has ended."""


def _work_of(span: Span) -> Key:
    """Return the key of the work that a span finishes.

    A decision finishes the agent's last model call.
    """
    is_call = span.kind in ("model", "answer", "vote", "final")
    return (span.agent, "model") if is_call else span.key


def find_checkpoint(points: Sequence[Checkpoint], to: str, name: str, last: int) -> Checkpoint:
    """Find a checkpoint by a user's description.

    Args:
        points: The checkpoints of the turn, in order.
        to: The number of an event, for the last checkpoint up to it; a description such as "before
            ben's 2nd answer", "step look" or "the end"; or a time: "14:32:05", or "+1:05" after the
            start.
        name: The turn's name, for errors.
        last: Number of the turn's last event.

    Raises:
        UserError: There is no such checkpoint.
    """
    if not points:
        raise UserError(
            f"Turn {name} has no journal, so it has no checkpoints. "
            "`%%agents --continue` continues from its answers."
        )
    point_name = to.strip()
    if point_name == "the end":
        return points[-1]
    if point_name.isdecimal() and len(point_name) < 16:
        if int(point_name) > last:
            raise UserError(
                f"Turn {name} has no event {point_name}. The last one is {last}. "
                f"`%agents log {name}` lists them."
            )
        return _last(points, int(point_name), name, to)
    if (moment := _moment(points[0].at, points[-1].at, point_name)) is not None:
        return _last([*points], max((p.seq for p in points if p.at < moment), default=0), name, to)
    is_before = point_name.startswith("before ")
    words = point_name.removeprefix("before ").removeprefix("after ")
    point = _parse_name(points, words)
    if point is None:
        existing = ", ".join(f'{p.seq} or "{p}"' for p in _suggestions(points, words))
        raise UserError(
            f"Turn {name} has no checkpoint {to!r}. It has, for example: {existing}. "
            f"`%agents log {name}` lists all events by number."
        )
    return _last(points, point.begins - 1, name, to) if is_before else point


def _last(points: Sequence[Checkpoint], seq: int, name: str, to: str) -> Checkpoint:
    index = bisect_right([point.seq for point in points], seq)
    if not index:
        raise UserError(
            f"{to!r} is before the start of turn {name}, which is event {points[0].seq}."
        )
    return points[index - 1]


def _parse_name(points: Sequence[Checkpoint], words: str) -> Checkpoint | None:
    exact = [point for point in points if str(point) == words]
    if exact:
        return exact[-1]
    if (match := _NTH_ANSWER.match(words)) is None:
        return None
    kind = {"model call": "call"}.get(match["kind"], match["kind"])
    matches = [
        p for p in points if p.agent == match["agent"] and (kind == p.kind or kind == p.name)
    ]
    number = int(match["number"] or match["later"] or _WORDS[match["word"] or "last"])
    if number == -1:
        return matches[-1] if matches else None
    return next((p for p in matches if p.number == number), None)


def _suggestions(points: Sequence[Checkpoint], words: str) -> Sequence[Checkpoint]:
    """Return the last checkpoints of the agent mentioned in the text, or else of the turn."""
    match = _NTH_ANSWER.match(words)
    of_agent = [point for point in points if match and point.agent == match["agent"]]
    return (of_agent or points)[-5:]


def _moment(start: float, end: float, text: str) -> float | None:
    """Return the end of the given second in Unix time, or None if the text is not a time.

    A time before the start refers to the next day if the turn lasted until then.
    """
    if since := _SINCE.match(text):
        return start + int(since[1] or 0) * 60 + int(since[2]) + 1
    if not (clock := _CLOCK.match(text)):
        return None
    try:
        day = datetime.fromtimestamp(start)
        at = day.replace(hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0))
    except ValueError:
        return None
    moment = at.replace(microsecond=0).timestamp() + 1
    is_next_day = moment <= start and datetime.fromtimestamp(end).date() > day.date()
    return moment + 24 * 60 * 60 if is_next_day else moment


def _ordinal(number: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    is_teen = 10 <= number % 100 <= 20
    return f"{number}{'th' if is_teen else ends.get(number % 10, 'th')}"
