"""Commands on disk: what other processes ask of a turn's writer.

A command is a file in the turn's ``commands`` directory, written aside and renamed into place. The
writer takes each once and answers in the journal (`CommandAnswered`); one that found no writer is
withdrawn by its sender, so that none waits there for somebody else.

`SessionStore` cancels a session from any process in this way. A recipe looks at ``stop.json``, too,
before it begins anything; only those who ask write that file, so that no request is lost.

Source: Amplifier's pull request "Add graceful cancellation support to recipe execution" (the names
of `SessionStore`'s members).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from nb_agents.cancel import CancellationStatus, StopRequest, StopSource
from nb_agents.disk.directory import take_file
from nb_agents.errors import StorageError, UnknownSessionError, UserError
from nb_agents.events import Command, CommandAnswered, Continue, Decide, OfferTools, Pause, Say
from nb_agents.session.history import load_turn
from nb_agents.session.journal import JournalReader
from nb_agents.session.layout import TurnPaths, find_session, session_root, turns_of
from nb_agents.session.views import read_json, write_atomic

__all__ = [
    "Requested",
    "SessionStore",
    "are_waiting",
    "ask",
    "read_stop",
    "send",
    "take_commands",
    "withdraw_older",
]

MAX_BYTES = 1_000_000
"""Of a command: a follow-up text of 20,000 characters has 240,000 as JSON, an answer may be long.
"""

MAX_AT_ONCE = 100
"""Commands that are taken at one look: who floods the directory holds up nobody."""

_POLL_S = 0.02
_SUFFIX = ".json"

_KINDS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind)
    for kind in (StopRequest, Say, Pause, Continue, Decide, OfferTools)
}


def send(turn: TurnPaths, command: Command) -> str:
    """Ask something of whoever writes a turn.

    Args:
        turn: Where it is.
        command: What is asked.

    Returns:
        The command's id; `CommandAnswered` carries it.

    Raises:
        UserError: It is too long.
        StorageError: It can't be written.
    """
    # Ids sort by time, as commands are taken in order.
    name = f"{time.time_ns():020d}-{uuid4().hex[:8]}"
    kind = type(command).__name__
    text = json.dumps({"kind": kind, "data": _KINDS[kind].dump_python(command, mode="json")})
    if len(text) > MAX_BYTES:
        raise UserError(
            f"What a run of another process is told has at most {MAX_BYTES} bytes, and this has "
            f"{len(text)}. Shorten it, or let the agents read it from a file."
        )
    aside = turn.commands / f".{name}"
    try:
        turn.commands.mkdir(exist_ok=True)
        aside.write_text(text, encoding="ascii")
        aside.replace(turn.commands / f"{name}{_SUFFIX}")
    except OSError as exc:
        raise StorageError(str(turn.commands), exc.strerror or str(exc)) from None
    return name


def ask(
    turn: TurnPaths, command: Command, timeout_s: float, is_alive: Callable[[], bool]
) -> CommandAnswered | None:
    """Send a command and wait, blocking, for its answer.

    Args:
        turn: Where it is.
        command: What is asked.
        timeout_s: Seconds that the writer gets; it follows the command later all the same.
        is_alive: Whether somebody writes the turn.

    Returns:
        The answer; None when there is none within the time, or nobody to give one.

    Raises:
        UserError: It is too long.
        StorageError: It can't be written.
    """
    reader = JournalReader(turn.journal, from_end=True)
    name = send(turn, command)
    deadline = time.monotonic() + timeout_s
    while True:
        lives = is_alive()
        for event in reader.read():
            if isinstance(event, CommandAnswered) and event.command == name:
                return event
        if not lives:
            (turn.commands / f"{name}{_SUFFIX}").unlink(missing_ok=True)
        if not lives or time.monotonic() > deadline:
            return None
        time.sleep(_POLL_S)


def are_waiting(turn: TurnPaths) -> bool:
    """Whether somebody has asked something of a turn.

    Args:
        turn: Where it is.
    """
    # Most runs are never asked for anything: then there is no directory, and nothing costs less.
    return os.access(turn.commands, os.F_OK) and bool(_waiting(turn.commands))


def take_commands(turn: TurnPaths) -> list[tuple[str, Command]]:
    """Take what other processes have asked of a turn, oldest first; for its writer alone.

    Args:
        turn: Where it is.

    Returns:
        Each with its id. What is none is removed and left out; what can't be read just now stays.
    """
    taken = []
    for path in _waiting(turn.commands)[:MAX_AT_ONCE]:
        with suppress(OSError, ValueError, KeyError, TypeError, ValidationError):
            said = json.loads(take_file(path, MAX_BYTES))
            command: Command = _KINDS[said["kind"]].validate_python(said["data"])
            taken.append((path.stem, command))
    return taken


def withdraw_older(turn: TurnPaths, before_ns: int) -> None:
    """Remove what was asked of a process that is gone, and that nobody has withdrawn.

    Args:
        turn: Where it was asked.
        before_ns: When, at the latest, in Unix nanoseconds.
    """
    for path in _waiting(turn.commands):
        if path.name < f"{before_ns:020d}":
            path.unlink(missing_ok=True)


def _waiting(folder: Path) -> list[Path]:
    try:
        names = os.listdir(folder)
    except OSError:  # there is none: nobody has asked for anything
        return []
    return [folder / name for name in sorted(names) if name.endswith(_SUFFIX)]


_SOURCES = ("api", "rest", "cli", "magic")
_WANTED = (CancellationStatus.REQUESTED, CancellationStatus.IMMEDIATE)
_NONE, _CANCELLED = CancellationStatus.NONE, CancellationStatus.CANCELLED


class Requested(NamedTuple):
    """What a request to cancel did: whether anything, and a sentence about it."""

    changed: bool
    message: str


class SessionStore:
    """Requests and reads the cancellation of sessions on disk, from any process and thread.

    Example:
        >>> SessionStore("/no/where").get_cancellation_status("session_x").name
        'NONE'

    Args:
        root: Where sessions are; by default NB_AGENTS_SESSIONS or .nb_agents/sessions.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self._root = root

    def request_cancellation(
        self,
        session_id: str,
        project_path: str | os.PathLike[str] | None = None,
        immediate: bool = False,
        *,
        source: StopSource = "api",
        reason: str = "",
    ) -> Requested:
        """Ask whoever runs a session to stop it; a second request makes it immediate.

        Args:
            session_id: The session.
            project_path: Directory with ``.nb_agents``; by default the store's own root counts.
            immediate: Whether to cut the work in hand.
            source: The door that the request came through.
            reason: Why, for the record.

        Returns:
            What it did. A session that nobody runs is told apart, and left as it is.

        Raises:
            UnknownSessionError: There is no such session.
            StorageError: The request can't be written.
        """
        turn = self._turn(session_id, project_path)
        status = self.get_cancellation_status(session_id, project_path)
        if status is _CANCELLED:
            return Requested(False, f"Session {session_id} is cancelled already.")
        if not turn.is_live():
            return Requested(False, f"Session {session_id} is not running: there is nothing to do.")
        if status is CancellationStatus.IMMEDIATE:
            return Requested(False, f"Session {session_id} is stopping now already.")
        hard = immediate or status is CancellationStatus.REQUESTED
        level = CancellationStatus.IMMEDIATE if hard else CancellationStatus.REQUESTED
        _write(turn, {"level": level.name.lower(), "source": source, "reason": reason})
        if (request := read_stop(turn)) is not None:
            send(turn, request)
        said = (
            "Stopping now: the work in hand is cut." if hard else "Stopping after the work in hand."
        )
        return Requested(True, said)

    def clear_cancellation(
        self, session_id: str, project_path: str | os.PathLike[str] | None = None
    ) -> None:
        """Forget that a session was cancelled. A resume does not need it: it is a turn of its own.

        Raises:
            UnknownSessionError: There is no such session.
            UserError: It is being stopped right now.
            StorageError: It can't be written.
        """
        turn = self._turn(session_id, project_path)
        if turn.is_live() and self.is_cancellation_requested(session_id, project_path):
            raise UserError(f"Session {session_id} is being stopped; a stop can't be taken back.")
        _write(turn, {"level": "none"})

    def get_cancellation_status(
        self, session_id: str, project_path: str | os.PathLike[str] | None = None
    ) -> CancellationStatus:
        """Return the stop level of a session's last turn; NONE for an unknown session."""
        try:
            paths = self._turn(session_id, project_path)
        except UnknownSessionError:
            return _NONE
        asked = _level(read_json(paths.stop).get("level"))
        turn = load_turn(paths)
        wanted = asked if asked and asked is not _CANCELLED else _NONE
        stop = turn.view.stop
        if turn.is_live:
            felt = _level(stop.level) if stop else None
            return max(wanted, felt or _NONE)
        if asked is _NONE or asked is _CANCELLED:  # cleared, or marked
            return asked
        if turn.view.status != "cancelled":  # the request came too late
            return _NONE
        # A process that died was not stopped, whatever was asked of it.
        return _CANCELLED if stop else wanted

    def is_cancellation_requested(
        self, session_id: str, project_path: str | os.PathLike[str] | None = None
    ) -> bool:
        """Return whether a stop of any level was asked for."""
        return self.get_cancellation_status(session_id, project_path) is not _NONE

    def is_immediate_cancellation(
        self, session_id: str, project_path: str | os.PathLike[str] | None = None
    ) -> bool:
        """Return whether the stop that is under way is immediate."""
        status = self.get_cancellation_status(session_id, project_path)
        return status is CancellationStatus.IMMEDIATE

    def mark_cancelled(
        self,
        session_id: str,
        project_path: str | os.PathLike[str] | None = None,
        cancelled_at_step: str = "",
    ) -> None:
        """Note that a session which nobody runs was cancelled; a run notes it by itself.

        Raises:
            UnknownSessionError: There is no such session.
            UserError: It is running.
            StorageError: It can't be written.
        """
        turn = self._turn(session_id, project_path)
        if turn.is_live():
            raise UserError(f"Session {session_id} is running; request_cancellation stops it.")
        _write(turn, {"level": "cancelled", "cancelled_at_step": cancelled_at_step})

    def _turn(self, session_id: str, project_path: str | os.PathLike[str] | None) -> TurnPaths:
        root = Path(project_path, ".nb_agents", "sessions") if project_path else self._root
        return turns_of(find_session(session_root(root), session_id))[-1]


def read_stop(paths: TurnPaths) -> StopRequest | None:
    """Read the stop that another process has asked for; None when there is none.

    Args:
        paths: A live turn.
    """
    data = read_json(paths.stop)
    level = _level(data.get("level"))
    if level not in _WANTED:
        return None
    source = data.get("source")
    known: Any = source if source in _SOURCES else "api"
    return StopRequest(level, known, str(data.get("reason") or "")[:500])


def _level(name: object) -> CancellationStatus | None:
    return CancellationStatus.__members__.get(name.upper()) if isinstance(name, str) else None


def _write(paths: TurnPaths, data: dict[str, Any]) -> None:
    try:
        write_atomic(paths.stop, json.dumps({**data, "at": time.time()}))
    except OSError as exc:
        raise StorageError(str(paths.stop), exc.strerror or str(exc)) from None
