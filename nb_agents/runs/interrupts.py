"""Ctrl-C and the kernel's interrupt, while somebody waits for a run or starts one.

The first press stops the runs that are waited for gracefully, and the wait goes on; the second
stops them at once. Outside of that nothing is installed here (`nb_agents.jupyter.kernel` has the
idle kernel's handler).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["interrupt_calls", "interrupts_held"]


class _Handler:
    """A handler of SIGINT that calls whoever waits, and passes on what nobody waits for.

    Somebody may put a handler over it and keep it to call it: it works there, too, and what it
    replaced is still called when nobody waits.
    """

    def __init__(self) -> None:
        self._previous: Any = signal.signal(signal.SIGINT, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _waits:
            # A run that is waited for twice is pressed once.
            for press in dict.fromkeys(_waits):
                press()
        elif callable(self._previous):
            self._previous(number, frame)
        elif self._previous is not signal.SIG_IGN:
            signal.default_int_handler(number, frame)

    def restore(self) -> None:
        """Put back what was there before, unless somebody has put a handler over this one."""
        is_uppermost: bool = signal.getsignal(signal.SIGINT) is self
        if is_uppermost:
            # None stands for a handler that was not set from Python and can't be put back.
            known = self._previous is not None
            signal.signal(signal.SIGINT, self._previous if known else signal.default_int_handler)


# All of this is the main thread's own: signals reach no other.
_waits: list[Callable[[], None]] = []
_handlers: list[_Handler] = []


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
    try:
        # Within: one that stayed behind after an interrupt right here would take all later ones.
        _waits.append(press)
        if signal.getsignal(signal.SIGINT) not in _handlers:
            _handlers.append(_Handler())
        yield
    finally:
        if press in _waits:
            _waits.remove(press)
        if not _waits:
            while _handlers:
                _handlers.pop().restore()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let SIGINT wait until the end of the block: what is done there is done as a whole.

    In another thread than the main one nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[tuple[int, Any]] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: pressed.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if previous is None else previous)
    if pressed and callable(previous):
        previous(*pressed[-1])
    elif pressed and previous is not signal.SIG_IGN:
        signal.default_int_handler(*pressed[-1])
