"""Who is shown a run's view while it changes: each in a worker thread, and of the latest alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import anyio
from anyio import CapacityLimiter, to_thread

from nb_agents.view import RunView

__all__ = ["Subscribers"]

logger = logging.getLogger("nb_agents")

CLOSE_S = 2.0
"""What all get, together, to be shown the last view before who waits for the run is told."""


class Subscribers:
    """Shows views to callbacks. Lives on the loop; callbacks come and go from any thread."""

    def __init__(self) -> None:
        # Replaced, never changed: other threads subscribe meanwhile.
        self._subscriptions: tuple[_Subscription, ...] = ()

    def add(self, callback: Callable[[RunView], None]) -> Callable[[], None]:
        """Show views to a callback from now on.

        Args:
            callback: Called in a worker thread, never twice at a time; views that came while it was
                busy are left out, but for the latest.

        Returns:
            A function that ends it.
        """
        mine = _Subscription(callback)
        self._subscriptions = (*self._subscriptions, mine)

        def end() -> None:
            mine.is_over = True
            self._subscriptions = tuple(s for s in self._subscriptions if s is not mine)

        return end

    def publish(self, view: RunView) -> None:
        """Show a view to all."""
        for each in self._subscriptions:
            each.show(view)

    async def finish(self, view: RunView) -> None:
        """Show the last view to all, and wait until they have seen it, within `CLOSE_S`."""
        self.publish(view)
        with anyio.move_on_after(CLOSE_S, shield=True):
            for each in self._subscriptions:
                await each.wait_seen()


class _Subscription:
    """One callback, and what it is to be shown next."""

    def __init__(self, callback: Callable[[RunView], None]) -> None:
        self._callback = callback
        self._latest: RunView | None = None
        self._showing: asyncio.Task[None] | None = None
        self.is_over = False

    def show(self, view: RunView) -> None:
        self._latest = view
        if self._showing is None or self._showing.done():
            self._showing = asyncio.get_running_loop().create_task(self._show())

    async def wait_seen(self) -> None:
        if self._showing is not None:
            await asyncio.wait((self._showing,))

    async def _show(self) -> None:
        """Call with the latest view until there is no newer; who fails costs nobody else."""
        while self._latest is not None and not self.is_over:
            view, self._latest = self._latest, None
            try:
                await to_thread.run_sync(
                    self._callback, view, abandon_on_cancel=True, limiter=CapacityLimiter(1)
                )
            except Exception:
                name = getattr(self._callback, "__qualname__", repr(self._callback))
                logger.exception("subscriber %s failed", name)
