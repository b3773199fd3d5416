"""How long the recipes that steps call may take: a clock for each of them that has a limit.

The plan says which have one; what stands under it is stopped through a token of its own, so that
all that hears a stop of the run hears this one, too: streams, commands, tools in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio

from nb_agents.agents.run_policy import current_policy
from nb_agents.cancel import CancellationStatus, CancelToken
from nb_agents.recipes.addresses import is_within
from nb_agents.recipes.tasks import Limit

__all__ = ["SubRecipeTimeouts"]

STILL_S = 0.5
"""How closely the time is told in which a clock stands still."""


@dataclass
class _Clock:
    """A clock that goes, and the token of all that stands under it."""

    token: CancelToken
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class SubRecipeTimeouts:
    """Times the called recipes of one run, from where each begins in it. Lives on the loop.

    As with the time limit of a whole run, neither a pause counts nor the time in which a person is
    asked: here, while that is all that a recipe has in hand.

    Args:
        token: The run's.
        only_waits: Tells whether the recipe at an address has nothing in hand but what waits
            for a person.
        over: Given the address of a recipe whose time is over, and a sentence about it, before all
            that it has in hand is cut.
    """

    def __init__(
        self,
        token: CancelToken,
        only_waits: Callable[[str], bool],
        over: Callable[[str, str], None],
    ) -> None:
        self._token = token
        self._only_waits = only_waits
        self._over = over
        self._clocks: dict[str, _Clock] = {}

    def keep(self, group: anyio.abc.TaskGroup, limits: Sequence[Limit]) -> None:
        """Let a clock go for each of these limits, and for no other.

        Args:
            group: Where clocks go.
            limits: Those of the recipes that are under way, the outer ones first.
        """
        for address in self._clocks.keys() - {limit.address for limit in limits}:
            self._clocks.pop(address).scope.cancel()
        for limit in limits:
            if limit.address not in self._clocks:
                clock = _Clock(self.token(limit.address).child(limit.address))
                self._clocks[limit.address] = clock
                group.start_soon(self._go, limit, clock, name=f"clock of {limit.address}")

    def token(self, address: str) -> CancelToken:
        """Give the token of the work at an address: of the innermost recipe with a clock."""
        holders = [each for each in self._clocks if is_within(address, each)]
        return self._clocks[max(holders, key=len)].token if holders else self._token

    async def _go(self, limit: Limit, clock: _Clock) -> None:
        left_s = limit.timeout_s
        with clock.scope:
            while left_s > 0:
                began = anyio.current_time()
                await anyio.sleep(min(left_s, STILL_S))
                if not (current_policy().hold.is_on or self._only_waits(limit.address)):
                    left_s -= anyio.current_time() - began
            if self._clocks.get(limit.address) is not clock:
                return  # the recipe has ended in this very moment
            why = f"The recipe took longer than {limit.timeout_s:g} s."
            self._over(limit.address, why)
            clock.token.request(CancellationStatus.IMMEDIATE, "timeout", why)
