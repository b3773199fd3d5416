"""Ends a process at its n-th file operation, like a kill at that moment."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

_CHANGES = frozenset(
    f"os.{name}" for name in "mkdir rename link symlink remove rmdir chmod utime truncate".split()
)


def die_at(number: int, place: Path) -> None:
    """Kill this process before one of its changes below a directory, or in the midst of a write.

    Args:
        number: Number of the change, starting at 1.
        place: The directory.
    """
    below = os.fsencode(place)
    count = 0
    # Separates the loop, worker threads and the main thread, which all may change files.
    lock = threading.Lock()
    write = os.write

    def step() -> bool:
        nonlocal count
        with lock:
            count += 1
            return count == number

    def is_below(path: object) -> bool:
        # What is named within an open directory is below it, too.
        return isinstance(path, str | bytes) and (
            below in os.fsencode(path) or not os.path.isabs(path)
        )

    def look(event: str, args: tuple[Any, ...]) -> None:
        is_write = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (is_write or event in _CHANGES) and any(map(is_below, args[:2])) and step():
            os.kill(os.getpid(), signal.SIGKILL)

    def write_half(file: int, data: bytes) -> int:
        if file > 2 and step():
            write(file, bytes(data)[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(file, data)

    os.write = write_half
    sys.addaudithook(look)
