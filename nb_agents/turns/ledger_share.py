"""A turn's share of a limit that several turns have in common, reserved part by part."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio
from anyio import to_thread

from nb_agents.agents.stop_scope import PauseGate
from nb_agents.turns.ledger import Grant, Ledger

REFILL = 0.5
"""The share of a reservation at whose use the next one is made."""


class LedgerShare:
    """A turn's share of a limit that it has in common with other turns.

    The turn is paused at its boundaries while it has used its reservation and gets the next one.

    Args:
        ledger: The ledger.
        key: The turn's key in the ledger.
        used: Returns the total that the turn has used.
        hold: The run's pause.
        reason: The reason for the pause.
        turn: The turn's path. Defaults to the key.
    """

    def __init__(
        self,
        ledger: Ledger,
        key: str,
        used: Callable[[], float],
        hold: PauseGate,
        reason: str,
        turn: str = "",
    ) -> None:
        self._ledger = ledger
        self._key, self._turn = key, turn
        self._used = used
        self._hold, self._reason = hold, reason
        self._granted, self._refill_at = 0.0, 0.0
        self._due = anyio.Event()

    def count(self) -> None:
        """Compare what the turn has used with its reservation."""
        used = self._used()
        if used >= self._granted:
            self._hold.pause(self._reason)
        if used >= self._refill_at:
            self._refill_at = math.inf
            self._due.set()

    async def wait_due(self) -> None:
        """Wait until the next part should be reserved."""
        await self._due.wait()
        self._due = anyio.Event()

    async def renew(self, limit: float) -> Grant:
        """Reserve the next part of a limit.

        Returns:
            The reservation. If nothing is left, the turn stays paused.

        Raises:
            LedgerError: The ledger can't be read or written.
        """
        used = self._used()
        grant = await to_thread.run_sync(self._ledger.reserve, self._key, used, limit, self._turn)
        if not grant.is_refused:
            self._granted = grant.up_to
            self._refill_at = used + (grant.up_to - used) * REFILL
            self._hold.unpause(self._reason)
            self.count()
        return grant

    def retry(self) -> None:
        """Reserve again, because the limit has changed."""
        self._due.set()

    def lift(self) -> None:
        """Let the turn continue without a reservation."""
        self._granted = self._refill_at = math.inf
        self._hold.unpause(self._reason)

    async def release(self) -> None:
        """End the reservation of a turn that is over.

        Raises:
            LedgerError: The ledger can't be read or written.
        """
        await to_thread.run_sync(self._ledger.release, self._key, self._used())
