"""What was recorded after the end of a turn, such as a user's decisions on proposed changes.

An extension registers functions in ``late_events``. Each is called with the turn's directory and
returns the events. The turn's card shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from nb_agents.errors import error_message
from nb_agents.events import Event
from nb_agents.plugins import ExtensionPoint
from nb_agents.view.fold import fold
from nb_agents.view.run_view import RunView

_LATE_EVENTS = ExtensionPoint[Callable[[Path], Iterable[Event]]]("late_events")
_logger = logging.getLogger(__name__)


def with_late_events(view: RunView, directory: Path) -> RunView:
    """Return the view of a turn with the events after its end.

    Args:
        view: The turn's view. A live turn has no such events.
        directory: The turn's directory.
    """
    if not view.is_over:
        return view
    for name, read in _LATE_EVENTS.all().items():
        try:
            view = fold(read(directory), view)
        except Exception as exc:  # an extension may raise anything
            _logger.warning("Late events %r failed. %s", name, error_message(exc, named=True))
    return view
