"""The background loop: one named daemon thread with an asyncio loop for all runs of a process.

It is never the kernel's loop, so a busy cell can't freeze the agents and agents can't freeze a
cell. It starts on first use; at the interpreter's exit every run is stopped at once and saved.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

__all__ = ["at_shutdown", "call", "portal", "post"]

THREAD_NAME = "nb_agents"

GOODBYE_S = 0.3
"""What the loop gets at exit to close its sockets, after the runs are saved."""


T = TypeVar("T")


@dataclass(frozen=True)
class _Background:
    portal: BlockingPortal
    loop: asyncio.AbstractEventLoop
    end: asyncio.Event
    thread: threading.Thread


# Separates threads that start the first run at the same moment.
_lock = threading.Lock()
_background: _Background | None = None
_before_exit: list[Callable[[], None]] = []


def portal() -> BlockingPortal:
    """Give the way onto the loop; starts its thread on first use."""
    global _background
    with _lock:
        if _background is None:
            ready: Future[_Background] = Future()
            threading.Thread(target=_serve, args=(ready,), name=THREAD_NAME, daemon=True).start()
            _background = ready.result()
            atexit.register(_shut_down)
        return _background.portal


def post(function: Callable[..., object], *args: Any) -> None:
    """Call a function on the loop soon; from any thread, also from a signal handler.

    Args:
        function: Must not block.
        args: Its arguments.
    """
    if _background is not None:
        with suppress(RuntimeError):  # the loop is closed: nothing is left to be told
            _background.loop.call_soon_threadsafe(function, *args)


def call(function: Callable[..., T], *args: Any) -> T:
    """Call a function on the loop and wait for its result; from any thread, the loop's own too.

    Args:
        function: Must not block.
        args: Its arguments.

    Returns:
        What it returned.
    """
    if _background is not None and threading.current_thread() is _background.thread:
        return function(*args)
    return portal().call(function, *args)


def at_shutdown(action: Callable[[], None]) -> None:
    """Call ``action`` when the interpreter exits, before the loop ends; it must not take long."""
    _before_exit.append(action)


def _serve(ready: Future[_Background]) -> None:
    async def main() -> None:
        end = asyncio.Event()
        async with BlockingPortal() as made:
            here = threading.current_thread()
            ready.set_result(_Background(made, asyncio.get_running_loop(), end, here))
            await end.wait()
            await made.stop(cancel_remaining=True)

    # anyio's start_blocking_portal would do, but it joins its thread without a limit, also when
    # its context is merely garbage-collected: a tool that hangs would then hold up the exit.
    anyio.run(main)


def _shut_down() -> None:
    for action in _before_exit:
        action()
    if _background is not None:
        post(_background.end.set)
        _background.thread.join(GOODBYE_S)
