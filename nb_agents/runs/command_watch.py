"""Tells the writers of this process that somebody asks something of their turns.

One thread looks for all of them: a timer on the loop for each turn would cost a hundred times as
much, and a slow disk would hold the loop up.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nb_agents.session.commands import are_waiting
from nb_agents.session.layout import TurnPaths

__all__ = ["watched"]

LOOK_S = 0.1

_lock = threading.Lock()
_turns: dict[Path, tuple[TurnPaths, Callable[[], object]]] = {}
_thread: threading.Thread | None = None


@contextmanager
def watched(turn: TurnPaths, tell: Callable[[], object]) -> Iterator[None]:
    """Call a function within the block as long as commands wait for a turn.

    Args:
        turn: Where it is.
        tell: Called in a thread, ten times a second; RuntimeError means that its loop has ended.
    """
    global _thread
    with _lock:
        _turns[turn.path] = turn, tell
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_look, name="nb_agents commands", daemon=True)
            _thread.start()
    try:
        yield
    finally:
        with _lock:
            _turns.pop(turn.path, None)


def _look() -> None:
    global _thread
    while True:
        with _lock:
            if not _turns:
                _thread = None
                return
            watching = tuple(_turns.values())
        for turn, tell in watching:
            if are_waiting(turn):
                with suppress(RuntimeError):
                    tell()
        time.sleep(LOOK_S)


def _forget() -> None:
    """In a forked process, which has neither the thread nor the writers."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _turns.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
