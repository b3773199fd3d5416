"""Resolves the names of turns, sessions and groups in requests. Also resumes and continues these.

A turn is named by its directory relative to the server's root, such as
``reports/.nb_agents/sessions/session_20261120_120000/turn_1``, because a notebook only knows its
own path. A turn outside the root is named by its absolute path. A path relative to a session root,
such as ``session_20261120_120000/turn_1``, is also accepted. Groups are named in the same way.

A name is valid only if its real path, with symbolic links resolved, is below the server's root or a
session root. Because there is no kernel, runs are started in separate processes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from nb_agents.config.team import TeamSpec
from nb_agents.errors import SessionUnreadableError, UserError
from nb_agents.launch.api import resume, start_verbatim
from nb_agents.launch.run import Run
from nb_agents.launch.team_kind import started_of, stored_team
from nb_agents.options import RunOptions
from nb_agents.session.history import past_events
from nb_agents.session.layout import TurnPaths, session_root, turns_of
from nb_agents.session.lookup import origin_of, with_origin
from nb_agents.turns.groups import GroupFacts, group_of_turn, is_group, is_live_group
from nb_agents.turns.live_turns import LiveTurn, live_turns
from nb_agents.verbs.facts import TurnFacts
from nb_agents.verbs.parameters import split_options

DEFAULT_ROOT = PurePosixPath(".nb_agents", "sessions")
"""The default session root, relative to the notebook's directory."""

_TURN = re.compile(r"turn_[1-9][0-9]{0,8}")


class UnknownNameError(UserError):
    """A name is unknown, ambiguous, or outside of the allowed directories."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"There is no turn, session, sweep or file {name!r} below the server's root or a "
            "session root."
        )


def facts_with_id(resolver: NameResolver, facts: TurnFacts | GroupFacts) -> dict[str, Any]:
    """Return the data about a turn or group as a dict, with its ``id``."""
    return {"id": resolver.name(Path(facts.path)), **asdict(facts)}


class Live(NamedTuple):
    """The live turns and groups.

    Attributes:
        turns: Live turns that are not in a live group, oldest first.
        groups: Live groups, each with its live turns, which may be an empty list for a moment.
    """

    turns: list[LiveTurn]
    groups: dict[Path, list[LiveTurn]]

    @property
    def work(self) -> list[tuple[Path, str]]:
        """Directories of the groups and turns, with a description of the process of each."""
        groups = [(path, inside[0].where if inside else "") for path, inside in self.groups.items()]
        return [*groups, *((turn.paths.path, turn.where) for turn in self.turns)]


class NameResolver:
    """Resolves the names in requests to directories and files.

    Args:
        root_dir: The server's root directory.
    """

    def __init__(self, root_dir: Path) -> None:
        self._root_dir = _real(root_dir)
        self._found_roots: set[Path] = set()
        self._groups: set[Path] = set()

    def session_roots(self, *folders: str) -> list[Path]:
        """Return the session roots that requests can reach.

        Args:
            folders: Directories of notebooks, relative to the server's root. Their default session
                roots are included.
        """
        valid = [each for each in folders if "\0" not in each]
        of_notebooks = [self._inside(self._root_dir / each / DEFAULT_ROOT) for each in valid]
        candidates = [self._root_dir / DEFAULT_ROOT, _configured_root(), *of_notebooks]
        roots = [*(_real(path) for path in candidates if path is not None)]
        return list(dict.fromkeys([*roots, *sorted(self._found_roots)]))

    def turn(self, name: str) -> TurnPaths:
        """Return the turn with this name.

        Raises:
            UnknownNameError: There is none, or more than one.
        """
        return TurnPaths(self._only(name, _is_turn))

    def run(self, name: str) -> Path:
        """Return the directory of the turn or group with this name.

        Raises:
            UnknownNameError: There is none, or more than one.
        """
        return self._only(name, lambda path: _is_turn(path) or is_group(path))

    def group(self, name: str) -> Path:
        """Return the directory of the group with this name.

        Raises:
            UnknownNameError: There is none, or more than one.
        """
        return self._only(name, is_group)

    def session(self, name: str) -> Path:
        """Return the directory of the session with this name.

        Raises:
            UnknownNameError: There is none, or more than one.
        """
        return self._only(name, _has_turns)

    def name(self, path: Path) -> str:
        """Return the name by which requests refer to a turn, session or group."""
        real = _real(path)
        if real.is_relative_to(self._root_dir):
            return real.relative_to(self._root_dir).as_posix()
        return real.as_posix()

    def folder(self, name: str) -> Path:
        """Return a directory below the server's root.

        Raises:
            UnknownNameError: There is no such directory.
        """
        return self._find_below(name, self._root_dir, os.path.isdir)

    def file(self, folder: Path, name: str | None) -> Path | None:
        """Return a file below the server's root.

        Args:
            folder: The directory to which a relative name is relative.
            name: The file's path. If None, the result is None.

        Raises:
            UnknownNameError: There is no such file.
        """
        return None if name is None else self._find_below(name, folder, os.path.isfile)

    def _find_below(self, name: str, base: Path, is_one: Callable[[Path], bool]) -> Path:
        if "\0" not in name:
            path = _real(base / name)
            if path.is_relative_to(self._root_dir) and is_one(path):
                return path
        raise UnknownNameError(name)

    def live(self) -> Live:
        """Return the live turns and groups of this user, in all session roots."""
        turns = [turn for turn in live_turns() if _is_turn(turn.paths.path)]
        grouped_turns = [(group_of_turn(turn.paths.path), turn) for turn in turns]
        # Remembered, so that these turns can also be named after they have ended.
        roots = {(group or _real(turn.paths.path.parent)).parent for group, turn in grouped_turns}
        self._found_roots |= roots
        self._groups |= {group for group, _ in grouped_turns if group}
        # A copy, because other threads may change the set at the same time.
        self._groups -= {group for group in list(self._groups) if not is_live_group(group)}
        inside = {
            g: [turn for group, turn in grouped_turns if group == g] for g in sorted(self._groups)
        }
        # A group ends after its turns, so check again whether its turns are live.
        others = [(group, turn) for group, turn in grouped_turns if group not in inside]
        return Live([turn for group, turn in others if not group or turn.paths.is_live()], inside)

    def _only(self, name: str, is_one: Callable[[Path], bool]) -> Path:
        matches = {path for path in self._candidates(name) if is_one(path)}
        if not matches:
            self.live()  # slow, but may find more session roots
            matches = {path for path in self._candidates(name) if is_one(path)}
        if len(matches) != 1:
            raise UnknownNameError(name)
        return matches.pop()

    def _candidates(self, name: str) -> Iterator[Path]:
        if not name or "\0" in name:
            return
        for base in (self._root_dir, *self.session_roots(), Path(self._root_dir.anchor)):
            path = self._inside(base / name.lstrip("/"))
            if path is not None:
                yield path

    def _inside(self, path: Path) -> Path | None:
        """Return the real path, or None if it is outside of the allowed directories."""
        real = _real(path)
        configured = _configured_root()
        roots = [self._root_dir, *([_real(configured)] if configured else []), *self._found_roots]
        return real if any(real.is_relative_to(root) for root in roots) else None


def display_path(path: Path, origin: str = "") -> str:
    """Return the directory of a turn or group, relative to its notebook's directory if possible.

    The notebook's kernel shows the same path, unless the user changed its working directory.

    Args:
        path: The directory.
        origin: The origin of a turn; see `nb_agents.session.lookup.current_origin`.
    """
    kind, _, notebook = origin.partition(":")
    if kind == "notebook" and notebook.startswith(".."):
        folder = os.path.normpath(path.parents[1] / notebook / "..")
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    # A group is a child of the session root, a turn a grandchild, a turn of a group one deeper.
    for levels in (3, 4, 5):
        relative = PurePosixPath(*path.parts[-levels:])
        if relative.is_relative_to(DEFAULT_ROOT):
            return str(relative)
    return str(path)


def _configured_root() -> Path | None:
    """Return the session root from NB_AGENTS_SESSIONS, or None if it is not set."""
    return session_root() if os.environ.get("NB_AGENTS_SESSIONS") else None


def _is_turn(path: Path) -> bool:
    paths = TurnPaths(path)
    # Unlike Path's methods, these do not raise an error for a name that is too long.
    has_files = os.path.isfile(paths.journal) or os.path.isfile(paths.metadata)
    return has_files and _TURN.fullmatch(path.name) is not None


def _has_turns(path: Path) -> bool:
    try:
        return any(_is_turn(turn.path) for turn in turns_of(path))
    except SessionUnreadableError:
        return False


def _real(path: Path) -> Path:
    # Path.resolve would raise a RuntimeError for a loop of symbolic links.
    return Path(os.path.realpath(path))


def resume_turn(
    paths: TurnPaths,
    values: Mapping[str, Any],
) -> Run:
    """Resume an incomplete turn.

    Args:
        paths: The turn.
        values: The arguments and options of the request, by name.

    Returns:
        The run of the new turn.

    Raises:
        UserError: The turn is complete or not the session's last turn, or its budget is used up.
        SessionBusyError: A turn of the session is live.
        NotYoursError: The session was created by another user or on another machine and is not
            trusted.
    """
    last = turns_of(paths.path.parent)[-1]
    if last.number != paths.number:
        raise UserError(
            f"{paths.session}/{paths.number} can't be resumed, because it is followed by turn "
            f"{last.number}. Resume that turn."
        )
    arguments, chosen = split_options(values)
    options = RunOptions(detach=True, session_root=paths.root, **chosen)
    with with_origin(origin_of(paths)):  # the new turn belongs to the same notebook
        return resume(paths.session, **arguments, options=options)


def continue_session(session: Path, values: Mapping[str, Any]) -> Run:
    """Give a new task to the team of a session's last turn.

    Args:
        session: The session's directory.
        values: The task and the options of the request, by name.

    Returns:
        The run of the new turn.

    Raises:
        UserError: The team is unknown or can't be used.
        SessionBusyError: A turn of the session is live.
        NotYoursError: The session was created by another user or on another machine and is not
            trusted.
    """
    arguments, chosen = split_options(values)
    options = RunOptions(detach=True, session_root=session.parent, **chosen)
    last = turns_of(session)[-1]
    with with_origin(origin_of(last)):  # the new turn belongs to the same notebook
        return start_verbatim(
            config=_team(last), session=session.name, continue_=True, options=options, **arguments
        )


def _team(last: TurnPaths) -> str | TeamSpec:
    """Return a turn's team file or, if it no longer exists, the team stored in the journal."""
    started = started_of(past_events(last))
    if started.config and Path(started.config).is_file():
        return started.config
    team = stored_team(started)
    if team is None:
        raise UserError(
            f"The team of {last.session} can't be restored from its journal. Pass its team file "
            f"in a cell: `%%agents --continue --session {last.session} --config FILE`."
        )
    return team
