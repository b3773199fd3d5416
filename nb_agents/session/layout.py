"""The directories of sessions, turns and tasks, and the locks that give a turn to one process.

    <root>/session_20261120_120000/
      SESSION_SUMMARY.txt
      task_1/                the agents' working directories in all turns of the task
        workspaces/<agent>/   tools/<agent>/
      turn_1/
        metadata.json  events.jsonl  answer.txt  partial_answers.json
        workspaces/<agent>/   workspace -> workspaces/<winner>   owner.lock   stop.json
        commands/   mark.json

Workspace paths must stay valid after a stop: the output of ``pwd`` may be a step's result, messages
mention files, and Python environments and builds contain paths. Therefore agents work in
``task_N/workspaces``, where N is the first turn of the task, and never in a turn's directory.

    while turn 2 resumes the task of turn 1           afterwards
      task_1/workspaces/<agent>/                        task_1/workspaces -> ../turn_2/workspaces
      turn_2/workspaces -> ../task_1/workspaces         turn_2/workspaces/<agent>/
      turn_1/workspaces/<agent>/                        turn_1/workspaces/<agent>/

A finished turn contains its workspaces, as in MassGen, and the task's directory links to them, so
the agents' paths stay valid. A resume copies them back to the task's directory, so that running
agents can't change the files of an earlier turn. Where links are not supported, agents work in the
turn's directory.

Two alternatives don't work. Stored paths can't be rewritten, because files contain them as well and
providers sign the models' messages. A link to the turn's directory does not help, because
``getcwd`` resolves it.

Source: MassGen's session layout. MassGen can load the sessions of nb_agents.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from filelock import Timeout

from nb_agents.config.spec import safe_name
from nb_agents.disk.lock import FileLock, is_held
from nb_agents.disk.private import make_folder, private_lock, write_private
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
CLAIM_LOCK = ".allot.lock"
"""Lock file in a session's directory, held while a turn is claimed."""

TICKETS = ".tickets"
"""Directory in a session root with a file for each run that is waiting for a cluster."""

BUDGETS = ".budgets"
"""Directory in a session root with what tasks that have a budget have used of it."""

WORKTREES = "worktrees"
"""Directory in an agent's workspace with copies of user files."""

RECIPES = "recipes"
"""Directory in a session with the sessions of the recipes that its agents ran."""

PROGRAMS = "programs"
"""Directory in a session with the home directories of external agents, by agent."""

SNAPSHOTS = "snapshots"
"""Directory for the contents of workspaces and user files, in a session's directory."""

COPIES_FOLDER = PurePosixPath(SNAPSHOTS, "held")
"""Directory in a session for copies of user files while a turn runs."""

LISTED = 100
"""Maximum length of a list of sessions. Reading ten thousand would take half a minute."""

_TURN = re.compile(r"turn_([1-9][0-9]*)")
_ALLOT_TIMEOUT_S = 10.0
_REST_TIMEOUT_S = 1.0
"""Seconds to wait for a reader that repairs a turn's files.

A starting turn may hold the lock for longer.
"""


@dataclass(frozen=True)
class TurnPaths:
    """The paths of a turn's files.

    Attributes:
        path: The turn's directory, absolute.
        task: The task's directory while the turn runs, or None if agents work in the turn's
            directory.
    """

    path: Path
    task: Path | None = field(default=None, compare=False)

    @property
    def number(self) -> int:
        """The turn's number, starting at 1."""
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
        """The final answer, or the best partial answer."""
        return self.path / "answer.txt"

    @property
    def partial_answers(self) -> Path:
        """Each agent's partial result, as JSON."""
        return self.path / "partial_answers.json"

    @property
    def mark(self) -> Path:
        """File with a MAC for each trusted mark of the turn; see `nb_agents.session.ownership`."""
        return self.path / "mark.json"

    @property
    def workspaces(self) -> Path:
        """Parent directory of the agents' workspaces. Use it only for reading. May be a link."""
        return self.path / "workspaces"

    @property
    def own_task(self) -> Path:
        """Directory of the task that starts with this turn.

        Missing if the turn resumes another turn.
        """
        return self.path.with_name(f"task_{self.number}")

    @property
    def live_workspaces(self) -> Path:
        """Parent directory of the agents' workspaces, under the path that running agents use."""
        return (self.task or self.path) / "workspaces"

    @property
    def workspace(self) -> Path:
        """The winner's workspace, once there is a winner."""
        return self.path / "workspace"

    @property
    def tools(self) -> Path:
        """Directories, by agent, with tool output that is too long for a model.

        Agents see this path.
        """
        return (self.task or self.path) / "tools"

    @property
    def stop(self) -> Path:
        """The status set through a `SessionStore` (cleared or cancelled), as JSON."""
        return self.path / "stop.json"

    @cached_property  # read several times a second
    def commands(self) -> Path:
        """Directory with a file for each pending command of other processes."""
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
        return private_lock(self.path / "owner.lock")

    @property
    def has_begun(self) -> bool:
        """Whether the turn has any content. Its process may have died before writing any."""
        files = (self.journal, self.metadata, self.answer, self.partial_answers)
        return any(os.path.isfile(path) and os.path.getsize(path) for path in files)

    def is_live(self) -> bool:
        """Return whether this or another process runs the turn."""
        return is_held(self.lock())


def session_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory of all sessions, as an absolute path that need not exist.

    Args:
        root: The user's choice. Defaults to NB_AGENTS_SESSIONS or, if unset,
            ``.nb_agents/sessions`` in the working directory. In a notebook, the working directory
            of the first call is used, so that a cell with ``os.chdir`` does not hide the notebook's
            sessions.
    """
    if root:
        return Path(root).expanduser().absolute()
    chosen = os.environ.get(SESSIONS_VARIABLE) or Path(DEFAULT_FOLDER, "sessions")
    return _home() / Path(chosen).expanduser()


_notebook_home: list[Path] = []


def _home() -> Path:
    """Return the directory to which relative session roots are relative."""
    if _notebook_home:
        return _notebook_home[0]
    directory = Path.cwd()
    if hasattr(sys.modules.get("__main__"), "get_ipython"):  # a kernel, or IPython in a terminal
        _notebook_home.append(directory)
    return directory


def new_session(root: Path, now: datetime) -> Path:
    """Create a session directory with a unique name, even if two sessions start in the same second.

    Args:
        root: The session root, created if missing.
        now: The local time, for the name.

    Raises:
        StorageError: The root can't be written.
    """
    name = f"session_{now:%Y%m%d_%H%M%S}"
    with as_storage_error(root):
        make_root(root)
        for number in range(1, 10_000):
            path = root / (name if number == 1 else f"{name}_{number}")
            with suppress(FileExistsError):
                return make_folder(path, exist_ok=False)
    raise StorageError(str(root), "ten thousand sessions were started in one second")


def named_session(root: Path, name: str) -> Path:
    """Return the directory of a session, and create it if it does not exist.

    Args:
        root: The session root.
        name: The session's id.

    Raises:
        UserError: The name is not a valid directory name.
        StorageError: The root can't be written.
    """
    try:
        path = root / safe_name(name)
    except ValueError as exc:
        raise UserError(f"Session {exc}.") from None
    with as_storage_error(root):
        make_root(root)
        make_folder(path)
    return path


def make_root(root: Path) -> None:
    """Create a session root, and a ``.gitignore`` in ``.nb_agents`` that hides it from git."""
    make_folder(root)
    ignored = root.parent / ".gitignore"
    if root.parent.name == DEFAULT_FOLDER and not ignored.exists():
        write_private(ignored, "*\n")


class SessionList(NamedTuple):
    """The sessions in a root.

    Attributes:
        by_use: The directories of sessions with at least one turn, most recently used first.
        unreadable: An error for each session that can't be read.
    """

    by_use: list[Path]
    unreadable: list[SessionUnreadableError]


def sessions_in(root: Path) -> SessionList:
    """Return the sessions in a root. Unreadable sessions are listed separately."""
    used: list[tuple[float, str, Path]] = []
    unreadable: list[SessionUnreadableError] = []
    names: list[str] = []
    try:
        # scandir returns the types. Calling stat for ten thousand entries would double the time.
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
    """Return a session's turns in order. Empty if the session does not exist.

    Raises:
        SessionUnreadableError: The session's directory can't be read.
    """
    try:
        with os.scandir(session) as entries:
            named = [e.name for e in entries if _TURN.fullmatch(e.name) and e.is_dir()]
        session_path = session.absolute()
        return sorted(
            (TurnPaths(session_path / name) for name in named), key=lambda turn: turn.number
        )
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a NUL or a lone surrogate
        return []
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:
            return []
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
        owner_of: Returns a description of the process that runs a live session, for the error
            message.
        task: The directory of the task that the turn resumes. By default, a new one is created.
        after: The number of the last turn when the session was loaded, or 0 if it had none. If the
            session now has a different last turn, the claim fails. By default, this is not checked.

    Returns:
        The turn's paths and its acquired lock, which the caller releases.

    Raises:
        SessionBusyError: A turn of the session is live.
        SessionChangedError: The last turn is not ``after``.
        UnknownSessionError: The session was removed or renamed in the meantime.
        StorageError: The directory can't be written.
    """
    try:
        with private_lock(session / CLAIM_LOCK, _ALLOT_TIMEOUT_S):
            if not os.path.exists(session / CLAIM_LOCK):
                raise UnknownSessionError(session.name, str(session.parent))
            turns = turns_of(session)
            last = turns[-1].number if turns else 0
            if turns and turns[-1].is_live():
                raise SessionBusyError(session.name, owner_of(session))
            if after is not None and last != after:
                raise SessionChangedError(session.name, last)
            paths = TurnPaths(session.absolute() / f"turn_{last + 1}")
            make_folder(paths.path, exist_ok=False)
            paths = replace(paths, task=_create_task_folder(paths, task))
            lock = paths.lock()
            lock.acquire(timeout=_ALLOT_TIMEOUT_S)  # waits if another process is checking it
            return paths, lock
    except Timeout:
        raise SessionBusyError(session.name, "another process is starting a turn") from None
    except OSError as exc:
        raise StorageError(str(session), exc.strerror or str(exc)) from None


@contextmanager
def prevent_turns(session: Path) -> Iterator[None]:
    """Prevent turns of a session from starting within the block.

    Raises:
        SessionBusyError: A turn of the session is live or starting.
        OSError: The lock file can't be created.
    """
    try:
        with private_lock(session / CLAIM_LOCK, _REST_TIMEOUT_S):
            turns = turns_of(session)
            if turns and turns[-1].is_live():
                raise SessionBusyError(session.name, f"turn {turns[-1].number} is live")
            yield
    except Timeout:
        raise SessionBusyError(session.name, "a turn is starting") from None


def _create_task_folder(paths: TurnPaths, task: Path | None) -> Path | None:
    """Create and return the task's directory, or None if agents work in the turn's directory."""
    directory = task or paths.own_task
    try:
        if task is None:
            make_folder(directory)
            make_folder(directory / "workspaces", exist_ok=False)
        paths.workspaces.symlink_to(f"../{directory.name}/workspaces", True)
    except OSError:
        # Links are not supported, or the task's directory remains from a turn that was removed.
        make_folder(paths.workspaces, exist_ok=False)
        return None
    return directory


def discard_turn(paths: TurnPaths) -> None:
    """Remove the directories of a turn that was claimed but can't start."""
    shutil.rmtree(paths.path, ignore_errors=True)
    if paths.task == paths.own_task:
        shutil.rmtree(paths.own_task, ignore_errors=True)


def last_use(turn: TurnPaths) -> float:
    """Return when a turn was last written to, in Unix seconds, or 0 if unknown."""
    # The journal is preferred, because readers may have repaired the other files later.
    for name in ("events.jsonl", "metadata.json", ""):
        with suppress(OSError):
            return os.stat(os.path.join(turn.path, name)).st_mtime
    return 0.0


def find_task(session: Path, turns: Iterable[int]) -> Path | None:
    """Return the directory of a task, or None if agents work in the turns' directories.

    Args:
        session: The session's directory.
        turns: The numbers of the task's turns.
    """
    numbers = sorted(turns, reverse=True)
    tasks = [TurnPaths(session.absolute() / f"turn_{number}").own_task for number in numbers]
    return next(filter(is_real_directory, tasks), None)


def restore_workspaces(
    task: Path, last: TurnPaths, fill: Callable[[Path], tuple[str, ...]]
) -> tuple[str, ...]:
    """Fill a task's directory with the workspaces that a new turn starts from.

    Args:
        task: The task's directory.
        last: The task's turn that is resumed or rewound. Its files stay unchanged.
        fill: Writes the workspaces into a directory, and returns descriptions of skipped entries.

    Returns:
        Descriptions of the skipped entries.

    Raises:
        OSError: The copy failed. The old turn's workspaces are intact.
    """
    for turn in turns_of(last.path.parent):  # before a rewind, a later turn may have died here
        if _is_linked_to(turn, task) and not turn.is_live():
            store_workspaces(turn, task)
    target, copy = task / "workspaces", task / ".workspaces.tmp"
    _remove(copy)
    try:
        left_out = fill(copy)
        make_folder(copy)
        _remove(target)
        copy.rename(target)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    return left_out


def _is_linked_to(turn: TurnPaths, task: Path) -> bool:
    try:
        return os.readlink(turn.workspaces) == f"../{task.name}/workspaces"
    except OSError:  # a directory of the turn, not a link
        return False


def store_workspaces(paths: TurnPaths, task: Path) -> None:
    """Move a task's workspaces into a finished turn. Does nothing if they are already there.

    Args:
        paths: The turn's paths.
        task: The task's directory.

    Raises:
        OSError: The move failed. The turn still links to the task's workspaces.
    """
    target, source = task / "workspaces", paths.workspaces
    if is_real_directory(source) or not is_real_directory(target):
        return
    # A directory can't replace a link atomically. After a crash here, the next call completes it.
    source.unlink(missing_ok=True)
    try:
        target.rename(source)
    except OSError:
        source.symlink_to(f"../{task.name}/workspaces", target_is_directory=True)
        raise
    target.symlink_to(f"../{paths.path.name}/workspaces", target_is_directory=True)


def store_workspaces_if_dead(paths: TurnPaths) -> None:
    """Move the task's workspaces to a turn if its process died and no later turn uses them."""
    session = paths.path.parent
    # A task has the number of its first turn, and only the last turn can be resumed.
    task = find_task(session, range(1, paths.number + 1))
    if (
        task is None
        or is_real_directory(paths.workspaces)
        or not is_real_directory(task / "workspaces")
    ):
        return
    with (
        suppress(OSError, Timeout, SessionUnreadableError),
        private_lock(session / CLAIM_LOCK, 0),
    ):
        if turns_of(session)[-1:] == [paths] and not paths.is_live():
            store_workspaces(paths, task)


def is_real_directory(path: Path) -> bool:
    """Return whether a path is a directory and not a link to one."""
    # An attacker may have created a link to make nb_agents read or write files elsewhere.
    return os.path.isdir(path) and not os.path.islink(path)


def _remove(path: Path) -> None:
    if is_real_directory(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
