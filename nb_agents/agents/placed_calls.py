"""Fold the calls that a user's program has made into what a resume replays. Pure.

A program makes its calls of models and tools where and when it likes, several at a time. Each has
a place: the path of runs and tools that it is made in, its kind, and its number there, such as
``/r1/t2.0/r1/m1``. A resume runs the program again, and answers each call whose place it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from nb_agents import events as ev
from nb_agents.view.growing import grown

WORDS = "/words"
"""The place of what a function says itself, which is no call that can be replayed."""

SAVED = "saved"
"""Stands for the tool where a program keeps its state: the value is what it has kept, in order."""


@dataclass(frozen=True)
class PlacedCall:
    """A call of a program.

    Attributes:
        tool: The tool's name; "" for a model's call.
        digest: Of what was sent.
        value: What it gave, once it has finished.
        form: The form of that, as `ModelFinished` and `ToolFinished` have it.
        is_error: Whether a tool has told its model of a failure.
        is_finished: Whether the value is there.
        has_begun: Whether it may have had an effect: not while it waits for approval.
        is_repeatable: Whether it may be made again when it was cut.
    """

    tool: str = ""
    digest: str = ""
    value: Any = None
    form: str = ""
    is_error: bool = False
    is_finished: bool = False
    has_begun: bool = True
    is_repeatable: bool = False


Placed = Mapping[str, PlacedCall]
"""The calls of a round, by their places."""


def is_place(call_id: str) -> bool:
    """Return whether the id of a tool's call is a program's place."""
    return call_id.startswith("/")


def with_event(calls: Placed, event: ev.Event) -> Placed:
    """Return the calls of a round after an event of its agent."""
    match event:
        case ev.ModelStarted(place=place, digest=digest) if place not in ("", WORDS):
            return grown(calls, place, PlacedCall(digest=digest))
        case ev.ModelFinished(place=place, response=response, form=form) if place in calls:
            done = replace(calls[place], value=response, form=form, is_finished=True)
            return grown(calls, place, done)
        case ev.ToolStarted(call_id=place, tool=tool, digest=digest) if is_place(place):
            begun = PlacedCall(tool, digest, is_repeatable=event.is_repeatable)
            return grown(calls, place, begun)
        case ev.ToolFinished(call_id=place) if place in calls:
            return grown(calls, place, _ended(calls[place], event))
        case ev.ProgramSaved(place=place, form=form, data=data):
            before = calls[place].value if place in calls else ()
            value = (*before, (form, data))
            return grown(calls, place, PlacedCall(SAVED, value=value, is_finished=True))
        case ev.ApprovalAsked(call_id=place) if place in calls:
            return grown(calls, place, replace(calls[place], has_begun=False))
        case ev.ApprovalGiven(call_id=place, approved=True) if place in calls:
            return grown(calls, place, replace(calls[place], has_begun=True))
    return calls


def _ended(call: PlacedCall, event: ev.ToolFinished) -> PlacedCall:
    if event.outcome == "cancelled":
        return replace(call, has_begun=False)
    # What it raised ended the program, which tries again; a call told to be cut has its result.
    if event.form == "raised" or (event.outcome == "cut" and not event.result):
        return call
    is_error = event.outcome != "ok"
    return replace(call, value=event.result, form=event.form, is_error=is_error, is_finished=True)


def fate_of(calls: Placed, place: str) -> Literal["made", "made again", "told"]:
    """Return what a resume does with a tool's call that has not finished.

    One that has made calls itself is made again, as these are replayed.
    """
    call = calls.get(place)
    if call is None or not call.has_begun:
        return "made"
    is_within = any(each.startswith(f"{place}/") for each in calls)
    return "made again" if call.is_repeatable or is_within else "told"
