"""Loading sessions from disk, and the parts of them that the next turn may read.

A turn is loaded from its journal, or from its other files if it has none (MassGen's). What can't be
read becomes a warning and does not keep the rest from being loaded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from filelock import FileLock, Timeout

from nb_agents.disk.directory import Directory, resolve_parent
from nb_agents.disk.entry import join_names, printable_name
from nb_agents.events import Event, FileInfo, FilesListed, TurnStarted
from nb_agents.session.conversation import PastMessage, messages_of, restored_lines
from nb_agents.session.files import read_files
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import (
    ALLOT_LOCK,
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
from nb_agents.view.steps import at_the_end

LISTED = 500
"""Files listed by name per workspace; others are counted. All are in one line of the journal."""

MAX_WARNINGS = 10
"""Warnings about unreadable files or lines that are shown for a session."""


@dataclass(frozen=True)
class PastTurn:
    """A turn loaded from disk.

    Attributes:
        paths: Its paths.
        view: Its contents.
        is_live: Whether a process runs it now.
        warnings: A sentence for each thing that could not be read.
        events: Of a session's last turn with a journal, its events, preceded by those of the turns
            that it resumed.
    """

    paths: TurnPaths
    view: RunView
    is_live: bool = False
    warnings: tuple[str, ...] = ()
    events: tuple[Event, ...] = field(default=(), repr=False, compare=False)

    @property
    def is_complete(self) -> bool:
        """Whether it was recorded as completed, which is never inferred."""
        return self.view.status == "completed"

    @property
    def state(self) -> RunState:
        """The turn's state, as shown everywhere."""
        is_new = self.is_live and self.view.ending == "killed"  # its journal is still empty
        return "running" if is_new else self.view.state


@dataclass(frozen=True)
class Session:
    """A session loaded from disk, with its turns in order."""

    path: Path
    turns: tuple[PastTurn, ...] = field(default=())

    @property
    def last(self) -> int:
        """Number of the last turn; 0 when there is none."""
        return self.turns[-1].paths.number if self.turns else 0

    @property
    def next_turn(self) -> TurnPaths:
        """The paths of the next turn, which is not there yet."""
        return TurnPaths(self.path.absolute() / f"turn_{self.last + 1}")

    @property
    def begun(self) -> tuple[PastTurn, ...]:
        """The turns but those whose process died before they began."""
        return tuple(turn for turn in self.turns if turn.is_live or turn.paths.has_begun)

    @property
    def latest_turns(self) -> tuple[PastTurn, ...]:
        """The last turn of each task on the way to the last one.

        A turn that was resumed is represented by the later one. After a rewind of an earlier turn,
        what came behind that one lies on another branch.
        """
        found: list[PastTurn] = []
        left = [*self.begun]
        while left:
            found.insert(0, left[-1])
            first = self._first_of(left[-1].paths.number)
            left = [turn for turn in left if turn.paths.number < first]
        return tuple(found)

    def _first_of(self, number: int) -> int:
        """Return the first turn of a turn's task: the one that all others of it go back to."""
        resumes = {turn.paths.number: turn.view.resumes for turn in self.turns}
        while 0 < resumes.get(number, 0) < number:
            number = resumes[number]
        return number

    @property
    def messages(self) -> tuple[PastMessage, ...]:
        """The conversation that the next turn sees."""
        return tuple(
            message
            for turn in self.latest_turns
            for message in messages_of(turn.view, _workspaces(turn), self._resumed_by(turn))
        )

    def _resumed_by(self, turn: PastTurn) -> list[RunView]:
        """Return the turns that a turn resumed, oldest first."""
        known = {each.paths.number: each for each in self.turns}
        past: list[RunView] = []
        while (number := turn.view.resumes) in known and number < turn.paths.number:
            turn = known[number]
            past.insert(0, turn.view)
        return past

    def before(self, number: int) -> Session:
        """Return the session with the turns before the given turn's task only."""
        first = self._first_of(number)
        return Session(self.path, tuple(t for t in self.turns if t.paths.number < first))

    @property
    def context_paths(self) -> tuple[Path, ...]:
        """Workspaces that the next turn may read: of a complete turn, only the winner's."""
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
        """Return the lines shown when a session is continued."""
        if not self.begun:
            return ()
        last = self.begun[-1]
        lines = [f"Goes on with session {self.path.name}: this is turn {self.last + 1}."]
        if not last.is_complete:
            lines += restored_lines(last.view)
        unread = [f"Not read: {w}" for turn in self.turns for w in turn.warnings]
        more = [f"… and {len(unread) - MAX_WARNINGS} more"] if len(unread) > MAX_WARNINGS else []
        return (*lines, *unread[:MAX_WARNINGS], *more)


def load_session(path: Path, known: PastTurn | None = None) -> Session:
    """Load a session with all its turns, whatever state their files are in.

    Each journal is read once, and only the last turn's events are kept.

    Args:
        path: The session's directory.
        known: A turn that is loaded already: of those behind it, none is read.
    """
    turns: list[PastTurn] = []
    last: PastTurn | None = None
    for paths in turns_of(path):
        if known is not None and paths.number >= known.paths.number:
            view = RunView(paths.session, paths.number)
            is_it = paths.number == known.paths.number
            turns.append(known if is_it else PastTurn(paths, view, paths.is_live()))
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
        paths: The turn.
        before: An earlier turn with its events, which need not be read again.

    Returns:
        The turn, with a warning if its files could not be repaired (a read-only disk).
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
        if os.path.lexists(paths.journal):  # another program's turn has none
            unread = recovered.warnings + unread
    else:
        unread = recovered.warnings
        # In a renamed or forked session, the directory's name counts, not the recorded one.
        events = with_past(paths, recovered.events, before)
        view = fold(events)
        view = replace(view, session=paths.session, turn=paths.number)
    if not live and not view.ending:
        view = as_died(view)
    if not live and view.file_count is None:
        listed = workspace_files(paths, [name for name in view.workspaces if name in spaces])
        view = apply(view, listed)
        unread += (listed.left_out,) if listed.left_out else ()
    if not live and view.seq:
        unread += _mend(view, paths)
    return PastTurn(paths, view, live, unread, tuple(events))


def past_events(paths: TurnPaths) -> list[Event]:
    """Return all readable events of a turn, preceded by those of the turns that it resumed."""
    return with_past(paths, read_journal(paths.journal).events)


def with_past(
    paths: TurnPaths, events: Sequence[Event], before: PastTurn | None = None
) -> list[Event]:
    """Return a turn's events, preceded by those of the turns that it resumed.

    Args:
        paths: The turn.
        events: The turn's own events; only `TurnStarted` is needed.
        before: An earlier turn with its events, which need not be read again.
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
    """Return the files in the workspaces of a turn's agents.

    Returns:
        The first `LISTED` files of each workspace, and the number and size of all.
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
    """Return the names and sizes of a workspace's files, and descriptions of other entries."""
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
    # Files that the agent created come before copies of the user's files.
    files.sort(key=lambda file: file[0].startswith(f"{WORKTREES}/"))
    return files, others


def as_died(view: RunView) -> RunView:
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
    return replace(view, agents=agents, steps=at_the_end(view.steps), status="cancelled")


def _mend(view: RunView, paths: TurnPaths) -> tuple[str, ...]:
    if is_up_to_date(view, paths):
        return ()
    try:
        # One reader at a time, and none while a turn starts, so that the files have one writer.
        with FileLock(paths.path.parent / ALLOT_LOCK, timeout=0):
            return () if paths.is_live() else write_views(view, paths)
    except Timeout:
        return ()  # the lock's holder repairs them, or the next reader does
    except OSError as exc:
        return (f"{paths.metadata} can't be brought up to date: {exc.strerror}",)


def is_up_to_date(view: RunView, paths: TurnPaths) -> bool:
    """Return whether an ended turn's files include all of its journal and workspaces.

    Args:
        view: The turn, as loaded from its journal.
        paths: The turn's paths.
    """
    known = read_json(paths.metadata)
    needed = [paths.answer] if answer_text(view) else []
    if view.status != "completed" and partial_answers(view):
        needed.append(paths.partial_answers)
    whole = known.get("journal_seq") == view.seq and {"receipt", "files"} <= known.keys()
    return whole and all(path.exists() for path in needed)


def _workspaces(turn: PastTurn) -> list[Path]:
    return _folders(turn.paths.workspaces)


def _winners(turn: PastTurn) -> list[Path]:
    """Return the winner's workspace: the copy that MassGen makes, else the agent's own.

    The link that nb_agents makes is for users; it is not followed.
    """
    paths = turn.paths
    where = [paths.workspace, *([paths.workspaces / turn.view.winner] if turn.view.winner else [])]
    return [resolve_parent(p) for p in where if _is_folder(p)][:1]


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
