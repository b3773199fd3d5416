"""Reads a turn from its files, for the handle of a run that has ended or is in another process."""

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
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.commands import ask, has_commands, send
from nb_agents.session.history import load_turn, with_resumed_events
from nb_agents.session.journal import POLL_S, JournalReader
from nb_agents.session.layout import TurnPaths
from nb_agents.turns.hooks import Subscribers
from nb_agents.turns.live_turns import polling
from nb_agents.view.fold import fold
from nb_agents.view.run_view import RunView
from nb_agents.view.timeline import Timeline, TimelineFold

ALIVE_S = 0.5
"""Interval in seconds for checking whether a turn without news is still live."""

ANSWER_S = 5.0
"""Seconds to wait for another process to answer a command, which may still take effect later."""


class TurnReader:
    """A turn that is read from its journal, with the same interface as `TurnWriter`.

    The journal is read on access, and continuously once there is a subscriber or a waiting caller.
    Thread-safe.

    Args:
        paths: The turn's paths.
        crash: The unexpected error that ended the turn, or None.
        restart: Ends the process that runs the turn. It is called in a thread if the process does
            not answer an immediate stop within `ANSWER_S`, or a graceful stop within `ANSWER_S`
            plus the grace time.
        grace_s: The grace time, in seconds. None means no limit.
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
        self._shown_seq = -1
        self._subscribers = Subscribers()
        self._done: Future[None] | None = None

    @property
    def view(self) -> RunView:
        """The current state of the turn."""
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
        """Whether no process runs the turn, according to its lock."""
        return self._is_over or not self._paths.is_live()

    @property
    def is_stopping(self) -> bool:
        """Whether the part of the journal read so far contains a stop request."""
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
        """A future that is resolved when the turn has ended and has been read completely."""
        return self._watch()

    def send(self, command: Command) -> Any:
        """Send a command to the process that runs the turn, and wait for the answer.

        Returns:
            The result of `TurnWriter.take`. A stop that is not answered within `ANSWER_S` has the
            status "asked".

        Raises:
            UserError: The command was refused, or was not answered in time.
            StorageError: The command can't be written.
        """
        if self.is_over:
            return StopResult(False, "finished") if isinstance(command, StopRequest) else None
        if is_loop_thread():  # the loop must not wait
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
                f"{self._paths.session}/{self._paths.number} did not answer within {ANSWER_S:g} "
                f"s. Its process is busy or suspended. The command will take effect later."
            )
        if answer is not None and answer.error:
            raise UserError(answer.error)
        return answer and (answer.status or answer.changed)

    def _restart_writer(self, command: StopRequest) -> None:
        """Restart a process that does not answer a stop. After a graceful stop, wait first."""
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
                    events = with_resumed_events(self._paths, events)
                for event in events:
                    self._timeline.add(event)
                view = fold(events, self._view)
                # The directory's name, because a session may have been renamed or copied.
                self._view = replace(view, session=self._paths.session, turn=self._paths.number)
        if is_over:
            with ServiceLoop.FOLLOWED.item():
                self._view = load_turn(self._paths).view
            self._is_over = True

    def _watch(self) -> Future[None]:
        with self._lock:
            if self._done is None:
                self._done = Future()
                # A running future can't be cancelled by a waiting caller.
                self._done.set_running_or_notify_cancel()
                submit(self._follow, self._done)
            return self._done

    def _is_read_to_end(self) -> bool:
        return self.view is not None and self._is_over

    def _has_news(self) -> bool:
        # Accessing the view reads the journal as well.
        return self._view.seq != self._shown_seq or self._reader.has_news()

    async def _follow(self, done: Future[None]) -> None:
        news = asyncio.Event()
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
        try:
            with polling(self._has_news, tell):
                while not await to_thread.run_sync(self._is_read_to_end):
                    if self._view.seq != self._shown_seq:
                        self._shown_seq = self._view.seq
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
