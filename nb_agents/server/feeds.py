"""Turns as they stand, read on in their journals by those who watch them.

Who asks first in each tenth of a second reads; all others see the same. So ten pages that watch a
turn cost its disk and its fold once, and what nobody watches costs nothing.
"""

from __future__ import annotations

import time
from asyncio import to_thread
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from nb_agents.events import TurnStarted
from nb_agents.fold import fold
from nb_agents.jupyter.cards import turn_bundle
from nb_agents.jupyter.markdown import harmless
from nb_agents.jupyter.panel_state import panel_state
from nb_agents.server.places import shown_path
from nb_agents.session.history import load_turn, past_events
from nb_agents.session.journal import POLL_S, JournalReader
from nb_agents.session.layout import TurnPaths
from nb_agents.view import RunView

__all__ = ["Feed", "Feeds", "card_of"]


class Feed:
    """One turn that is followed.

    Args:
        paths: The turn.

    Attributes:
        view: The turn as it stood when it was read last.
        is_live: Whether a process worked on it then; once it is not, nothing more will come.
    """

    def __init__(self, paths: TurnPaths) -> None:
        self.paths = paths
        self.view = RunView()
        self.is_live = True
        self._reader = JournalReader(paths.journal)
        self._read_at = float("-inf")
        # Separates those who watch: one of them reads.
        self._reading = anyio.Lock()
        self._state: tuple[int, int, dict[str, Any]] | None = None

    async def read(self) -> None:
        """Read what has come, unless that was done a moment ago."""
        async with self._reading:
            if self.is_live and time.monotonic() - self._read_at >= POLL_S:
                await to_thread(self._read)
                self._read_at = time.monotonic()

    def _read(self) -> None:
        # Asked first: whatever its writer wrote last is read after it has let go. Without a wait:
        # who takes another one who looks for its writer is right a moment later.
        is_live = self.paths.is_live(0)
        with suppress(FileNotFoundError):  # it has just begun, or is another program's
            self._read_on()
        self.is_live = is_live  # not before: others look at both

    def _read_on(self) -> None:
        while events := self._reader.read():
            if isinstance(first := events[0], TurnStarted) and 0 < first.resumes < first.turn:
                before = self.paths.path.with_name(f"turn_{first.resumes}")
                self.view = fold(past_events(TurnPaths(before)))
            self.view = fold(events, self.view)

    def state(self) -> dict[str, Any]:
        """Return what a panel shows of it now; the same object until that changes."""
        now = time.time()
        # Between events only the clocks move, and these show seconds.
        key = (self.view.seq, int(now))
        if self._state is None or self._state[:2] != key:
            view = replace(self.view, session=self.paths.session, turn=self.paths.number)
            where = shown_path(self.paths.path)
            self._state = (*key, harmless(panel_state(view, where, now)))
        return self._state[2]


class Feeds:
    """The turns that are followed by anybody."""

    def __init__(self) -> None:
        self._feeds: dict[Path, Feed] = {}

    def of(self, paths: TurnPaths) -> Feed:
        """Return the feed of a turn; one whose turn is over may have been resumed meanwhile."""
        self._feeds = {path: feed for path, feed in self._feeds.items() if feed.is_live}
        return self._feeds.setdefault(paths.path, Feed(paths))


def card_of(paths: TurnPaths) -> dict[str, Any]:
    """Make the card of a turn that is over.

    Raises:
        FileNotFoundError: It was deleted or renamed.
    """
    paths.path.stat()
    return turn_bundle(load_turn(paths), shown_path(paths.path))
