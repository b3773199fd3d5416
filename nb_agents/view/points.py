"""The points of a turn to which one can go back, from its events. Pure.

One writer gives a turn's events a total order, so each event is a consistent cut. A person is
offered those at which something was over: a model call, a tool call, an answer, a vote, a step, a
decision.
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

_WHOSE = re.compile(
    r"(?P<agent>.+?)['’]s? (?:(?P<number>\d+)(?:st|nd|rd|th)? |(?P<word>first|second|third|last) )?"
    r"(?P<kind>answer|vote|model call|call|\w+)(?: (?P<later>\d+))?$"
)
_WORDS = {"first": 1, "second": 2, "third": 3, "last": -1}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?$")
_SINCE = re.compile(r"\+(?:(\d+):)?(\d+)s?$")


class Point(NamedTuple):
    """A point of a turn.

    Attributes:
        seq: Number of the last event before it.
        at: When it was, in Unix seconds.
        agent: Whose work was over, or "".
        kind: What was over: "start", "answer", "vote", "call", "tool", "step", "approval", "said",
            "final" or "restart".
        name: A tool's name, a step's address, or "".
        number: How many of its kind the agent has had by then, from 1.
        begins: Number of the event at which that began.
    """

    seq: int
    at: float
    agent: str
    kind: str
    name: str
    number: int
    begins: int

    def __str__(self) -> str:
        """Return it in words that `find_point` understands."""
        match self.kind:
            case "start":
                return "the start"
            case "step" | "approval":
                return f"{self.kind} {self.name}"
            case "said" | "restart":
                return f"{self.kind} {self.number}"
            case "final":
                return "the final answer"
        what = {"tool": self.name, "call": "model call"}.get(self.kind, self.kind)
        return f"{self.agent}'s {_ordinal(self.number)} {what}"


def points_of(events: Sequence[ev.Event]) -> list[Point]:
    """Return the points of a turn, in order.

    Args:
        events: The turn's own events; those of turns that it resumed come before and give none.
    """
    return list(_Points().of(events))


class _Points:
    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._asked: dict[str, int] = {}
        self._begun: dict[str, int] = {}
        self._goes_on: set[str] = set()

    def of(self, events: Sequence[ev.Event]) -> Iterator[Point]:
        for event in events:
            found = self._point(event)
            if found is not None:
                agent, kind, name, begins = found
                self._counts[found[:3]] += 1
                count = self._counts[found[:3]]
                yield Point(event.seq, event.at, agent, kind, name, count, begins or event.seq)

    def _point(self, event: ev.Event) -> tuple[str, str, str, int] | None:
        match event:
            case ev.RoundStarted(agent=agent, resumes="goes on"):
                self._goes_on.add(agent)
            case ev.ToolFinished(agent=agent) if agent in self._goes_on:
                return None  # within a prompt of a program, which goes on from its end alone
            case ev.ModelStarted(agent=agent):
                self._asked[agent] = event.seq
            case ev.ToolStarted(agent=agent, call_id=call):
                self._begun[f"{agent} {call}"] = event.seq
            case ev.StepStarted(step=step):
                self._begun[step] = event.seq
            case ev.TurnStarted(recipe="") | ev.RecipeLoaded(step=""):
                return "", "start", "", 0
            case ev.ModelFinished(agent=agent):
                return agent, "call", "", self._asked.get(agent, 0)
            case ev.ToolFinished(agent=agent, tool=tool, call_id=call, outcome="ok" | "error"):
                return agent, "tool", tool, self._begun.get(f"{agent} {call}", 0)
            case ev.AnswerGiven(agent=agent):
                return agent, "answer", "", self._asked.get(agent, 0)
            case ev.VoteCast(agent=agent):
                return agent, "vote", "", self._asked.get(agent, 0)
            case ev.FinalAnswerGiven(agent=agent):
                return agent, "final", "", self._asked.get(agent, 0)
            case ev.StepFinished(step=step):
                return "", "step", step, self._begun.get(step, 0)
            case ev.ApprovalGiven(step=step):
                return "", "approval", step, 0
            case ev.Said():
                return "", "said", "", 0
            case ev.OrchestrationRestarted():
                return "", "restart", "", 0
        return None


def find_point(points: Sequence[Point], to: str, name: str, last: int) -> Point:
    """Return the point that a person means.

    Args:
        points: Those of the turn, in order.
        to: The number of an event, which means the last point up to it; or words, such as "before
            ben's 2nd answer", "step look", "the end"; or a time: "14:32:05", or "+1:05" since the
            start.
        name: The turn's name, for errors.
        last: Number of the turn's last event.

    Raises:
        UserError: There is no such point.
    """
    if not points:
        raise UserError(
            f"Turn {name} has no journal of its own, so that there is no point in it. "
            "`%%agents --continue` goes on from its answers."
        )
    said = to.strip()
    if said == "the end":
        return points[-1]
    if said.isdecimal() and len(said) < 16:
        if int(said) > last:
            raise UserError(
                f"Turn {name} has no event {said}: its last one is {last}. "
                f"`%agents log {name}` lists them."
            )
        return _last(points, int(said), name, to)
    if (moment := _moment(points[0].at, points[-1].at, said)) is not None:
        return _last([*points], max((p.seq for p in points if p.at < moment), default=0), name, to)
    is_before = said.startswith("before ")
    words = said.removeprefix("before ").removeprefix("after ")
    found = _named(points, words)
    if found is None:
        known = ", ".join(f"{p.seq} ({p})" for p in points[-5:])
        raise UserError(
            f"Turn {name} has no point {to!r}. Give the number of an event as in `%agents log "
            f'{name}`, words such as "before ben\'s 2nd answer", or a time such as 14:32:05. '
            f"The last points are: {known}."
        )
    return _last(points, found.begins - 1, name, to) if is_before else found


def _last(points: Sequence[Point], seq: int, name: str, to: str) -> Point:
    place = bisect_right([point.seq for point in points], seq)
    if not place:
        raise UserError(
            f"{to!r} lies before the start of turn {name}, which is event {points[0].seq}."
        )
    return points[place - 1]


def _named(points: Sequence[Point], words: str) -> Point | None:
    exact = [point for point in points if str(point) == words]
    if exact:
        return exact[-1]
    if (match := _WHOSE.match(words)) is None:
        return None
    kind = {"model call": "call"}.get(match["kind"], match["kind"])
    mine = [p for p in points if p.agent == match["agent"] and (kind == p.kind or kind == p.name)]
    number = int(match["number"] or match["later"] or _WORDS[match["word"] or "last"])
    if number == -1:
        return mine[-1] if mine else None
    return next((p for p in mine if p.number == number), None)


def _moment(start: float, end: float, said: str) -> float | None:
    """Return the end of the second that a time names; None for anything else.

    A time before the start is one of the next day, if the turn went on until then.
    """
    if since := _SINCE.match(said):
        return start + int(since[1] or 0) * 60 + int(since[2]) + 1
    if not (clock := _CLOCK.match(said)):
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
