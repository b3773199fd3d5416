"""Reading sessions back: what is on disk, and what the next turn may read of it.

A turn that has a journal is what its journal says; one without (MassGen's) is what its files say.
Nothing that can't be read stops the rest from being read: it becomes a warning.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from filelock import FileLock, Timeout

from nb_agents.disk.directory import Directory, real_above
from nb_agents.disk.entry import in_words, shown
from nb_agents.events import Event, FileInfo, FilesListed, TurnStarted
from nb_agents.session.conversation import Message, messages_of, restored_lines
from nb_agents.session.files import read_files
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import ALLOT_LOCK, WORKTREES, TurnPaths, settle_dead, turns_of
from nb_agents.session.memories import carry_memories
from nb_agents.session.views import answer_text, partial_answers, read_json, write_views
from nb_agents.view.fold import apply, fold
from nb_agents.view.run_view import RunView
from nb_agents.view.steps import at_the_end

__all__ = [
    "PastTurn",
    "Session",
    "is_up_to_date",
    "load_session",
    "load_turn",
    "past_events",
    "with_past",
    "workspace_files",
]

LISTED = 500
"""Files of a workspace that are named; the others are counted. One journal line holds them all."""

TOLD_UNREAD = 10
"""Files or lines of a session that can't be read and are named."""


@dataclass(frozen=True)
class PastTurn:
    """A turn on disk.

    Attributes:
        paths: Where it is.
        view: What it holds.
        is_live: Whether a process runs it now.
        warnings: What could not be read.
    """

    paths: TurnPaths
    view: RunView
    is_live: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether it ended with an answer; never inferred."""
        return self.view.status == "completed"

    @property
    def state(self) -> str:
        """How it stands, in a person's words."""
        if self.is_complete:
            return "complete"
        if self.is_live:
            return "running"
        if self.view.status == "failed":
            return "failed"
        ending = self.view.ending
        return "incomplete" if ending == "cancelled" else f"incomplete ({ending})"


@dataclass(frozen=True)
class Session:
    """A session on disk.

    Attributes:
        path: Its directory.
        turns: In order.
    """

    path: Path
    turns: tuple[PastTurn, ...] = field(default=())

    @property
    def last(self) -> int:
        """Number of the last turn; 0 when there is none."""
        return self.turns[-1].paths.number if self.turns else 0

    @property
    def told(self) -> tuple[PastTurn, ...]:
        """The turns that count: one that a later turn resumed is told by that one."""
        resumed = {turn.view.resumes for turn in self.turns}
        return tuple(turn for turn in self.turns if turn.paths.number not in resumed)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation that the next turn sees."""
        return tuple(m for turn in self.told for m in self._told_of(turn))

    def _told_of(self, turn: PastTurn) -> list[Message]:
        return messages_of(turn.view, _workspaces(turn), self._resumed_by(turn))

    def _resumed_by(self, turn: PastTurn) -> list[RunView]:
        """Give the turns that a turn went on with, the first one first."""
        known = {each.paths.number: each for each in self.turns}
        past: list[RunView] = []
        while (number := turn.view.resumes) in known and number < turn.paths.number:
            turn = known[number]
            past.insert(0, turn.view)
        return past

    def before(self, number: int) -> Session:
        """The session as it was when a turn began; for a resumed one, when the first of them did.

        Args:
            number: The turn's number.

        Returns:
            The turns before it.
        """
        resumes = {turn.paths.number: turn.view.resumes for turn in self.turns}
        while 0 < resumes.get(number, 0) < number:
            number = resumes[number]
        return Session(self.path, tuple(t for t in self.turns if t.paths.number < number))

    @property
    def context_paths(self) -> tuple[Path, ...]:
        """What the next turn may read: the incomplete turns' workspaces, the others' winners'."""
        paths: list[Path] = []
        for turn in self.told:
            if turn.is_complete:
                paths += _winners(turn)
            else:
                paths += _workspaces(turn)
        return tuple(paths)

    def carry_memories(self, paths: TurnPaths, agents: Iterable[str]) -> None:
        """Let a new turn's agents begin with what they remember of the last one.

        Args:
            paths: The new turn.
            agents: Their ids.

        Raises:
            OSError: The disk refused.
        """
        for turn in self.told[-1:]:
            for agent in agents:
                carry_memories(turn.paths.workspaces / agent, paths.live_workspaces / agent)

    def restored(self) -> tuple[str, ...]:
        """The lines that a person is shown when a session goes on, as the document words them."""
        count = len(self.turns)
        if not count:
            return ()
        lines = [
            f"📚 Restored session with {count} previous turn(s)",
            f"   Starting turn {self.last + 1}",
        ]
        last = self.turns[-1]
        if not last.is_complete:
            lines += ["", *restored_lines(last.view)]
        unread = [f"   Not read: {w}" for turn in self.turns for w in turn.warnings]
        more = [f"   … and {len(unread) - TOLD_UNREAD} more"] if len(unread) > TOLD_UNREAD else []
        return (*lines, *unread[:TOLD_UNREAD], *more)


def load_session(path: Path) -> Session:
    """Read a session.

    Args:
        path: Its directory.

    Returns:
        All its turns, whatever state their files are in.
    """
    return Session(path, tuple(load_turn(paths) for paths in turns_of(path)))


def load_turn(paths: TurnPaths) -> PastTurn:
    """Read a turn, and mend the files of one whose process died.

    Args:
        paths: Where it is.

    Returns:
        The turn. A view that could not be mended (a read-only disk) is a warning.
    """
    live = paths.is_live()
    try:
        os.listdir(paths.path)
    except OSError as exc:
        view = RunView(paths.session, paths.number, status="cancelled", ended_at=0.0)
        return PastTurn(paths, view, live, (f"{paths.path} can't be read: {exc.strerror}",))
    if not live:
        settle_dead(paths)
    spaces = [path.name for path in _folders(paths.workspaces)]
    recovered = read_journal(paths.journal)
    if not any(isinstance(event, TurnStarted) for event in recovered.events):
        view, unread = read_files(paths, spaces)
        if os.path.lexists(paths.journal):  # another program's turn has none
            unread = recovered.warnings + unread
    else:
        unread = recovered.warnings
        # A renamed or forked session, and its turn, are called what the directory is called.
        view = fold(with_past(paths, recovered.events))
        view = replace(view, session=paths.session, turn=paths.number)
    if not live and not view.ending:
        view = _as_died(view)
    if not live and view.file_count is None:
        listed = workspace_files(paths, [name for name in view.workspaces if name in spaces])
        view = apply(view, listed)
        unread += _not_listed(listed)
    if not live and view.seq:
        unread += _mend(view, paths)
    return PastTurn(paths, view, live, unread)


def past_events(paths: TurnPaths) -> list[Event]:
    """Read all events that led to a turn's state: those of the turns that it resumed come first.

    Args:
        paths: The turn.

    Returns:
        The events; what can't be read is left out.
    """
    return with_past(paths, read_journal(paths.journal).events)


def with_past(paths: TurnPaths, events: Sequence[Event]) -> list[Event]:
    """Put the events of the turns that a turn resumed before its own.

    Args:
        paths: The turn.
        events: Its own, the first of them at least.
    """
    chain, number = [events], paths.number
    while 0 < (resumes := _resumes(chain[-1])) < number:
        number = resumes
        past = TurnPaths(paths.path.with_name(f"turn_{resumes}"))
        chain.append(read_journal(past.journal).events)
    return [event for each in reversed(chain) for event in each]


def _resumes(events: Iterable[Event]) -> int:
    return next((e.resumes for e in events if isinstance(e, TurnStarted)), 0)


def workspace_files(paths: TurnPaths, agents: Iterable[str]) -> FilesListed:
    """List what the workspaces of a turn hold.

    Args:
        paths: The turn.
        agents: Whose workspaces.

    Returns:
        The first `LISTED` files of each, and how many and how large they are in all.
    """
    named: list[FileInfo] = []
    left_out: list[str] = []
    count = size = 0
    for agent in agents:
        files, others = _files(paths.workspaces / agent)
        named += [FileInfo(agent=agent, path=name, size=size) for name, size in files[:LISTED]]
        left_out += [f"{agent}/{each}" for each in others]
        count, size = count + len(files), size + sum(size for _, size in files)
    return FilesListed(files=tuple(named), count=count, size=size, left_out=in_words(left_out))


def _files(workspace: Path) -> tuple[list[tuple[str, int]], list[str]]:
    """List the files of a workspace with their sizes, and in words what else is no link."""
    files: list[tuple[str, int]] = []
    others: list[str] = []
    try:
        with Directory.at(workspace) as directory:
            for entry in directory.walk():
                if entry.kind == "file":
                    files.append((shown(entry.path), entry.stat.st_size))
                elif entry.kind not in ("folder", "link"):
                    others.append(entry.about)
    except FileNotFoundError:
        pass
    except OSError as exc:
        others.append(f"… ({exc.strerror})")
    # What an agent has made comes before a copy of what there was.
    files.sort(key=lambda file: file[0].startswith(f"{WORKTREES}/"))
    return files, others


def _as_died(view: RunView) -> RunView:
    """Show a turn whose process ended without a word as what it is: cut where it was."""
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
        # One reader at a time, and none while a turn begins: the files have one writer, too.
        with FileLock(paths.path.parent / ALLOT_LOCK, timeout=0):
            return () if paths.is_live() else write_views(view, paths)
    except Timeout:
        return ()  # whoever holds it mends them, or the next who reads them does
    except OSError as exc:
        return (f"{paths.metadata} can't be brought up to date: {exc.strerror}",)


def is_up_to_date(view: RunView, paths: TurnPaths) -> bool:
    """Whether the files show all of the journal and of the workspaces, as an ended turn's do.

    Args:
        view: The turn, as its journal has it.
        paths: Where it is.
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
    """Find the winner's workspace: a copy of its own, as MassGen makes it, or where it worked.

    Our link to it is for people: no link is followed.
    """
    paths = turn.paths
    where = [paths.workspace, *([paths.workspaces / turn.view.winner] if turn.view.winner else [])]
    return [real_above(p) for p in where if _is_folder(p)][:1]


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(real_above(each) for each in path.iterdir() if _is_folder(each))
    except OSError:  # there is none, or it may not be read
        return []


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _not_listed(listed: FilesListed) -> tuple[str, ...]:
    return (listed.left_out,) if listed.left_out else ()
