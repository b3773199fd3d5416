"""What happened in a turn, as lines for a person."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from nb_agents.events import Event, TextStreamed
from nb_agents.terminal import without_controls

__all__ = ["log_lines"]

MAX_LINE = 400
"""Characters of a line."""

_HIDDEN = {"seq", "at", "kind", "agent", "request", "response", "schema_version", "agents"}


def log_lines(events: Iterable[Event]) -> list[str]:
    """Say what happened, one line an event; streamed words are left out.

    Args:
        events: In journal order.
    """
    return [_line(event) for event in events if not isinstance(event, TextStreamed)]


def _line(event: Event) -> str:
    clock = datetime.fromtimestamp(event.at).strftime("%H:%M:%S")
    fields = (name for name in type(event).__dataclass_fields__ if name not in _HIDDEN)
    shown = [f"{name}={value!r}" for name in fields if (value := getattr(event, name))]
    what = event.kind.replace("_", " ")
    text = f"{clock}  {getattr(event, 'agent', '') or '-':<12} {what}  " + " ".join(shown)
    line = " ".join(without_controls(text[: 2 * MAX_LINE]).split())
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"
