"""The results of verbs, with one type for each way of showing them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nb_agents.events import Event
from nb_agents.launch.once import CachedRun
from nb_agents.launch.run import Run
from nb_agents.turns.groups import Group

Work = Run | Group
"""What a verb acts on, and what a user interface shows."""


@dataclass(frozen=True)
class Reply:
    """A message for the user, and the same information as data.

    Attributes:
        text: The message.
        facts: The same information as JSON-serializable data, for scripts.
        markdown: The message as Markdown for a notebook, or "".
    """

    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    markdown: str = ""


@dataclass(frozen=True)
class Table:
    """A list of entries, such as sessions.

    Attributes:
        heads, rows: Column titles and rows.
        items: The entries as data, or None if `rows` has them.
        notes: Sentences about entries that are missing.
        empty: The message to show instead of an empty list.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    items: Sequence[Any] | None = None
    notes: Sequence[str] = ()
    empty: str = ""


@dataclass(frozen=True)
class CheckReport:
    """The result of a check.

    Attributes:
        reply: The findings.
        heads, rows: Column titles and rows of a table that is shown above the findings.
        is_ok: Whether the check succeeded. If not, a command exits with an error code.
    """

    reply: Reply
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_ok: bool


@dataclass(frozen=True)
class Log:
    """The events of a turn so far.

    Attributes:
        lines: The events as text.
        events: The events as data.
        notes: Sentences about missing events, and where more is logged.
    """

    lines: Sequence[str]
    events: Sequence[Event]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class EventStream:
    """The events of a turn, as they arrive."""

    run: Run
    events: AsyncIterator[Event]


@dataclass(frozen=True)
class ShownWork:
    """A run or group to display: live while it is running, afterwards its card.

    Attributes:
        work: The run or group.
        waits: Whether to wait until it ends.
    """

    work: Work
    waits: bool = False


@dataclass(frozen=True)
class NewRun:
    """A run to start and show.

    Attributes:
        begin: Starts it.
        waits: Whether to wait until it ends.
    """

    begin: Callable[[], CachedRun]
    waits: bool = False


@dataclass(frozen=True)
class NewGroup:
    """A group of runs to start and show.

    Attributes:
        begin: Starts it.
    """

    begin: Callable[[], Group]


Outcome = Reply | Table | CheckReport | Log | EventStream | ShownWork | NewRun | NewGroup
"""The result of a verb, for a user interface to show."""


def text_of(outcome: Reply | CheckReport | Table | Log) -> str:
    """Return the text that is shown below a result's table, or ""."""
    match outcome:
        case Reply(text) | CheckReport(Reply(text)):
            return text
        case Log(lines):
            return "\n".join(lines)
        case Table(rows=rows, notes=notes, empty=empty):
            return "" if rows or notes else empty
