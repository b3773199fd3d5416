"""Controls how often model streams are read while a cell is running in this process.

Reading a chunk wakes the loop's thread, which slows down a running cell. While a cell is running,
several streams are therefore read less often, with more text at a time. A single stream, and all
streams while no cell is running, are read immediately, because text that has not been read when the
process is killed must be paid for again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

READS_PER_S = 200
"""Maximum number of reads per second of all streams together.

With twenty streams of 50 words per second, a cell took 1.4 times as long as in an idle kernel;
without the limit, 1.9 times as long.
"""
MAX_REST_S = 0.1
"""The longest pause in seconds, about the panel's update interval."""
_REST_AFTER_S = 0.5
"""Seconds after the start of a reply during which it is read without pauses."""
_WAITED_S = 0.002
"""If a read takes less time, the chunk had already arrived. A pause would slow down the server."""

_is_cell_running = False
_waits = 0


def set_cell_running(is_running: bool) -> None:
    """Record that a cell has started or ended."""
    global _is_cell_running
    _is_cell_running = is_running


@contextmanager
def cell_waits() -> Iterator[None]:
    """Mark the running cell as waiting during a ``with`` block. Blocks may overlap."""
    global _waits
    _waits += 1
    try:
        yield
    finally:
        _waits -= 1


def rest_s(streams: int, open_s: float, waited_s: float) -> float:
    """Return the seconds to pause before a stream is read again. 0 means no pause.

    Args:
        streams: The number of open streams.
        open_s: Seconds since this stream was opened.
        waited_s: Seconds that the last read had to wait for a chunk.
    """
    is_computing = _is_cell_running and not _waits
    is_alone_or_early = streams == 1 or open_s < _REST_AFTER_S
    if not is_computing or is_alone_or_early or waited_s < _WAITED_S:
        return 0.0
    return min(streams / READS_PER_S, MAX_REST_S)
