"""Interval at which the streams of models are read while a cell runs in this process.

Each chunk read wakes the loop's thread, and a cell that computes waits for it. So while a cell
computes, many streams are read less often, several words at a time. A single stream, and all of
them while no cell computes, are read at once: what was not read when the process is killed is paid
for again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

READS_PER_S = 200
"""Of all streams together. Twenty with 50 words a second each, read as they come, made a cell's
answer take 1.9 times as long as in an idle kernel, and so 1.4 times."""
MAX_REST_S = 0.1
"""The panel is hardly updated more often."""
_REST_AFTER_S = 0.5
"""A reply's first words, and a short reply, are read as they come."""
_WAITED_S = 0.002
"""A chunk that came sooner had already arrived: reading it late would slow the server down."""

_is_cell_running = False
_waits = 0


def set_cell_running(is_running: bool) -> None:
    """Record that a cell starts to run, or has ended."""
    global _is_cell_running
    _is_cell_running = is_running


@contextmanager
def cell_waits() -> Iterator[None]:
    """Count the running cell as waiting within the block; blocks may overlap."""
    global _waits
    _waits += 1
    try:
        yield
    finally:
        _waits -= 1


def rest_s(streams: int, open_s: float, waited_s: float) -> float:
    """Return the pause before a stream is read again, in seconds; 0 for none.

    Args:
        streams: Number of streams that are open.
        open_s: Seconds since this one was opened.
        waited_s: Seconds that the chunk was waited for.
    """
    is_disturbed = _is_cell_running and not _waits
    is_alone_or_early = streams == 1 or open_s < _REST_AFTER_S
    if not is_disturbed or is_alone_or_early or waited_s < _WAITED_S:
        return 0.0
    return min(streams / READS_PER_S, MAX_REST_S)
