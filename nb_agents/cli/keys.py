"""Single keys from a terminal, taken while a command waits and without Enter."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

POLL_S = 0.2
"""Poll interval of the end of the block, seconds."""


@contextmanager
def keys(press: Callable[[str], object]) -> Iterator[None]:
    """Call ``press`` with each character typed within the block; Ctrl-C interrupts as ever.

    Args:
        press: Called in a thread of its own. Nothing is taken where the input is no terminal.
    """
    fd = _terminal()
    if fd is None:
        yield
        return
    before = termios.tcgetattr(fd)
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            if select.select([fd], [], [], POLL_S)[0]:
                if not (typed := os.read(fd, 1024)):
                    return
                for key in typed.decode(errors="ignore"):
                    press(key)

    reader = threading.Thread(target=read, daemon=True)
    tty.setcbreak(fd)
    try:
        reader.start()
        yield
    finally:
        over.set()
        reader.join(2 * POLL_S)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _terminal() -> int | None:
    """Return the descriptor of the input if it is a terminal, else None."""
    if not sys.stdin.isatty():
        return None
    try:
        fd = sys.stdin.fileno()
    except OSError:  # a stand-in for a terminal, without a descriptor
        return None
    return fd if os.isatty(fd) else None
