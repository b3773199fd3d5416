"""Where the agents of a task work: at one path through all of its turns.

A path of the workspace outlives a stop: a step keeps what ``pwd`` printed, a message names a file,
a Python environment or a build in the workspace holds its own place. So what runs works in
``task_N/workspaces``, N being the turn that the task began with, and never in a turn's directory.

    while turn 2 goes on with the task of turn 1      once it is over
      task_1/workspaces/<agent>/                        task_1/workspaces -> ../turn_2/workspaces
      turn_2/workspaces -> ../task_1/workspaces         turn_2/workspaces/<agent>/
      turn_1/workspaces/<agent>/                        turn_1/workspaces/<agent>/

A turn that is over holds what it left, as MassGen's does, and the paths that its agents were told
lead there. A resume puts a copy of that where it was: what an earlier turn kept is out of reach of
what runs now.

Replacing the paths in what is stored would not do: files hold them, too, and models sign their
messages. A link that leads to the turn's directory would not either: ``getcwd`` looks through it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from nb_agents.errors import SessionUnreadableError
from nb_agents.session.copying import copy_workspaces
from nb_agents.session.layout import ALLOT_LOCK, TurnPaths, turns_of

__all__ = ["find_task", "go_on_in", "settle", "settle_dead"]


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
    return next(filter(_is_real, tasks), None)


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
    if _is_real(there) or not _is_real(here):
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
    if task is None or _is_real(paths.workspaces) or not _is_real(task / "workspaces"):
        return
    with (
        suppress(OSError, Timeout, SessionUnreadableError),
        FileLock(session / ALLOT_LOCK, timeout=0),
    ):
        if turns_of(session)[-1:] == [paths] and not paths.is_live():
            settle(paths, task)


def _is_real(path: Path) -> bool:
    # A link is somebody's, perhaps, who wants to have files read or written elsewhere.
    return os.path.isdir(path) and not os.path.islink(path)


def _remove(path: Path) -> None:
    if _is_real(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
