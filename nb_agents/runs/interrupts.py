"""Ctrl-C and the kernel's interrupt, while somebody waits for a run.

The first press stops the runs that are waited for gracefully, and the wait goes on; the second
stops them at once. Outside a wait nothing is installed here (`nb_agents.jupyter.kernel` has the
idle kernel's handler).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["interrupt_calls"]

# All of this is the main thread's own: signals reach no other.
_waits: list[Callable[[], None]] = []
_previous: Any = None


@contextmanager
def interrupt_calls(press: Callable[[], None]) -> Iterator[None]:
    """Let SIGINT call ``press`` instead of raising, within the block.

    Blocks may overlap in any order (several runs awaited on one loop): one handler serves them
    all, and the last to leave puts back what was there before the first.
    In another thread than the main one nothing changes: signals never reach it.

    Args:
        press: Called on the main thread between two bytecodes; must only post elsewhere.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _enter(press)
    try:
        yield
    finally:
        _leave(press)


def _enter(press: Callable[[], None]) -> None:
    global _previous
    _waits.append(press)
    if signal.getsignal(signal.SIGINT) is not _on_signal:
        _previous = signal.signal(signal.SIGINT, _on_signal)


def _leave(press: Callable[[], None]) -> None:
    _waits.remove(press)
    # Somebody who put a handler over ours keeps it.
    if not _waits and signal.getsignal(signal.SIGINT) is _on_signal:
        # None stands for a handler that was not set from Python and can't be put back.
        signal.signal(signal.SIGINT, signal.default_int_handler if _previous is None else _previous)


def _on_signal(number: int, frame: FrameType | None) -> None:
    # A run that is waited for twice is pressed once.
    for press in dict.fromkeys(_waits):
        press()
