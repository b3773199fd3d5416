"""A turn up to a checkpoint: the events to keep, and the content of each workspace. Pure.

A snapshot of a workspace is made before each writer starts. So the content at a checkpoint is the
first snapshot after it, or the final content. A writer that was running at the checkpoint is
repeated from the snapshot before it, provided that all its effects are in the workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nb_agents import events as ev

_WRITERS = frozenset({"run_command", "run_python", "write_file", "edit_file", "delete_file"})
"""Tools whose effects are limited to the workspace, except for an interpreter's variables."""


class Prefix(NamedTuple):
    """The part of a turn that a rewind keeps.

    Attributes:
        events: The turn's events up to the checkpoint, after those of turns that it resumed.
        trees: The snapshot of each workspace that has changed since the checkpoint.
        is_kept: Whether snapshots were saved for the calls after the checkpoint that may write
            files.
    """

    events: Sequence[ev.Event]
    trees: dict[str, str]
    is_kept: bool


def prefix_of(events: Sequence[ev.Event], point: int) -> Prefix:
    """Return the part of a turn up to a checkpoint.

    Args:
        events: All events of the turn, after those of turns that it resumed.
        point: Number of the last event to keep. 0 keeps all events.
    """
    if not point:
        return Prefix(events, {}, True)
    starts = (n for n, event in enumerate(events) if isinstance(event, ev.TurnStarted))
    first = max(starts, default=0)
    own = events[first:]
    trees: dict[str, str] = {}
    again: set[str] = set()
    for workspace in dict.fromkeys(e.workspace for e in own if isinstance(e, ev.FilesSaved)):
        snapshots = [e for e in own if isinstance(e, ev.FilesSaved) and e.workspace == workspace]
        before = [e for e in snapshots if e.seq <= point]
        after = [e for e in snapshots if e.seq > point]
        if before and _is_at_work_alone(own, before, point):
            trees[workspace] = before[-1].tree
            again.add(before[-1].call)
        elif after:
            trees[workspace] = after[0].tree
    kept_events = [e for e in own if e.seq <= point and _start_of(e) not in again]
    rest = [e for e in own if e.seq > point]
    kinds = ev.FilesSaved | ev.UserFilesSaved
    is_kept = any(isinstance(e, kinds) for e in own) or not any(map(_start_of, rest))
    return Prefix([*events[:first], *kept_events], trees, is_kept)


def _is_at_work_alone(own: Sequence[ev.Event], before: Sequence[ev.FilesSaved], point: int) -> bool:
    """Return whether the most recent writer is still running at this point and can be repeated.

    No other writer may have ended since it started.
    """
    last = before[-1]
    can_repeat = any(_start_of(e) == last.call for e in own if e.seq < last.seq)
    end_states = {_end_of(e) for e in own if last.seq < e.seq <= point}
    return can_repeat and end_states.isdisjoint(e.call for e in before)


def _start_of(event: ev.Event) -> str:
    """Return the key of the repeatable call or step that an event starts, or ""."""
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
