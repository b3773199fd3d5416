"""Reads single keys from a terminal, without Enter, while a command waits."""

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
"""Seconds between checks whether the block has ended."""


@contextmanager
def keys(press: Callable[[str], object]) -> Iterator[None]:
    """Call ``press`` with each character typed within the block. Ctrl+C still interrupts.

    Does nothing if stdin is not a terminal.

    Args:
        press: Called in a separate thread.
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
    """Return the file descriptor of stdin if it is a terminal, or None."""
    if not sys.stdin.isatty():
        return None
    try:
        fd = sys.stdin.fileno()
    except OSError:  # a substitute for a terminal, without a descriptor
        return None
    return fd if os.isatty(fd) else None
