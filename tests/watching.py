"""Observation of all events of runs on their loop, to stop a run at any event."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nb_agents import events as ev
from tests.kit.runs import TurnWriter

__all__ = ["turns_watched"]


@contextmanager
def turns_watched(hear: Callable[[TurnWriter, ev.Event | None], None]) -> Iterator[None]:
    """Let somebody hear what all turns write that begin within the block.

    Args:
        hear: Called on the loop with the turn: with None when it begins to work, then with each
            event right after it was written. What it commands comes behind that event.
    """
    original = TurnWriter.run

    async def run(self: TurnWriter) -> None:
        self._recorder.observe(lambda event, before, after: hear(self, event))
        hear(self, None)
        await original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TurnWriter, "run", run)
        yield
