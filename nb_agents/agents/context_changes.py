"""Telling what an agent changed outside its workspace while it might."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio
from anyio import to_thread

from nb_agents import events as ev
from nb_agents.tools.changes import compare, look
from nb_agents.tools.writable import WritablePath

__all__ = ["telling_changes"]

MAX_NAMED = 100
LOOK_S = 2.0
"""A stop waits no longer for the look at what was changed."""


@asynccontextmanager
async def telling_changes(
    agent: str, places: Sequence[WritablePath], emit: Callable[[ev.Event], None]
) -> AsyncIterator[None]:
    """Tell, at the end of the block, what was changed within it, also when a stop ends it.

    Args:
        agent: Who may change it.
        places: Where.
        emit: Takes what happened.
    """
    if not places:
        yield
        return
    look_at = partial(to_thread.run_sync, look, places, abandon_on_cancel=True)
    before = await look_at()
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(LOOK_S):
            found = compare(before, await look_at())
            if any(found):
                emit(
                    ev.ContextChanged(
                        agent=agent,
                        made=found.made[:MAX_NAMED],
                        changed=found.changed[:MAX_NAMED],
                        deleted=found.deleted[:MAX_NAMED],
                        count=sum(map(len, found)),
                    )
                )
