"""Events of extensions that a user's request records, such as the decision on a proposal.

The request is the command `RecordEvent`. The extension registers a function for each kind of event
in ``user_events``. It returns whether the event applies to the turn now, so that a request that
arrives twice is recorded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from nb_agents.errors import UserError
from nb_agents.events import EVENT, Event
from nb_agents.plugins import ExtensionPoint
from nb_agents.view.run_view import RunView

_USER_EVENTS = ExtensionPoint[Callable[[RunView, Event], bool]]("user_events")


def user_event(view: RunView, fields: Mapping[str, Any]) -> Event | None:
    """Return the event that a request asks to record, or None if it does not apply to the turn.

    Args:
        view: The turn's current view.
        fields: The event as JSON values.

    Raises:
        UserError: The event is invalid, or no extension lets users record it.
    """
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in _USER_EVENTS:
        raise UserError(f"Events of the kind {kind!r} can't be recorded by a request.")
    applies = _USER_EVENTS[kind]
    try:
        event = EVENT.validate_python(dict(fields))
    except ValidationError as exc:
        raise UserError(f"The event {kind!r} is invalid: {exc.errors()[0]['msg']}.") from None
    return event if applies(view, event) else None
