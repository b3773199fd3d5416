"""Finds the session or turn to which a user refers, or the last session if no name is given.

Each turn records its origin: the notebook in which it was started, the kernel if the front end does
not report the notebook's path, or a terminal. If no name is given, the last session of this
notebook is used or, if there is none, the last session of a terminal, but never that of another
notebook in the same directory.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import AbstractContextManager
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from nb_agents.context import within
from nb_agents.disk.names import as_on_disk
from nb_agents.errors import UnknownSessionError, UserError
from nb_agents.nouns import nearest
from nb_agents.session.journal import first_event
from nb_agents.session.layout import (
    LISTED,
    SessionList,
    TurnPaths,
    session_root,
    sessions_in,
    turns_of,
)
from nb_agents.session.views import read_json

TERMINAL_ORIGIN = "terminal"
"""The origin of turns that were not started in a notebook."""

_TURN_DIRECTORY = re.compile(r"turn_([1-9][0-9]*)")

MAX_NAMED = 5
"""Maximum number of sessions that an error message lists for the user to choose from."""

MAX_TASK = 60
"""Maximum number of characters of a session's task that are shown after its name."""

_origin: ContextVar[str | None] = ContextVar("nb_agents_origin", default=None)


def with_origin(origin: str) -> AbstractContextManager[None]:
    """Record another origin for turns started in the block, such as the requesting notebook."""
    return within(_origin, origin)


def current_origin(root: Path) -> str:
    """Return the origin of turns that this process starts.

    Args:
        root: The session root. The notebook's path is relative to it, so that the two can be moved
            together.
    """
    if (origin := _origin.get()) is not None:
        return origin
    if "ipykernel" not in sys.modules:  # a kernel's children inherit its environment
        return TERMINAL_ORIGIN
    if notebook := _notebook():
        return f"notebook:{_from_root(notebook, root)}"
    # The connection file stays the same when the kernel is restarted.
    for argument in sys.argv[1:]:
        if argument.endswith(".json"):
            return f"kernel:{sha256(os.fsencode(argument)).hexdigest()[:16]}"
    return TERMINAL_ORIGIN


def origin_of(turn: TurnPaths) -> str:
    """Return the origin of a turn on disk, or "" if it is not recorded.

    It is read from the journal, because the origin determines which session is the last one. The
    metadata is used only if the journal was removed.
    """
    start = first_event(turn.journal) or read_json(turn.metadata)
    return str(start.get("origin") or "")


def _notebook() -> str:
    """Return the path of this kernel's notebook, or "" if the front end does not report it."""
    # Jupyter servers set the first, VS Code the second.
    main = sys.modules.get("__main__")
    return os.environ.get("JPY_SESSION_NAME") or str(getattr(main, "__vsc_ipynb_file__", ""))


def _from_root(notebook: str, root: Path) -> str:
    if not os.path.isabs(notebook):
        return notebook
    try:
        return os.path.relpath(os.path.realpath(notebook), os.path.realpath(root))
    except ValueError:  # on different Windows drives
        return notebook


def find_session(root: Path, name: str = "") -> Path:
    """Return the directory of an existing session.

    Args:
        root: The session root.
        name: The session's id. "" means the last session of this notebook or, if there is none, of
            a terminal.

    Raises:
        UnknownSessionError: There is no such session.
        SessionUnreadableError: The session can't be read.
        UserError: No name is given, and all sessions belong to other notebooks.
    """
    named = as_on_disk(root / name)
    if name and Path(name).name == name and turns_of(named):
        return named  # without listing the root, which may have thousands of sessions
    session_list = sessions_in(root)
    if not name and session_list.by_use:
        return _own_session(root, session_list)
    for each in session_list.unreadable:
        if not name or name == Path(each.path).name:
            raise each
    near = nearest(name, (path.name for path in session_list.by_use[:LISTED]))
    raise UnknownSessionError(name, str(root), near)


def _own_session(root: Path, session_list: SessionList) -> Path:
    current, terminals = current_origin(root), None
    for path in session_list.by_use:
        origin = origin_of(turns_of(path)[-1])
        if origin == current:
            return path
        if origin == TERMINAL_ORIGIN and terminals is None:
            terminals = path
    if terminals is not None:
        return terminals
    descriptions = ", ".join(map(_describe, session_list.by_use[:MAX_NAMED]))
    more = len(session_list.by_use) - MAX_NAMED
    others = f" and {more} more" if more > 0 else ""
    where = "a terminal" if current == TERMINAL_ORIGIN else f"this {current.partition(':')[0]}"
    raise UserError(
        f"No session in {root} was last used in {where}. Give the name of a session: "
        f"{descriptions}{others}."
    )


def _describe(session: Path) -> str:
    return with_task(session, str(read_json(turns_of(session)[-1].metadata).get("task", "")))


def with_task(session: Path, task: str) -> str:
    """Return a session's name with the start of its task, which helps users to recognize it."""
    line = " ".join(task.split())
    short = line if len(line) <= MAX_TASK else f"{line[: MAX_TASK - 1]}…"
    return f"{session.name} (“{short}”)"


class SessionReference(NamedTuple):
    """A user's reference to a session or turn.

    Attributes:
        name: SESSION or SESSION/TURN.
        root: The session root, from an argument or from the path. None means the default root.
        is_path: Whether the user gave a path instead of a name.
    """

    name: str
    root: str | os.PathLike[str] | None
    is_path: bool = False


def parse_reference(
    name: str | os.PathLike[str], root: str | os.PathLike[str] | None = None
) -> SessionReference:
    """Parse a reference to a session or turn: an id, or the path of its directory.

    Args:
        name: SESSION, SESSION/TURN, or the path of a session's or turn's directory.
        root: The session root, or None if the user did not give one.

    Raises:
        UserError: The path is not in the session root, or the name is not valid.
    """
    if not isinstance(name, str | os.PathLike):
        kind = type(name).__name__
        raise UserError(f"The session is of type {kind!r}. Pass its id or its path.")
    text = os.fsdecode(name)
    if not _is_encodable(text):
        raise UserError(f"{text!r} is not a valid session name.")
    if not (isinstance(name, os.PathLike) or _looks_like_a_path(text)):
        return SessionReference(text, root)
    path = as_on_disk(Path(os.path.abspath(os.path.expanduser(text))))
    match = _TURN_DIRECTORY.fullmatch(path.name)
    session = path.parent if match else path
    if root is not None and session.parent.resolve() != session_root(root).resolve():
        raise UserError(f"{path} is not in the session root {session_root(root)}.")
    return SessionReference(
        f"{session.name}/{match[1]}" if match else session.name, session.parent, True
    )


def parse_session_reference(
    name: str | os.PathLike[str], root: str | os.PathLike[str] | None = None
) -> SessionReference:
    """Parse a reference to a session or its last turn.

    Args:
        name: As for `parse_reference`.
        root: As for `parse_reference`.

    Raises:
        UserError: As for `parse_reference`, or the turn is not the last one of its session.
        UnknownSessionError: There is no session at the path. No new one is created there.
    """
    named = parse_reference(name, root)
    session, _, number = named.name.partition("/")
    if not (named.is_path or number.isdecimal()):
        return named
    turns = turns_of(as_on_disk(session_root(named.root) / session))
    if named.is_path and not turns:
        raise UnknownSessionError(session, str(named.root))
    if number and turns and turns[-1].number != int(number):
        last = f"{session}/{turns[-1].number}"
        raise UserError(
            f"{named.name} is not the last turn of its session; the last turn is {last}. Pass the "
            f"session name without a turn number."
        )
    return SessionReference(session, named.root)


def _is_encodable(text: str) -> bool:
    """Return whether a file can have this name. One with a lone surrogate can't be encoded."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _looks_like_a_path(text: str) -> bool:
    parts = [part for part in text.split(os.sep) if part]
    if os.path.isabs(text) or text.startswith((".", "~")) or len(parts) > 2:
        return True
    return len(parts) == 2 and not parts[1].isdecimal() and os.path.isdir(text)


def existing_turn(root: Path, name: str) -> TurnPaths | None:
    """Return a turn by its name, without reading other sessions, or None if it does not exist.

    Args:
        root: The session root.
        name: SESSION for the session's last turn, SESSION/TURN, or a turn's absolute path.

    Raises:
        SessionUnreadableError: The session can't be read.
    """
    if os.path.isabs(name):
        session, number = Path(name).parent, Path(name).name
    else:
        session_id, _, number = name.partition("/")
        if not session_id or Path(session_id).name != session_id:
            return None
        session = as_on_disk(root / session_id)
    turns = turns_of(session)
    if not number:
        return turns[-1] if turns else None
    turn_number = number.removeprefix("turn_")
    return next((turn for turn in turns if str(turn.number) == turn_number), None)


def find_turn(root: Path, name: str = "") -> TurnPaths:
    """Return an existing turn.

    Args:
        root: The session root.
        name: As for `existing_turn`. "" means the last turn of the session that `find_session`
            returns.

    Raises:
        UnknownSessionError: There is no such turn.
        SessionUnreadableError: The session can't be read.
        UserError: As for `find_session`.
    """
    if name and (turn := existing_turn(root, name)) is not None:
        return turn
    session, _, number = name.partition("/")
    last = turns_of(find_session(root, session))[-1]
    if number:
        raise UnknownSessionError(name, str(root), f"{session}/{last.number}")
    return last
