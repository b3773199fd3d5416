"""Commands on disk: what other processes ask of a turn's writer.

A command is a file in the turn's ``commands`` directory, written aside and renamed into place. The
writer takes each once and answers in the journal (`CommandAnswered`); one that found no writer is
withdrawn by its sender, so that none waits there for somebody else.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from nb_agents.cancel import StopRequest
from nb_agents.disk.directory import take_file
from nb_agents.errors import StorageError, UserError
from nb_agents.events import Command, CommandAnswered, Continue, Decide, OfferTools, Pause, Say
from nb_agents.session.journal import JournalReader
from nb_agents.session.layout import TurnPaths

__all__ = ["are_waiting", "ask", "send", "take_commands", "withdraw_older"]

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
