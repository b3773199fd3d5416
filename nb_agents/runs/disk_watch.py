"""Looks on the disk for what other processes ask of this one, and tells those who wait for it.

One thread looks for all of them: a timer on the loop for each would cost a hundred times as much,
and a slow disk would hold the loop up.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["watched"]

LOOK_S = 0.125
"""A look costs 0.15 ms, most of it to wake a thread; what is asked is to be heard in 0.15 s."""

_lock = threading.Lock()
_watches: dict[object, tuple[Callable[[], bool], Callable[[], object]]] = {}
_thread: threading.Thread | None = None


@contextmanager
def watched(has_news: Callable[[], bool], tell: Callable[[], object]) -> Iterator[None]:
    """Call a function within the block as long as there is news.

    Args:
        has_news: Looks on the disk; asked in a thread, eight times a second.
        tell: Called in that thread; RuntimeError means that its loop has ended.
    """
    global _thread
    name = object()
    with _lock:
        _watches[name] = has_news, tell
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_look, name="nb_agents disk", daemon=True)
            _thread.start()
    try:
        yield
    finally:
        with _lock:
            _watches.pop(name, None)


def _look() -> None:
    global _thread
    while True:
        with _lock:
            if not _watches:
                _thread = None
                return
            watching = tuple(_watches.values())
        for has_news, tell in watching:
            if has_news():
                with suppress(RuntimeError):
                    tell()
        time.sleep(LOOK_S)


def _forget() -> None:
    """In a forked process, which has neither the thread nor those who wait."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _watches.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
