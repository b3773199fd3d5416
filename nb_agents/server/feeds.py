"""Follow turns and sweeps by their files, for the streams of pages.

One of all who watch looks at what is followed, ten times a second and in one thread, and the others
wait for what it finds. So ten pages that watch a turn cost its disk and its fold once, and what
nobody watches costs nothing.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from asyncio import to_thread
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import anyio

from nb_agents.disk.lock import is_held
from nb_agents.presentation.cards import timeline_html, turn_bundle
from nb_agents.presentation.markdown import harmless
from nb_agents.presentation.panel_state import panel_state
from nb_agents.presentation.panel_types import PanelState, SweepState
from nb_agents.presentation.sweep_card import sweep_bundle, sweep_state, sweep_title
from nb_agents.runs.finding import handle_of
from nb_agents.runs.run import Run
from nb_agents.server.places import shown_path
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.history import load_turn, with_past
from nb_agents.session.journal import POLL_S, JournalReader
from nb_agents.session.layout import TurnPaths
from nb_agents.sweeps.manifest import is_sweep, owner_lock
from nb_agents.sweeps.sweep_fold import LiveRow
from nb_agents.sweeps.sweep_reader import SweepReader
from nb_agents.view.fold import fold
from nb_agents.view.run_view import RunView

_Feed = TypeVar("_Feed", bound="Feed")

PROBE_S = 0.5
"""Minimal interval between two checks of a lock whose owner has not reported its end, seconds."""
SWEEP_S = 0.2
"""Minimal interval between two reads of a sweep, seconds."""
UNREAD_S = 60.0
"""How long a feed is kept that nobody reads, seconds; who follows one has it read all the time."""


class Feed(ABC):
    """A turn or a sweep that is followed.

    Args:
        path: Its directory.

    Attributes:
        path: As given.
        is_live: Whether a process worked on it when it was read last; once none does, nothing more
            will come.
    """

    poll_s = POLL_S

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_live = True
        self._made_at = time.monotonic()
        self._read_at = self._probed_at = float("-inf")
        self._state: tuple[tuple[object, int], Mapping[str, Any]] | None = None

    def is_due(self, now: float) -> bool:
        """Return whether the last read is long enough ago."""
        return self.is_live and now - self._read_at >= self.poll_s

    def is_wanted(self, now: float) -> bool:
        """Return whether there may be more to read, and somebody who reads it."""
        return self.is_live and now - max(self._read_at, self._made_at) < UNREAD_S

    def read(self) -> bool:
        """Read what is new, blocking; return whether the state has changed."""
        now = self._read_at = time.monotonic()
        is_live = has_news = True
        with ServiceLoop.FEEDS.item():
            # Asked first: whatever its writer wrote last is read after it has let go.
            if self._has_recorded_end or now - self._probed_at >= PROBE_S:
                self._probed_at, is_live = now, self._is_owned()
            has_news = self._read_on(is_live)
        self.is_live = is_live  # not before: others look at both
        return has_news or not is_live

    def state(self) -> Mapping[str, Any]:
        """Return the state of a panel; the same object until it changes."""
        now = time.time()
        # Between news only the clocks move, and these show seconds.
        key = (self.standing, int(now))
        if self._state is None or self._state[0] != key:
            self._state = (key, harmless(self._draw(now)))
        return self._state[1]

    @abstractmethod
    def card(self) -> dict[str, Any]:
        """Return the card at the end, blocking.

        Raises:
            FileNotFoundError: It was deleted or renamed.
        """

    @property
    @abstractmethod
    def _has_recorded_end(self) -> bool: ...

    @property
    @abstractmethod
    def standing(self) -> object:
        """A value that changes with the state."""

    @abstractmethod
    def _is_owned(self) -> bool: ...

    @abstractmethod
    def _read_on(self, is_live: bool) -> bool: ...

    @abstractmethod
    def _draw(self, now: float) -> Mapping[str, Any]: ...


class TurnFeed(Feed):
    """A turn that is followed.

    Attributes:
        view: The turn as it stood when it was read last.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.view = RunView()
        self._paths = TurnPaths(path)
        self._reader = JournalReader(self._paths.journal)
        self._run: Run | None = None

    def card(self) -> dict[str, Any]:
        """Return the card of the turn."""
        self.path.stat()
        return turn_bundle(load_turn(self._paths), shown_path(self.path))

    def timeline(self) -> str:
        """Return the picture of what has happened so far, as HTML; blocking."""
        # Made when it is asked for, and kept: it reads on from where it was asked last.
        run = self._run = self._run or handle_of(self._paths)
        return timeline_html(run.timeline, is_recipe=bool(run.view.recipe))

    @property
    def turn(self) -> str:
        """The turn's session and number."""
        return f"{self._paths.session}/{self._paths.number}"

    @property
    def _has_recorded_end(self) -> bool:
        return bool(self.view.ending)

    @property
    def standing(self) -> int:
        """The last event's number."""
        return self.view.seq

    def _is_owned(self) -> bool:
        # Without a wait: who takes another one who looks for its writer is right a moment later.
        return self._paths.is_live()

    def _read_on(self, is_live: bool) -> bool:
        if not self._reader.is_same():
            self._reader, self.view = JournalReader(self._paths.journal), RunView()
            self._run = None
        before = self.view
        with suppress(OSError):  # it has just begun, or is another program's
            while events := self._reader.read():
                if not self.view.seq:
                    events = with_past(self._paths, events)
                self.view = fold(events, self.view)
        return self.view is not before

    def _draw(self, now: float) -> PanelState:
        view = replace(self.view, session=self._paths.session, turn=self._paths.number)
        return panel_state(view, shown_path(self.path), now)


class SweepFeed(Feed):
    """A sweep that is followed, with its rows at work.

    Args:
        path: Its directory.
        feeds: Where its rows are followed, by others, too.

    Attributes:
        view: The sweep as it stood when it was read last.
    """

    poll_s = SWEEP_S

    def __init__(self, path: Path, feeds: Feeds) -> None:
        super().__init__(path)
        self._feeds, self._reader = feeds, SweepReader(path)
        self._rows: dict[str, TurnFeed] = {}
        self._seen: tuple[object, ...] = ()
        self._changes = 0
        self.view = self._reader.view_of((), True, 0.0)

    @property
    def changed_at(self) -> float | None:
        """When a row ended or began last, in Unix seconds; None before the first."""
        return self._reader.changed_at

    def card(self) -> dict[str, Any]:
        """Return the card of the sweep."""
        self.path.stat()
        table = self._reader.table()
        return sweep_bundle(self.view, sweep_title(self.path), shown_path(self.path), table)

    @property
    def _has_recorded_end(self) -> bool:
        return self._reader.has_ended

    @property
    def standing(self) -> int:
        """How often the sweep or a row of it has changed."""
        return self._changes

    def _is_owned(self) -> bool:
        return is_held(owner_lock(self.path))

    def _read_on(self, is_live: bool) -> bool:
        if not self._reader.is_same():
            self._reader = SweepReader(self.path)
        has_news = self._reader.read()
        self._read_rows()
        # The sweep's own process reports the end of a row within a moment.
        rows = self._rows.items() if is_live else ()
        live = [LiveRow(name, row.turn, row.view) for name, row in rows if row.is_live]
        seen = (is_live, *((row.name, row.view.seq) for row in live))
        has_news = has_news or seen != self._seen
        self._seen, self._changes = seen, self._changes + has_news
        self.view = self._reader.view_of(live, is_live)
        return has_news

    def _read_rows(self) -> None:
        now, turns = time.monotonic(), self._reader.turns
        self._rows = {
            name: row
            if (row := self._rows.get(name)) and row.path == turn.path
            else self._feeds.turn(turn.path)
            for name, turn in turns.items()
        }
        for row in self._rows.values():
            if row.is_due(now):
                row.read()

    def _draw(self, now: float) -> SweepState:
        return sweep_state(self.view, sweep_title(self.path), shown_path(self.path), now)


class Feeds:
    """All that is followed, once for all clients."""

    def __init__(self) -> None:
        self._feeds: dict[Path, Feed] = {}
        # Separates the loop from the thread in which a sweep asks for the feeds of its rows.
        self._making = threading.Lock()
        # Separates those who watch: one of them reads.
        self._reading = anyio.Lock()
        self._followed: Counter[Feed] = Counter()
        self._changes = 0
        self._looking: anyio.Event | None = None

    def of(self, path: Path) -> Feed:
        """Return the feed of a turn or a sweep."""
        return self.sweep(path) if is_sweep(path) else self.turn(path)

    def turn(self, path: Path) -> TurnFeed:
        """Return the feed of a turn; one whose turn is over may have been resumed meanwhile."""
        return self._get(path, TurnFeed, lambda: TurnFeed(path))

    def sweep(self, path: Path) -> SweepFeed:
        """Return the feed of a sweep; one that is over may be worked on again."""
        return self._get(path, SweepFeed, lambda: SweepFeed(path, self))

    def _get(self, path: Path, kind: type[_Feed], make: Callable[[], _Feed]) -> _Feed:
        with self._making:
            now = time.monotonic()
            self._feeds = {path: feed for path, feed in self._feeds.items() if feed.is_wanted(now)}
            feed = self._feeds.get(path)
            if not isinstance(feed, kind):
                feed = self._feeds[path] = make()
            return feed

    async def read(self, feeds: Iterable[Feed]) -> int:
        """Read feeds that are due; return the number to wait with in `news`."""
        async with self._reading:
            now = time.monotonic()
            if due := [feed for feed in feeds if feed.is_due(now)]:
                self._changes += await to_thread(lambda: sum([feed.read() for feed in due]))
            return self._changes

    @contextmanager
    def follow(self, feeds: Iterable[Feed]) -> Iterator[None]:
        """Poll these feeds within the block, as long as a client waits for news."""
        followed = list(feeds)
        self._followed.update(followed)
        try:
            yield
        finally:
            self._followed.subtract(followed)
            self._followed = +self._followed

    async def news(self, seen: int) -> int:
        """Wait until the state of a followed feed changes, or a second has passed.

        Args:
            seen: What this, or `read`, returned last.
        """
        if self._changes == seen:
            await (self._looking.wait() if self._looking else self._look())
        return self._changes

    async def _look(self) -> None:
        """Poll for all waiting clients."""
        looking = self._looking = anyio.Event()
        before = self._changes, int(time.time())
        try:
            while (self._changes, int(time.time())) == before:
                await anyio.sleep(POLL_S)
                with ServiceLoop.FEEDS.item():
                    await self.read(self._followed)
        finally:
            self._looking = None
            looking.set()
