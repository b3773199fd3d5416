"""Feeds follow turns and groups through their files, to stream changes to pages.

All streams share the feeds. One of the waiting streams polls the followed feeds ten times a second,
in one thread, and the others wait for its result. The journal of a turn that is shown on ten pages
is therefore read and folded once, and a turn without viewers is not read.
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
from pkgutil import resolve_name
from typing import Any, NamedTuple, TypeVar

import anyio

from nb_agents.events import EVENT, Event
from nb_agents.launch.finding import handle_of
from nb_agents.launch.run import Run
from nb_agents.presentation.cards import timeline_html, turn_bundle
from nb_agents.presentation.markdown import sanitize
from nb_agents.presentation.panel_state import panel_state
from nb_agents.presentation.panel_types import PanelState
from nb_agents.server.places import display_path
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.history import load_turn, with_resumed_events
from nb_agents.session.journal import POLL_S, JournalReader
from nb_agents.session.layout import TurnPaths
from nb_agents.turns.groups import GroupFacts, kind_at
from nb_agents.verbs.facts import TurnFacts, turn_facts
from nb_agents.view.fold import fold
from nb_agents.view.run_view import RunView

_Feed = TypeVar("_Feed", bound="Feed")
_Item = TypeVar("_Item")

PROBE_S = 0.5
"""Minimum interval in seconds between two checks of the lock of an unfinished turn or group."""
UNREAD_S = 60.0
"""Seconds after which an unused feed is dropped."""


class Record(NamedTuple):
    """An event of a turn, or a change of a group. Numbers start at 1."""

    kind: str
    data: Any
    number: int


RecordReader = Callable[[], list[Record]]


class Feed(ABC):
    """Follows a turn or group through its files.

    Args:
        path: The directory of the turn or group.

    Attributes:
        is_live: Whether a process was running the turn or group at the last read. Once this is
            false, nothing changes.
    """

    poll_s = POLL_S

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_live = True
        self._created_at = time.monotonic()
        self._read_at = self._probed_at = float("-inf")
        self._state: tuple[tuple[object, int], Mapping[str, Any]] | None = None

    def is_due(self, now: float) -> bool:
        """Return whether the feed is live and its poll interval has passed."""
        return self.is_live and now - self._read_at >= self.poll_s

    def is_wanted(self, now: float) -> bool:
        """Return whether the feed is live and was used recently."""
        return self.is_live and now - max(self._read_at, self._created_at) < UNREAD_S

    def read(self) -> bool:
        """Read new events or notes, blocking. Returns whether the state has changed."""
        now = self._read_at = time.monotonic()
        is_live = has_news = True
        with ServiceLoop.FEEDS.item():
            # Check the lock first: the writer releases it after its last write.
            if self._has_recorded_end or now - self._probed_at >= PROBE_S:
                self._probed_at, is_live = now, self._is_owned()
            has_news = self._read_on(is_live)
        self.is_live = is_live  # set last, because readers need the state that belongs to it
        return has_news or not is_live

    def state(self) -> Mapping[str, Any]:
        """Return the state of the panel. It is the same object until it changes."""
        now = time.time()
        # If there is no news, only the clocks change, which show seconds.
        key = (self.standing, int(now))
        if self._state is None or self._state[0] != key:
            self._state = (key, sanitize(self._draw(now)))
        return self._state[1]

    @abstractmethod
    def card(self) -> dict[str, Any]:
        """Return the final card, blocking.

        Raises:
            FileNotFoundError: The directory was deleted or renamed.
        """

    @abstractmethod
    def facts(self, where: str = "") -> TurnFacts | GroupFacts:
        """Return the list entry of the turn or group, as of the last read.

        Args:
            where: The other process in which the turn or group runs, if there is one.
        """

    @abstractmethod
    def record_reader(self) -> RecordReader:
        """Return a function that returns the records added since its last call.

        Raises:
            FileNotFoundError: The turn has no journal.
        """

    @property
    @abstractmethod
    def _has_recorded_end(self) -> bool: ...

    @property
    @abstractmethod
    def standing(self) -> object:
        """A value that changes whenever the state changes."""

    @abstractmethod
    def _is_owned(self) -> bool: ...

    @abstractmethod
    def _read_on(self, is_live: bool) -> bool: ...

    @abstractmethod
    def _draw(self, now: float) -> Mapping[str, Any]: ...


class TurnFeed(Feed):
    """Follows a turn.

    Attributes:
        view: The turn's state at the last read.
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
        turn = load_turn(self._paths)
        return turn_bundle(turn, display_path(self.path, turn.view.origin))

    def facts(self, where: str = "") -> TurnFacts:
        """Return the turn's list entry."""
        return turn_facts(self.view, self.path, is_live=self.is_live, where=where)

    def record_reader(self) -> RecordReader:
        """Return a function that returns the events added since its last call."""
        if not self._paths.journal.is_file():  # a turn that another program wrote
            raise FileNotFoundError(self._paths.journal)
        reader = JournalReader(self._paths.journal)
        return lambda: records(reader.read(), _record)

    def timeline(self) -> str:
        """Return the timeline so far as HTML. Blocks."""
        # The handle is reused, because it only needs to read the events since its last use.
        run = self._run = self._run or handle_of(self._paths)
        return timeline_html(run.timeline, has_steps=run.view.has_steps)

    @property
    def turn(self) -> str:
        """The turn as "session/number"."""
        return f"{self._paths.session}/{self._paths.number}"

    @property
    def _has_recorded_end(self) -> bool:
        return bool(self.view.ending)

    @property
    def standing(self) -> int:
        """The number of the last event."""
        return self.view.seq

    def _is_owned(self) -> bool:
        # Doesn't wait. If another process was just checking the lock, the next check will be right.
        return self._paths.is_live()

    def _read_on(self, is_live: bool) -> bool:
        if not self._reader.is_same():
            self._reader, self.view = JournalReader(self._paths.journal), RunView()
            self._run = None
        before = self.view
        with suppress(OSError):  # the turn has just started, or another program wrote it
            while events := self._reader.read():
                if not self.view.seq:
                    events = with_resumed_events(self._paths, events)
                self.view = fold(events, self.view)
        return self.view is not before

    def _draw(self, now: float) -> PanelState:
        view = replace(self.view, session=self._paths.session, turn=self._paths.number)
        return panel_state(view, display_path(self.path, view.origin), now)


def _record(event: Event) -> Record:
    return Record(event.kind, EVENT.dump_python(event, mode="json"), event.seq)


def records(items: Iterable[_Item], make: Callable[[_Item], Record]) -> list[Record]:
    """Return a record for each item. An item that raises an error is logged and left out."""
    result = []
    for item in items:
        with ServiceLoop.PAGES.item():
            result.append(make(item))
    return result


class GroupFeed(Feed):
    """Follows a group of runs.

    Args:
        path: The group's directory.
        feeds: The feeds of the server, including those of the runs.
    """

    def __init__(self, path: Path, feeds: Feeds) -> None:
        super().__init__(path)
        self._feeds = feeds


class Feeds:
    """The feeds of all clients. Each turn or group has one feed."""

    def __init__(self) -> None:
        self._feeds: dict[Path, Feed] = {}
        # Feeds are requested on the loop and, by groups for their runs, in threads.
        self._creation = threading.Lock()
        # Held by the client that reads. The others wait for it.
        self._reading = anyio.Lock()
        self._followed: Counter[Feed] = Counter()
        self._changes = 0
        self._poll_done: anyio.Event | None = None

    def of(self, path: Path) -> Feed:
        """Return the feed of a turn or group. Creates a new one if it ended or is unused."""
        kind = kind_at(path)
        if kind is None:
            return self.turn(path)
        feed_class: type[GroupFeed] = resolve_name(kind.feed)
        return self._get(path, feed_class, lambda: feed_class(path, self))

    def turn(self, path: Path) -> TurnFeed:
        """Return the feed of a turn.

        Creates a new one if the turn had ended or the feed was unused.
        """
        return self._get(path, TurnFeed, lambda: TurnFeed(path))

    def _get(self, path: Path, kind: type[_Feed], make: Callable[[], _Feed]) -> _Feed:
        with self._creation:
            now = time.monotonic()
            self._feeds = {path: feed for path, feed in self._feeds.items() if feed.is_wanted(now)}
            feed = self._feeds.get(path)
            if not isinstance(feed, kind):
                feed = self._feeds[path] = make()
            return feed

    async def read(self, feeds: Iterable[Feed]) -> int:
        """Read the feeds that are due. Returns the number of changes so far, for `news`."""
        async with self._reading:
            now = time.monotonic()
            if due := [feed for feed in feeds if feed.is_due(now)]:
                self._changes += await to_thread(lambda: sum([feed.read() for feed in due]))
            return self._changes

    @contextmanager
    def follow(self, feeds: Iterable[Feed]) -> Iterator[None]:
        """Include these feeds in polls during the block."""
        followed = list(feeds)
        self._followed.update(followed)
        try:
            yield
        finally:
            self._followed.subtract(followed)
            self._followed = +self._followed

    async def news(self, changes: int) -> int:
        """Wait until the state of a followed feed changes, or a second has passed.

        Args:
            changes: The number last returned by this method or by `read`.

        Returns:
            The number of changes so far.
        """
        if self._changes == changes:
            await (self._poll_done.wait() if self._poll_done else self._poll())
        return self._changes

    async def _poll(self) -> None:
        """Poll for all waiting clients until something changes."""
        done = self._poll_done = anyio.Event()
        before = self._changes, int(time.time())
        try:
            while (self._changes, int(time.time())) == before:
                await anyio.sleep(POLL_S)
                with ServiceLoop.FEEDS.item():
                    await self.read(self._followed)
        finally:
            self._poll_done = None
            done.set()
