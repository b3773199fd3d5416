"""Names on disk, turns allotted so that no two processes share one, and where a task's agents work.

    <root>/session_20261120_120000/
      SESSION_SUMMARY.txt
      task_1/                where its agents work, through all turns of the task
        workspaces/<agent>/   tools/<agent>/
      turn_1/
        metadata.json  events.jsonl  answer.txt  partial_answers.json
        workspaces/<agent>/   workspace -> workspaces/<winner>   owner.lock   stop.json
        commands/

A path of the workspace outlives a stop: a step keeps what ``pwd`` printed, a message names a file,
a Python environment or a build in the workspace holds its own place. So what runs works in
``task_N/workspaces``, N being the turn that the task began with, and never in a turn's directory.

    while turn 2 goes on with the task of turn 1      once it is over
      task_1/workspaces/<agent>/                        task_1/workspaces -> ../turn_2/workspaces
      turn_2/workspaces -> ../task_1/workspaces         turn_2/workspaces/<agent>/
      turn_1/workspaces/<agent>/                        turn_1/workspaces/<agent>/

A turn that is over holds what it left, as MassGen's does, and the paths that its agents were told
lead there. A resume puts a copy of that where it was: what an earlier turn kept is out of reach of
what runs now. Where there are no links a turn works in its own directory.

Replacing the paths in what is stored would not do: files hold them, too, and models sign their
messages. A link that leads to the turn's directory would not either: ``getcwd`` looks through it.

Source: MassGen's session layout, so that its reader loads ours.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from nb_agents.config.team import safe_name
from nb_agents.disk.lock import PROBE_S, is_held
from nb_agents.errors import (
    SessionBusyError,
    SessionChangedError,
    SessionUnreadableError,
    StorageError,
    UnknownSessionError,
    UserError,
)
from nb_agents.session.copying import copy_workspaces

__all__ = [
    "ALLOT_LOCK",
    "Found",
    "LISTED",
    "SESSIONS_VARIABLE",
    "TICKETS",
    "TurnPaths",
    "WORKTREES",
    "claim_turn",
    "find_session",
    "find_task",
    "find_turn",
    "give_back",
    "go_on_in",
    "is_real",
    "last_use",
    "make_root",
    "named_session",
    "new_session",
    "resting",
    "session_root",
    "sessions_in",
    "settle",
    "settle_dead",
    "turns_of",
]

SESSIONS_VARIABLE = "NB_AGENTS_SESSIONS"
DEFAULT_FOLDER = ".nb_agents"
ALLOT_LOCK = ".allot.lock"
"""Held while a turn is allotted, in its session's directory."""

TICKETS = ".tickets"
"""Where in a session root a cluster's runs have a file each until a worker begins them."""

WORKTREES = "worktrees"
"""Where in its workspace an agent has copies of files of a person's."""

LISTED = 100
"""Sessions that a list shows: a look at all of ten thousand takes half a minute."""

_TURN = re.compile(r"turn_([1-9][0-9]*)")
_ALLOT_TIMEOUT_S = 10.0
_REST_TIMEOUT_S = 1.0
"""What a reader who mends a turn gets to be done with it; a turn that begins may take longer."""


@dataclass(frozen=True)
class TurnPaths:
    """Where the files of one turn are.

    Attributes:
        path: The turn's directory, absolute.
        task: Of the turn that runs: the directory of its task; None when it works in its own.
    """

    path: Path
    task: Path | None = field(default=None, compare=False)

    @property
    def number(self) -> int:
        """The turn's number, from 1."""
        return int(self.path.name.removeprefix("turn_"))

    @property
    def session(self) -> str:
        """The session's id."""
        return self.path.parent.name

    @property
    def root(self) -> Path:
        """The session root."""
        return self.path.parents[1]

    @property
    def metadata(self) -> Path:
        """Status and summary, as JSON."""
        return self.path / "metadata.json"

    @property
    def journal(self) -> Path:
        """The events, one JSON line each: the truth."""
        return self.path / "events.jsonl"

    @property
    def answer(self) -> Path:
        """The final answer, or the best partial one."""
        return self.path / "answer.txt"

    @property
    def partial_answers(self) -> Path:
        """What each agent had, as JSON."""
        return self.path / "partial_answers.json"

    @property
    def workspaces(self) -> Path:
        """Parent of the agents' workspaces, for readers; it may be a link."""
        return self.path / "workspaces"

    @property
    def own_task(self) -> Path:
        """Directory of the task that begins with this turn; of one that goes on, there is none."""
        return self.path.with_name(f"task_{self.number}")

    @property
    def live_workspaces(self) -> Path:
        """Parent of the agents' workspaces as what runs knows them."""
        return (self.task or self.path) / "workspaces"

    @property
    def workspace(self) -> Path:
        """The winner's workspace, once there is one."""
        return self.path / "workspace"

    @property
    def tools(self) -> Path:
        """What tools wrote that was too long for a model, a directory an agent; for what runs."""
        return (self.task or self.path) / "tools"

    @property
    def stop(self) -> Path:
        """A stop that another process has asked for, as JSON."""
        return self.path / "stop.json"

    @cached_property  # it is asked for several times a second
    def commands(self) -> Path:
        """What other processes ask of the writer: a file each, there until it is taken."""
        return self.path / "commands"

    @property
    def summary(self) -> Path:
        """The session's summary, for a person."""
        return self.path.parent / "SESSION_SUMMARY.txt"

    @property
    def winners(self) -> Path:
        """The session's winners, as JSON: MassGen's."""
        return self.path.parent / "winning_agents_history.json"

    def lock(self) -> FileLock:
        """The lock that is held while a process runs the turn."""
        return FileLock(self.path / "owner.lock", thread_local=False)

    def is_live(self, probe_s: float = PROBE_S) -> bool:
        """Whether a process (this one or another) runs the turn now.

        Args:
            probe_s: Seconds until a lock that is held counts as its writer's; with 0 another one
                who looks may be taken for it, for a moment.
        """
        return is_held(self.lock(), probe_s)


def session_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Find where sessions are kept.

    Args:
        root: Chosen by the person; by default NB_AGENTS_SESSIONS, else ``.nb_agents/sessions``
            below the working directory.

    Returns:
        An absolute path; it need not exist.
    """
    chosen = root or os.environ.get(SESSIONS_VARIABLE) or Path(DEFAULT_FOLDER, "sessions")
    return Path(chosen).expanduser().absolute()


def new_session(root: Path, now: datetime) -> Path:
    """Make a session directory of its own, also when two start in the same second.

    Args:
        root: The session root; made if missing.
        now: Local time, for the name.

    Returns:
        The new directory.

    Raises:
        StorageError: The root can't be written.
    """
    name = f"session_{now:%Y%m%d_%H%M%S}"
    try:
        make_root(root)
        for number in range(1, 10_000):
            path = root / (name if number == 1 else f"{name}_{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as exc:
        raise StorageError(str(root), exc.strerror or str(exc)) from None
    raise StorageError(str(root), "ten thousand sessions began in one second")


def find_session(root: Path, name: str = "") -> Path:
    """Find a session that exists.

    Args:
        root: The session root.
        name: Its id; "" means the one used last.

    Returns:
        Its directory.

    Raises:
        UnknownSessionError: There is none.
        SessionUnreadableError: It can't be read.
    """
    if name and Path(name).name == name and turns_of(root / name):
        return root / name  # without a look at the thousands beside it
    found = sessions_in(root)
    if not name and found.by_use:
        return found.by_use[0]
    for each in found.unreadable:
        if not name or name == Path(each.path).name:
            raise each
    near = difflib.get_close_matches(name, [path.name for path in found.by_use[:LISTED]], n=1)
    raise UnknownSessionError(name, str(root), near[0] if near else "")


def named_session(root: Path, name: str) -> Path:
    """Give the session of that name, made if it is new.

    Args:
        root: The session root.
        name: Its id.

    Returns:
        Its directory.

    Raises:
        UserError: The name can't be a directory.
        StorageError: The root can't be written.
    """
    try:
        path = root / safe_name(name)
    except ValueError as exc:
        raise UserError(f"Session {exc}.") from None
    try:
        try:
            path.mkdir(exist_ok=True)
        except FileNotFoundError:
            make_root(root)
            path.mkdir(exist_ok=True)
    except OSError as exc:
        raise StorageError(str(root), exc.strerror or str(exc)) from None
    return path


def make_root(root: Path) -> None:
    """Make a session root; ``.nb_agents`` keeps itself out of what git sees."""
    root.mkdir(parents=True, exist_ok=True)
    ignored = root.parent / ".gitignore"
    if root.parent.name == DEFAULT_FOLDER and not ignored.exists():
        ignored.write_text("*\n", encoding="utf-8")


class Found(NamedTuple):
    """The sessions below a root.

    Attributes:
        by_use: Those that have a turn, the one used last first.
        unreadable: Why others can't be read.
    """

    by_use: list[Path]
    unreadable: list[SessionUnreadableError]


def sessions_in(root: Path) -> Found:
    """Find the sessions below a root; one that can't be read hides no other."""
    used: list[tuple[float, str, Path]] = []
    unreadable: list[SessionUnreadableError] = []
    names: list[str] = []
    try:
        # Entries know what they are: a look at each of ten thousand would take as long again.
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as exc:
        unreadable.append(SessionUnreadableError(str(root), exc.strerror or str(exc)))
    for path in map(root.joinpath, names):
        try:
            used += [(last_use(turn), path.name, path) for turn in turns_of(path)[-1:]]
        except SessionUnreadableError as exc:
            unreadable.append(exc)
    return Found([path for _, _, path in sorted(used, reverse=True)], unreadable)


def turns_of(session: Path) -> list[TurnPaths]:
    """List a session's turns in order.

    Raises:
        SessionUnreadableError: Its directory can't be read.
    """
    try:
        with os.scandir(session) as entries:
            named = [e.name for e in entries if _TURN.fullmatch(e.name) and e.is_dir()]
        here = session.absolute()
        return sorted((TurnPaths(here / name) for name in named), key=lambda turn: turn.number)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        raise SessionUnreadableError(str(session), exc.strerror or str(exc)) from None


def find_turn(root: Path, name: str = "") -> TurnPaths:
    """Find a turn on disk.

    Args:
        root: The session root.
        name: SESSION, for its last turn, or SESSION/TURN; "" is the session used last.

    Raises:
        UnknownSessionError: There is none of that name.
        SessionUnreadableError: It can't be read.
    """
    session, _, number = name.partition("/")
    turns = turns_of(find_session(root, session))
    wanted = number.removeprefix("turn_") or str(turns[-1].number)
    for turn in turns:
        if str(turn.number) == wanted:
            return turn
    raise UnknownSessionError(name, str(root), f"{session}/{turns[-1].number}")


def claim_turn(
    session: Path,
    owner_of: Callable[[Path], str] = lambda session: "another process",
    task: Path | None = None,
    after: int | None = None,
) -> tuple[TurnPaths, FileLock]:
    """Allot the next turn of a session and hold it.

    Args:
        session: The session's directory.
        owner_of: Says who runs a session that is live, for the message.
        task: Directory of the task that it goes on with; by default it gets a new one.
        after: Number of the turn that was the last when the session was read, 0 for none: what
            goes on from there must be the next. By default it may come behind any.

    Returns:
        The turn's paths and its lock, held until released.

    Raises:
        SessionBusyError: A turn of the session is live.
        SessionChangedError: There is another turn behind ``after``.
        UnknownSessionError: The session was removed or renamed while this waited.
        StorageError: The directory can't be written.
    """
    try:
        with FileLock(session / ALLOT_LOCK, timeout=_ALLOT_TIMEOUT_S):
            if not os.path.exists(session / ALLOT_LOCK):
                raise UnknownSessionError(session.name, str(session.parent))
            turns = turns_of(session)
            last = turns[-1].number if turns else 0
            if turns and turns[-1].is_live():
                raise SessionBusyError(session.name, owner_of(session))
            if after is not None and last != after:
                raise SessionChangedError(session.name, last)
            paths = TurnPaths(session.absolute() / f"turn_{last + 1}")
            paths.path.mkdir(parents=True)
            paths = replace(paths, task=_working_in(paths, task))
            lock = paths.lock()
            lock.acquire(timeout=_ALLOT_TIMEOUT_S)  # a moment longer only if somebody looks
            return paths, lock
    except Timeout:
        raise SessionBusyError(session.name, "another process is starting a turn") from None
    except OSError as exc:
        raise StorageError(str(session), exc.strerror or str(exc)) from None


@contextmanager
def resting(session: Path) -> Iterator[None]:
    """Let no turn of a session begin within the block.

    Args:
        session: The session's directory.

    Raises:
        SessionBusyError: A turn of it is live, or begins.
        OSError: The disk refused.
    """
    try:
        with FileLock(session / ALLOT_LOCK, timeout=_REST_TIMEOUT_S):
            turns = turns_of(session)
            if turns and turns[-1].is_live():
                raise SessionBusyError(session.name, f"turn {turns[-1].number} is live")
            yield
    except Timeout:
        raise SessionBusyError(session.name, "a turn begins") from None


def _working_in(paths: TurnPaths, task: Path | None) -> Path | None:
    """Make where a turn works: the directory of its task, or None when that is the turn's own."""
    directory = task or paths.own_task
    try:
        if task is None:
            directory.mkdir(exist_ok=True)
            (directory / "workspaces").mkdir()
        paths.workspaces.symlink_to(f"../{directory.name}/workspaces", True)
    except (OSError, NotImplementedError):
        # A filesystem without links; or the directory is left of a turn that somebody removed.
        paths.workspaces.mkdir()
        return None
    return directory


def give_back(paths: TurnPaths) -> None:
    """Remove a turn that was claimed and can't begin."""
    shutil.rmtree(paths.path, ignore_errors=True)
    if paths.task == paths.own_task:
        shutil.rmtree(paths.own_task, ignore_errors=True)


def last_use(turn: TurnPaths) -> float:
    """Return when a turn was last written to, in seconds since 1970; 0 when nobody knows."""
    # The journal first: the other files may have been mended since, by merely looking.
    for name in ("events.jsonl", "metadata.json", ""):
        with suppress(OSError):
            return os.stat(os.path.join(turn.path, name)).st_mtime
    return 0.0


def find_task(session: Path, turns: Iterable[int]) -> Path | None:
    """Find the directory that a task works in.

    Args:
        session: The session's directory.
        turns: Numbers of its turns that resumed one another.

    Returns:
        The directory; None when its turns work in their own.
    """
    numbers = sorted(turns, reverse=True)
    tasks = [TurnPaths(session.absolute() / f"turn_{number}").own_task for number in numbers]
    return next(filter(is_real, tasks), None)


def go_on_in(task: Path, last: TurnPaths) -> tuple[str, ...]:
    """Put what a task's last turn has left where the task works.

    Args:
        task: The task's directory.
        last: The turn; what it has left stays as it is.

    Returns:
        What is left out, in words.

    Raises:
        OSError: The disk refused; the turn has lost nothing.
    """
    settle(last, task)
    here, copy = task / "workspaces", task / ".workspaces.tmp"
    _remove(copy)
    try:
        left_out = copy_workspaces(last.workspaces, copy)
        copy.mkdir(exist_ok=True)
        _remove(here)
        copy.rename(here)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    return left_out


def settle(paths: TurnPaths, task: Path) -> None:
    """Let a turn that is over hold what its task has worked on; once it does, do nothing.

    Args:
        paths: The turn.
        task: The task's directory.

    Raises:
        OSError: The disk refused; the turn still leads to what its task holds.
    """
    here, there = task / "workspaces", paths.workspaces
    if is_real(there) or not is_real(here):
        return
    # No directory takes the place of a link in one step: who dies here leaves none, for the next.
    there.unlink(missing_ok=True)
    try:
        here.rename(there)
    except OSError:
        there.symlink_to(f"../{task.name}/workspaces", target_is_directory=True)
        raise
    here.symlink_to(f"../{paths.path.name}/workspaces", target_is_directory=True)


def settle_dead(paths: TurnPaths) -> None:
    """Settle a turn whose process died; one that another goes on with by now is left alone."""
    session = paths.path.parent
    # Each task begins with a turn, and only the last turn is gone on with.
    task = find_task(session, range(1, paths.number + 1))
    if task is None or is_real(paths.workspaces) or not is_real(task / "workspaces"):
        return
    with (
        suppress(OSError, Timeout, SessionUnreadableError),
        FileLock(session / ALLOT_LOCK, timeout=0),
    ):
        if turns_of(session)[-1:] == [paths] and not paths.is_live():
            settle(paths, task)


def is_real(path: Path) -> bool:
    """Whether a path is a directory itself, and no link to one."""
    # A link is somebody's, perhaps, who wants to have files read or written elsewhere.
    return os.path.isdir(path) and not os.path.islink(path)


def _remove(path: Path) -> None:
    if is_real(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
