"""What extensions add to a turn that resumes or rewinds another one, such as late decisions.

An extension registers functions in ``carry_overs``. Each is called with the earlier turn's paths
and the number of the last event that counts, or 0 for all events. It may read the session's files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nb_agents.events import Event
from nb_agents.plugins import ExtensionPoint
from nb_agents.session.layout import TurnPaths


class CarryOver(NamedTuple):
    """What an extension adds to a resume or rewind.

    Attributes:
        events: The events that the new turn journals at its start.
        lines: Sentences for the preview of a rewind.
    """

    events: tuple[Event, ...] = ()
    lines: tuple[str, ...] = ()


_CARRY_OVERS = ExtensionPoint[Callable[[TurnPaths, int], CarryOver]]("carry_overs")


def carry_over(turn: TurnPaths, point: int = 0) -> CarryOver:
    """Return what all extensions add to a turn that continues another one.

    Args:
        turn: The earlier turn.
        point: For a rewind, the number of the last event that counts. 0 means all events.
    """
    added = [make(turn, point) for make in _CARRY_OVERS.all().values()]
    events = tuple(event for each in added for event in each.events)
    return CarryOver(events, tuple(line for each in added for line in each.lines))
