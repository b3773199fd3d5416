"""The user's live turns on this machine, and polling the disk for commands to this process.

Each live turn has an entry in the user's state directory. The entry only says where to look; the
turn's lock shows whether it is live. One thread polls the disk for all turns of this process: a
timer on the loop for each turn would cost a hundred times as much, and a slow disk would block it.
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
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.layout import SWEEP_FILE, TurnPaths

logger = logging.getLogger("nb_agents")

MAX_ENTRY_BYTES = 10_000


@dataclass(frozen=True)
class LiveTurn:
    """A turn that a process is running.

    Attributes:
        path: The turn's directory.
        run: The run's id in its process, such as "r1".
        pid: The process's id.
        host: The process's machine.
        place: A description of the process: the name of a notebook or script.
    """

    path: str
    run: str
    pid: int
    host: str
    place: str

    @property
    def paths(self) -> TurnPaths:
        """The turn's paths."""
        return TurnPaths(Path(self.path))

    @property
    def where(self) -> str:
        """A description of the process and its machine."""
        host = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"{self.place} (pid {self.pid}{host})"


def announce_here(path: Path, run: str) -> Callable[[], None]:
    """Announce a turn of this process; see `announce`.

    Args:
        path: The turn's directory.
        run: The run's id.
    """
    here = LiveTurn(str(path), run, os.getpid(), socket.gethostname(), place_of_this_process())
    return announce(here)


def announce(turn: LiveTurn) -> Callable[[], None]:
    """Announce a live turn to other processes of this user on this machine.

    Where the state directory can't be written, the turn can only be found by its path.

    Returns:
        A function that removes the entry. Without it, `live_turns` removes the entry of a turn that
        has ended.
    """
    entry = _folder() / f"{_short(turn.paths.session)}-{_short(turn.path)}-{turn.pid}.json"
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


def live_turns(session: str = "", root: Path | None = None) -> tuple[LiveTurn, ...]:
    """Return the announced turns that are live, oldest first; remove the entries of others.

    What is not asked for is left alone: neither its lock nor any journal is looked at.

    Args:
        session: Only turns of the session of this name.
        root: Only turns of this session root, and rows of its sweeps.
    """
    found = []
    for entry in _entries(session):
        turn = _read(entry)
        if turn is not None and root is not None and not is_below(turn.paths, root):
            continue
        if turn is not None and turn.paths.is_live():
            found.append((turn.paths.path.stat().st_ctime, turn))
        else:  # its process has died, or has just finished it
            with suppress(OSError):
                entry.unlink()
    return tuple(turn for _, turn in sorted(found, key=lambda each: each[0]))


def is_below(turn: TurnPaths, root: Path) -> bool:
    """Return whether a turn is of a session in a root, or of a row of one of its sweeps."""
    # By the real path, as a root may be reached by a link.
    wanted, found = Path(os.path.realpath(root)), Path(os.path.realpath(turn.root))
    return found == wanted or (found.parent == wanted and os.path.isfile(found / SWEEP_FILE))


def _folder() -> Path:
    return user_state_path("nb_agents") / "live"


def _entries(session: str) -> list[Path]:
    begin = f"{_short(session)}-" if session else ""
    try:
        names = os.listdir(_folder())
    except OSError:
        return []
    found = (each for each in names if each.startswith(begin) and each.endswith(".json"))
    return [_folder() / each for each in sorted(found)]


def _short(name: str) -> str:
    return sha256(os.fsencode(name)).hexdigest()[:16]


def _read(entry: Path) -> LiveTurn | None:
    try:
        turn = LiveTurn(**json.loads(read_file(entry, MAX_ENTRY_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
    is_whole = isinstance(turn.path, str) and isinstance(turn.pid, int)
    return turn if is_whole and Path(turn.path).is_absolute() else None


def place_of_this_process() -> str:
    """Return a description of this process: the name of its notebook, worker or script."""
    # Set by Jupyter servers for the kernels of notebooks.
    notebook = os.environ.get("JPY_SESSION_NAME", "")
    if notebook and "ipykernel" in sys.modules:
        return Path(notebook).name
    if (dask := sys.modules.get("distributed")) is not None:
        with suppress(ValueError):  # this thread does not belong to a worker
            return f"worker {dask.get_worker().address}"
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"


LOOK_S = 0.135
"""Poll interval, for commands to take effect within 0.15 s; a poll costs 0.13 ms."""

_lock = threading.Lock()
_watches: dict[object, tuple[Callable[[], bool], Callable[[], object]]] = {}
_thread: threading.Thread | None = None


@contextmanager
def watched(has_news: Callable[[], bool], tell: Callable[[], object]) -> Iterator[None]:
    """Poll the disk within the block, and call a function at each poll that finds news.

    Args:
        has_news: Returns whether there is news; called in a thread, seven times a second.
        tell: Called in that thread; a RuntimeError, which means that its loop has ended, is
            ignored.
    """
    global _thread
    name = object()
    try:
        with _lock:
            _watches[name] = has_news, tell
            if _thread is None or not _thread.is_alive():
                _thread = threading.Thread(target=_look, name="nb_agents disk", daemon=True)
                _thread.start()
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
            with ServiceLoop.WATCHES.item():
                if has_news():
                    with suppress(RuntimeError):
                        tell()
        time.sleep(LOOK_S)


def _forget() -> None:
    """Reset the state in a forked process, which has neither the thread nor the watching tasks."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _watches.clear()


os.register_at_fork(after_in_child=_forget)
