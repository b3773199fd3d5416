"""The live turns of this user on this machine, and what other processes ask of those of this one.

Each live turn has an entry in the user's state directory. It is a hint where to look: only the
turn's lock says whether somebody writes it. One thread polls the disk for all turns of the process:
a timer on the loop for each would cost a hundred times as much, and a slow disk would hold the loop
up.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from platformdirs import user_state_path

from nb_agents.disk.directory import read_file
from nb_agents.session.layout import TurnPaths

__all__ = [
    "LiveTurn",
    "announce",
    "announce_here",
    "live_turns",
    "place_of_this_process",
    "watched",
]

logger = logging.getLogger("nb_agents")

MAX_ENTRY_BYTES = 10_000


@dataclass(frozen=True)
class LiveTurn:
    """A turn that is being written.

    Attributes:
        path: Its directory.
        run: The run's name in its process, such as "r1".
        pid: The process that writes it.
        host: The machine of that process.
        place: What that process is, in words: a notebook, a script.
    """

    path: str
    run: str
    pid: int
    host: str
    place: str

    @property
    def paths(self) -> TurnPaths:
        """Where it is."""
        return TurnPaths(Path(self.path))

    @property
    def where(self) -> str:
        """Where it lives, in words."""
        host = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"{self.place} (pid {self.pid}{host})"


def announce_here(path: Path, run: str) -> Callable[[], None]:
    """Make it known that this process writes a turn; see `announce`.

    Args:
        path: The turn's directory.
        run: The run's name.
    """
    here = LiveTurn(str(path), run, os.getpid(), socket.gethostname(), place_of_this_process())
    return announce(here)


def announce(turn: LiveTurn) -> Callable[[], None]:
    """Make it known on this machine that a process writes a turn.

    Args:
        turn: Which, and where.

    Returns:
        Takes that back, as the first look does once it is over. Where the user's state can't be
        written, the turn is known by its path alone.
    """
    name = sha256(os.fsencode(turn.path)).hexdigest()[:16]
    entry = _folder() / f"{turn.pid}-{name}.json"
    aside = entry.with_suffix(".new")
    text = json.dumps(vars(turn))
    try:
        try:
            aside.write_text(text, encoding="ascii")
        except FileNotFoundError:
            aside.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            aside.write_text(text, encoding="ascii")
        aside.replace(entry)
    except OSError as exc:
        logger.warning("%s is not announced to other processes: %s", turn.path, exc.strerror or exc)

    def end() -> None:
        with suppress(OSError):
            entry.unlink()

    return end


def live_turns() -> tuple[LiveTurn, ...]:
    """Find the turns that are being written by this process and others, oldest first.

    Entries of processes that died are removed.
    """
    found = []
    for entry in _entries():
        turn = _read(entry)
        if turn is not None and turn.paths.is_live(0):
            found.append((turn.paths.path.stat().st_ctime, turn))
        else:  # its process has died, or is over with it at this moment
            with suppress(OSError):
                entry.unlink()
    return tuple(turn for _, turn in sorted(found, key=lambda each: each[0]))


def _folder() -> Path:
    return user_state_path("nb_agents") / "live"


def _entries() -> list[Path]:
    try:
        return sorted(each for each in _folder().iterdir() if each.suffix == ".json")
    except OSError:
        return []


def _read(entry: Path) -> LiveTurn | None:
    try:
        turn = LiveTurn(**json.loads(read_file(entry, MAX_ENTRY_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
    is_whole = isinstance(turn.path, str) and isinstance(turn.pid, int)
    return turn if is_whole and Path(turn.path).is_absolute() else None


def place_of_this_process() -> str:
    """Say in words what this process is: a notebook, a script."""
    # Set by Jupyter servers for the kernels of notebooks.
    notebook = os.environ.get("JPY_SESSION_NAME", "")
    if notebook and "ipykernel" in sys.modules:
        return Path(notebook).name
    if (dask := sys.modules.get("distributed")) is not None:
        with suppress(ValueError):  # this thread is none of a worker's
            return f"worker {dask.get_worker().address}"
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"


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
