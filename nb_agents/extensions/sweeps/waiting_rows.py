"""Rows that wait for a provider, which leave their place to other rows.

A sweep runs a limited number of rows at the same time. While a row waits for the end of a quota or
for a server that is down, it works on nothing, so another row can run. If no place is free when its
wait ends, it is paused until one is. The same applies to rows whose model the user has paused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from nb_agents.launch.run import Run

RETURN_S = 1.0
"""Seconds before the end of its wait at which a row needs a place again."""

MAX_AWAY = 64
"""Maximum number of rows without a place. Each of them is an open run."""


class WaitingRows:
    """The running rows of a sweep without a place.

    They wait for a provider, for a place after such a wait, or until their model is unpaused.

    Args:
        pause: Pauses or unpauses a run.
    """

    def __init__(self, pause: Callable[[Run, bool], None]) -> None:
        self._pause = pause
        self._waiting: set[str] = set()
        self._held: set[str] = set()
        self._paused: set[str] = set()

    def is_held(self, row: str) -> bool:
        """Return whether a row is paused until a place is free or its model is unpaused."""
        return row in self._held or row in self._paused

    @property
    def count(self) -> int:
        """The number of running rows without a place."""
        return len(self._waiting) + len(self._held) + len(self._paused)

    def update(
        self,
        running: Mapping[str, Run],
        beginning: int,
        now: float,
        limit: int,
        paused: Collection[str] = (),
    ) -> None:
        """Give up the places of rows that wait, and assign places to those that no longer do.

        Args:
            running: The current runs by their rows' names.
            beginning: The number of rows that are starting.
            now: The current time in Unix seconds.
            limit: The number of places.
            paused: The rows whose models are paused.
        """
        unpaused = self._take_paused(running, {*paused} & running.keys())
        self._held &= running.keys()
        waiting = {name for name, run in running.items() if _is_waiting(run, now)}
        waiting -= self._held | self._paused
        for name in unpaused & waiting:
            self._pause(running[name], False)
        returning = (unpaused | (self._waiting & running.keys())) - waiting
        staying = self._waiting & waiting
        leaving = sorted(waiting - staying)[: max(0, MAX_AWAY - len(staying) - len(self._held))]
        self._waiting = staying | {*leaving}
        free = limit - beginning - (len(running) - self.count - len(returning))
        for name in sorted(self._held)[: max(0, free)]:
            self._held.remove(name)
            self._pause(running[name], False)
            free -= 1
        for name in sorted(returning):
            if free <= 0:
                self._held.add(name)
                self._pause(running[name], True)
            elif name in unpaused:
                self._pause(running[name], False)
            free -= 1

    def _take_paused(self, running: Mapping[str, Run], paused: set[str]) -> set[str]:
        """Pause the rows of models that are paused now. Returns those that no longer are."""
        for name in paused - self._paused:
            self._pause(running[name], True)
        unpaused = (self._paused - paused) & running.keys()
        self._paused = paused
        self._held -= paused
        self._waiting -= paused
        return unpaused


def _is_waiting(run: Run, now: float) -> bool:
    wait = run.view.wait
    return wait is not None and wait.until > now + RETURN_S
