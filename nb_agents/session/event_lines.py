"""Reads events, including those of extensions."""

from __future__ import annotations

import logging

from nb_agents.errors import UserError
from nb_agents.events import EVENT, Event, UnknownEvent
from nb_agents.events.base_event import KINDS
from nb_agents.plugins import ExtensionPoint

EVENTS = ExtensionPoint[type[Event]]("events")
"""The event classes of extensions, by kind."""

_logger = logging.getLogger(__name__)


def read_event(line: str | bytes, context: list[str] | None = None) -> Event:
    """Parse an event. The class of an extension's event is imported on first use.

    An event of an extension that is not installed is an `UnknownEvent`.

    Args:
        line: The JSON text of an event.
        context: A list to which the names of fields with out-of-range numbers are appended.

    Raises:
        ValidationError: The JSON is not an event.
    """
    event = EVENT.validate_json(line, context=context)
    if isinstance(event, UnknownEvent) and _is_registered(event.kind):
        return EVENT.validate_json(line, context=context)
    return event


def _is_registered(kind: str) -> bool:
    """Import the class of an extension's event. Returns whether there is one for the kind."""
    try:
        return EVENTS.get(kind) is not None and kind in KINDS
    except UserError as exc:
        _logger.warning("%s Its events are shown as unknown.", exc)
        return False
