"""Rows that wait for a provider, which leave their place to other rows.

A sweep runs a limited number of rows at the same time. While a row waits for the end of a quota or
for a server that is down, it works on nothing, so another row can run. If no place is free when its
wait ends, it is paused until one is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nb_agents.launch.run import Run

RETURN_S = 1.0
"""Seconds before the end of its wait at which a row needs a place again."""

MAX_AWAY = 64
"""Maximum number of rows without a place. Each of them is an open run."""


class WaitingRows:
    """The running rows of a sweep that wait for a provider, or for a place after such a wait.

    Args:
        limit: The number of places.
        pause: Pauses or unpauses a run.
    """

    def __init__(self, limit: int, pause: Callable[[Run, bool], None]) -> None:
        self._limit = limit
        self._pause = pause
        self._waiting: set[str] = set()
        self._held: set[str] = set()

    def is_held(self, row: str) -> bool:
        """Return whether a row is paused until a place is free."""
        return row in self._held

    @property
    def count(self) -> int:
        """The number of running rows without a place."""
        return len(self._waiting) + len(self._held)

    def update(self, running: Mapping[str, Run], beginning: int, now: float) -> None:
        """Give up the places of rows that wait, and assign places to those that no longer do.

        Args:
            running: The current runs by their rows' names.
            beginning: The number of rows that are starting.
            now: The current time in Unix seconds.
        """
        self._held &= running.keys()
        waiting = {name for name, run in running.items() if _is_waiting(run, now)} - self._held
        returning = (self._waiting & running.keys()) - waiting
        staying = self._waiting & waiting
        leaving = sorted(waiting - staying)[: max(0, MAX_AWAY - len(staying) - len(self._held))]
        self._waiting = staying | {*leaving}
        free = self._limit - beginning - (len(running) - self.count - len(returning))
        for name in sorted(self._held)[: max(0, free)]:
            self._held.remove(name)
            self._pause(running[name], False)
            free -= 1
        for name in sorted(returning)[max(0, free) :]:
            self._held.add(name)
            self._pause(running[name], True)


def _is_waiting(run: Run, now: float) -> bool:
    wait = run.view.wait
    return wait is not None and wait.until > now + RETURN_S
