"""Following a turn by its files, for the handle of a run in another process or one that ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from anyio import to_thread

from nb_agents.cancel import CancellationStatus, StopRequest, StopResult
from nb_agents.errors import UserError
from nb_agents.events import Command
from nb_agents.loop import is_loop_thread, submit
from nb_agents.runs.hooks import Subscribers
from nb_agents.runs.live_turns import watched
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.commands import ask, has_commands, send
from nb_agents.session.history import load_turn, with_past
from nb_agents.session.journal import POLL_S, JournalReader
from nb_agents.session.layout import TurnPaths
from nb_agents.view.fold import fold
from nb_agents.view.run_view import RunView
from nb_agents.view.timeline import Timeline, TimelineFold

ALIVE_S = 0.5
"""Interval for checking whether a turn without news is still live."""

ANSWER_S = 5.0
"""How long to wait for another process to answer a command, which it may still follow later."""


class TurnReader:
    """Reads a turn's journal when accessed, and continuously once it is subscribed to or awaited.

    Has the interface that `nb_agents.runs.turn.TurnWriter` has for a handle. Thread-safe.

    Args:
        paths: The turn's paths.
        crash: The defect that ended the turn, or None.
        restart: Ends the process that runs the turn; called in a thread when it does not answer a
            stop: an immediate one within `ANSWER_S`, a graceful one within the grace time after it.
        grace_s: The grace time, in seconds; None means no limit.
    """

    def __init__(
        self,
        paths: TurnPaths,
        crash: Exception | None = None,
        restart: Callable[[], object] | None = None,
        grace_s: float | None = None,
    ) -> None:
        self._paths = paths
        self.crash = crash
        self._restart, self._grace_s = restart, grace_s
        self._lock = threading.Lock()
        self._reader = JournalReader(paths.journal)
        self._view = RunView()
        self._timeline = TimelineFold()
        self._is_over = False
        self._shown = -1
        self._subscribers = Subscribers()
        self._done: Future[None] | None = None

    @property
    def view(self) -> RunView:
        """The current state of the turn, by its journal."""
        with self._lock:
            if not self._is_over:
                self._read_on()
            return self._view

    @property
    def timeline(self) -> Timeline:
        """The timeline of the turn so far."""
        view = self.view
        with self._lock:
            return self._timeline.timeline() if view.seq else Timeline()

    @property
    def is_over(self) -> bool:
        """Whether no process runs the turn any more, by its lock alone."""
        return self._is_over or not self._paths.is_live()

    @property
    def is_stopping(self) -> bool:
        """Whether a stop was requested, as far as the journal was read."""
        return self._view.stop is not None

    @property
    def agents(self) -> tuple[str, ...]:
        """The ids of the turn's agents."""
        return tuple(self.view.agents)

    @property
    def subscribers(self) -> Subscribers:
        """The subscribers to the view."""
        self._watch()
        return self._subscribers

    @property
    def done(self) -> Future[None]:
        """A future that is resolved when no process runs the turn any more."""
        return self._watch()

    def send(self, command: Command) -> Any:
        """Send a command to the process that runs the turn, and wait for the answer.

        Returns:
            As for `Turn.take`. The status of a stop that is not answered within `ANSWER_S` is
            "asked".

        Raises:
            UserError: The command was refused, or was not answered in time.
            StorageError: The command can't be written.
        """
        if self.is_over:
            return StopResult(False, "finished") if isinstance(command, StopRequest) else None
        if is_loop_thread():  # which must not wait
            send(self._paths, command)
            return StopResult(False, "asked") if isinstance(command, StopRequest) else True
        answer = ask(self._paths, command, ANSWER_S, self._paths.is_live)
        if isinstance(command, StopRequest):
            if answer is not None:
                return StopResult(answer.changed, answer.status)  # type: ignore[arg-type]
            self._restart_writer(command)
            return StopResult(False, "finished" if self.is_over else "asked")
        if answer is None and not self.is_over:
            raise UserError(
                f"{self._paths.session}/{self._paths.number} has not answered within "
                f"{ANSWER_S:g} s: its process is busy or stopped. It follows when it can."
            )
        if answer is not None and answer.error:
            raise UserError(answer.error)
        return answer and (answer.status or answer.changed)

    def _restart_writer(self, command: StopRequest) -> None:
        """Restart a process that does not answer a stop, after the grace time of a graceful one."""
        if self._restart is None:
            return
        if command.level is CancellationStatus.IMMEDIATE:
            ending = threading.Thread(target=self._restart)
        elif self._grace_s is not None:
            ending = threading.Timer(self._grace_s, self._restart_unresponsive)
        else:
            return
        ending.daemon = True
        ending.start()

    def _restart_unresponsive(self) -> None:
        # A process that has taken the stop in the meantime applies the grace time itself.
        if self._restart is not None and has_commands(str(self._paths.commands)):
            self._restart()

    def _read_on(self) -> None:
        is_over = not self._paths.is_live()  # checked first, so that the last events are read
        with ServiceLoop.FOLLOWED.item(), suppress(OSError):
            while events := self._reader.read():
                if not self._view.seq:
                    events = with_past(self._paths, events)
                for event in events:
                    self._timeline.add(event)
                view = fold(events, self._view)
                # In a renamed or forked session, the directory's name counts.
                self._view = replace(view, session=self._paths.session, turn=self._paths.number)
        if is_over:
            with ServiceLoop.FOLLOWED.item():
                self._view = load_turn(self._paths).view
            self._is_over = True

    def _watch(self) -> Future[None]:
        with self._lock:
            if self._done is None:
                self._done = Future()
                # Like a run of this process, it can't be cancelled by cancelling the future.
                self._done.set_running_or_notify_cancel()
                submit(self._follow, self._done)
            return self._done

    def _is_read_to_end(self) -> bool:
        return self.view is not None and self._is_over

    def _has_news(self) -> bool:
        # Accessing the view reads the journal as well.
        return self._view.seq != self._shown or self._reader.has_news()

    async def _follow(self, done: Future[None]) -> None:
        news = asyncio.Event()
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
        try:
            with watched(self._has_news, tell):
                while not await to_thread.run_sync(self._is_read_to_end):
                    if self._view.seq != self._shown:
                        self._shown = self._view.seq
                        with ServiceLoop.FOLLOWED.item():
                            self._subscribers.publish(self._view)
                    with suppress(TimeoutError):
                        # The last event is written shortly before the lock is released.
                        async with asyncio.timeout(POLL_S if self._view.is_over else ALIVE_S):
                            await news.wait()
                    news.clear()
            await self._subscribers.finish(self._view)
        finally:
            done.set_result(None)
