"""The background loop: one named daemon thread with an asyncio loop for all runs of a process.

It is never the kernel's loop, so a busy cell can't freeze the agents and agents can't freeze a
cell. It starts on first use; at the interpreter's exit every run is stopped at once and saved.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

__all__ = ["at_shutdown", "portal", "post"]

THREAD_NAME = "nb_agents"

# Separates threads that start the first run at the same moment.
_lock = threading.Lock()
_portal: BlockingPortal | None = None
_loop: asyncio.AbstractEventLoop | None = None
_stack = ExitStack()
_before_exit: list[Callable[[], None]] = []


def portal() -> BlockingPortal:
    """Give the way onto the loop; starts its thread on first use."""
    global _portal, _loop
    with _lock:
        if _portal is None:
            _portal = _stack.enter_context(start_blocking_portal(name=THREAD_NAME))
            _loop = _portal.call(asyncio.get_running_loop)
            atexit.register(_shut_down)
        return _portal


def post(function: Callable[..., object], *args: Any) -> None:
    """Call a function on the loop soon; from any thread, also from a signal handler.

    Args:
        function: Must not block.
        args: Its arguments.
    """
    if _loop is not None and not _loop.is_closed():
        _loop.call_soon_threadsafe(function, *args)


def at_shutdown(action: Callable[[], None]) -> None:
    """Call ``action`` when the interpreter exits, before the loop ends; it must not take long."""
    _before_exit.append(action)


def _shut_down() -> None:
    for action in _before_exit:
        action()
    # The thread is a daemon: not waiting for what may hang in it is what keeps exit prompt.
    _stack.pop_all()
