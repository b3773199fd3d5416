"""Loads sessions from disk, and determines what the next turn may read of them.

A turn is loaded from its journal or, if it has none, as in MassGen's sessions, from its other
files. Unreadable parts become warnings, and the rest is loaded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from filelock import Timeout

from nb_agents.disk.directory import Directory, resolve_parent
from nb_agents.disk.entry import join_names, printable_name
from nb_agents.disk.private import private_lock
from nb_agents.events import Event, FileInfo, FilesListed, TurnStarted
from nb_agents.session.conversation import PastMessage, messages_of, restored_lines
from nb_agents.session.files import read_files
from nb_agents.session.journal import first_event, read_journal
from nb_agents.session.layout import (
    CLAIM_LOCK,
    WORKTREES,
    TurnPaths,
    store_workspaces_if_dead,
    turns_of,
)
from nb_agents.session.memories import copy_memories
from nb_agents.session.views import answer_text, partial_answers, read_json, write_views
from nb_agents.view.fold import apply, fold
from nb_agents.view.prefix import prefix_of
from nb_agents.view.run_view import RunState, RunView
from nb_agents.view.steps import steps_at_end

LISTED = 500
"""Maximum number of files listed by name per workspace. The others are only counted.

The list is one line of the journal.
"""

MAX_WARNINGS = 10
"""Maximum number of warnings about unreadable files or lines that are shown for a session."""


@dataclass(frozen=True)
class PastTurn:
    """A turn loaded from disk.

    Attributes:
        is_live: Whether a process is running the turn.
        warnings: A sentence for each part that could not be read.
        events: The turn's events, preceded by those of the turns that it resumed. In a loaded
            `Session`, only the last turn with a journal has events.
    """

    paths: TurnPaths
    view: RunView
    is_live: bool = False
    warnings: tuple[str, ...] = ()
    events: tuple[Event, ...] = field(default=(), repr=False, compare=False)

    @property
    def is_complete(self) -> bool:
        """Whether the turn was recorded as completed. This is never inferred."""
        return self.view.status == "completed"

    @property
    def state(self) -> RunState:
        """The turn's state, as shown to users."""
        is_new = self.is_live and self.view.ending == "killed"  # its journal is still empty
        return "running" if is_new else self.view.state


@dataclass(frozen=True)
class Session:
    """A session loaded from disk, with its turns in order."""

    path: Path
    turns: tuple[PastTurn, ...] = field(default=())

    @property
    def last(self) -> int:
        """Number of the last turn, or 0 if the session has no turns."""
        return self.turns[-1].paths.number if self.turns else 0

    @property
    def next_turn(self) -> TurnPaths:
        """The paths of the next turn, which does not exist yet."""
        return TurnPaths(self.path.absolute() / f"turn_{self.last + 1}")

    @property
    def begun(self) -> tuple[PastTurn, ...]:
        """The turns, except those of processes that died before they wrote anything."""
        return tuple(turn for turn in self.turns if turn.is_live or turn.paths.has_begun)

    @property
    def latest_turns(self) -> tuple[PastTurn, ...]:
        """The last turn of each task in the current branch of the session.

        If a turn was resumed, only the resuming turn is included. After a rewind to an earlier
        turn, the turns in between are on another branch and are not included.
        """
        latest: list[PastTurn] = []
        remaining = [*self.begun]
        while remaining:
            latest.insert(0, remaining[-1])
            first = self._first_of(remaining[-1].paths.number)
            remaining = [turn for turn in remaining if turn.paths.number < first]
        return tuple(latest)

    def _first_of(self, number: int) -> int:
        """Return the number of the first turn of the task that a turn belongs to."""
        resumes = {turn.paths.number: turn.view.resumes for turn in self.turns}
        while 0 < resumes.get(number, 0) < number:
            number = resumes[number]
        return number

    @property
    def messages(self) -> tuple[PastMessage, ...]:
        """The conversation that the next turn sees."""
        return tuple(
            replace(message, turn=turn.paths.number)
            for turn in self.latest_turns
            for message in messages_of(turn.view, _workspaces(turn), self._resumed_by(turn))
        )

    def _resumed_by(self, turn: PastTurn) -> list[RunView]:
        """Return the turns that a turn resumed, oldest first."""
        by_number = {each.paths.number: each for each in self.turns}
        resumed: list[RunView] = []
        while (number := turn.view.resumes) in by_number and number < turn.paths.number:
            turn = by_number[number]
            resumed.insert(0, turn.view)
        return resumed

    def before(self, number: int) -> Session:
        """Return the session without the given turn's task and all later turns."""
        first = self._first_of(number)
        return Session(self.path, tuple(t for t in self.turns if t.paths.number < first))

    @property
    def context_paths(self) -> tuple[Path, ...]:
        """Workspaces that the next turn may read. For a complete turn, only the winner's."""
        paths: list[Path] = []
        for turn in self.latest_turns:
            if turn.is_complete:
                paths += _winners(turn)
            else:
                paths += _workspaces(turn)
        return tuple(paths)

    def copy_memories(self, paths: TurnPaths, agents: Iterable[str]) -> None:
        """Copy agents' memories from the last turn to a new one.

        Args:
            paths: The new turn.
            agents: The agents' ids.

        Raises:
            OSError: A write failed.
        """
        for turn in self.latest_turns[-1:]:
            for agent in agents:
                copy_memories(turn.paths.workspaces / agent, paths.live_workspaces / agent)

    def restored(self) -> tuple[str, ...]:
        """Return the lines that are shown when the session is continued."""
        if not self.begun:
            return ()
        last = self.begun[-1]
        lines = [f"Continues session {self.path.name}: this is turn {self.last + 1}."]
        if not last.is_complete:
            lines += restored_lines(last.view)
        unread = [f"Not read: {w}" for turn in self.turns for w in turn.warnings]
        more = [f"… and {len(unread) - MAX_WARNINGS} more"] if len(unread) > MAX_WARNINGS else []
        return (*lines, *unread[:MAX_WARNINGS], *more)


def load_session(path: Path, loaded_turn: PastTurn | None = None) -> Session:
    """Load a session with all its turns, even if some of their files are damaged.

    Each journal is read once. Only the events of the last turn with a journal are retained.

    Args:
        path: The session's directory.
        loaded_turn: A turn that is already loaded. That turn and all later ones are not read.
    """
    turns: list[PastTurn] = []
    last: PastTurn | None = None
    for paths in turns_of(path):
        if loaded_turn is not None and paths.number >= loaded_turn.paths.number:
            view = RunView(paths.session, paths.number)
            is_it = paths.number == loaded_turn.paths.number
            turns.append(loaded_turn if is_it else PastTurn(paths, view, paths.is_live()))
            continue
        turn = load_turn(paths, last)
        if turn.events:
            last = turn
            turns = [replace(each, events=()) for each in turns]
        turns.append(turn)
    return Session(path, tuple(turns))


def load_turn(paths: TurnPaths, before: PastTurn | None = None) -> PastTurn:
    """Load a turn, and repair its files if its process died.

    Args:
        paths: The turn's paths.
        before: An earlier turn with its events, so that they don't have to be read again.

    Returns:
        The turn, with a warning if its files could not be repaired, such as on a read-only disk.
    """
    live = paths.is_live()
    try:
        os.listdir(paths.path)
    except OSError as exc:
        view = RunView(paths.session, paths.number, status="cancelled", ended_at=0.0)
        return PastTurn(paths, view, live, (f"{paths.path} can't be read: {exc.strerror}",))
    if not live:
        store_workspaces_if_dead(paths)
    spaces = [path.name for path in _folders(paths.workspaces)]
    recovered = read_journal(paths.journal)
    events: list[Event] = []
    if not any(isinstance(event, TurnStarted) for event in recovered.events):
        view, unread = read_files(paths, spaces)
        if os.path.lexists(paths.journal):  # a turn of another program has no journal
            unread = recovered.warnings + unread
    else:
        unread = recovered.warnings
        # In a renamed or forked session, the recorded name is that of the original.
        events = with_resumed_events(paths, recovered.events, before)
        view = fold(events)
        view = replace(view, session=paths.session, turn=paths.number)
    if not live and not view.ending:
        view = as_killed(view)
    if not live and view.file_count is None:
        answer_files = workspace_files(paths, [name for name in view.workspaces if name in spaces])
        view = apply(view, answer_files)
        unread += (answer_files.left_out,) if answer_files.left_out else ()
    if not live and view.seq:
        unread += _repair(view, paths)
    return PastTurn(paths, view, live, unread, tuple(events))


def resumed_in(paths: TurnPaths) -> TurnPaths | None:
    """Return the last of the turns that resumed a turn, one after another, or None.

    Rewinds and turns with a new task are not included. Reads only the first line of each journal.
    """
    latest = paths
    for later in turns_of(paths.path.parent):
        if later.number <= latest.number:
            continue
        started = first_event(later.journal)
        if started.get("resumes") == latest.number and not started.get("point"):
            latest = later
    return None if latest is paths else latest


def past_events(paths: TurnPaths) -> list[Event]:
    """Return all readable events of a turn, preceded by those of the turns that it resumed."""
    return with_resumed_events(paths, read_journal(paths.journal).events)


def with_resumed_events(
    paths: TurnPaths, events: Sequence[Event], before: PastTurn | None = None
) -> list[Event]:
    """Return a turn's events, preceded by those of the turns that it resumed.

    Args:
        paths: The turn's paths.
        events: The events of the turn itself. Only `TurnStarted` is needed.
        before: An earlier turn with its events, so that they don't have to be read again.
    """
    chain, number = [events], paths.number
    while (started := _started(chain[-1])) and 0 < started.resumes < number:
        number = started.resumes
        if before is not None and number == before.paths.number:
            chain.append(prefix_of(before.events, started.point).events)
            break
        past = TurnPaths(paths.path.with_name(f"turn_{number}"))
        events = read_journal(past.journal).events
        chain.append(prefix_of(events, started.point).events)
    return [event for each in reversed(chain) for event in each]


def _started(events: Sequence[Event]) -> TurnStarted | None:
    return next((e for e in events if isinstance(e, TurnStarted)), None)


def workspace_files(paths: TurnPaths, agents: Iterable[str]) -> FilesListed:
    """Return the event that lists the files in the workspaces of a turn's agents.

    It has the first `LISTED` files of each workspace, and the number and size of all files.
    """
    named: list[FileInfo] = []
    left_out: list[str] = []
    count = size = 0
    for agent in agents:
        files, others = _files(paths.workspaces / agent)
        named += [FileInfo(agent=agent, path=name, size=size) for name, size in files[:LISTED]]
        left_out += [f"{agent}/{each}" for each in others]
        count, size = count + len(files), size + sum(size for _, size in files)
    return FilesListed(files=tuple(named), count=count, size=size, left_out=join_names(left_out))


def _files(workspace: Path) -> tuple[list[tuple[str, int]], list[str]]:
    """Return the names and sizes of a workspace's files, and descriptions of skipped entries."""
    files: list[tuple[str, int]] = []
    others: list[str] = []
    try:
        with Directory.at(workspace) as directory:
            for entry in directory.walk():
                if entry.kind == "file":
                    files.append((printable_name(entry.path), entry.stat.st_size))
                elif entry.kind not in ("folder", "link"):
                    others.append(entry.about)
    except FileNotFoundError:
        pass
    except OSError as exc:
        others.append(f"… ({exc.strerror})")
    # Files that the agent created come before copies of user files.
    files.sort(key=lambda file: file[0].startswith(f"{WORKTREES}/"))
    return files, others


def as_killed(view: RunView) -> RunView:
    """Return the view of a turn whose process died: cancelled, with its agents interrupted."""
    agents = {
        k: replace(
            a,
            in_flight=False,
            was_cut=a.was_cut or a.in_flight,
            phase="stopped" if a.outcome is None else a.phase,
        )
        for k, a in view.agents.items()
    }
    return replace(view, agents=agents, steps=steps_at_end(view.steps), status="cancelled")


def _repair(view: RunView, paths: TurnPaths) -> tuple[str, ...]:
    if is_up_to_date(view, paths):
        return ()
    try:
        # The lock ensures that nobody else writes: no other reader, and no turn that is starting.
        with private_lock(paths.path.parent / CLAIM_LOCK, 0):
            return () if paths.is_live() else write_views(view, paths)
    except Timeout:
        return ()  # the lock's holder or the next reader repairs the files
    except OSError as exc:
        return (f"{paths.metadata} can't be updated: {exc.strerror}",)


def is_up_to_date(view: RunView, paths: TurnPaths) -> bool:
    """Return whether the files of a finished turn reflect its whole journal and its workspaces.

    Args:
        view: The turn, as loaded from its journal.
        paths: The turn's paths.
    """
    saved = read_json(paths.metadata)
    needed = [paths.answer] if answer_text(view) else []
    if view.status != "completed" and partial_answers(view):
        needed.append(paths.partial_answers)
    is_current = saved.get("journal_seq") == view.seq and {"receipt", "files"} <= saved.keys()
    return is_current and all(path.exists() for path in needed)


def _workspaces(turn: PastTurn) -> list[Path]:
    return _folders(turn.paths.workspaces)


def _winners(turn: PastTurn) -> list[Path]:
    """Return the winner's workspace: MassGen's copy or, if missing, the agent's workspace.

    The ``workspace`` link that nb_agents creates is for users and is not followed.
    """
    paths = turn.paths
    agents = [paths.workspaces / turn.view.winner] if turn.view.winner else []
    return [resolve_parent(p) for p in (paths.workspace, *agents) if _is_folder(p)][:1]


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(resolve_parent(each) for each in path.iterdir() if _is_folder(each))
    except OSError:  # missing or unreadable
        return []


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False
