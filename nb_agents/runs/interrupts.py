"""Ctrl-C and the kernel's interrupt, while somebody waits for a run.

The first press stops the run gracefully and the wait goes on; the second stops it at once. Outside
a wait nothing is installed here (`nb_agents.jupyter.kernel` has the idle kernel's handler).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupt_calls"]


@contextmanager
def interrupt_calls(press: Callable[[], None]) -> Iterator[None]:
    """Let SIGINT call ``press`` instead of raising, within the block.

    In another thread than the main one nothing changes: signals never reach it.

    Args:
        press: Called on the main thread between two bytecodes; must only post elsewhere.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        press()

    previous = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
