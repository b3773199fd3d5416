"""The registry of the user's live turns on this machine, and polling of the disk for commands.

Each live turn has an entry in the user's state directory. An entry is only a hint. The turn's lock
tells whether it is live. One thread polls the disk for all turns of this process. A timer on the
loop for each turn would cost a hundred times as much, and a slow disk would block the loop.
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
from nb_agents.disk.private import make_folder, write_private
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.layout import TurnPaths
from nb_agents.turns.groups import is_group
from nb_agents.unicode import json_text

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
    live_turn = LiveTurn(str(path), run, os.getpid(), socket.gethostname(), describe_this_process())
    return announce(live_turn)


def announce(turn: LiveTurn) -> Callable[[], None]:
    """Announce a live turn to other processes of this user on this machine.

    If the state directory can't be written, the turn can only be found by its path.

    Returns:
        A function that removes the entry. Without it, `live_turns` removes the entry of a turn that
        has ended.
    """
    entry = _folder() / f"{_short(turn.paths.session)}-{_short(turn.path)}-{turn.pid}.json"
    temporary = entry.with_suffix(".new")
    text = json_text(vars(turn))
    try:
        try:
            write_private(temporary, text)
        except FileNotFoundError:
            make_folder(temporary.parent)
            write_private(temporary, text)
        temporary.replace(entry)
    except OSError as exc:
        why = exc.strerror or exc
        logger.warning("%s can't be announced to other processes: %s", turn.path, why)

    def end() -> None:
        with suppress(OSError):
            entry.unlink()

    return end


def live_turns(session: str = "", root: Path | None = None) -> tuple[LiveTurn, ...]:
    """Return the announced turns that are live, oldest first. Entries of ended ones are removed.

    A turn is announced before its journal begins, and is returned from then on.

    Turns that the arguments exclude are ignored: their locks and entries are left alone.

    Args:
        session: Include only turns of sessions with this name.
        root: Include only turns in this session root, and in its groups.
    """
    turns = []
    for entry in _entries(session):
        turn = _read(entry)
        if turn is not None and root is not None and not is_below(turn.paths, root):
            continue
        if turn is not None and turn.paths.is_live():
            if turn.paths.has_begun:
                turns.append((turn.paths.path.stat().st_ctime, turn))
        else:  # the entry is damaged, or the turn has ended
            with suppress(OSError):
                entry.unlink()
    return tuple(turn for _, turn in sorted(turns, key=lambda each: each[0]))


def is_below(turn: TurnPaths, root: Path) -> bool:
    """Return whether a turn is in a session root, either in a session or in a group."""
    # Real paths, because the root may be a symbolic link.
    root_path, turn_root = Path(os.path.realpath(root)), Path(os.path.realpath(turn.root))
    return turn_root == root_path or (turn_root.parent == root_path and is_group(turn_root))


def _folder() -> Path:
    return user_state_path("nb_agents") / "live"


def _entries(session: str) -> list[Path]:
    try:
        begin = f"{_short(session)}-" if session else ""
        names = os.listdir(_folder())
    except (OSError, UnicodeEncodeError):  # no session name contains a lone surrogate
        return []
    entry_names = (each for each in names if each.startswith(begin) and each.endswith(".json"))
    return [_folder() / each for each in sorted(entry_names)]


def _short(name: str) -> str:
    return sha256(os.fsencode(name)).hexdigest()[:16]


def _read(entry: Path) -> LiveTurn | None:
    try:
        turn = LiveTurn(**json.loads(read_file(entry, MAX_ENTRY_BYTES)))
    except (OSError, ValueError, TypeError):
        return None
    is_whole = isinstance(turn.path, str) and isinstance(turn.pid, int)
    return turn if is_whole and Path(turn.path).is_absolute() else None


def describe_this_process() -> str:
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
"""Poll interval in seconds. Commands take effect within 0.15 s, and a poll costs 0.13 ms."""

_lock = threading.Lock()
_watches: dict[object, tuple[Callable[[], bool], Callable[[], object]]] = {}
_thread: threading.Thread | None = None


@contextmanager
def polling(has_news: Callable[[], bool], tell: Callable[[], object]) -> Iterator[None]:
    """Poll the disk within the block.

    Args:
        has_news: Returns whether there is news. Called in a thread seven times a second.
        tell: Called in that thread after each poll that finds news. A RuntimeError is ignored,
            because it means that the caller's loop has ended.
    """
    global _thread
    name = object()
    try:
        with _lock:
            _watches[name] = has_news, tell
            if _thread is None or not _thread.is_alive():
                _thread = threading.Thread(target=_poll, name="nb_agents disk", daemon=True)
                _thread.start()
        yield
    finally:
        with _lock:
            _watches.pop(name, None)


def _poll() -> None:
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


def _reset_after_fork() -> None:
    """Reset the state in a forked child process, which does not have the thread and the tasks."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _watches.clear()


os.register_at_fork(after_in_child=_reset_after_fork)
