"""The directories of sessions, turns and tasks, and claiming a turn for one process.

    <root>/session_20261120_120000/
      SESSION_SUMMARY.txt
      task_1/                where its agents work, in all turns of the task
        workspaces/<agent>/   tools/<agent>/
      turn_1/
        metadata.json  events.jsonl  answer.txt  partial_answers.json
        workspaces/<agent>/   workspace -> workspaces/<winner>   owner.lock   stop.json
        commands/   mark.json

Workspace paths must stay valid after a stop: a step keeps what ``pwd`` printed, a message names a
file, a Python environment or a build in the workspace contains its own path. Agents therefore work
in ``task_N/workspaces``, N being the first turn of the task, and never in a turn's directory.

    while turn 2 resumes the task of turn 1           afterwards
      task_1/workspaces/<agent>/                        task_1/workspaces -> ../turn_2/workspaces
      turn_2/workspaces -> ../task_1/workspaces         turn_2/workspaces/<agent>/
      turn_1/workspaces/<agent>/                        turn_1/workspaces/<agent>/

A finished turn contains its workspaces, as MassGen's does, and the paths that its agents know lead
there. A resume puts a copy of them back in the task's directory, so that running agents can't
change what an earlier turn saved. Where links are not supported, a turn works in its own directory.

Rewriting the stored paths is no alternative: files contain them as well, and models sign their
messages. Nor is a link to the turn's directory, as ``getcwd`` resolves it.

Source: MassGen's session layout, so that its reader loads ours.
"""

from __future__ import annotations

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

from nb_agents.config.spec import safe_name
from nb_agents.disk.lock import is_held
from nb_agents.errors import (
    SessionBusyError,
    SessionChangedError,
    SessionUnreadableError,
    StorageError,
    UnknownSessionError,
    UserError,
    as_storage_error,
)

SESSIONS_VARIABLE = "NB_AGENTS_SESSIONS"
DEFAULT_FOLDER = ".nb_agents"
ALLOT_LOCK = ".allot.lock"
"""Lock file in a session's directory, held while a turn is claimed."""

TICKETS = ".tickets"
"""Where in a session root a cluster's runs have a file each until a worker begins them."""

SWEEP_FILE = "sweep.json"
"""A sweep's description; its directory has the sessions of its rows."""

WORKTREES = "worktrees"
"""Directory in an agent's workspace with copies of the user's files."""

LISTED = 100
"""Sessions that a list shows: reading all of ten thousand takes half a minute."""

_TURN = re.compile(r"turn_([1-9][0-9]*)")
_ALLOT_TIMEOUT_S = 10.0
_REST_TIMEOUT_S = 1.0
"""How long to wait for a reader that repairs a turn's files; starting a turn may take longer."""


@dataclass(frozen=True)
class TurnPaths:
    """The paths of a turn's files.

    Attributes:
        path: The turn's directory, absolute.
        task: The task's directory while the turn runs; None when it works in its own directory.
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
        """The events, one JSON line each: the authoritative record."""
        return self.path / "events.jsonl"

    @property
    def answer(self) -> Path:
        """The final answer, or the best partial one."""
        return self.path / "answer.txt"

    @property
    def partial_answers(self) -> Path:
        """Each agent's partial result, as JSON."""
        return self.path / "partial_answers.json"

    @property
    def mark(self) -> Path:
        """Under which marks the turn is trusted as it is, as JSON."""
        return self.path / "mark.json"

    @property
    def workspaces(self) -> Path:
        """Parent of the agents' workspaces, for reading; it may be a link."""
        return self.path / "workspaces"

    @property
    def own_task(self) -> Path:
        """Directory of the task that starts with this turn; missing when it resumes another."""
        return self.path.with_name(f"task_{self.number}")

    @property
    def live_workspaces(self) -> Path:
        """Parent of the agents' workspaces by the path that running agents use."""
        return (self.task or self.path) / "workspaces"

    @property
    def workspace(self) -> Path:
        """The winner's workspace, once there is a winner."""
        return self.path / "workspace"

    @property
    def tools(self) -> Path:
        """Tool outputs too long for a model, a directory per agent, by the path that agents use."""
        return (self.task or self.path) / "tools"

    @property
    def stop(self) -> Path:
        """How a `SessionStore` marked the turn: cleared or cancelled, as JSON."""
        return self.path / "stop.json"

    @cached_property  # read several times a second
    def commands(self) -> Path:
        """Commands sent by other processes, a file each until it is taken."""
        return self.path / "commands"

    @property
    def summary(self) -> Path:
        """The session's summary, as text for the user."""
        return self.path.parent / "SESSION_SUMMARY.txt"

    @property
    def winners(self) -> Path:
        """The session's winners, as JSON in MassGen's format."""
        return self.path.parent / "winning_agents_history.json"

    def lock(self) -> FileLock:
        """Return the lock that a process holds while it runs the turn."""
        return FileLock(self.path / "owner.lock", thread_local=False)

    @property
    def has_begun(self) -> bool:
        """Whether anything was written of it: a process that prepares a turn may die before."""
        files = (self.journal, self.metadata, self.answer, self.partial_answers)
        return any(os.path.isfile(path) and os.path.getsize(path) for path in files)

    def is_live(self) -> bool:
        """Return whether this process or another runs the turn."""
        return is_held(self.lock())


def session_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory of all sessions, as an absolute path that need not exist.

    Args:
        root: The user's choice; by default NB_AGENTS_SESSIONS, else ``.nb_agents/sessions`` in the
            working directory.
    """
    chosen = root or os.environ.get(SESSIONS_VARIABLE) or Path(DEFAULT_FOLDER, "sessions")
    return Path(chosen).expanduser().absolute()


def new_session(root: Path, now: datetime) -> Path:
    """Create a session directory, unique even when two sessions start in the same second.

    Args:
        root: The session root, created if missing.
        now: Local time, for the name.

    Raises:
        StorageError: The root can't be written.
    """
    name = f"session_{now:%Y%m%d_%H%M%S}"
    with as_storage_error(root):
        make_root(root)
        for number in range(1, 10_000):
            path = root / (name if number == 1 else f"{name}_{number}")
            with suppress(FileExistsError):
                path.mkdir()
                return path
    raise StorageError(str(root), "ten thousand sessions began in one second")


def named_session(root: Path, name: str) -> Path:
    """Return the directory of a session, created if it is new.

    Args:
        root: The session root.
        name: The session's id.

    Raises:
        UserError: The name is not valid for a directory.
        StorageError: The root can't be written.
    """
    try:
        path = root / safe_name(name)
    except ValueError as exc:
        raise UserError(f"Session {exc}.") from None
    with as_storage_error(root):
        make_root(root)
        path.mkdir(exist_ok=True)
    return path


def make_root(root: Path) -> None:
    """Create a session root; ``.nb_agents`` gets a ``.gitignore`` that hides it from git."""
    root.mkdir(parents=True, exist_ok=True)
    ignored = root.parent / ".gitignore"
    if root.parent.name == DEFAULT_FOLDER and not ignored.exists():
        ignored.write_text("*\n", encoding="utf-8")


class SessionList(NamedTuple):
    """The sessions in a root.

    Attributes:
        by_use: Directories of the sessions that have a turn, most recently used first.
        unreadable: An error for each session that can't be read.
    """

    by_use: list[Path]
    unreadable: list[SessionUnreadableError]


def sessions_in(root: Path) -> SessionList:
    """Return the sessions in a root; an unreadable one does not hide the others."""
    used: list[tuple[float, str, Path]] = []
    unreadable: list[SessionUnreadableError] = []
    names: list[str] = []
    try:
        # scandir's entries know their type: a stat of each of ten thousand would double the time.
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
    return SessionList([path for _, _, path in sorted(used, reverse=True)], unreadable)


def turns_of(session: Path) -> list[TurnPaths]:
    """Return a session's turns in order.

    Raises:
        SessionUnreadableError: The session's directory can't be read.
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


def claim_turn(
    session: Path,
    owner_of: Callable[[Path], str] = lambda session: "another process",
    task: Path | None = None,
    after: int | None = None,
) -> tuple[TurnPaths, FileLock]:
    """Create the next turn of a session and acquire its lock.

    Args:
        session: The session's directory.
        owner_of: Returns who runs a live session, for the error message.
        task: Directory of the task that the turn resumes; by default a new one is created.
        after: Number of the last turn when the session was read, 0 for none: if there is a later
            one by now, the claim fails. By default it is not checked.

    Returns:
        The turn's paths and its lock, held until released.

    Raises:
        SessionBusyError: A turn of the session is live.
        SessionChangedError: There is a turn later than ``after``.
        UnknownSessionError: The session was removed or renamed in the meantime.
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
            lock.acquire(timeout=_ALLOT_TIMEOUT_S)  # waits only while another process checks it
            return paths, lock
    except Timeout:
        raise SessionBusyError(session.name, "another process is starting a turn") from None
    except OSError as exc:
        raise StorageError(str(session), exc.strerror or str(exc)) from None


@contextmanager
def keep_idle(session: Path) -> Iterator[None]:
    """Keep turns of a session from starting within the block.

    Raises:
        SessionBusyError: A turn of the session is live or starting.
        OSError: The lock file can't be created.
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
    """Create and return the task directory that a turn works in; None for the turn's own."""
    directory = task or paths.own_task
    try:
        if task is None:
            directory.mkdir(exist_ok=True)
            (directory / "workspaces").mkdir()
        paths.workspaces.symlink_to(f"../{directory.name}/workspaces", True)
    except OSError:
        # Links are not supported, or the task directory is left from a turn that was removed.
        paths.workspaces.mkdir()
        return None
    return directory


def discard_turn(paths: TurnPaths) -> None:
    """Remove a turn that was claimed but can't start."""
    shutil.rmtree(paths.path, ignore_errors=True)
    if paths.task == paths.own_task:
        shutil.rmtree(paths.own_task, ignore_errors=True)


def last_use(turn: TurnPaths) -> float:
    """Return when a turn was last written to, in Unix seconds; 0 when unknown."""
    # The journal first: readers may have repaired the other files since.
    for name in ("events.jsonl", "metadata.json", ""):
        with suppress(OSError):
            return os.stat(os.path.join(turn.path, name)).st_mtime
    return 0.0


def find_task(session: Path, turns: Iterable[int]) -> Path | None:
    """Return the directory of a task; None when its turns work in their own directories.

    Args:
        session: The session's directory.
        turns: Numbers of the task's turns, which resumed one another.
    """
    numbers = sorted(turns, reverse=True)
    tasks = [TurnPaths(session.absolute() / f"turn_{number}").own_task for number in numbers]
    return next(filter(is_real_directory, tasks), None)


def restore_workspaces(
    task: Path, last: TurnPaths, fill: Callable[[Path], tuple[str, ...]]
) -> tuple[str, ...]:
    """Write the workspaces that a turn goes on with to its task's directory.

    Args:
        task: The task's directory.
        last: The turn of the task that it goes on from; its own files stay unchanged.
        fill: Writes the workspaces into a directory, and returns what it could not copy.

    Returns:
        Descriptions of the entries that were not copied.

    Raises:
        OSError: The copy failed; the turn has lost nothing.
    """
    for turn in turns_of(last.path.parent):  # of a rewind, a later one may have died there
        if _works_in(turn, task) and not turn.is_live():
            store_workspaces(turn, task)
    here, copy = task / "workspaces", task / ".workspaces.tmp"
    _remove(copy)
    try:
        left_out = fill(copy)
        copy.mkdir(exist_ok=True)
        _remove(here)
        copy.rename(here)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    return left_out


def _works_in(turn: TurnPaths, task: Path) -> bool:
    try:
        return os.readlink(turn.workspaces) == f"../{task.name}/workspaces"
    except OSError:  # it has its own
        return False


def store_workspaces(paths: TurnPaths, task: Path) -> None:
    """Move a task's workspaces to its finished turn, unless they are there already.

    Args:
        paths: The turn.
        task: The task's directory.

    Raises:
        OSError: The move failed; the turn still links to the task's workspaces.
    """
    here, there = task / "workspaces", paths.workspaces
    if is_real_directory(there) or not is_real_directory(here):
        return
    # A directory can't replace a link atomically: after a crash here, the next call completes it.
    there.unlink(missing_ok=True)
    try:
        here.rename(there)
    except OSError:
        there.symlink_to(f"../{task.name}/workspaces", target_is_directory=True)
        raise
    here.symlink_to(f"../{paths.path.name}/workspaces", target_is_directory=True)


def store_workspaces_if_dead(paths: TurnPaths) -> None:
    """Move the workspaces to a turn whose process died, unless a later turn works in them."""
    session = paths.path.parent
    # A task's number is that of its first turn, and only the last turn can be resumed.
    task = find_task(session, range(1, paths.number + 1))
    if (
        task is None
        or is_real_directory(paths.workspaces)
        or not is_real_directory(task / "workspaces")
    ):
        return
    with (
        suppress(OSError, Timeout, SessionUnreadableError),
        FileLock(session / ALLOT_LOCK, timeout=0),
    ):
        if turns_of(session)[-1:] == [paths] and not paths.is_live():
            store_workspaces(paths, task)


def is_real_directory(path: Path) -> bool:
    """Return whether a path is a directory and not a link to one."""
    # A link may have been placed to make nb_agents read or write files elsewhere.
    return os.path.isdir(path) and not os.path.islink(path)


def _remove(path: Path) -> None:
    if is_real_directory(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
