"""Find the turns, sessions and sweeps that a request names, and continue them.

A turn's name is its directory, from the server's own root on, such as
``reports/.nb_agents/sessions/session_20261120_120000/turn_1``: a notebook knows where it is, and
what it shows names the turn from there on. One that is elsewhere is called by its whole path; in a
session root the session's id and ``turn_1`` do. A sweep's name is its directory, too.

Whatever a name says, links followed, it leads below the server's root or a session root, or it
leads nowhere. Whatever goes on does so in a process of its own, as there is no kernel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nb_agents.config.team import TeamSpec
from nb_agents.errors import SessionUnreadableError, UserError
from nb_agents.launch.api import resume, start
from nb_agents.launch.resume_plan import started_of, stored_team
from nb_agents.options import RunOptions
from nb_agents.runs.live_turns import LiveTurn, live_turns
from nb_agents.runs.run import Run
from nb_agents.session.history import past_events
from nb_agents.session.layout import TurnPaths, session_root, turns_of
from nb_agents.session.lookup import acting_for, origin_of
from nb_agents.sweeps.manifest import is_live_sweep, is_sweep, sweep_of

DEFAULT_ROOT = PurePosixPath(".nb_agents", "sessions")
"""Where a notebook's sessions are by default, beside it."""

_TURN = re.compile(r"turn_[1-9][0-9]{0,8}")


class UnknownNameError(UserError):
    """A name is unknown, ambiguous, or outside of the allowed directories."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Nothing below the server's roots is called {name!r}: no turn, session or file."
        )


class Live(NamedTuple):
    """The live turns and sweeps.

    Attributes:
        turns: Those that are no rows of a live sweep, oldest first.
        sweeps: Of each live sweep the rows at work, which may be none for a moment.
    """

    turns: list[LiveTurn]
    sweeps: dict[Path, list[LiveTurn]]


class Places:
    """Resolves the names in requests.

    Args:
        root_dir: What the server serves.
    """

    def __init__(self, root_dir: Path) -> None:
        self._root_dir = _real(root_dir)
        self._seen: set[Path] = set()
        self._sweeps: set[Path] = set()

    def session_roots(self, *folders: str) -> list[Path]:
        """Return the session roots.

        Args:
            folders: Of notebooks, from the server's root on: their sessions are beside them.
        """
        named = [each for each in folders if "\0" not in each]
        beside = [self._inside(self._root_dir / each / DEFAULT_ROOT) for each in named]
        known = [self._root_dir / DEFAULT_ROOT, _chosen_root(), *beside]
        roots = [*(_real(root) for root in known if root is not None), *sorted(self._seen)]
        return list(dict.fromkeys(roots))

    def turn(self, name: str) -> TurnPaths:
        """Return the turn of a name.

        Raises:
            UnknownNameError: There is none, or not one alone.
        """
        return TurnPaths(self._only(name, _is_turn))

    def run(self, name: str) -> Path:
        """Return the turn or the sweep of a name.

        Raises:
            UnknownNameError: There is none, or not one alone.
        """
        return self._only(name, lambda path: _is_turn(path) or is_sweep(path))

    def sweep(self, name: str) -> Path:
        """Return the sweep of a name.

        Raises:
            UnknownNameError: There is none, or not one alone.
        """
        return self._only(name, is_sweep)

    def session(self, name: str) -> Path:
        """Return the session of a name.

        Raises:
            UnknownNameError: There is none, or not one alone.
        """
        return self._only(name, _has_turns)

    def name(self, path: Path) -> str:
        """Return the name of a turn or a session."""
        real = _real(path)
        if real.is_relative_to(self._root_dir):
            return real.relative_to(self._root_dir).as_posix()
        return real.as_posix()

    def folder(self, name: str) -> Path:
        """Return a folder below the server's root.

        Raises:
            UnknownNameError: There is none.
        """
        return self._below(name, self._root_dir, os.path.isdir)

    def file(self, folder: Path, name: str | None) -> Path | None:
        """Return a file below the server's root, named from a folder; None for None.

        Raises:
            UnknownNameError: There is none.
        """
        return None if name is None else self._below(name, folder, os.path.isfile)

    def _below(self, name: str, base: Path, is_one: Callable[[Path], bool]) -> Path:
        if "\0" not in name:
            path = _real(base / name)
            if path.is_relative_to(self._root_dir) and is_one(path):
                return path
        raise UnknownNameError(name)

    def live(self) -> Live:
        """Return the live turns and sweeps of this user, in any root."""
        turns = [turn for turn in live_turns() if _is_turn(turn.paths.path)]
        found = [(sweep_of(turn.paths.path), turn) for turn in turns]
        # What was seen here once is found here later, too: as when it is over.
        self._seen |= {(sweep or _real(turn.paths.path.parent)).parent for sweep, turn in found}
        self._sweeps |= {sweep for sweep, _ in found if sweep}
        # A copy: threads that look at the same time change it.
        self._sweeps -= {sweep for sweep in list(self._sweeps) if not is_live_sweep(sweep)}
        rows = {s: [turn for sweep, turn in found if sweep == s] for s in sorted(self._sweeps)}
        # Asked once more: a sweep ends after its rows.
        others = [(sweep, turn) for sweep, turn in found if sweep not in rows]
        return Live([turn for sweep, turn in others if not sweep or turn.paths.is_live()], rows)

    def _only(self, name: str, is_one: Callable[[Path], bool]) -> Path:
        found = {path for path in self._candidates(name) if is_one(path)}
        if not found:
            self.live()  # which knows of more roots; what is known is not searched for
            found = {path for path in self._candidates(name) if is_one(path)}
        if len(found) != 1:
            raise UnknownNameError(name)
        return found.pop()

    def _candidates(self, name: str) -> Iterator[Path]:
        if not name or "\0" in name:
            return
        for base in (self._root_dir, *self.session_roots(), Path(self._root_dir.anchor)):
            path = self._inside(base / name.lstrip("/"))
            if path is not None:
                yield path

    def _inside(self, path: Path) -> Path | None:
        """Return the real path; None if it is outside of the allowed directories."""
        real = _real(path)
        chosen = _chosen_root()
        roots = [self._root_dir, *([_real(chosen)] if chosen else []), *self._seen]
        return real if any(real.is_relative_to(root) for root in roots) else None


def shown_path(path: Path) -> str:
    """Return a turn's or a sweep's directory, relative to the notebook beside it."""
    # A sweep is in the root of sessions, a turn one floor below it, a turn of a row two.
    for floors in (3, 4, 5):
        below = PurePosixPath(*path.parts[-floors:])
        if below.is_relative_to(DEFAULT_ROOT):
            return str(below)
    return str(path)


def _chosen_root() -> Path | None:
    """Return the directory of all of this user's sessions; None when they lie beside notebooks."""
    return session_root() if os.environ.get("NB_AGENTS_SESSIONS") else None


def _is_turn(path: Path) -> bool:
    paths = TurnPaths(path)
    # Unlike Path's, these raise for no name, however long.
    has_files = os.path.isfile(paths.journal) or os.path.isfile(paths.metadata)
    return has_files and _TURN.fullmatch(path.name) is not None


def _has_turns(path: Path) -> bool:
    try:
        return any(_is_turn(turn.path) for turn in turns_of(path))
    except SessionUnreadableError:
        return False


def _real(path: Path) -> Path:
    # Not Path.resolve, which raises a RuntimeError for a loop.
    return Path(os.path.realpath(path))


def resume_turn(paths: TurnPaths, trust: bool) -> Run:
    """Resume an incomplete turn.

    Args:
        paths: The turn.
        trust: Whether to go on with a session that this user has not made.

    Returns:
        The run, as the next turn of the session.

    Raises:
        UserError: It is complete, or a later turn went on with it.
        SessionBusyError: The session is being run.
        NotYoursError: It is not this user's, and not trusted.
    """
    last = turns_of(paths.path.parent)[-1]
    if last.number != paths.number:
        raise UserError(f"{paths.session}/{paths.number} is followed by turn {last.number}.")
    options = RunOptions(detach=True, session_root=paths.root, trust=trust)
    with acting_for(origin_of(paths)):  # it stays its notebook's
        return resume(paths.session, options=options)


def continue_session(session: Path, task: str, trust: bool) -> Run:
    """Ask the team of a session's last turn a new task.

    Args:
        session: The session's directory.
        task: What is asked.
        trust: As for `resume_turn`.

    Returns:
        The run, as the next turn of the session.

    Raises:
        UserError: The team isn't known, or can't be used.
        SessionBusyError: The session is being run.
        NotYoursError: It is not this user's, and not trusted.
    """
    options = RunOptions(detach=True, session_root=session.parent, trust=trust)
    last = turns_of(session)[-1]
    with acting_for(origin_of(last)):  # it stays its notebook's
        return start(task, _team(last), session.name, True, options=options)


def _team(last: TurnPaths) -> str | TeamSpec:
    """Return the team of a turn: its file, else the one in the journal."""
    started = started_of(past_events(last))
    if started.config and Path(started.config).is_file():
        return started.config
    team = stored_team(started)
    if team is None:
        raise UserError(
            f"The team of {last.session} can't be made from its journal. In a cell, "
            f"`%%agents --continue --session {last.session} --config FILE` names it."
        )
    return team
