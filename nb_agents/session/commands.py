"""Sends commands, as files, to the process that runs a turn.

A command is a file that is renamed into the turn's ``commands`` directory. The process that runs
the turn reads and removes each file, and answers in the journal (`CommandAnswered`). If no process
runs the turn, the sender removes its command, so that a later process does not find it.

`SessionStore` uses commands to cancel a session from any process.

Source: Amplifier's pull request "Add graceful cancellation support to recipe execution" (the names
of the members of `SessionStore`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, get_args
from uuid import uuid4

from pydantic import TypeAdapter

from nb_agents.cancel import CancellationStatus, StopRequest, StopSource
from nb_agents.disk.directory import consume_file
from nb_agents.disk.private import make_folder, write_private
from nb_agents.errors import UnknownSessionError, UserError, as_storage_error
from nb_agents.events import (
    Command,
    CommandAnswered,
)
from nb_agents.service_loops import ServiceLoop
from nb_agents.session.history import load_turn
from nb_agents.session.journal import JournalReader
from nb_agents.session.layout import TurnPaths, session_root, turns_of
from nb_agents.session.lookup import find_session
from nb_agents.session.views import read_json, write_atomic
from nb_agents.unicode import json_text

MAX_BYTES = 1_000_000
"""Maximum size of a command in bytes.

A message of 20,000 characters can take 240,000 bytes as JSON.
"""

MAX_PER_POLL = 100
"""Number of commands taken per poll, so that a flood of commands does not block the run."""

_POLL_S = 0.02
_SUFFIX = ".json"

_KINDS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind) for kind in get_args(Command)
}


def send(turn: TurnPaths, command: Command) -> str:
    """Send a command to the process that runs a turn.

    Returns:
        The command's id, which `CommandAnswered` repeats.

    Raises:
        UserError: The command is too long.
        StorageError: The command can't be written.
    """
    # Ids sort by time, so that commands are taken in order.
    name = f"{time.time_ns():020d}-{uuid4().hex[:8]}"
    kind = type(command).__name__
    text = json_text({"kind": kind, "data": _KINDS[kind].dump_python(command, mode="json")})
    if len(text) > MAX_BYTES:
        raise UserError(
            f"The command has {len(text)} bytes. A run in another process takes at most "
            f"{MAX_BYTES}. Shorten it, or put the text into a file that the agents can read."
        )
    temp = turn.commands / f".{name}"
    with as_storage_error(turn.commands):
        make_folder(turn.commands)
        write_private(temp, text)
        temp.replace(turn.commands / f"{name}{_SUFFIX}")
    return name


def ask(
    turn: TurnPaths, command: Command, timeout_s: float, is_alive: Callable[[], bool]
) -> CommandAnswered | None:
    """Send a command and block until it is answered.

    Args:
        turn: The turn's paths.
        timeout_s: Seconds to wait. The command may still be carried out afterwards.
        is_alive: Returns whether a process runs the turn.

    Returns:
        The answer, or None if none arrived in time or no process runs the turn.

    Raises:
        UserError: The command is too long.
        StorageError: The command can't be written.
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


def has_commands(folder: str) -> bool:
    """Return whether commands are waiting in a turn's ``commands`` directory."""
    # Called often, so it must be cheap. Most runs never get a command and have no such directory. A
    # Path would cost 50 % more than a string.
    return os.access(folder, os.F_OK) and bool(_pending_files(folder))


def take_commands(turn: TurnPaths) -> list[tuple[str, Command | None]]:
    """Read and remove the commands sent to a turn, oldest first.

    Only the process that runs the turn may call this. Files that can't be read now are kept.

    Returns:
        The id and the command of each file. The command is None if the file is invalid.
    """
    commands: list[tuple[str, Command | None]] = []
    for path in _pending_files(turn.commands):
        if len(commands) == MAX_PER_POLL:
            break
        with suppress(OSError):
            commands.append((path.stem, _parse(consume_file(path, MAX_BYTES))))
    return commands


def _parse(data: bytes) -> Command | None:
    with ServiceLoop.COMMANDS.item(), suppress(ValueError, KeyError, TypeError):
        document = json.loads(data)
        command: Command = _KINDS[document["kind"]].validate_python(document["data"])
        return command
    return None


def remove_commands_before(turn: TurnPaths, before_ns: int) -> None:
    """Remove commands that were sent to an earlier process of the turn.

    Args:
        turn: The turn's paths.
        before_ns: Time in Unix nanoseconds. Commands sent earlier are removed.
    """
    for path in _pending_files(turn.commands):
        if path.name < f"{before_ns:020d}":
            path.unlink(missing_ok=True)


def _pending_files(folder: str | Path) -> list[Path]:
    try:
        names = os.listdir(folder)
    except OSError:  # no directory, because no command was ever sent
        return []
    return [Path(folder, name) for name in sorted(names) if name.endswith(_SUFFIX)]


_ANSWER_S = 5.0
"""Seconds that a stop request waits for its answer. It takes effect even without one."""
_NONE, _CANCELLED = CancellationStatus.NONE, CancellationStatus.CANCELLED
_MARKS = {"none": _NONE, "cancelled": _CANCELLED}


class RequestResult(NamedTuple):
    """Whether a cancellation request changed anything, and a message."""

    changed: bool
    message: str


class SessionStore:
    """Requests and reads the cancellation of sessions on disk, from any process and thread.

    Example:
        >>> SessionStore("/no/where").get_cancellation_status("session_x").name
        'NONE'

    Args:
        root: The session root. Defaults to NB_AGENTS_SESSIONS or .nb_agents/sessions.
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
    ) -> RequestResult:
        """Stop a running session. A second request makes the stop immediate.

        Args:
            session_id: The session's id.
            project_path: The directory that contains ``.nb_agents``. By default, the store's root
                is used.
            immediate: Whether to interrupt the work in progress.
            source: The interface from which the request came.
            reason: The reason, for the receipt.

        Returns:
            The result. A request changes nothing if the session is not running, or if a hook
            vetoes the stop.

        Raises:
            UnknownSessionError: There is no such session.
            StorageError: The request can't be written.
        """
        turn = self._turn(session_id, project_path)
        status = self.get_cancellation_status(session_id, project_path)
        if status is _CANCELLED:
            return RequestResult(False, f"Session {session_id} is already cancelled.")
        if status is CancellationStatus.IMMEDIATE:
            return RequestResult(False, f"Session {session_id} is already stopping immediately.")
        hard = immediate or status is CancellationStatus.REQUESTED
        level = CancellationStatus.IMMEDIATE if hard else CancellationStatus.REQUESTED
        request = StopRequest(level, source, reason)
        answer = ask(turn, request, _ANSWER_S, turn.is_live) if turn.is_live() else None
        is_over = answer.status == "finished" if answer else not turn.is_live()
        if is_over:
            return RequestResult(False, f"Session {session_id} is not running. Nothing to do.")
        if answer is not None and not answer.changed:
            why = answer.error or answer.status
            return RequestResult(False, f"Session {session_id} was not stopped: {why}.")
        if hard:
            return RequestResult(True, "Stopping now: work in progress is interrupted.")
        return RequestResult(True, "Stopping after the work in progress.")

    def clear_cancellation(
        self, session_id: str, project_path: str | os.PathLike[str] | None = None
    ) -> None:
        """Clear a session's cancelled status.

        A resume does not need this, because it is a new turn.

        Raises:
            UnknownSessionError: There is no such session.
            UserError: The session is being stopped.
            StorageError: The status can't be written.
        """
        turn = self._turn(session_id, project_path)
        if turn.is_live() and self.is_cancellation_requested(session_id, project_path):
            raise UserError(f"Session {session_id} is stopping, and a stop can't be undone.")
        _write_mark(turn, level="none")

    def get_cancellation_status(
        self, session_id: str, project_path: str | os.PathLike[str] | None = None
    ) -> CancellationStatus:
        """Return the stop level of a session's last turn, or NONE for an unknown session."""
        try:
            paths = self._turn(session_id, project_path)
        except UnknownSessionError:
            return _NONE
        mark = read_json(paths.stop).get("level")
        turn = load_turn(paths)
        stop = turn.view.stop
        if turn.is_live:
            return CancellationStatus[stop.level.upper()] if stop else _NONE
        if isinstance(mark, str) and mark in _MARKS:
            return _MARKS[mark]
        # A session whose process died was not cancelled.
        return _CANCELLED if stop and turn.view.status == "cancelled" else _NONE

    def is_cancellation_requested(
        self, session_id: str, project_path: str | os.PathLike[str] | None = None
    ) -> bool:
        """Return whether a stop of any level was requested."""
        return self.get_cancellation_status(session_id, project_path) is not _NONE

    def is_immediate_cancellation(
        self, session_id: str, project_path: str | os.PathLike[str] | None = None
    ) -> bool:
        """Return whether an immediate stop is in progress."""
        status = self.get_cancellation_status(session_id, project_path)
        return status is CancellationStatus.IMMEDIATE

    def mark_cancelled(
        self,
        session_id: str,
        project_path: str | os.PathLike[str] | None = None,
        cancelled_at_step: str = "",
    ) -> None:
        """Record that a session that is not running was cancelled. A run records its own stop.

        Raises:
            UnknownSessionError: There is no such session.
            UserError: The session is running.
            StorageError: The status can't be written.
        """
        turn = self._turn(session_id, project_path)
        if turn.is_live():
            raise UserError(f"Session {session_id} is running. Use request_cancellation instead.")
        _write_mark(turn, level="cancelled", cancelled_at_step=cancelled_at_step)

    def _turn(self, session_id: str, project_path: str | os.PathLike[str] | None) -> TurnPaths:
        root = Path(project_path, ".nb_agents", "sessions") if project_path else self._root
        return turns_of(find_session(session_root(root), session_id))[-1]


def _write_mark(paths: TurnPaths, **data: str) -> None:
    with as_storage_error(paths.stop):
        write_atomic(paths.stop, json_text({**data, "at": time.time()}))
