"""The loops that listen, tick, watch or collect, and that an error of one item must not end.

Each handles its items within `ServiceLoop.item`, out of which no error comes: it is logged, told to
the user where there is a way, and the loop goes on with the next item. `ServiceLoop` lists all of
them, so that tests can make an item of each fail.
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
    """A loop, named by what an item of it is."""

    COMMANDS = "A command from outside"
    TICKS = "A part of journalling and showing what the agents write"
    SYNCS = "A sync of the journal"
    OBSERVERS = "A reaction to an event"
    LIMITS = "The watch on the time and the budget"
    CLOCKS = "The watch on a recipe's time limit"
    STATUSES = "A report of the run's status"
    VIEWS = "A subscriber"
    WATCHES = "A look for commands on the disk"
    FOLLOWED = "A look at a run of another process"
    OFFERS = "A call of a function of the notebook"
    ASYNC_FUNCTIONS = "A task that a function of the notebook left behind"
    MCP = "A message of an MCP server"
    SWEEPS = "A piece of news of a sweep"
    FEEDS = "A look at what is followed"
    PAGES = "A message to a page"
    CHAT = "A line of the chat"
    PROGRAMS = "A message of a program that is an agent"

    def item(self, tell: Callable[[str], object] | None = None) -> _Item:
        """Handle an item within the block; an error in it ends the block only.

        Args:
            tell: Called with a sentence about the error, for the user.
        """
        return _Item(self, tell)

    def _left_out(self, exc: BaseException, tell: Callable[[str], object] | None) -> None:
        self._log(exc)
        if tell is not None:
            try:
                tell(f"{self.value} failed and was left out ({type(exc).__name__}).")
            except Exception as untold:
                self._log(untold)

    def _log(self, exc: BaseException) -> None:
        """Log an error the first time, the tenth, the hundredth: an item may fail at each tick."""
        _failures[self, type(exc)] += 1
        count = _failures[self, type(exc)]
        if str(count).strip("0") == "1":
            logger.error("%s failed (%d times so far)", self.value, count, exc_info=exc)


class _Item:
    """The block of an item; a generator would cost more than most of them do."""

    __slots__ = ("_loop", "_tell")

    def __init__(self, loop: ServiceLoop, tell: Callable[[str], object] | None) -> None:
        self._loop = loop
        self._tell = tell

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: object
    ) -> bool:
        if exc is None or not _is_failure(exc):
            return False
        self._loop._left_out(exc, self._tell)
        return True


_failures: Counter[tuple[ServiceLoop, type[BaseException]]] = Counter()


def _is_failure(exc: BaseException) -> bool:
    """Return whether an exception is an item's failure, not the loop's end."""
    if isinstance(exc, KeyboardInterrupt):  # elsewhere, a callback has raised it
        return threading.current_thread() is not threading.main_thread()
    return isinstance(exc, (Exception, AgentStopped, SystemExit))
