"""How soon calls may begin that share a server: whoever is told "too many" slows down all.

Of all runs of this process, so that a sweep's hundred agents don't each find out by themselves.
"""

from __future__ import annotations

import math

from nb_agents.models.backend import Backend

__all__ = ["Pace", "pace_of"]

FIRST_GAP_S = 0.05
MAX_GAP_S = 5.0
EASE = 0.8
"""What a call that succeeds makes of the gap; it is gone after some twenty."""


class Pace:
    """When the next call to one server may begin; on the loop, in its clock's seconds."""

    def __init__(self) -> None:
        self._next_at = -math.inf
        self._gap_s = 0.0

    def wait_s(self, now: float) -> float:
        """Take the next place among those who wait for the server: seconds until it is there."""
        at = max(now, self._next_at)
        if self._gap_s:
            self._next_at = at + self._gap_s
        return at - now

    def throttled(self, now: float, wait_s: float) -> None:
        """Note that the server said "too many", and how long who was told so waits."""
        self._gap_s = min(max(2 * self._gap_s, FIRST_GAP_S), MAX_GAP_S)
        self._next_at = max(self._next_at, now + wait_s)

    def succeeded(self) -> None:
        """Note that a call went well: the gap between calls shrinks."""
        self._gap_s *= EASE
        if self._gap_s < FIRST_GAP_S / 2:
            self._gap_s = 0.0


_paces: dict[str, Pace] = {}


def pace_of(backend: Backend) -> Pace:
    """Give the pace of a backend's server; one that names no server shares it with nobody."""
    server = getattr(backend, "server", "")
    return _paces.setdefault(server, Pace()) if server else Pace()
