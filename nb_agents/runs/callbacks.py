"""Who is told how a run stands: the functions of its options, called one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from nb_agents.models.retry import DEFAULT_RETRY, Retry, retry_delay_s
from nb_agents.runs.options import RunOptions

__all__ = ["Callbacks", "Retrying"]


class Callbacks:
    """Calls the functions of a run's options; lives on the loop.

    Args:
        options: The options.
        call: Calls a function safely, within its time.
    """

    def __init__(self, options: RunOptions, call: Callable[..., Awaitable[object]]) -> None:
        self._options = options
        self._call = call
        self._untold: deque[str] = deque()
        self._news = asyncio.Event()
        # Separates the one that tells while the run goes on from its end, which tells the rest.
        self._telling = asyncio.Lock()

    def note(self, status: str) -> None:
        """Take a status that the run has come to."""
        if self._options.on_status_change is not None:
            self._untold.append(status)
            self._news.set()

    async def watch(self) -> None:
        """Tell each status; runs as long as the run does."""
        while True:
            await self._news.wait()
            self._news.clear()
            # A function that was called is let come to its end, or it would be called again.
            with anyio.CancelScope(shield=True):
                await self._tell()

    async def finish(self, status: str, result: Any, error: Exception | None) -> None:
        """Tell what is untold, and the end.

        Args:
            status: How the run ended.
            result: Of one that completed.
            error: Of one that failed.
        """
        await self._tell()
        if status == "completed" and self._options.on_complete is not None:
            await self._call(self._options.on_complete, result)
        elif status == "failed" and self._options.on_failed is not None:
            await self._call(self._options.on_failed, error)

    async def _tell(self) -> None:
        hook = self._options.on_status_change
        async with self._telling:
            while self._untold and hook is not None:
                await self._call(hook, self._untold.popleft())


class Retrying:
    """Decides on retries, and calls the functions of their rules.

    Args:
        retry: The rules; None for the usual ones.
        call: Calls a function safely, within its time.
    """

    def __init__(self, retry: Retry | None, call: Callable[..., Awaitable[object]]) -> None:
        self._retry = retry
        self._call = call

    async def delay_s(self, error: Exception, attempt: int) -> float | None:
        """Decide whether a failed call is tried again.

        Args:
            error: What was raised.
            attempt: How many attempts were made, from 1.

        Returns:
            Seconds to wait, or None to give up.
        """
        retry = self._retry or DEFAULT_RETRY
        wanted: bool | None = None
        if retry.should_retry is not None and attempt <= retry.attempts:
            said = await self._call(retry.should_retry, error)
            wanted = None if said is None else bool(said)
        delay_s = retry_delay_s(error, attempt, self._retry, wanted)
        if delay_s is not None and retry.on_retry is not None:
            await self._call(retry.on_retry, error, attempt)
        return delay_s
