"""Names on disk, and turns allotted so that no two processes share one.

    <root>/session_20261120_120000/
      SESSION_SUMMARY.txt
      turn_1/
        metadata.json  events.jsonl  answer.txt  partial_answers.json
        workspaces/<agent>/   workspace -> workspaces/<winner>   owner.lock   stop.json

Source: MassGen's session layout, so that its reader loads ours.
"""

from __future__ import annotations

import difflib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from nb_agents.config.team import safe_name
from nb_agents.errors import SessionBusyError, StorageError, UnknownSessionError, UserError

__all__ = [
    "SESSIONS_VARIABLE",
    "TurnPaths",
    "claim_turn",
    "find_session",
    "named_session",
    "new_session",
    "session_root",
    "sessions_by_use",
    "turns_of",
]

SESSIONS_VARIABLE = "NB_AGENTS_SESSIONS"
_TURN = re.compile(r"turn_([1-9]\d*)")
_ALLOT_TIMEOUT_S = 10.0
_PROBE_S = 0.05
"""Whoever only looks holds the lock for far less, so it is not taken for an owner."""


@dataclass(frozen=True)
class TurnPaths:
    """Where the files of one turn are.

    Attributes:
        path: The turn's directory, absolute.
    """

    path: Path

    @property
    def number(self) -> int:
        """The turn's number, from 1."""
        return int(self.path.name.removeprefix("turn_"))

    @property
    def session(self) -> str:
        """The session's id."""
        return self.path.parent.name

    @property
    def metadata(self) -> Path:
        """Status and summary, as JSON."""
        return self.path / "metadata.json"

    @property
    def journal(self) -> Path:
        """The events, one JSON line each: the truth."""
        return self.path / "events.jsonl"

    @property
    def answer(self) -> Path:
        """The final answer, or the best partial one."""
        return self.path / "answer.txt"

    @property
    def partial_answers(self) -> Path:
        """What each agent had, as JSON."""
        return self.path / "partial_answers.json"

    @property
    def workspaces(self) -> Path:
        """Parent of the agents' workspaces."""
        return self.path / "workspaces"

    @property
    def workspace(self) -> Path:
        """The winner's workspace, once there is one."""
        return self.path / "workspace"

    @property
    def tools(self) -> Path:
        """What tools wrote that was too long for a model, a directory an agent."""
        return self.path / "tools"

    @property
    def stop(self) -> Path:
        """A stop that another process has asked for, as JSON."""
        return self.path / "stop.json"

    @property
    def summary(self) -> Path:
        """The session's summary, for a person."""
        return self.path.parent / "SESSION_SUMMARY.txt"

    def lock(self) -> FileLock:
        """The lock that is held while a process runs the turn."""
        return FileLock(self.path / "owner.lock", thread_local=False)

    def is_live(self) -> bool:
        """Whether a process (this one or another) runs the turn now."""
        lock = self.lock()
        try:
            lock.acquire(timeout=_PROBE_S, poll_interval=_PROBE_S / 10)
        except Timeout:
            return True
        except OSError:
            return False
        lock.release()
        return False


def session_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Find where sessions are kept.

    Args:
        root: Chosen by the person; by default NB_AGENTS_SESSIONS, else ``.nb_agents/sessions``
            below the working directory.

    Returns:
        An absolute path; it need not exist.
    """
    chosen = root or os.environ.get(SESSIONS_VARIABLE) or Path(".nb_agents", "sessions")
    return Path(chosen).expanduser().absolute()


def new_session(root: Path, now: datetime) -> Path:
    """Make a session directory of its own, also when two start in the same second.

    Args:
        root: The session root; made if missing.
        now: Local time, for the name.

    Returns:
        The new directory.

    Raises:
        StorageError: The root can't be written.
    """
    name = f"session_{now:%Y%m%d_%H%M%S}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = root / (name if number == 1 else f"{name}_{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as exc:
        raise StorageError(str(root), exc.strerror or str(exc)) from None
    raise StorageError(str(root), "ten thousand sessions began in one second")


def find_session(root: Path, name: str = "") -> Path:
    """Find a session that exists.

    Args:
        root: The session root.
        name: Its id; "" means the one used last.

    Returns:
        Its directory.

    Raises:
        UnknownSessionError: There is none.
    """
    sessions = sessions_by_use(root)
    if not name and sessions:
        return sessions[0]
    names = {path.name: path for path in sessions}
    if name in names:
        return names[name]
    near = difflib.get_close_matches(name, names, n=1)
    raise UnknownSessionError(name, str(root), near[0] if near else "")


def named_session(root: Path, name: str) -> Path:
    """Give the session of that name, made if it is new.

    Args:
        root: The session root.
        name: Its id.

    Returns:
        Its directory.

    Raises:
        UserError: The name can't be a directory.
        StorageError: The root can't be written.
    """
    try:
        path = root / safe_name(name)
    except ValueError as exc:
        raise UserError(f"Session {exc}.") from None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise StorageError(str(root), exc.strerror or str(exc)) from None
    return path


def sessions_by_use(root: Path) -> list[Path]:
    """List sessions that have a turn, the one used last first."""
    if not root.is_dir():
        return []
    used = [(turns[-1], path) for path in root.iterdir() if (turns := turns_of(path))]
    used.sort(key=lambda item: (_last_use(item[0]), item[1].name), reverse=True)
    return [path for _, path in used]


def turns_of(session: Path) -> list[TurnPaths]:
    """List a session's turns in order."""
    if not session.is_dir():
        return []
    found = [TurnPaths(p.absolute()) for p in session.iterdir() if _TURN.fullmatch(p.name)]
    return sorted((t for t in found if t.path.is_dir()), key=lambda t: t.number)


def claim_turn(session: Path, owner_of: str = "") -> tuple[TurnPaths, FileLock]:
    """Allot the next turn of a session and hold it.

    Args:
        session: The session's directory.
        owner_of: Who runs the session now, if this process knows, for the message.

    Returns:
        The turn's paths and its lock, held until released.

    Raises:
        SessionBusyError: A turn of the session is live.
        StorageError: The directory can't be written.
    """
    try:
        with FileLock(session / ".allot.lock", timeout=_ALLOT_TIMEOUT_S):
            turns = turns_of(session)
            if turns and turns[-1].is_live():
                raise SessionBusyError(session.name, owner_of or "another process")
            paths = TurnPaths(session.absolute() / f"turn_{turns[-1].number + 1 if turns else 1}")
            paths.workspaces.mkdir(parents=True)
            lock = paths.lock()
            lock.acquire(timeout=_ALLOT_TIMEOUT_S)  # a moment longer only if somebody looks
            return paths, lock
    except Timeout:
        raise SessionBusyError(session.name, "another process is starting a turn") from None
    except OSError as exc:
        raise StorageError(str(session), exc.strerror or str(exc)) from None


def _last_use(turn: TurnPaths) -> float:
    # The journal first: the other files may have been mended since, by merely looking.
    for path in (turn.journal, turn.metadata, turn.path):
        with suppress(OSError):
            return path.stat().st_mtime
    return 0.0
