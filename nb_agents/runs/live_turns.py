"""The live turns of this user on this machine: an entry each, in the user's state directory.

An entry is a hint where to look; whether somebody writes the turn is said by its lock alone.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from platformdirs import user_state_path

from nb_agents.disk.directory import read_file
from nb_agents.session.layout import TurnPaths

__all__ = ["LiveTurn", "announce", "announce_here", "live_turns", "place_of_this_process"]

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
