"""A turn by its files alone, whoever writes it or wrote it: what a handle needs of it."""

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
from nb_agents.runs.hooks import Subscribers
from nb_agents.runs.live_turns import watched
from nb_agents.runs.loop import is_loop_thread, submit
from nb_agents.session.commands import ask, has_commands, send
from nb_agents.session.history import load_turn, with_past
from nb_agents.session.journal import POLL_S, JournalReader
from nb_agents.session.layout import TurnPaths
from nb_agents.view.fold import fold
from nb_agents.view.run_view import RunView
from nb_agents.view.timeline import Timeline, TimelineFold

__all__ = ["TurnReader"]

ALIVE_S = 0.5
"""How often is looked whether a turn without news is still written."""

ANSWER_S = 5.0
"""What a writer elsewhere gets to answer a command; one that is late is heeded all the same."""


class TurnReader:
    """Reads on in a turn's journal when it is asked, and by itself once somebody watches or waits.

    It has what `nb_agents.runs.turn.Turn` has for a handle. May be used from any thread.

    Args:
        paths: Where the turn is.
        crash: A defect that ended it, or None.
        restart: Ends the process that writes it; called, in a thread, when a stop is not heard
            there: one at once within `ANSWER_S`, a graceful one within the grace time besides.
        grace_s: That time, in seconds; None means for ever.
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
        """The turn as its journal has it by now."""
        with self._lock:
            if not self._is_over:
                self._read_on()
            return self._view

    @property
    def timeline(self) -> Timeline:
        """What happened so far, and when."""
        view = self.view
        with self._lock:
            return self._timeline.timeline() if view.seq else Timeline()

    @property
    def is_over(self) -> bool:
        """Whether nobody writes it any more."""
        return self.view is not None and self._is_over

    @property
    def agents(self) -> tuple[str, ...]:
        """Ids of its agents."""
        return tuple(self.view.agents)

    @property
    def next_step(self) -> str:
        """Of a stopped recipe: the step that comes next; else ""."""
        return next(iter(self.view.next), "")

    @property
    def subscribers(self) -> Subscribers:
        """Who is shown its view while it changes."""
        self._watch()
        return self._subscribers

    @property
    def done(self) -> Future[None]:
        """Set when nobody writes it any more."""
        return self._watch()

    def send(self, command: Command) -> Any:
        """Ask something of whoever writes the turn, and wait for the answer.

        Args:
            command: What is asked.

        Returns:
            As `Turn.take` does. A stop that is not answered within `ANSWER_S` is "asked".

        Raises:
            UserError: It was refused, or is not answered in time.
            StorageError: It can't be written.
        """
        if self.is_over:
            return StopResult(False, "finished") if isinstance(command, StopRequest) else None
        if is_loop_thread():  # where nothing may wait
            send(self._paths, command)
            return StopResult(False, "asked") if isinstance(command, StopRequest) else True
        answer = ask(self._paths, command, ANSWER_S, self._paths.is_live)
        if isinstance(command, StopRequest):
            if answer is not None:
                return StopResult(answer.changed, answer.status)  # type: ignore[arg-type]
            self._give_up_on_writer(command)
            return StopResult(False, "finished" if self.is_over else "asked")
        if answer is None and not self.is_over:
            raise UserError(
                f"{self._paths.session}/{self._paths.number} has not answered within "
                f"{ANSWER_S:g} s: its process is busy or stopped. It follows when it can."
            )
        if answer is not None and answer.error:
            raise UserError(answer.error)
        return answer and (answer.status or answer.changed)

    def _give_up_on_writer(self, command: StopRequest) -> None:
        """Let the process be ended that does not hear a stop."""
        if self._restart is None:
            return
        if command.level is CancellationStatus.IMMEDIATE:
            ending = threading.Thread(target=self._restart)
        elif self._grace_s is not None:
            ending = threading.Timer(self._grace_s, self._end_deaf)
        else:
            return
        ending.daemon = True
        ending.start()

    def _end_deaf(self) -> None:
        # One that has taken the stop by now is busy, and ends the grace time by itself.
        if self._restart is not None and has_commands(self._paths):
            self._restart()

    def _read_on(self) -> None:
        is_over = not self._paths.is_live(0)  # before the last look
        with suppress(OSError):
            while events := self._reader.read():
                if not self._view.seq:
                    events = with_past(self._paths, events)
                for event in events:
                    self._timeline.add(event)
                view = fold(events, self._view)
                # A renamed or forked session, and its turn, are called what the directory is.
                self._view = replace(view, session=self._paths.session, turn=self._paths.number)
        if is_over:
            self._view = load_turn(self._paths).view
            self._is_over = True

    def _watch(self) -> Future[None]:
        with self._lock:
            if self._done is None:
                self._done = Future()
                # As a run that lives here, it can't be cancelled by those who wait for it.
                self._done.set_running_or_notify_cancel()
                submit(self._follow, self._done)
            return self._done

    def _has_news(self) -> bool:
        # Who asks for the view reads on too.
        return self._view.seq != self._shown or self._reader.has_news()

    async def _follow(self, done: Future[None]) -> None:
        news = asyncio.Event()
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
        try:
            with watched(self._has_news, tell):
                while not await to_thread.run_sync(lambda: self.is_over):
                    if self._view.seq != self._shown:
                        self._shown = self._view.seq
                        self._subscribers.publish(self._view)
                    with suppress(TimeoutError):
                        # Its last line comes a moment before its writer lets go of it.
                        async with asyncio.timeout(POLL_S if self._view.is_over else ALIVE_S):
                            await news.wait()
                    news.clear()
            await self._subscribers.finish(self._view)
        finally:
            done.set_result(None)
