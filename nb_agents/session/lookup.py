"""Which session or turn a person means: one that is named, or else the last one that is theirs.

Each turn records its origin: the notebook that it was begun in, or the kernel where the front end
does not tell the notebook, or a terminal. Without a name a notebook's own last session is meant,
else the terminal's, and never that of another notebook in the same directory.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path

from nb_agents.context import within
from nb_agents.errors import UnknownSessionError, UserError
from nb_agents.nouns import nearest
from nb_agents.session.layout import LISTED, SessionList, TurnPaths, sessions_in, turns_of
from nb_agents.session.views import read_json

TERMINAL_ORIGIN = "terminal"
"""The origin of turns that were begun in no notebook."""

MAX_NAMED = 5
"""Sessions among which a person is asked to choose."""

MAX_TASK = 60
"""Characters of a session's task that are shown beside its name."""

_origin: ContextVar[str | None] = ContextVar("nb_agents_origin", default=None)


def acting_for(origin: str) -> AbstractContextManager[None]:
    """Begin turns within the block for another origin, such as that of a run's starter."""
    return within(_origin, origin)


def origin_here(root: Path) -> str:
    """Return the origin of turns that this process begins.

    Args:
        root: The session root. A notebook is named from there, so that both may move together.
    """
    if (given := _origin.get()) is not None:
        return given
    if "ipykernel" not in sys.modules:  # a kernel's children inherit its environment
        return TERMINAL_ORIGIN
    if notebook := _notebook():
        return f"notebook:{_from_root(notebook, root)}"
    # A kernel that is restarted keeps its connection file.
    for word in sys.argv[1:]:
        if word.endswith(".json"):
            return f"kernel:{sha256(os.fsencode(word)).hexdigest()[:16]}"
    return TERMINAL_ORIGIN


def origin_of(turn: TurnPaths) -> str:
    """Return the origin of a turn on disk; "" when it is not recorded."""
    return str(read_json(turn.metadata).get("origin") or "")


def _notebook() -> str:
    """Return the path of this kernel's notebook, where its front end sends it."""
    # Set by Jupyter servers and by VS Code.
    main = sys.modules.get("__main__")
    return os.environ.get("JPY_SESSION_NAME") or str(getattr(main, "__vsc_ipynb_file__", ""))


def _from_root(notebook: str, root: Path) -> str:
    if not os.path.isabs(notebook):
        return notebook
    try:
        return os.path.relpath(os.path.realpath(notebook), os.path.realpath(root))
    except ValueError:  # they are on two drives
        return notebook


def find_session(root: Path, name: str = "") -> Path:
    """Return the directory of an existing session.

    Args:
        root: The session root.
        name: The session's id; "" means the last one of this notebook, else of a terminal.

    Raises:
        UnknownSessionError: There is no such session.
        SessionUnreadableError: It can't be read.
        UserError: No name is given, and all sessions are of others.
    """
    if name and Path(name).name == name and turns_of(root / name):
        return root / name  # without reading the thousands beside it
    found = sessions_in(root)
    if not name and found.by_use:
        return _own_session(root, found)
    for each in found.unreadable:
        if not name or name == Path(each.path).name:
            raise each
    near = nearest(name, (path.name for path in found.by_use[:LISTED]))
    raise UnknownSessionError(name, str(root), near)


def _own_session(root: Path, found: SessionList) -> Path:
    here, terminals = origin_here(root), None
    for path in found.by_use:
        origin = origin_of(turns_of(path)[-1])
        if origin == here:
            return path
        if origin == TERMINAL_ORIGIN and terminals is None:
            terminals = path
    if terminals is not None:
        return terminals
    known = ", ".join(map(_told, found.by_use[:MAX_NAMED]))
    more = len(found.by_use) - MAX_NAMED
    others = f" and {more} more" if more > 0 else ""
    place = "a terminal" if here == TERMINAL_ORIGIN else f"this {here.partition(':')[0]}"
    raise UserError(
        f"No session in {root} was last used in {place}. Name the one that you mean: "
        f"{known}{others}."
    )


def _told(session: Path) -> str:
    return with_task(session, str(read_json(turns_of(session)[-1].metadata).get("task", "")))


def with_task(session: Path, task: str) -> str:
    """Return a session's name with its task, so that a person sees which one it is."""
    line = " ".join(task.split())
    short = line if len(line) <= MAX_TASK else f"{line[: MAX_TASK - 1]}…"
    return f"{session.name} (“{short}”)"


def known_turn(root: Path, name: str) -> TurnPaths | None:
    """Return the turn that a name means, without looking at any other; None when there is none.

    Args:
        root: The session root.
        name: SESSION, for its last turn, or SESSION/TURN, or a turn's whole path.

    Raises:
        SessionUnreadableError: The session can't be read.
    """
    if os.path.isabs(name):
        session, number = Path(name).parent, Path(name).name
    else:
        session_id, _, number = name.partition("/")
        if not session_id or Path(session_id).name != session_id:
            return None
        session = root / session_id
    turns = turns_of(session)
    if not number:
        return turns[-1] if turns else None
    wanted = number.removeprefix("turn_")
    return next((turn for turn in turns if str(turn.number) == wanted), None)


def find_turn(root: Path, name: str = "") -> TurnPaths:
    """Return an existing turn.

    Args:
        root: The session root.
        name: As for `known_turn`; "" means the last turn of the session that `find_session` finds.

    Raises:
        UnknownSessionError: There is no such turn.
        SessionUnreadableError: It can't be read.
        UserError: As for `find_session`.
    """
    if name and (turn := known_turn(root, name)) is not None:
        return turn
    session, _, number = name.partition("/")
    last = turns_of(find_session(root, session))[-1]
    if number:
        raise UnknownSessionError(name, str(root), f"{session}/{last.number}")
    return last
