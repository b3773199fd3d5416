"""Calls of tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nb_agents.events.base_event import BaseEvent, Count, Seconds

__all__ = [
    "ToolFinished",
    "ToolStarted",
    "ToolTold",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(BaseEvent):
    """A tool call is about to run.

    Attributes:
        args: What it is given; keys are masked in the journal.
        summary: What it is about, in a few words.
    """

    agent: str
    call_id: str
    tool: str
    args: Any = None
    summary: str = ""
    kind: Literal["tool_started"] = "tool_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTold(BaseEvent):
    """The last of what an agent's running tool wrote; the tool keeps all of it."""

    agent: str
    text: str
    kind: Literal["tool_told"] = "tool_told"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished(BaseEvent):
    """A tool call is over.

    Attributes:
        outcome: "ok", "error" (the model is told why), "cut" by an immediate stop (it may have
            happened in part), or "cancelled": never run, and answered so, because providers refuse
            a history in which a call has no return.
        result: What the model is told.
        size: Characters of it.
        seconds: How long the call took, what it waited for a person included.
        thread: Number, in its process, of the thread that a cut call was left running in: a plain
            function can't be ended; 0 for none.
    """

    agent: str
    call_id: str
    tool: str
    outcome: Literal["ok", "error", "cut", "cancelled"]
    result: str = ""
    size: Count = 0
    seconds: Seconds = 0.0
    thread: Count = 0
    kind: Literal["tool_finished"] = "tool_finished"
