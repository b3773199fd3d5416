"""A turn up to a point: the events that count, and what each workspace held then. Pure.

A workspace is kept before a writer begins there. So what it held at a point is what was kept first
behind that point, or what it holds at the end. A writer that was at work at the point begins again,
from what was kept before it, where all that it does is in the workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nb_agents import events as ev

_WRITERS = frozenset({"run_command", "run_python", "write_file", "edit_file", "delete_file"})
"""Tools of which all that they do is in the workspace, but for an interpreter's variables."""


class Prefix(NamedTuple):
    """What counts of a turn.

    Attributes:
        events: Its events, preceded by those of turns that it resumed.
        trees: For each workspace that held something else at the turn's end, what it held.
        is_kept: Whether files were kept for each writer behind the point.
    """

    events: Sequence[ev.Event]
    trees: dict[str, str]
    is_kept: bool


def prefix_of(events: Sequence[ev.Event], point: int) -> Prefix:
    """Return a turn up to a point.

    Args:
        events: All its events, preceded by those of turns that it resumed.
        point: Number of the turn's last event that counts; 0 means all do.
    """
    if not point:
        return Prefix(events, {}, True)
    starts = (n for n, event in enumerate(events) if isinstance(event, ev.TurnStarted))
    begins = max(starts, default=0)
    own = events[begins:]
    trees: dict[str, str] = {}
    again: set[str] = set()
    for workspace in dict.fromkeys(e.workspace for e in own if isinstance(e, ev.FilesKept)):
        kept = [e for e in own if isinstance(e, ev.FilesKept) and e.workspace == workspace]
        before = [e for e in kept if e.seq <= point]
        after = [e for e in kept if e.seq > point]
        if before and _is_at_work_alone(own, before, point):
            trees[workspace] = before[-1].tree
            again.add(before[-1].call)
        elif after:
            trees[workspace] = after[0].tree
    counting = [e for e in own if e.seq <= point and _start_of(e) not in again]
    rest = [e for e in own if e.seq > point]
    kinds = ev.FilesKept | ev.OwnFilesKept
    is_kept = any(isinstance(e, kinds) for e in own) or not any(map(_start_of, rest))
    return Prefix([*events[:begins], *counting], trees, is_kept)


def _is_at_work_alone(own: Sequence[ev.Event], before: Sequence[ev.FilesKept], point: int) -> bool:
    """Return whether the writer that began last is open at the point, and no other one ended since.

    Its tool must be one that can begin again.
    """
    last = before[-1]
    can_begin_again = any(_start_of(e) == last.call for e in own if e.seq < last.seq)
    ended = {_end_of(e) for e in own if last.seq < e.seq <= point}
    return can_begin_again and ended.isdisjoint(e.call for e in before)


def _start_of(event: ev.Event) -> str:
    """Return which writer an event starts, if it is one that can begin again; else ""."""
    match event:
        case ev.ToolStarted(agent=agent, call_id=call, tool=tool) if tool in _WRITERS:
            return f"{agent} {call}"
        case ev.StepStarted(step=step, unit="bash"):
            return step
    return ""


def _end_of(event: ev.Event) -> str:
    match event:
        case ev.ToolFinished(agent=agent, call_id=call):
            return f"{agent} {call}"
        case ev.StepFinished(step=step) | ev.StepFailed(step=step):
            return step
    return " "
