"""Folds the calls of a user's agent function into the state that a resume replays. Pure.

An agent function calls models and tools at any point, possibly several at a time. Each call has an
address: the path of the runs and tools around it, its kind, and its number there, such
as ``/r1/t2.0/r1/m1``. A resume runs the function again and answers calls that are already recorded
with the recorded results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from nb_agents import events as ev
from nb_agents.agents.past_wait import PastWait, past_wait
from nb_agents.view.growing import with_entry

TEXT_PLACE = "/words"
"""The address of text that a function writes itself. It is not a call and is never replayed."""

SAVED = "saved"
"""The tool name of a record of the state that a function saved. The value is the list of states."""


@dataclass(frozen=True)
class PlacedCall:
    """A model or tool call made by a user's agent function.

    Attributes:
        tool: The tool's name, or "" for a model call.
        digest: A digest of the arguments or messages.
        value: The result of a finished call.
        form: The format of the value, as in `ModelFinished` and `ToolFinished`.
        is_error: Whether the tool reported a failure to its model.
        is_finished: Whether the call has a value.
        has_begun: Whether it may have had an effect. False while it waits for approval.
        is_repeatable: Whether it may be repeated after an interruption.
        wait: How long an unfinished model call has waited for its provider, or None.
    """

    tool: str = ""
    digest: str = ""
    value: Any = None
    form: str = ""
    is_error: bool = False
    is_finished: bool = False
    has_begun: bool = True
    is_repeatable: bool = False
    wait: PastWait | None = None


CallsByPlace = Mapping[str, PlacedCall]
"""The calls of a round by address."""


def is_place(call_id: str) -> bool:
    """Return whether the id of a tool call is an address in an agent function."""
    return call_id.startswith("/")


PLACED_CALLS: ev.Fold[CallsByPlace] = ev.Fold(
    "placed_calls",
    of=(
        ev.ModelStarted,
        ev.ModelFinished,
        ev.ModelFailed,
        ev.ToolStarted,
        ev.ToolFinished,
        ev.AgentStateSaved,
        ev.ApprovalAsked,
        ev.ApprovalGiven,
    ),
)
"""The handlers that update the calls of a round for each kind of event of its agent."""


@PLACED_CALLS.on(ev.ModelStarted)
def _model_started(calls: CallsByPlace, e: ev.ModelStarted) -> CallsByPlace:
    if e.place in ("", TEXT_PLACE):
        return calls
    wait = calls[e.place].wait if e.place in calls else None
    return with_entry(calls, e.place, PlacedCall(digest=e.digest, wait=wait))


@PLACED_CALLS.on(ev.ModelFailed)
def _model_failed(calls: CallsByPlace, e: ev.ModelFailed) -> CallsByPlace:
    past = calls.get(e.place)
    if past is None and e.place == TEXT_PLACE and e.waits_for:  # a graph waits for its provider
        past = PlacedCall()
    if past is None:
        return calls
    return with_entry(calls, e.place, replace(past, wait=past_wait(e)))


@PLACED_CALLS.on(ev.ModelFinished)
def _model_finished(calls: CallsByPlace, e: ev.ModelFinished) -> CallsByPlace:
    if e.place not in calls:
        return calls
    done = replace(calls[e.place], value=e.response, form=e.form, is_finished=True, wait=None)
    return with_entry(calls, e.place, done)


@PLACED_CALLS.on(ev.ToolStarted)
def _tool_started(calls: CallsByPlace, e: ev.ToolStarted) -> CallsByPlace:
    if not is_place(e.call_id):
        return calls
    return with_entry(calls, e.call_id, PlacedCall(e.tool, e.digest, is_repeatable=e.is_repeatable))


@PLACED_CALLS.on(ev.ToolFinished)
def _tool_finished(calls: CallsByPlace, e: ev.ToolFinished) -> CallsByPlace:
    if e.call_id not in calls:
        return calls
    return with_entry(calls, e.call_id, _with_result(calls[e.call_id], e))


@PLACED_CALLS.on(ev.AgentStateSaved)
def _agent_state_saved(calls: CallsByPlace, e: ev.AgentStateSaved) -> CallsByPlace:
    before = calls[e.place].value if e.place in calls else ()
    value = (*before, (e.form, e.data))
    return with_entry(calls, e.place, PlacedCall(SAVED, value=value, is_finished=True))


@PLACED_CALLS.on(ev.ApprovalAsked)
def _approval_asked(calls: CallsByPlace, e: ev.ApprovalAsked) -> CallsByPlace:
    if e.call_id not in calls:
        return calls
    return with_entry(calls, e.call_id, replace(calls[e.call_id], has_begun=False))


@PLACED_CALLS.on(ev.ApprovalGiven)
def _approval_given(calls: CallsByPlace, e: ev.ApprovalGiven) -> CallsByPlace:
    if e.call_id not in calls or not e.approved:
        return calls
    return with_entry(calls, e.call_id, replace(calls[e.call_id], has_begun=True))


PLACED_CALLS.check()


def _with_result(call: PlacedCall, event: ev.ToolFinished) -> PlacedCall:
    if event.outcome == "cancelled":
        return replace(call, has_begun=False)
    # An exception ended the function, so a resume tries the call again. An interrupted call with a
    # result was already reported to its model.
    if event.form == "raised" or (event.outcome == "cut" and not event.result):
        return call
    is_error = event.outcome != "ok"
    return replace(call, value=event.result, form=event.form, is_error=is_error, is_finished=True)


def action_for_unfinished_call(
    calls: CallsByPlace, address: str
) -> Literal["made", "made again", "told"]:
    """Return how a resume treats an unfinished tool call.

    A call that contains other calls is repeated, because the inner calls are replayed.
    """
    call = calls.get(address)
    if call is None or not call.has_begun:
        return "made"
    has_calls = any(each.startswith(f"{address}/") for each in calls)
    return "made again" if call.is_repeatable or has_calls else "told"
