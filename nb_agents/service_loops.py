"""Error handling for service loops, which must survive an error in one item.

Each loop handles its items within `ServiceLoop.item`, which logs an error, shows it to the user
where possible, and lets the loop continue with the next item. `ServiceLoop` lists all such loops,
so that tests can make an item of each fail.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from enum import Enum

from nb_agents.cancel import AgentStopped

logger = logging.getLogger("nb_agents")


class ServiceLoop(Enum):
    """A loop that must survive errors. The value names one of its items in error messages."""

    COMMANDS = "A command from another process"
    TICKS = "A step of recording the agents' text"
    SYNCS = "A sync of the journal"
    OBSERVERS = "A reaction to an event"
    LIMITS = "A check of the time limit and budget"
    CLOCKS = "A check of a recipe's time limit"
    STATUSES = "A report of the run's status"
    VIEWS = "A subscriber"
    WATCHES = "A check for commands on disk"
    FOLLOWED = "A check of a run in another process"
    OFFERS = "A call of a notebook function"
    ASYNC_FUNCTIONS = "A background task of a notebook function"
    MCP = "A message from an MCP server"
    SWEEPS = "An update of a sweep"
    FEEDS = "A read of a turn or sweep"
    PAGES = "A message to a page"
    CHAT = "A line of the chat"
    PROGRAMS = "A message from an external agent"

    def item(self, tell: Callable[[str], object] | None = None) -> _Item:
        """Return a context manager for handling an item. An error ends the block but not the loop.

        Args:
            tell: Called with a sentence about the error, for the user.
        """
        return _Item(self, tell)

    def _report(self, exc: BaseException, tell: Callable[[str], object] | None) -> None:
        self._log(exc)
        if tell is not None:
            try:
                tell(f"{self.value} failed and was skipped ({type(exc).__name__}).")
            except Exception as error:
                self._log(error)

    def _log(self, exc: BaseException) -> None:
        """Log only the 1st, 10th, 100th, … error of each exception type.

        An item may fail again and again.
        """
        _failures[self, type(exc)] += 1
        count = _failures[self, type(exc)]
        if str(count).strip("0") == "1":
            logger.error("%s failed (%d times so far)", self.value, count, exc_info=exc)


class _Item:
    """The context manager of an item; a generator would take longer than most items."""

    __slots__ = ("_loop", "_on_error")

    def __init__(self, loop: ServiceLoop, tell: Callable[[str], object] | None) -> None:
        self._loop = loop
        self._on_error = tell

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: object
    ) -> bool:
        if exc is None or not _is_failure(exc):
            return False
        self._loop._report(exc, self._on_error)
        return True


_failures: Counter[tuple[ServiceLoop, type[BaseException]]] = Counter()


def _is_failure(exc: BaseException) -> bool:
    """Return whether an exception means that an item failed, not that the loop must end."""
    if isinstance(exc, KeyboardInterrupt):  # in other threads, a callback has raised it
        return threading.current_thread() is not threading.main_thread()
    return isinstance(exc, (Exception, AgentStopped, SystemExit))
