"""The loops that listen, tick, watch or collect, and that an error of one item must not end.

Each handles its items within `ServiceLoop.item`, out of which no error comes: it is logged, told to
the user where there is a way, and the loop goes on with the next item. `ServiceLoop` lists all of
them, so that tests can make an item of each fail.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    @contextmanager
    def item(self, tell: Callable[[str], object] | None = None) -> Iterator[None]:
        """Handle an item within the block; an error in it ends the block only.

        Args:
            tell: Called with a sentence about the error, for the user.
        """
        try:
            yield
        except BaseException as exc:
            if not _is_failure(exc):
                raise
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


_failures: Counter[tuple[ServiceLoop, type[BaseException]]] = Counter()


def _is_failure(exc: BaseException) -> bool:
    """Return whether an exception is an item's failure, not the loop's end."""
    if isinstance(exc, KeyboardInterrupt):  # elsewhere, a callback has raised it
        return threading.current_thread() is not threading.main_thread()
    return isinstance(exc, (Exception, AgentStopped, SystemExit))
