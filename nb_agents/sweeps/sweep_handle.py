"""The interface of a sweep, the same in its own process, in others and on disk."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

from nb_agents.cancel import CancellationStatus, StopRequest, StopResult, StopSource
from nb_agents.errors import UserError
from nb_agents.loop import interrupt_calls, wait_interruptibly
from nb_agents.runs.run import Run
from nb_agents.service_loops import ServiceLoop
from nb_agents.sweeps.notes import SweepStatus
from nb_agents.sweeps.sweep_fold import SweepView


class SweepHandle(ABC):
    """Handle of a sweep; thread-safe.

    Attributes:
        bundle_of: Returns a sweep's card as a mime bundle; set by `nb_agents`.
        path: The sweep's directory.
    """

    bundle_of: ClassVar[Callable[[SweepHandle], dict[str, Any]]]
    path: Path
    _subscribers: tuple[Callable[[SweepView], object], ...] = ()

    def __repr__(self) -> str:
        return f"<Sweep {self.view}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """Return the card; in words alone the repr is shown."""
        return {k: v for k, v in type(self).bundle_of(self).items() if k != "text/plain"}

    def _mime_(self) -> tuple[str, str]:
        """Return the card for marimo."""
        return "text/html", type(self).bundle_of(self)["text/html"]

    @property
    def name(self) -> str:
        """The sweep's name, which is that of its directory."""
        return self.path.name

    @property
    @abstractmethod
    def view(self) -> SweepView:
        """The sweep's current state."""

    @property
    def status(self) -> SweepStatus:
        """The sweep's status; people are shown `SweepView.state`."""
        return self.view.status

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the sweep has ended and everything is written."""

    @property
    @abstractmethod
    def runs(self) -> Mapping[str, Run]:
        """The current runs, by their rows' names."""

    @property
    @abstractmethod
    def done(self) -> Future[None]:
        """A future that is resolved when the sweep has ended."""

    @abstractmethod
    def table(self) -> Sequence[dict[str, Any]]:
        """Return a record for each row that is known."""

    def wait(self, timeout: float | None = None) -> SweepView:
        """Block until the sweep ends. An interrupt stops the sweep, and the wait goes on.

        Args:
            timeout: Seconds after which to give up waiting; the sweep goes on. None means never.

        Returns:
            The final state; neither a stop nor failed rows raise an error.

        Raises:
            TimeoutError: ``timeout`` passed.
        """
        wait_interruptibly(self.done, self.press, timeout)
        return self.view

    def __await__(self) -> Generator[Any, None, SweepView]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> SweepView:
        with interrupt_calls(self.press):
            await asyncio.wrap_future(self.done)
        return self.view

    def stop(
        self,
        now: bool = False,
        row: str | None = None,
        reason: str = "",
        *,
        source: StopSource = "api",
    ) -> StopResult:
        """Request a stop of the sweep or of one row, without waiting for it; idempotent.

        Args:
            now: Whether to interrupt work in progress instead of letting it finish.
            row: Name of the one row to stop; the others go on.
            reason: The reason, for the record.
            source: The interface that the request came from, for the record.

        Returns:
            Whether this changed anything, and the sweep's state.

        Raises:
            UserError: No such row is running.
            StorageError: The request can't be passed to another process.
        """
        if row is not None:
            if (run := self.runs.get(row)) is None:
                raise UserError(f"Sweep {self.name} has no row {row!r} at work.")
            return run.stop(now, reason=reason, source=source)
        if self.is_over:
            return StopResult(False, "finished")
        level = CancellationStatus.IMMEDIATE if now else CancellationStatus.REQUESTED
        return self._request_stop(StopRequest(level, source, reason))

    @abstractmethod
    def _request_stop(self, request: StopRequest) -> StopResult: ...

    @abstractmethod
    def press(self) -> None:
        """Handle an interrupt: the first stops gracefully, the next immediately."""

    def pause(self) -> None:
        """Pause: start no more rows, and pause the running ones at their next boundary."""
        self.hold(True)

    @abstractmethod
    def hold(self, is_paused: bool) -> bool:
        """Pause the sweep, or continue it; return whether it is running.

        Raises:
            StorageError: The request can't be passed to another process.
        """

    def subscribe(self, callback: Callable[[SweepView], object]) -> Callable[[], None]:
        """Call a function with the view, at most five times a second, and at the end.

        Args:
            callback: Called in the sweep's thread, so it must not wait for the sweep.

        Returns:
            A function that unsubscribes.
        """
        self._subscribers = (*self._subscribers, callback)

        def end() -> None:
            self._subscribers = tuple(s for s in self._subscribers if s is not callback)

        return end

    def _publish(self) -> None:
        view = self.view
        for callback in self._subscribers:
            with ServiceLoop.VIEWS.item():
                callback(view)
