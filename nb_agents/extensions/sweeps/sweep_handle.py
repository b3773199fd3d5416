"""The interface of a sweep that runs in this or another process, or has ended."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from nb_agents.cancel import CancellationStatus, StopRequest, StopResult, StopSource
from nb_agents.errors import UserError
from nb_agents.extensions.sweeps.manifest import turn_of_row
from nb_agents.extensions.sweeps.notes import Steered, SweepStatus
from nb_agents.extensions.sweeps.steering import SteerRequest
from nb_agents.extensions.sweeps.sweep_fold import SweepFold, SweepView, steered
from nb_agents.launch.finding import attach
from nb_agents.launch.run import Run
from nb_agents.loop import redirect_interrupts, wait_interruptibly
from nb_agents.service_loops import ServiceLoop
from nb_agents.signatures import takes_changes


def _steer_request(sweep: SweepHandle, changes: Mapping[str, Any]) -> SteerRequest:
    return SteerRequest(sweep.name, **changes)


class SweepHandle(ABC):
    """Handle of a sweep. Thread-safe.

    Attributes:
        path: The sweep's directory.
    """

    path: Path
    _subscribers: tuple[Callable[[SweepView], object], ...] = ()

    def __repr__(self) -> str:
        return f"<Sweep {self.view}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """Return the card without plain text, so that front ends show the repr instead."""
        return {k: v for k, v in self._card().items() if k != "text/plain"}

    def _mime_(self) -> tuple[str, str]:
        """Return the card in marimo's format."""
        return "text/html", self._card()["text/html"]

    def _card(self) -> dict[str, Any]:
        return bundle_of(self, self.view)

    @property
    def name(self) -> str:
        """The sweep's name, which is the name of its directory."""
        return self.path.name

    @property
    @abstractmethod
    def view(self) -> SweepView:
        """The sweep's current state."""

    @property
    def status(self) -> SweepStatus:
        """The sweep's status. User interfaces show `SweepView.state` instead."""
        return self.view.status

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the sweep has ended and everything is written."""

    @property
    @abstractmethod
    def runs(self) -> Mapping[str, Run]:
        """The current runs, by their rows' names."""

    def run_of(self, row: str) -> Run | None:
        """Return the run of a row that is live or one of those that ended last.

        Args:
            row: The row's name.

        Returns:
            The run, or None if there is no such row.
        """
        if (run := self.runs.get(row)) is not None:
            return run
        ended = next((each for each in self.view.recent if each.result.row == row), None)
        turn = turn_of_row(self.path, row, ended.turn) if ended else None
        return attach(turn.path) if turn else None

    @property
    @abstractmethod
    def done(self) -> Future[None]:
        """A future that is resolved when the sweep has ended."""

    @abstractmethod
    def table(self) -> Sequence[dict[str, Any]]:
        """Return a record for each known row."""

    def wait(self, timeout: float | None = None) -> SweepView:
        """Block until the sweep ends. An interrupt stops the sweep but not the wait.

        Args:
            timeout: Maximum seconds to wait, or None. The sweep is not affected.

        Returns:
            The final state. A stop or failed rows do not raise an error.

        Raises:
            TimeoutError: The sweep did not end within ``timeout``.
        """
        wait_interruptibly(self.done, self.press, timeout)
        return self.view

    def __await__(self) -> Generator[Any, None, SweepView]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> SweepView:
        with redirect_interrupts(self.press):
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
        """Request a stop of the sweep or of one row. Returns immediately. Idempotent.

        Args:
            now: Whether to interrupt work in progress instead of letting it finish.
            row: The name of one row to stop. The others are not affected.
            reason: The reason, to record.
            source: The interface from which the request came, to record.

        Returns:
            Whether this changed anything, and the sweep's state.

        Raises:
            UserError: No such row is running.
            StorageError: The request can't be passed to another process.
        """
        if row is not None:
            if (run := self.runs.get(row)) is None:
                raise UserError(f"Sweep {self.name} has no running row {row!r}.")
            return run.stop(now, reason=reason, source=source)
        if self.is_over:
            return StopResult(False, "finished")
        level = CancellationStatus.IMMEDIATE if now else CancellationStatus.REQUESTED
        return self._request_stop(StopRequest(level, source, reason))

    @abstractmethod
    def _request_stop(self, request: StopRequest) -> StopResult: ...

    @abstractmethod
    def press(self) -> None:
        """Handle an interrupt: the first one stops gracefully, the next immediately."""

    @takes_changes(SteerRequest, _steer_request)
    def steer(self, request: SteerRequest) -> None:
        """Change the sweep while it runs, in whichever process that is.

        Each change is recorded before it takes effect. If the process dies, the sweep continues
        with its changed limits. Running rows above a lower limit continue. Paused rows leave their
        places to other rows. A running row that is requeued is stopped first, and resumed later.

        Raises:
            UserError: An argument is invalid, or the sweep is stopping or has ended.
            StorageError: The request can't be passed to another process.

        Example:
            sweep.steer(limit=2, max_cost=5)
            sweep.steer(requeue="failed")
        """
        steer_from(self, request, "api")

    @abstractmethod
    def _folded(self) -> AbstractContextManager[SweepFold]:
        """Return the state from the notes, which must not change meanwhile."""

    @abstractmethod
    def _steer(self, note: Steered) -> None:
        """Pass a change to the process that runs the sweep."""

    def pause(self) -> None:
        """Start no more rows, and pause the running ones at their next boundary."""
        self.hold(True)

    @abstractmethod
    def hold(self, is_paused: bool) -> bool:
        """Pause or unpause the sweep. Returns whether it is running.

        Raises:
            StorageError: The request can't be passed to another process.
        """

    @abstractmethod
    def resume(self, retry_failed: bool = False) -> SweepHandle:
        """Unpause the sweep, or run the remaining rows of one that has ended.

        Args:
            retry_failed: Whether failed rows of a sweep that has ended also run again.

        Returns:
            This sweep if it was paused, or else a new one for the same directory.

        Raises:
            UserError: The sweep has ended, and another process started it.
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


def steer_from(sweep: SweepHandle, request: SteerRequest, source: StopSource) -> None:
    """Steer a sweep like `SweepHandle.steer`, and record the interface of the user."""
    view = sweep.view
    if view.is_over or sweep.is_over or view.status == "stopping":
        raise UserError(
            f"Sweep {sweep.name} is {view.state}, so it can't be steered. Run its cell again with "
            "new limits. In its notebook, *Retry failed* on its card runs failed rows again."
        )
    if request.max_cost is not None and view.cost is None:
        raise UserError(
            "The price of a model is unknown, so max_cost can't be enforced. Stop the sweep, or "
            "set max_tokens in the team file."
        )
    with sweep._folded() as fold:
        note = steered(request, fold, source, time.time())
    sweep._steer(note)


def bundle_of(sweep: SweepHandle, view: SweepView) -> dict[str, Any]:
    """Return the card of a sweep as a mime bundle."""
    from nb_agents.extensions.sweeps.any_card import any_bundle  # for notebooks

    return any_bundle(sweep.path, view, sweep.table)
